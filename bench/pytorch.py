#!/usr/bin/env python3
"""Compares the backend weft of torch.distributed with gloo on this machine, interleaved. Prints Markdown.

calls  times of single calls, and how long a call holds the GIL (bench/pytorch_calls.py)
steps  times of a step of the programs in examples/pytorch, which use DistributedDataParallel. Their gloo version is the
       same program without the two lines that choose Weft
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


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, nargs="?", default=ROOT / "build")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="each round runs gloo and weft")
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


def without_weft(source):
    """Return an example's program without the two lines that choose Weft."""
    text, count = re.subn(r"^import weftsync\.torch.*\n", "", source, flags=re.MULTILINE)
    text, replaced = re.subn(r'init_process_group\("weft"\)', 'init_process_group("gloo")', text)
    if (count, replaced) != (1, 1):
        raise ValueError(f"the example has {count} imports and {replaced} calls that choose Weft, expected one of each")
    return text


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
    print("\n| program | gloo (ms) | weft (ms) | weft/gloo, each round |")
    print("|---|---|---|---|")
    (folder / "progress.py").write_text((EXAMPLES / "progress.py").read_text())
    for name in ("transformer", "cnn"):
        before = folder / f"{name}.py"
        before.write_text(without_weft((EXAMPLES / before.name).read_text()))
        times, losses = {backend: [] for backend in BACKENDS}, set()
        for _ in range(arguments.rounds):
            for backend, program in zip(BACKENDS, (before, EXAMPLES / before.name)):
                output = torchrun(python, arguments, program, "--steps", arguments.steps)
                line = re.search(rf"^{backend}: loss (\S+), (\S+) ms a step", output, re.MULTILINE)
                loss, milliseconds = line.groups()
                times[backend].append(float(milliseconds))
                losses.add(loss)
        ratios = ", ".join(f"{second / first:.2f}" for first, second in zip(*times.values()))
        gloo, weft = (statistics.median(times[backend]) for backend in BACKENDS)
        print(f"| {name} | {gloo:.1f} | {weft:.1f} | {ratios} |")
        print(f"{name}: the last losses are {', '.join(sorted(losses))}", file=sys.stderr)


def main():
    arguments = parse_arguments()
    python = torch_venv.prepare(arguments.build)
    with tempfile.TemporaryDirectory() as folder:
        for part in arguments.parts.split(","):
            {"calls": calls, "steps": steps}[part](python, arguments, Path(folder))


if __name__ == "__main__":
    main()
