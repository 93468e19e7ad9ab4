#!/usr/bin/env python3
"""Predicts how efficient training steps are from 8 to 100,000 ranks, with each hook, by a model of Weft's schedules.

usage: predict.py BUILD_FOLDER [--out FOLDER] [--check FILE]
Needs BUILD_FOLDER/bench/weft-schedules. Writes scaling.csv, scaling.md and a picture for each rate to the folder (default:
BUILD_FOLDER/predict). --check compares the table with the one in a document, and exits with 1 if they differ.
docs/explanation/scaling.md explains the assumptions.
"""
import argparse
import csv
import sys
from pathlib import Path

import chart
import network
import step_model
import workloads

RANKS = (8, 64, 512, 4096, 32768, 100000)
SHOWN_RATE = 100  # Gbit/s, of the document's table
BEGIN, END = "<!-- scaling: begin -->\n", "<!-- scaling: end -->\n"


class Times:
    """Times of exchanges on the network: of the fastest algorithm of each. Each schedule is walked once for all rates."""

    def __init__(self, tool):
        self.tool = tool
        self.known = {}

    def add(self, exchanges, ranks):
        groups = {}
        for exchange in exchanges:
            for algorithm in exchange.algorithms:
                groups.setdefault((exchange.collective, algorithm, exchange.element), set()).add(exchange.bytes)
        for (collective, algorithm, element), sizes in sorted(groups.items()):
            found = network.model_s(self.tool, collective, algorithm, ranks, sorted(sizes), network.RATES, element)
            for (size, rate), seconds in found.items():
                key = (collective, size, element, ranks, rate)
                self.known[key] = min(seconds, self.known.get(key, seconds))

    def seconds(self, ranks, rate):
        return lambda exchange: self.known[(exchange.collective, exchange.bytes, exchange.element, ranks, rate)]


def predict(tool):
    """Returns {(model, hook, ranks, rate): efficiency}: the time of computing alone over that of the step."""
    times, efficiency = Times(tool), {}
    for step in workloads.steps():
        plan = workloads.buckets(tool, step)
        ready = [max(step.ready_s[param] for param in bucket) for bucket in plan]
        for ranks in RANKS:
            works = {hook: [step_model.work_of(hook, [step.shapes[param] for param in bucket], ranks) for bucket in plan]
                     for hook in step_model.HOOKS}
            times.add({exchange for of_hook in works.values() for work in of_hook for exchange in work.exchanges}, ranks)
            for hook, of_hook in works.items():
                for rate in network.RATES:
                    whole = step_model.step_s(step.compute_s, ready, of_hook, times.seconds(ranks, rate))
                    efficiency[(step.name, hook, ranks, rate)] = step.compute_s / whole
    return efficiency


def models(efficiency):
    return list(dict.fromkeys(key[0] for key in efficiency))


def table(efficiency):
    """Returns the efficiencies at SHOWN_RATE, and where each hook pays, as Markdown."""
    lines = [f"| model, {SHOWN_RATE} Gbit/s | hook | " + " | ".join(f"{ranks:,}" for ranks in RANKS) + " |",
             "|---" * (len(RANKS) + 2) + "|"]
    for model in models(efficiency):
        for hook in step_model.HOOKS:
            cells = (f"{100 * efficiency[(model, hook, ranks, SHOWN_RATE)]:.0f} %" for ranks in RANKS)
            lines.append(f"| {model} | `{hook}` | " + " | ".join(cells) + " |")
    lines += ["", "| model | hook | " + " | ".join(f"pays at {rate} Gbit/s" for rate in network.RATES) + " |",
              "|---" * (len(network.RATES) + 2) + "|"]
    for model in models(efficiency):
        for hook in step_model.HOOKS[1:]:
            lines.append(f"| {model} | `{hook}` | " + " | ".join(pays(efficiency, model, hook, rate) for rate in network.RATES) + " |")
    return "\n".join(lines) + "\n"


def pays(efficiency, model, hook, rate):
    """Returns the numbers of ranks with which a step is at least 2 % faster with the hook."""
    faster = [ranks for ranks in RANKS
              if efficiency[(model, hook, ranks, rate)] >= 1.02 * efficiency[(model, "allreduce", ranks, rate)]]
    return ", ".join(f"{ranks:,}" for ranks in faster) or "never"


def picture(efficiency, rate):
    """Returns efficiency over ranks, as SVG: each model without a hook and with the best one."""
    curves = {}
    for model in models(efficiency):
        curves[f"{model}, no hook"] = [(ranks, 100 * efficiency[(model, "allreduce", ranks, rate)]) for ranks in RANKS]
        best = [max(step_model.HOOKS, key=lambda hook, n=ranks: efficiency[(model, hook, n, rate)]) for ranks in RANKS]
        curves[f"{model}, best hook"] = [(ranks, 100 * efficiency[(model, hook, ranks, rate)]) for ranks, hook in zip(RANKS, best)]
    return chart.lines(curves, f"ranks, each with a link of {rate} Gbit/s", "predicted efficiency of a step in percent",
                       (True, False))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--check", type=Path, help="a document with the table between two marks")
    options = parser.parse_args()
    try:
        efficiency = predict(options.build / "bench" / "weft-schedules")
    except (OSError, RuntimeError) as error:
        sys.exit(f"predict.py: {error}")
    made = table(efficiency)
    if options.check:
        text = options.check.read_text()
        if BEGIN + "\n" + made + "\n" + END not in text:
            sys.exit(f"predict.py: the table of {options.check} is not what the model predicts: run `make predict` and put "
                     "scaling.md between the marks")
        return
    out = options.out or options.build / "predict"
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "scaling.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("model", "hook", "ranks", "gbit_s", "efficiency"))
        writer.writerows((*key, f"{value:.4f}") for key, value in efficiency.items())
    (out / "scaling.md").write_text(made)
    for rate in network.RATES:
        (out / f"scaling_{rate}.svg").write_text(picture(efficiency, rate))
    print(made, end="")


if __name__ == "__main__":
    main()
