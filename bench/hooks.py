#!/usr/bin/env python3
"""Train the demo with each hook: a table of accuracy (mean over seeds), wire bytes and step time, and a picture.

usage: hooks.py BUILD_FOLDER [--ranks 2] [--epochs 12] [--limit 0] [--seeds 1,2,3] [--hooks 'int8;powersgd rank=2']
                [--picture hooks.svg]
The table of docs/hooks.md is made with it; its last line is the command. The picture shows the loss against the bytes
that a rank has sent, of the first seed. PowerSGD starts to compress, and post_local_sgd to be local, after a tenth of
the steps.
"""
import argparse
import math
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.sax.saxutils import escape

HOOKS = ["allreduce", "fp16", "bf16", "int8", "fp8", "quantize", "powersgd rank=1", "powersgd rank=4",
         "powersgd rank=4 alternate=1", "batched_powersgd rank=4", "topk ratio=0.01", "topk ratio=0.1",
         "randomk ratio=0.25", "onebit", "post_local_sgd"]
COLOURS = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf"]


def train(options, hook, seed):
    """Accuracy in percent, megabytes sent by a rank, ratio, median step in ms; and per step its loss and bytes sent."""
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
            sys.exit(f"{hook}: {result.stdout[-2000:]}{result.stderr[-2000:]}")
        curve = ([float.fromhex(line) for line in losses.read_text().split()],
                 [int(line) for line in sent.read_text().split()])
    last = re.search(r"accuracy=(\S+) replicas=(\S+)", result.stdout)
    if last.group(2) != "identical":
        sys.exit(f"{hook}: replicas are {last.group(2)}")
    step = re.search(r"step (\d+\.\d+) ms", result.stdout)
    ratio = re.search(r"sent (\d+\.\d+) times less", result.stdout)
    numbers = (100 * float(last.group(1)), curve[1][-1] / 1e6, float(ratio.group(1)) if ratio else 1.0,
               float(step.group(1)))
    return numbers, curve


def smooth(values, window):
    """Means over so many values before and with each."""
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    return [(sums[i + 1] - sums[max(0, i + 1 - window)]) / min(window, i + 1) for i in range(len(values))]


def picture(curves, points=300):
    """The loss, smoothed, against megabytes sent, both on logarithmic axes, as SVG."""
    width, height, left, bottom, legend = 900, 520, 60, 45, 230
    lines = {}
    for hook, (losses, sent) in curves.items():
        means = smooth(losses, max(1, len(losses) // 50))
        every = max(1, len(means) // points)
        lines[hook] = [(sent[i] / 1e6, means[i]) for i in range(0, len(means), every) if sent[i] > 0 and means[i] > 0]
    every_point = [point for line in lines.values() for point in line]
    low, high = ([math.log10(pick(p[axis] for p in every_point)) for axis in (0, 1)] for pick in (min, max))
    span = [max(high[axis] - low[axis], 1e-9) for axis in (0, 1)]

    def place(x, y):
        across = (math.log10(x) - low[0]) / span[0] * (width - left - legend) + left
        return across, height - bottom - (math.log10(y) - low[1]) / span[1] * (height - bottom - 20)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
           f'font-size="12"><rect width="{width}" height="{height}" fill="white"/>']
    for axis in (0, 1):
        for power in range(math.floor(low[axis]), math.ceil(high[axis]) + 1):
            for digit in (1, 2, 5):
                value = digit * 10.0 ** power
                if not low[axis] <= math.log10(value) <= high[axis]:
                    continue
                x, y = place(value, 10 ** low[1]) if axis == 0 else place(10 ** low[0], value)
                to = (x, 20) if axis == 0 else (width - legend, y)
                out.append(f'<path d="M{x:.1f} {y:.1f}L{to[0]:.1f} {to[1]:.1f}" stroke="#ddd"/>')
                at = (x, height - bottom + 15, "middle") if axis == 0 else (left - 6, y + 4, "end")
                out.append(f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{at[2]}">{value:g}</text>')
    for index, (hook, line) in enumerate(lines.items()):
        colour, dashes = COLOURS[index % len(COLOURS)], "" if index < len(COLOURS) else ' stroke-dasharray="5 3"'
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in (place(*point) for point in line))
        out.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.5"{dashes}/>')
        y = 30 + 18 * index
        out.append(f'<path d="M{width - legend + 15} {y}h22" stroke="{colour}" stroke-width="2"{dashes}/>'
                   f'<text x="{width - legend + 43}" y="{y + 4}">{escape(hook)}</text>')
    out.append(f'<text x="{(left + width - legend) / 2}" y="{height - 8}" text-anchor="middle">megabytes that a rank has '
               f'sent</text><text x="14" y="14">loss</text></svg>')
    return "\n".join(out) + "\n"


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
        print(f"| `{hook}` | {accuracy:.1f} % | {sent:.1f} | {ratio:.2f} | {step:.1f} |", flush=True)
    if options.picture:
        options.picture.write_text(picture(curves))
    print("\n" + " ".join(["bench/hooks.py"] + [shlex.quote(word) for word in sys.argv[1:]]))


if __name__ == "__main__":
    main()
