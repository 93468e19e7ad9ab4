"""Measures bucket plans for bench/peers.py: steps behind a recorded backward between two hosts. The buckets are re-planned
after a first step, by the limits of DistributedDataParallel or by the model of the step.
"""
import json
import math

import hosts
from systems import ROOT, say

MANIFESTS = ROOT / "bench" / "manifests"
RATE = "1gbit"
PLANNERS = ("limits", "model")
# The model, and a factor on the duration of its recorded backward.
CASES = (("resnet50", 1), ("bert_base", 1), ("bert_base", 2), ("gpt2", 1), ("gpt2", 2))


def work_of(model, slower):
    return f"planner_{model}_x{slower}"


def recorded(model):
    """Returns [(ready us, bytes)] of the gradients in the recorded ready order, and the duration of the backward."""
    params = json.loads((MANIFESTS / f"{model}.json").read_text())["params"]
    backward = json.loads((MANIFESTS / f"{model}.backward.json").read_text())
    ready = backward["ready_ms"]
    return (sorted((1e3 * ready[param["name"]], 4 * math.prod(param["shape"])) for param in params),
            1e3 * backward["backward_ms"])


def wire_us(size):
    return hosts.wire_us(size, RATE)


def least_us(gradients, backward_us, slower):
    """Returns the lower bound of a plan's exposed time. From the first gradient on, the wire is idle only while no gradient is
    ready, and communication costs only its bytes."""
    free = 0.0
    for ready, size in gradients:
        free = max(free, ready * slower) + wire_us(size)
    return max(0.0, free - backward_us * slower)


class Planner(hosts.Between):
    """Measures each case in one round only, because its steps take seconds. Both planners run in it, in alternating order."""
    name = "planner"

    def cases(self, number):
        """Returns the cases of a round."""
        return CASES[:1] if self.arguments.quick else CASES[number % self.arguments.rounds::self.arguments.rounds]

    def measure(self, samples):
        for model, slower in self.cases(samples.round):
            for planner in PLANNERS[::-1 if samples.round % 2 else 1]:
                say(f"  planner: {model}, backward {slower} times as long: by {planner}")
                whole, _ = self.weft_bench(RATE, "step", "--manifest", MANIFESTS / f"{model}.json", "--replay", slower, "--replan",
                                           planner, "--iterations", 1 if self.arguments.quick else 3, "--warmup", 1)
                row = whole["results"][0]
                key = (work_of(model, slower), row["bytes"], planner)
                samples.add(key, row["exposed_us"], row["exposed_us"])
            least = least_us(*recorded(model), slower)
            samples.add((key[0], key[1], "least"), least, least)
