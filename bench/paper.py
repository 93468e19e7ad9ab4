#!/usr/bin/env python3
"""Repeats the experiments of Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training (VLDB 2020).

usage: paper.py BUILD_FOLDER [--ranks 2] [--rounds 3] [--only launches,buckets,every] [--replay 1] [--backend shm] [--quick]

launches   60 million f32 parameters split into tensors of 1 K to 20 M elements, which are all launched before one wait
           (figure 2 a and b): the time over the size of a tensor, in arena and private memory
buckets    a step behind a recorded backward with bucket limits from 0 (one gradient per bucket) to 50 MiB (figures 7
           and 8): the time of the step and its exposed part; ResNet-50 and BERT-base
every      synchronising every 1 to 8 steps (figure 10): the mean time of a step

Writes BUILD/bench/paper.json (a list of experiment, line, x and y with its minimum and maximum over the rounds), and a
picture of each experiment, paper-NAME.svg. Values are medians over the rounds, which are interleaved. --replay is a factor on
the duration of the recorded backward. --quick is small and fast, to try the script.
"""
import argparse
import json
import statistics
import sys
from pathlib import Path

import chart
from own import checked_bench
from systems import ROOT, WrongResult

MANIFESTS = {"ResNet-50": "resnet50", "BERT-base": "bert_base"}
ELEMENTS = [1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000,
            20_000_000]
LIMITS_MIB = [0, 1, 2, 5, 10, 15, 20, 25, 30, 40, 50]
EVERY = [1, 2, 4, 8]


def say(text):
    print(f"paper: {text}", file=sys.stderr, flush=True)


def parse_arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(EXPERIMENTS), help="experiments, separated by commas (default: all)")
    parser.add_argument("--replay", type=float, default=1.0)
    parser.add_argument("--backend", default="")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args(words)
    arguments.build = arguments.build.resolve()
    arguments.only = arguments.only.split(",")
    for name in arguments.only:
        if name not in EXPERIMENTS:
            parser.error(f"--only: unknown experiment {name!r}, expected some of: {', '.join(EXPERIMENTS)}")
    return arguments


def bench(arguments, *words):
    """Returns the results of one run of weft bench; a wrong result ends the script."""
    path = arguments.build / "bench" / "paper-run.json"
    backend = ["--backend", arguments.backend] if arguments.backend else []
    command = [arguments.build / "tools" / "weft", "bench", *words, *backend, "--ranks", arguments.ranks, "--json", path]
    return checked_bench(command, path)[0]["results"]


def launches(arguments):
    """Yields (line, elements of a tensor, seconds)."""
    total, sizes = (60_000_000, ELEMENTS) if not arguments.quick else (600_000, ELEMENTS[::4])
    for memory in ("arena", "private"):
        rows = bench(arguments, "launches", "--memory", memory, "--total", 4 * total, "--sizes",
                     ",".join(str(4 * size) for size in sizes), "--iterations", 2 if arguments.quick else 7, "--warmup", 1)
        for row in rows:
            yield memory, row["count"], row["median_us"] / 1e6


def step(arguments, name, *words):
    """Measures a step behind its backward once: milliseconds of the whole step, and of its exposed part."""
    manifest = ROOT / "bench" / "manifests" / f"{MANIFESTS[name]}.json"
    row = bench(arguments, "step", "--manifest", manifest, "--replay", arguments.replay, "--iterations",
                2 if arguments.quick else 10, *words)[0]
    return row["median_us"] / 1e3, row["exposed_us"] / 1e3


def models(arguments):
    return list(MANIFESTS)[:1] if arguments.quick else list(MANIFESTS)


def buckets(arguments):
    """Yields (line, MiB, milliseconds)."""
    for name in models(arguments):
        for limit in LIMITS_MIB if not arguments.quick else LIMITS_MIB[::5]:
            whole, exposed = step(arguments, name, "--bucket-limits", limit << 20, "--replan", "limits")
            yield f"{name}, a step", limit, whole
            yield f"{name}, exposed", limit, exposed


def every(arguments):
    """Yields (line, steps, milliseconds per step)."""
    for name in models(arguments):
        for steps in EVERY if not arguments.quick else EVERY[:2]:
            whole, exposed = step(arguments, name, "--accumulate", steps)
            yield f"{name}, a step", steps, whole / steps
            yield f"{name}, exposed", steps, exposed / steps


# The measuring function, the labels of the axes, and which of them are logarithmic.
EXPERIMENTS = {
    "launches": (launches, "elements of a tensor", "seconds for 60 million f32 (launched, then waited for once)", (True, True)),
    "buckets": (buckets, "limit of a bucket, MiB", "milliseconds", (False, False)),
    "every": (every, "synchronised every so many steps", "milliseconds a step", (False, False)),
}


def summary(values):
    """Converts {(experiment, line, x): [y, ...]} to the rows of paper.json."""
    return [{"experiment": experiment, "line": line, "x": x, "y": statistics.median(ys), "least": min(ys), "most": max(ys)}
            for (experiment, line, x), ys in values.items()]


def draw(rows, folder):
    for name, (_, across, up, logarithmic) in EXPERIMENTS.items():
        curves = {}
        for row in rows:
            if row["experiment"] == name:
                curves.setdefault(row["line"], []).append((row["x"], row["y"]))
        if curves:
            (folder / f"paper-{name}.svg").write_text(chart.lines(curves, across, up, logarithmic))


def main():
    arguments = parse_arguments()
    folder = arguments.build / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    values = {}
    try:
        for number in range(arguments.rounds):
            for name in arguments.only:
                say(f"round {number + 1} of {arguments.rounds}: {name}")
                for line, x, y in EXPERIMENTS[name][0](arguments):
                    values.setdefault((name, line, x), []).append(y)
    except (RuntimeError, WrongResult) as error:
        say(str(error))
        return 1
    rows = summary(values)
    (folder / "paper.json").write_text(json.dumps(rows, indent=1) + "\n")
    draw(rows, folder)
    for row in rows:
        print(f"{row['experiment']:9} {row['line']:22} {row['x']:>10} {row['y']:10.4g} ({row['least']:.4g} - {row['most']:.4g})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
