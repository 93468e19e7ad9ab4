#!/usr/bin/env python3
"""Weft beside its peers, by the same protocol, interleaved in one run. `make bench-peers` calls it.

Peers (bench/systems.py): Open MPI 4 of the system; Open MPI 5, MPICH, Intel MPI and oneCCL as packages of PyPI; each as it
comes and tuned; PyTorch with Gloo (all_reduce, and DistributedDataParallel on ResNet-50's parameters, on 10,000 tiny ones,
and with PowerSGD). What cannot be had here, or fails, is left out, and peers.md says why. Before every timed call each rank writes its
buffer anew and all meet in a barrier; a time is the slowest rank's. Every round runs all systems one after the other; the
medians of the rounds' medians are compared. A wrong result of any system ends the run with exit code 1.

Writes BUILD/bench/peers.json (a list of work, bytes, ranks, system, median_us and its least and most over the rounds,
p99_us, weft_ratio; a ratio above 1 means that Weft is faster; systems "best" and "best-tuned" are the fastest peer at that
size), peers.md (the table with the machine's name, how far the rounds lie apart, who was left out), and pictures: bandwidth.svg, and a bar a system for each kind of step.
"""
import argparse
import datetime
import json
import os
import statistics
import sys
from pathlib import Path

import chart
import systems
from systems import ROOT, WrongResult, run, say

STEPS = {"step_resnet50": "ResNet-50 (161 gradients, 102 MB)", "step_tiny": "10,000 gradients of 16 bytes",
         "step_resnet50_powersgd": "ResNet-50 with PowerSGD of rank 4"}
PEERS = [systems.OpenMpi4, systems.OpenMpi5, systems.Mpich, systems.IntelMpi, systems.OneCcl, systems.Torch]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, nargs="?", default=ROOT / "build")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", default="8,4096,65536,262144,1048576,4194304,16777216,67108864,104857600",
                        help="bytes, divided by commas")
    parser.add_argument("--systems", default=",".join(peer.name for peer in PEERS), help="peers, divided by commas")
    parser.add_argument("--prepare", action="store_true", help="install and build the peers, and measure nothing")
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    arguments.sizes = [int(size) for size in arguments.sizes.split(",")]
    names = arguments.systems.split(",") if arguments.systems else []
    unknown = set(names) - {peer.name for peer in PEERS}
    if unknown:
        parser.error(f"no system {', '.join(sorted(unknown))}; there are {', '.join(peer.name for peer in PEERS)}")
    arguments.peers = [peer for peer in PEERS if peer.name in names]
    return arguments


class Samples:
    """Medians and p99s by (work, bytes, system), one of each a round."""

    def __init__(self):
        self.medians, self.p99s = {}, {}

    def add(self, key, median_us, p99_us):
        self.medians.setdefault(key, []).append(median_us)
        self.p99s.setdefault(key, []).append(p99_us)

    def median(self, key):
        return statistics.median(self.medians[key]) if key in self.medians else None

    def p99(self, key):
        return statistics.median(self.p99s[key])

    def forget(self, system):
        """It did not come to its end: what it did is no comparison."""
        mine = {system, f"{system}-tuned"} | ({"ddp-gloo"} if system == "gloo" else set())
        for values in (self.medians, self.p99s):
            for key in [key for key in values if key[2] in mine]:
                del values[key]

    def systems(self, work):
        """In the order in which they were measured."""
        return list(dict.fromkeys(key[2] for key in self.medians if key[0] == work))


def fastest(samples, size, tuned):
    """The peer that is fastest at a size, among those as they come, or those with their best switches too."""
    peers = [name for name in samples.systems("all_reduce") if tuned or not name.endswith("-tuned")]
    measured = [(samples.median(("all_reduce", size, name)), name) for name in peers]
    return min([(median, name) for median, name in measured if median is not None], default=(None, None))[1]


