"""The checks of DistributedDataParallel's own tests, besides training step by step. Each function implements
a case of cases.md.

A behaviour trains equal modules through both implementations (pair.py) and returns its problems, as texts.
More are in array_, checkpoint_, hook_, join_, shard_ and state_behaviours.py.
"""
import copy
import re
from pathlib import Path

import torch
from torch import nn

import weftsync as weft
from array_behaviours import ARRAY_BEHAVIOURS
from binding import Synchronised
from checkpoint_behaviours import CHECKPOINT_BEHAVIOURS
from hook_behaviours import HOOK_BEHAVIOURS
from join_behaviours import JOIN_BEHAVIOURS
from pair import Choice, Heads, Pair, seeded, whole
from shard_behaviours import SHARD_BEHAVIOURS
from state_behaviours import STATE_BEHAVIOURS


def several_backwards(comm):
    """two backward passes on disjoint outputs are one step (case 21)"""
    pair = Pair(comm, seeded(Heads))
    for loss in pair.ddp(pair.inputs()):
        loss.backward()
    with pair.synced.step():
        for loss in pair.ours(pair.inputs()):
            loss.backward()
    return pair.differences("two backwards")


def create_graph(comm):
    """a backward pass that builds a graph is synchronised like any other (case 25)"""
    pair, problems = Pair(comm, seeded(Heads)), []
    for step in range(6):
        pair.clear()
        sum(pair.ddp(pair.inputs(step))).backward(create_graph=True)
        pair.synced.backward(sum(pair.ours(pair.inputs(step))), create_graph=True)
        problems += pair.differences(f"step {step}")
    return problems


def two_forwards(comm):
    """two forward passes, one backward: a parameter's two uses are summed first (case 50)"""
    pair, problems = Pair(comm, seeded(Heads), static_graph=True), []
    for step in range(3):
        pair.clear()
        for model, backward in ((pair.ddp, torch.Tensor.backward), (pair.ours, pair.synced.backward)):
            outputs = [model(pair.inputs(step + batch)) for batch in (0, 10)]
            backward(sum(loss for pass_ in outputs for loss in pass_))
        problems += pair.differences(f"step {step}")
    return problems


class Fail(torch.autograd.Function):
    """The identity, whose backward pass fails."""

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        raise RuntimeError("the backward pass ends here")


class Breakable(nn.Module):
    """Heads on a layer, with a switch that makes the backward pass between them fail."""

    fails = False

    def __init__(self):
        super().__init__()
        self.first, self.heads = whole(nn.Linear(4, 4, bias=False)), Heads()

    def forward(self, x):
        x = self.first(x)
        return sum(self.heads(Fail.apply(x) if self.fails else x))


def new_instance(comm):
    """after an error in the middle of a step, or after the communicator's end, a new instance over the same
    parameters works (cases 27, 28)"""
    problems, texts = [], []
    with comm.split(0) as part:  # a reducer that ends in the middle of a step fails its communicator
        first = Pair(part, seeded(Breakable), {"bucket_limits": [0]})
        first.ours.fails = first.theirs.fails = True
        for model, backward in ((first.ddp, torch.Tensor.backward), (first.ours, first.synced.backward)):
            try:
                backward(model(first.inputs()))
            except RuntimeError as error:
                texts.append(str(error))
        comm.barrier()  # every rank's backward pass has ended
        first.ddp._remove_autograd_hooks()
        first.synced.close()
    if len(texts) != 2 or not all("ends here" in text for text in texts):
        problems.append(f"errors: {texts}")
    first.ours.fails = first.theirs.fails = False
    for which in ("second", "third"):
        with comm.split(0) as part:
            again = Pair(part, first.ours, theirs=first.theirs)
            for step in range(3):
                again.clear()
                again.ddp(again.inputs(step)).backward()
                again.synced.backward(again.ours(again.inputs(step)))
                problems += again.differences(f"the {which} instance, step {step}")
            again.ddp._remove_autograd_hooks()
            again.synced.close()
    return problems


def resume(comm):
    """training that is saved and loaded continues like uninterrupted training (case 32)"""
    def train(synced, steps):
        for step in steps:
            synced.zero_grad()
            synced.backward(sum(loss * loss for loss in synced.module(pair.inputs(step))))
            with torch.no_grad():
                for parameter in synced.parameters:
                    parameter -= 0.01 * parameter.grad

    pair = Pair(comm, seeded(Heads))
    train(pair.synced, range(2))
    saved = copy.deepcopy(pair.ours.state_dict())
    train(pair.synced, range(2, 4))
    other = seeded(Heads)
    other.load_state_dict(saved)
    train(Synchronised(other, comm), range(2, 4))
    return [f"resumed: {name}" for (name, one), two in zip(pair.ours.named_parameters(), other.parameters())
            if not torch.equal(one, two)]


