#!/usr/bin/env python3
"""Compares single calls of torch.distributed over the backend weft and over gloo on this machine, interleaved: their times,
and how long a call holds the GIL (bench/pytorch_calls.py). Prints Markdown. `bench/peers.py --rows training` compares whole
training steps.
"""
import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import training
from systems import ROOT

sys.path.append(str(ROOT / "tools"))
import torch_venv  # noqa: E402

BACKENDS = ("gloo", "weft")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, nargs="?", default=ROOT / "build")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="each round runs all that is compared")
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    return arguments


def main():
    arguments = parse_arguments()
    python = torch_venv.prepare(arguments.build)
    found = {backend: {} for backend in BACKENDS}
    for _ in range(arguments.rounds):
        for backend in BACKENDS:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "rows.json"
                training.torchrun(python, arguments.build, arguments.ranks, ROOT / "bench" / "pytorch_calls.py", backend, path)
                rows = json.loads(path.read_text())
            for name, size, *times in rows:
                found[backend].setdefault((name, size), []).append(times)
    print("| call | bytes | gloo: call (µs) | weft: call | gloo: launch | weft: launch | weft: GIL held |")
    print("|---|---|---|---|---|---|---|")
    for name, size in found["weft"]:
        gloo, weft = ([statistics.median(column) for column in zip(*(
            [time or 0 for time in times] for times in found[backend][name, size]))] for backend in BACKENDS)
        print(f"| {name} | {size} | {gloo[0]:.0f} | {weft[0]:.0f} | {gloo[1]:.0f} | {weft[1]:.0f} | {weft[2]:.0f} |")


if __name__ == "__main__":
    main()