def compare(samples, arguments):
    """The rows of peers.json."""
    rows = []

    def add(work, size, system, key):
        mine, other = samples.median((work, size, "weft")), samples.median(key)
        if mine is not None and other is not None:
            rows.append({"work": work, "bytes": size, "ranks": arguments.ranks, "system": system,
                         "median_us": round(other, 3), "least_us": round(min(samples.medians[key]), 3),
                         "most_us": round(max(samples.medians[key]), 3), "p99_us": round(samples.p99(key), 3),
                         "weft_ratio": round(other / mine, 3), "weft_median_us": round(mine, 3),
                         "weft_least_us": round(min(samples.medians[work, size, "weft"]), 3),
                         "weft_most_us": round(max(samples.medians[work, size, "weft"]), 3)})

    for memory in ("arena", "private"):
        for size in arguments.sizes:
            for system in samples.systems("all_reduce"):
                add(f"all_reduce_f32_{memory}", size, system, ("all_reduce", size, system))
            for best, tuned in (("best", False), ("best-tuned", True)):
                name = fastest(samples, size, tuned)
                if name is not None:
                    add(f"all_reduce_f32_{memory}", size, best, ("all_reduce", size, name))
                    if rows and rows[-1]["system"] == best:
                        rows[-1]["which"] = name
    for key in samples.medians:
        if key[0] in STEPS and key[2] == "ddp-gloo":
            add(*key, key)
    return rows


def microseconds(value):
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def table(samples, rows, arguments, versions, load, left_out):
    """The comparison as Markdown. left_out: why, by name of a peer."""
    machine = json.loads(run([arguments.build / "tools" / "weft", "info", "--json"]))
    lines = [f"{machine['cpu']}, {machine['cores']} cores, {machine['kernel']}, {machine['system']}; Weft "
             f"{machine['weft']}, {', '.join(versions)}; {datetime.date.today().isoformat()}; {arguments.ranks} ranks, "
             f"{arguments.rounds} rounds; load before the run {load:.1f}.", ""]
    return "\n".join(lines + left_out_lines(left_out) + all_reduce_table(samples, rows, arguments) +
                     spread_table(rows, arguments) + step_lines(samples, rows)) + "\n"


def left_out_lines(left_out):
    def short(reason):
        words = " ".join(reason.split())
        return words if len(words) <= 300 else f"{words[:150]} ... {words[-150:]}"
    return ["Left out:", *(f"- {name}: {short(reason)}" for name, reason in left_out.items()), ""] if left_out else []


def all_reduce_table(samples, rows, arguments):
    ratio = {(row["work"], row["bytes"], row["system"]): row for row in rows}
    peers = [s for s in ("best", "best-tuned", *samples.systems("all_reduce")) if any(row["system"] == s for row in rows)]
    lines = ["all_reduce of f32, in place; microseconds, and in brackets that time over Weft's (arena / private):", "",
             "| bytes | Weft, arena | Weft, private | " + " | ".join(peers) + " |",
             "|---|---|---|" + "---|" * len(peers)]
    for size in arguments.sizes:
        cells = [str(size)] + [microseconds(samples.median((f"all_reduce_f32_{memory}", size, "weft")))
                               for memory in ("arena", "private")]
        for system in peers:
            arena, private = (ratio.get((f"all_reduce_f32_{memory}", size, system)) for memory in ("arena", "private"))
            name = f"{arena['which']}: " if arena and "which" in arena else ""
            cells.append(f"{name}{microseconds(arena['median_us'])} ({arena['weft_ratio']:.2f} / "
                         f"{private['weft_ratio']:.2f})" if arena and private else "")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def spread_table(rows, arguments):
    """How far the rounds lie apart: a difference that is smaller than that may be noise."""
    found = {(row["work"], row["bytes"], row["system"]): row for row in rows}

    def spread(row, least, most):
        return f"{microseconds(row[least])} to {microseconds(row[most])}" if row else ""

    lines = ["", "Least and most of the rounds' medians, microseconds:", "",
             "| bytes | Weft, arena | Weft, private | best | best-tuned |", "|---|---|---|---|---|"]
    for size in arguments.sizes:
        mine = [found.get((f"all_reduce_f32_{memory}", size, "best")) for memory in ("arena", "private")]
        cells = [spread(row, "weft_least_us", "weft_most_us") for row in mine]
        for system in ("best", "best-tuned"):
            row = found.get(("all_reduce_f32_arena", size, system))
            cells.append(f"{row['which']}: {spread(row, 'least_us', 'most_us')}" if row else "")
        lines.append(f"| {size} | " + " | ".join(cells) + " |")
    return lines


