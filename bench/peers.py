#!/usr/bin/env python3
"""Compares Weft with its peers by the same protocol, interleaved in one run, and with the targets of Weft's plan. `make
bench-peers` calls it.

Peers (bench/systems.py): Open MPI 4 of the system; Open MPI 5, MPICH, Intel MPI and oneCCL as packages of PyPI; each with
default and with tuned settings; PyTorch with Gloo. Peers that are unavailable or fail are left out, and peers.md gives the
reason. Before every timed call each rank rewrites its buffer, and all ranks meet in a barrier; a time is the slowest rank's.
Every round runs all systems one after the other, each with all its works. The medians of the rounds' medians are compared,
and ratios are the median of the rounds' ratios. A wrong result of any system ends the run with exit code 1.

Rows (--rows):
  all_reduce   of --sizes, two ranks, arena and private buffers, compared with all peers
  crowded      8 bytes to 4 KiB, four ranks on two cores, and eight, compared with all peers
  steps        ResNet-50's gradients, 10,000 tiny ones, and PowerSGD, compared with DistributedDataParallel
  thresholds   private buffers with the path that autotuning chose, and with each path alone
  ready        the cost of reporting a gradient ready, without a copy
  memory       a reducer's memory besides the gradients, in view mode
  limits       bytes that all cores move together, and a flag between two cores (bench/machine_limits.cpp): the all_reduce's bounds
  hosts        two hosts at 1 and 10 Gbit/s and without a limit, compared with Open MPI and Gloo over TCP and UCX's ping-pong,
               and four hosts (bench/hosts.py): needs root
  planner      steps between two hosts behind recorded backwards, planned by limits and by the model (bench/planner.py): needs
               root, and five minutes
  training     whole training steps of PyTorch with Weft's DistributedDataParallel and with PyTorch's, over Weft and over Gloo
               (bench/training.py)
  hosts_training  the same between two hosts at 1 and 10 Gbit/s, and four at 1, beside a step that only computes, and one beside
               plain sockets: needs root, and ten minutes a round

Writes peers.json, peers.md (tables with the machine's name, the spread of the rounds, the targets, omitted peers) and
pictures: bandwidth.svg, and for each kind of step one bar per system. bench/README.md lists the fields of peers.json.
"""
import argparse
import datetime
import json
import os
import sys
from pathlib import Path

import hosts
import own
import planner
import systems
import tables
import targets
import training
from comparison import CROWDED_SIZES, SIZES, Samples, Work, compare
from systems import ROOT, WrongResult, run, say

PEERS = [systems.OpenMpi4, systems.OpenMpi5, systems.Mpich, systems.IntelMpi, systems.OneCcl, systems.Torch]
ROWS = ["all_reduce", "crowded", "steps", "thresholds", "ready", "memory", "limits", "hosts", "planner", "training", "hosts_training"]
BESIDE_PEERS = {"all_reduce", "crowded", "steps"}


def parse_arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, nargs="?", default=ROOT / "build", help="where Weft is built (default build)")
    parser.add_argument("--ranks", type=int, default=2, help="ranks of all rows but crowded, hosts and planner (default 2)")
    parser.add_argument("--rounds", type=int, help="rounds of measurements (default 3)")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)),
                        help="sizes of all_reduce in bytes, separated by commas (default: %(default)s)")
    parser.add_argument("--rows", default=",".join(ROWS), help="rows to measure, separated by commas (default: all)")
    parser.add_argument("--systems", default=",".join(peer.name for peer in PEERS),
                        help="peers, separated by commas (default: all; '' is none)")
    parser.add_argument("--out", type=Path, help="the folder of the results (default BUILD/bench)")
    parser.add_argument("--quick", action="store_true",
                        help="try everything in some minutes: one round, small sizes, few iterations. The numbers are meaningless")
    parser.add_argument("--prepare", action="store_true", help="install and build the peers, and measure nothing")
    arguments = parser.parse_args(words)
    arguments.build = arguments.build.resolve()
    arguments.out = (arguments.out or arguments.build / "bench").resolve()
    arguments.rounds = arguments.rounds or (1 if arguments.quick else 3)
    arguments.sizes = [8, 65536] if arguments.quick else [int(size) for size in arguments.sizes.split(",")]
    arguments.iterations = ["--iterations", 3] if arguments.quick else []
    arguments.rows = chosen(parser, "rows", arguments.rows, ROWS)
    names = chosen(parser, "systems", arguments.systems, [peer.name for peer in PEERS])
    arguments.peers = [peer for peer in PEERS if peer.name in names]
    arguments.every_peer = [peer.name for peer in PEERS]
    arguments.memory = {}
    cores = sorted(os.sched_getaffinity(0))
    arguments.cores = cores[:arguments.ranks]
    arguments.works = list(works(arguments, cores))
    return arguments


