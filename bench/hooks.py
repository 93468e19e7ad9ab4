#!/usr/bin/env python3
"""Trains the demo with each hook. Prints a table of accuracy (mean over seeds), wire bytes and step time; draws a chart.

usage: hooks.py BUILD_FOLDER [--ranks 2] [--epochs 12] [--limit 0] [--seeds 1,2,3] [--hooks 'int8;powersgd rank=2']
                [--picture hooks.svg]
The table of docs/how-to/choose-a-hook.md comes from this script; its last line is the command. The picture shows the loss
of the first seed over the bytes that a rank has sent. PowerSGD starts to compress, and post_local_sgd to make local steps,
after a tenth of the steps.
"""
import argparse
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import chart

HOOKS = ["allreduce", "fp16", "bf16", "int8", "fp8", "quantize", "powersgd rank=1", "powersgd rank=4",
         "powersgd rank=4 alternate=1", "batched_powersgd rank=4", "topk ratio=0.01", "topk ratio=0.1",
         "onebit", "post_local_sgd"]


def train(options, hook, seed):
    """Returns accuracy in percent, megabytes sent by a rank, ratio, median step in ms; and for each step loss and bytes sent."""
    with tempfile.TemporaryDirectory() as folder:
        losses, sent = Path(folder) / "losses", Path(folder) / "sent"
        build = options.build.resolve()
        command = [build / "tools/weft", "run", "-n", options.ranks, "--prefix", "others", "--",
                   build / "examples/train_fashion", "--no-check", "--epochs", options.epochs, "--seed", seed,
                   "--hook", hook, "--losses", losses, "--sent", sent]
        if options.limit:
            command += ["--limit", options.limit]
        result = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if result.returncode != 0:
            sys.exit(f"{hook}: the demo failed with exit code {result.returncode}\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
        curve = ([float.fromhex(line) for line in losses.read_text().split()],
                 [int(line) for line in sent.read_text().split()])
    last = re.search(r"accuracy=(\S+) replicas=(\S+)", result.stdout)
    if last.group(2) != "identical":
        sys.exit(f"{hook}: the demo reports replicas={last.group(2)}, expected identical")
    step = re.search(r"step (\d+\.\d+) ms", result.stdout)
    ratio = re.search(r"sent (\d+\.\d+) times less", result.stdout)
    numbers = (100 * float(last.group(1)), curve[1][-1] / 1e6, float(ratio.group(1)) if ratio else 1.0,
               float(step.group(1)))
    return numbers, curve


def smooth(values, window):
    """Returns the mean of each value and a number of values before it."""
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    return [(sums[i + 1] - sums[max(0, i + 1 - window)]) / min(window, i + 1) for i in range(len(values))]


def picture(curves, points=300):
    """Draws the smoothed loss over megabytes sent, both on logarithmic axes, as SVG."""
    lines = {}
    for hook, (losses, sent) in curves.items():
        means = smooth(losses, max(1, len(losses) // 50))
        every = max(1, len(means) // points)
        lines[hook] = [(sent[i] / 1e6, means[i]) for i in range(0, len(means), every)]
    return chart.lines(lines, "megabytes that a rank has sent", "loss")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--limit", type=int, default=0, help="training images; 0: all")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--hooks", default=";".join(HOOKS))
    parser.add_argument("--picture", type=Path, help="SVG file of loss against bytes sent")
    options = parser.parse_args()
    print("| hook | accuracy | MB sent by a rank | times less | step ms |\n|---|---|---|---|---|")
    curves = {}
    for hook in options.hooks.split(";"):
        runs = [train(options, hook, int(seed)) for seed in options.seeds.split(",")]
        curves[hook] = runs[0][1]
        accuracy, sent, ratio, step = (sum(column) / len(runs) for column in zip(*(numbers for numbers, _ in runs)))
        print(f"| `{hook}` | {accuracy:.2f} % | {sent:.1f} | {ratio:.2f} | {step:.1f} |", flush=True)
    if options.picture:
        options.picture.write_text(picture(curves))
    print("\n" + " ".join(["bench/hooks.py"] + [shlex.quote(word) for word in sys.argv[1:]]))


if __name__ == "__main__":
    main()