def step_lines(samples, rows):
    lines = []
    for row in rows:
        if row["work"] in STEPS:
            whole = samples.median((f"whole {row['work']}", row["bytes"], "ddp-gloo"))
            lines += ["", f"Gradient step of {STEPS[row['work']]}, copy mode: Weft {row['weft_median_us'] / 1000:.1f} ms; "
                      f"DistributedDataParallel on Gloo {row['median_us'] / 1000:.1f} ms exposed ({row['weft_ratio']:.2f} times), "
                      f"{whole / 1000:.1f} ms with its backward."]
    return lines


def pictures(samples, rows, arguments, folder):
    """Bandwidth over size, and the steps with what of them is exposed."""
    curves = {}
    for name, work, system in [(f"Weft, {memory}", f"all_reduce_f32_{memory}", "weft") for memory in ("arena", "private")] + [
            (system, "all_reduce", system) for system in samples.systems("all_reduce")]:
        times = [(size, samples.median((work, size, system))) for size in arguments.sizes]
        curves[name] = [(size, size / us * 1e-3) for size, us in times if us]
    (folder / "bandwidth.svg").write_text(chart.lines(curves, "bytes", f"all_reduce of f32, {arguments.ranks} ranks: GB/s"))
    for row in rows:
        if row["work"] in STEPS:
            whole = samples.median((f"whole {row['work']}", row["bytes"], "ddp-gloo"))
            exposed = max(row["median_us"], 0.0)
            # Weft's step here computes nothing: beside the same backward, all of it is exposed.
            backward = max(whole - exposed, 0.0)
            bars = [("Weft", backward / 1e3, row["weft_median_us"] / 1e3),
                    ("DDP on Gloo", backward / 1e3, exposed / 1e3)]
            (folder / f"{row['work']}.svg").write_text(chart.bars(bars, "ms", ("backward of DDP's", "exposed")))


def measure(arguments, running, samples):
    """All rounds. A peer that fails is left out, with everything that it has done: returns why, by its name."""
    failed = {}
    for number in range(arguments.rounds):
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


def main():
    arguments = parse_arguments()
    for folder in ("bench", "peers"):
        (arguments.build / folder).mkdir(parents=True, exist_ok=True)
    weft = systems.Weft(arguments)
    running = []
    left_out = {peer.name: "not asked for (--systems)" for peer in PEERS if peer not in arguments.peers}
    for system in [*([] if arguments.prepare else [weft]), *(peer(arguments) for peer in arguments.peers)]:
        problem = system.prepare()
        if not problem:
            running.append(system)
            continue
        say(f"left out: {system.name}: {problem}")
        left_out[system.name] = problem
        if system is weft:
            return 1
    if arguments.prepare:
        print("\n".join(f"{system.name}: {getattr(system, 'version', '')}" for system in running))
        return 0
    load = os.getloadavg()[0]
    if load > 0.5:
        say(f"other programs are running here (load {load:.1f}); the numbers will be worse and less certain")
    samples = Samples()
    try:
        left_out.update(measure(arguments, running, samples))
    except (RuntimeError, WrongResult) as error:
        say(str(error))
        return 1
    rows = compare(samples, arguments)
    text = table(samples, rows, arguments, [system.version for system in running if system is not weft], load, left_out)
    folder = arguments.build / "bench"
    (folder / "peers.json").write_text(json.dumps(rows, indent=1) + "\n")
    (folder / "peers.md").write_text(text)
    pictures(samples, rows, arguments, folder)
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
