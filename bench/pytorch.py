#!/usr/bin/env python3
"""Compares the backend weft of torch.distributed with gloo on this machine, interleaved. Prints Markdown.

calls  times of single calls, and how long a call holds the GIL (bench/pytorch_calls.py)
steps  whole training steps of the programs in examples/pytorch, in each of their ways, and how much of them is
       communication that computing does not hide
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools")]
import torch_venv  # noqa: E402

EXAMPLES = ROOT / "examples" / "pytorch"
BACKENDS = ("gloo", "weft")
WAYS = ("ddp-gloo", "weft", "weftsync-copy", "weftsync-view")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, nargs="?", default=ROOT / "build")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="each round runs all that is compared")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--parts", default="calls,steps")
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    return arguments


def torchrun(python, arguments, *command):
    """Run a program on local ranks, one thread each. Returns its output."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore",
                   "WEFT_LIBRARY": str(arguments.build / "libweft.so.0.9"), "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run([str(python), "-W", "ignore", "-m", "torch.distributed.run", "--standalone",
                           "--nproc-per-node", str(arguments.ranks), *map(str, command)], env=environment,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, text=True).stdout


def calls(python, arguments, folder):
    found = {backend: {} for backend in BACKENDS}
    for _ in range(arguments.rounds):
        for backend in BACKENDS:
            path = folder / "rows.json"
            torchrun(python, arguments, ROOT / "bench" / "pytorch_calls.py", backend, path)
            for name, size, *times in json.loads(path.read_text()):
                found[backend].setdefault((name, size), []).append(times)
    print("| call | bytes | gloo: call (µs) | weft: call | gloo: launch | weft: launch | weft: GIL held |")
    print("|---|---|---|---|---|---|---|")
    for (name, size), rounds in found["weft"].items():
        middle = {backend: [statistics.median(column) for column in zip(*(
            [time or 0 for time in times] for times in found[backend][name, size]))] for backend in BACKENDS}
        gloo, weft = middle["gloo"], middle["weft"]
        print(f"| {name} | {size} | {gloo[0]:.0f} | {weft[0]:.0f} | {gloo[1]:.0f} | {weft[1]:.0f} | {weft[2]:.0f} |")


def steps(python, arguments, folder):
    """Compare the ways of examples/pytorch/systems.py."""
    programs = {"transformer, 22 M parameters": ["transformer.py", "--width", "512", "--layers", "7"], "cnn": ["cnn.py"]}
    print("\n| program | way | step (ms) | exposed (ms) | step, ddp-gloo = 1 | exposed, ddp-gloo = 1 |")
    print("|---|---|---|---|---|---|")
    for name, (program, *options) in programs.items():
        found, losses = {way: [] for way in WAYS}, set()
        for _ in range(arguments.rounds):
            for way in WAYS:
                output = torchrun(python, arguments, EXAMPLES / program, "--steps", arguments.steps, "--backend", way, *options)
                step, exposed, loss = re.search(r"^step_ms=(\S+) exposed_ms=(\S+) loss=(\S+)$", output, re.MULTILINE).groups()
                found[way].append((float(step), float(exposed)))
                losses.add(loss)
        middle = {way: [statistics.median(column) for column in zip(*times)] for way, times in found.items()}
        for way, (step, exposed) in middle.items():
            base = middle["ddp-gloo"]
            print(f"| {name} | {way} | {step:.1f} | {exposed:.1f} | {step / base[0]:.2f} | {exposed / base[1]:.2f} |")
        print(f"{name}: the last losses are {', '.join(sorted(losses))}", file=sys.stderr)


def main():
    arguments = parse_arguments()
    python = torch_venv.prepare(arguments.build)
    with tempfile.TemporaryDirectory() as folder:
        for part in arguments.parts.split(","):
            {"calls": calls, "steps": steps}[part](python, arguments, Path(folder))


if __name__ == "__main__":
    main()
