#!/usr/bin/env python3
"""Replays the schedules of Weft's collectives in SimGrid, on a fat tree and a dragonfly, beside the model of bench/predict.py.

usage: simulate.py BUILD_FOLDER [--ranks 1024] [--rate 100] [--topologies fat_tree,dragonfly] [--out FOLDER]
                   [--operations all_reduce:halving_doubling:4194304,...]
Needs smpirun (Debian: libsimgrid-dev) and BUILD_FOLDER/bench/weft-schedules. Prints a table and writes simgrid.csv to the
folder (default: BUILD_FOLDER/simulate). A replay of 20,000 messages takes seconds; one of a million takes hours.
"""
import argparse
import csv
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import network

OPERATIONS = ("all_reduce:halving_doubling:65536", "all_reduce:halving_doubling:4194304", "all_reduce:halving_doubling:26214400",
              "all_reduce:doubling:1024", "all_reduce:doubling:65536", "all_gather:doubling:4096", "barrier:dissemination:0")
COLUMNS = ("topology", "rate", "ranks", "collective", "algorithm", "bytes", "simgrid_us", "model_us")


def smpirun():
    """Returns the path of SimGrid's launcher, or an empty text."""
    return shutil.which("smpirun") or ""


def replay_s(traces, topology, ranks, rate, folder):
    """Returns the simulated seconds until the last rank has its result."""
    platform, hosts = folder / "platform.xml", folder / "hosts"
    platform.write_text(network.platform(topology, ranks, rate))
    hosts.write_text("".join(f"host{rank}\n" for rank in range(ranks)))
    overhead = f"0:{network.MESSAGE_S}:0"
    command = [smpirun(), "-no-privatize", "-np", ranks, "-platform", platform, "-hostfile", hosts, "-replay", traces,
               "--cfg=smpi/host-speed:1Gf", "--cfg=network/model:CM02", "--cfg=network/crosstraffic:no",
               f"--cfg=smpi/ois:{overhead}", f"--cfg=smpi/os:{overhead}", f"--cfg=smpi/or:{overhead}"]
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    found = re.search(r"Simulation time (\S+)", result.stdout + result.stderr)
    if result.returncode != 0 or found is None:
        raise RuntimeError(f"smpirun failed with exit code {result.returncode}: {(result.stdout + result.stderr)[-1000:]}")
    return float(found.group(1))


def simulate(tool, operation, topologies, ranks, rate):
    """Returns a row of COLUMNS for each topology."""
    collective, algorithm, size = operation.split(":")
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace = subprocess.run([str(word) for word in (tool, "trace", collective, algorithm, "--ranks", ranks, "--bytes", size,
                                                       "--out", folder / "ranks")], capture_output=True, text=True)
        if trace.returncode != 0:
            raise RuntimeError(trace.stderr.strip())
        model = network.model_s(tool, collective, algorithm, ranks, [int(size)], [rate], walk="all")[(int(size), rate)]
        for topology in topologies:
            simulated = replay_s(folder / "ranks" / "traces", topology, ranks, rate, folder)
            rows.append((topology, rate, ranks, collective, algorithm, int(size), round(simulated * 1e6), round(model * 1e6)))
    return rows


def table(rows):
    """Returns the rows as Markdown."""
    lines = ["| topology | operation | bytes | SimGrid us | model us | model / SimGrid |", "|---|---|---|---|---|---|"]
    for topology, _, ranks, collective, algorithm, size, simulated, model in rows:
        ratio = f"{model / simulated:.2f}" if simulated else ""
        lines.append(f"| {topology} of {ranks} | {collective} {algorithm} | {size} | {simulated} | {model} | {ratio} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--ranks", type=int, default=1024, help="a number with a platform: " + ", ".join(map(str, network.FAT_TREE)))
    parser.add_argument("--rate", type=int, default=100, help="Gbit/s of a host's link")
    parser.add_argument("--topologies", default=",".join(network.TOPOLOGIES))
    parser.add_argument("--operations", default=",".join(OPERATIONS), help="COLLECTIVE:ALGORITHM:BYTES,...")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    topologies = options.topologies.split(",")
    for topology in topologies:
        if topology not in network.TOPOLOGIES:
            parser.error(f"--topologies: unknown {topology!r}: allowed are {', '.join(network.TOPOLOGIES)}")
    for operation in options.operations.split(","):
        if not re.fullmatch(r"\w+:\w+:\d+", operation):
            parser.error(f"--operations: {operation!r} is not COLLECTIVE:ALGORITHM:BYTES")
    if not smpirun():
        sys.exit("simulate.py: smpirun is missing (apt-get install libsimgrid-dev)")
    tool, out = options.build / "bench" / "weft-schedules", options.out or options.build / "simulate"
    rows = []
    try:
        for operation in options.operations.split(","):
            print(f"simulate.py: {operation}", file=sys.stderr)
            rows += simulate(tool, operation, topologies, options.ranks, options.rate)
    except (OSError, RuntimeError, ValueError) as error:
        sys.exit(f"simulate.py: {error}")
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "simgrid.csv", "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    print(table(rows), end="")


if __name__ == "__main__":
    main()