def chosen(parser, what, text, known):
    names = text.split(",") if text else []
    unknown = set(names) - set(known)
    if unknown:
        parser.error(f"--{what}: unknown {', '.join(sorted(unknown))}, expected some of: {', '.join(known)}")
    return [name for name in known if name in names]


def works(arguments, cores):
    """Yields the works that all systems execute."""
    words = tuple(arguments.iterations)
    if "all_reduce" in arguments.rows:
        yield Work("all_reduce", arguments.ranks, tuple(arguments.sizes), tuple(arguments.cores), words)
    if "crowded" in arguments.rows:
        yield Work("crowded_all_reduce", 4, CROWDED_SIZES, tuple(cores[:2]), words or ("--iterations", 500), 0.5)
        yield Work("crowded_8_all_reduce", 8, (CROWDED_SIZES[0], CROWDED_SIZES[-1]), tuple(cores[:2]),
                   words or ("--iterations", 200), 0.25)


def parts(arguments, peers):
    """Yields the measurements of Weft alone, or of the machine. peers: the available ones."""
    kinds = {kind.name: kind for kind in (own.Thresholds, own.Ready, own.Memory, own.Limits)}
    for name in arguments.rows:
        if name in kinds:
            yield kinds[name](arguments)
        elif name == "hosts":
            yield hosts.Hosts(arguments, peers)
        elif name == "planner":
            yield planner.Planner(arguments)
        elif name == "training":
            yield training.Training(arguments)
        elif name == "hosts_training":
            yield training.TrainingBetweenHosts(arguments)


def prepare(arguments, weft, left_out):
    """Returns the systems that take part. Records the reasons of the others in left_out."""
    running = []
    needed = BESIDE_PEERS & set(arguments.rows) or "hosts" in arguments.rows or arguments.prepare
    for peer in PEERS:
        if peer not in arguments.peers or not needed:
            left_out[peer.name] = "not asked for (--systems, --rows)"
            continue
        prepared(peer(arguments), running, left_out)
    if arguments.prepare:
        return running
    rest = []
    for part in parts(arguments, list(running)):
        prepared(part, rest, left_out)
    return [*([weft] if BESIDE_PEERS & set(arguments.rows) else []), *running, *rest]


def prepared(system, running, left_out):
    say(f"preparing {system.name}")
    problem = system.prepare()
    if problem:
        say(f"left out: {system.name}: {problem}")
        left_out[system.name] = problem
    else:
        running.append(system)


def measure(arguments, running, samples):
    """Runs all rounds. Drops a system that fails, with all its results. Returns the reasons by name."""
    failed = {}
    for number in range(arguments.rounds):
        samples.round = number
        for system in list(running):
            say(f"round {number + 1} of {arguments.rounds}: {system.name}")
            try:
                system.measure(samples)
            except RuntimeError as error:
                if system.name == "weft":
                    raise
                say(f"left out, because it fails: {system.name}: {error}")
                failed[system.name] = f"it fails: {error}"
                running.remove(system)
                samples.forget(system.name)
    return failed


def commit():
    """Returns the commit of the sources, with "-dirty" appended if they differ; None without git."""
    try:
        return run(["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT).strip()
    except RuntimeError:
        return None


def write(arguments, samples, found):
    """Writes peers.json, peers.md and the pictures. Returns the text of peers.md."""
    rows = compare(samples, arguments)
    found |= {"commit": commit(), "ranks": arguments.ranks, "rounds": arguments.rounds, "date": datetime.date.today().isoformat(),
              "memory": arguments.memory, "thresholds": samples.noted.get("thresholds", []), "wire": samples.noted.get("hosts", []), "training": samples.noted.get("training", []),
              "targets": targets.judge(samples, rows, arguments), "rows": rows}
    text = tables.table(samples, rows, arguments, found)
    (arguments.out / "peers.json").write_text(json.dumps(found, indent=1) + "\n")
    (arguments.out / "peers.md").write_text(text)
    tables.pictures(samples, rows, arguments, arguments.out)
    return text


def main():
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.build / "peers").mkdir(parents=True, exist_ok=True)
    weft, left_out = own.Weft(arguments), {}
    problem = "" if arguments.prepare else weft.prepare()
    if problem:
        say(problem)
        return 1
    running = prepare(arguments, weft, left_out)
    if arguments.prepare:
        print("\n".join(f"{system.name}: {system.version}" for system in running))
        return 0
    load = os.getloadavg()[0]
    if load > 0.5:
        say(f"other programs are running here (load {load:.1f}); the numbers will be worse and less certain")
    samples = Samples()
    try:
        left_out |= measure(arguments, running, samples)
    except (RuntimeError, WrongResult) as error:
        say(str(error))
        return 1
    for system in running:
        left_out |= getattr(system, "left_out", {})
    machine = tables.machine_of(arguments)
    versions = [system.version for system in running if system.version] + tables.ucx_of(machine)
    print(write(arguments, samples, {"machine": machine, "versions": versions, "load": round(load, 2), "left_out": left_out}), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