def static_changes(comm):
    """a static pattern that changes is an error in both; Weft's names the parameter (case 46)"""
    with comm.split(0) as part:  # abandoning an open step fails its communicator
        pair, texts = Pair(part, seeded(Heads), {"static": True}, static_graph=True), []
        try:
            for which in (sum, lambda losses: losses[0], sum):  # DDP detects it when the third step begins
                which(pair.ddp(pair.inputs())).backward()
        except RuntimeError as error:
            texts.append(str(error))
        try:
            for which in (sum, lambda losses: losses[0]):
                pair.clear()
                pair.synced.backward(which(pair.ours(pair.inputs())))
        except weft.WeftError as error:
            texts.append(str(error))
    found = len(texts) == 2 and "graph has changed" in texts[0] and "'two.weight' became ready 0 times, expected 1 as in the first step" in texts[1]
    return [] if found else [f"errors: {texts}"]


def static_ranks_differ(comm):
    """ranks use different parameters, with or without a static pattern (case 48)"""
    problems = []
    for static in (True, False):
        # DDP's static graph needs every parameter on every rank, so its dynamic graph is the reference for
        # both.
        pair = Pair(comm, seeded(Choice), {"static": static, "absent": True}, find_unused_parameters=True)
        for step in range(4):
            pair.clear()
            index = comm.rank % 2
            pair.ddp(pair.inputs(step), index).backward()
            pair.synced.backward(pair.ours(pair.inputs(step), index))
            problems += pair.differences(f"static {static}, step {step}")
    return problems


def logging_data(comm):
    """docs/dev/reducer.md lists all that DistributedDataParallel logs, and comparable values are equal (case 91)
    """
    pair = Pair(comm, seeded(Heads), {"bucket_limits": [50], "ddp_buckets": True}, bucket_cap_mb=50 / 2**20)
    for step in range(3):  # DDP logs an iteration later
        pair.clear()
        sum(pair.ddp(pair.inputs(step))).backward()
        pair.synced.backward(sum(pair.ours(pair.inputs(step))))
        if step == 0:
            pair.synced.replan()
    theirs, ours = pair.ddp._get_ddp_logging_data(), pair.synced.reducer.report()
    text = (Path(__file__).resolve().parent.parent.parent / "docs/dev/reducer.md").read_text()
    table = re.search(r"^\| its field \| here \|\n\|---\|---\|\n((?:\|.*\n)+)", text, re.M)[1]
    named = {field for row in table.splitlines() for field in re.findall(r"\w+", row.split("|")[1])}
    problems = [f"docs/dev/reducer.md says nothing of {field}" for field in theirs if field not in named]
    # DDP's values are texts.
    equal = {"world_size": ours["reducer"]["ranks"], "rank": ours["reducer"]["rank"],
             "num_parameter_tensors": ours["reducer"]["parameters"], "has_rebuilt_buckets": ours["reducer"]["plan_generation"],
             "total_parameter_size_bytes": ours["reducer"]["parameter_bytes"], "num_buckets_reduced": len(ours["buckets"]),
             "bucket_cap_bytes": ours["reducer"]["bucket_limits"][-1],
             "rebuilt_bucket_sizes": ", ".join(str(bucket["bytes"]) for bucket in ours["buckets"]),
             "rebuilt_per_bucket_param_indices": ", ".join(" ".join(map(str, bucket["parameters"])) for bucket in ours["buckets"]),
             "prev_iteration_grad_ready_order_indices": ", ".join(map(str, ours["last_step"]["ready_order"]))}
    return problems + [f"{field} is {value}, DDP's {theirs.get(field)}" for field, value in equal.items()
                       if str(theirs.get(field)) != str(value)]


BEHAVIOURS = {function.__name__: function for function in (several_backwards, create_graph, two_forwards, new_instance, resume,
                                                          static_changes, static_ranks_differ, logging_data)}
BEHAVIOURS |= CHECKPOINT_BEHAVIOURS | JOIN_BEHAVIOURS | HOOK_BEHAVIOURS | STATE_BEHAVIOURS | SHARD_BEHAVIOURS
BEHAVIOURS |= ARRAY_BEHAVIOURS
