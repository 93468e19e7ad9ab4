"""Layers that are recomputed in the backward pass, and so are used several times: functions as in
behaviours.py."""
from torch import nn
from torch.utils.checkpoint import checkpoint

from pair import Heads, Pair, seeded, whole


class Checkpointed(nn.Module):
    """Layers whose forward pass runs again in backward, `times` times; shared: a layer is used outside as
    well."""

    def __init__(self, reentrant, times=1, shared=False):
        super().__init__()
        self.reentrant, self.times, self.shared = reentrant, times, shared
        self.heads, self.first = Heads(), whole(nn.Linear(4, 4, bias=False))

    def forward(self, x):
        x = self.first(x)
        outputs = [loss for _ in range(self.times) for loss in checkpoint(self.heads, x, use_reentrant=self.reentrant)]
        return outputs + [self.heads.one(x).sum()] * self.shared


def checkpointing(comm):
    """layers that are recomputed in backward: once, twice, shared, reentrant or not; static or not (case 52)
    """
    problems = []
    for reentrant in (False, True):
        for times, shared in ((1, False), (2, False), (1, True), (2, True)):
            # Reentrant autograd reports a gradient each time. Without a static graph only one report is
            # accepted, as in DDP.
            several = reentrant and (times > 1 or shared)
            for static in (False, True)[several:]:
                pair = Pair(comm, seeded(lambda: Checkpointed(reentrant, times, shared)), {"static": static},
                            static_graph=static)
                for step in range(3):
                    pair.clear()
                    sum(pair.ddp(pair.inputs(step))).backward()
                    pair.synced.backward(sum(pair.ours(pair.inputs(step))))
                    problems += pair.differences(f"reentrant {reentrant}, {times} times, shared {shared}, static {static}, "
                                                 f"step {step}")
                pair.synced.close()
    return problems


def declared_uses(comm):
    """uses that DDP finds only with a static graph can be declared: how often a parameter is used (case 52)
    """
    names = [f"heads.{head}.{what}" for head in ("one", "two") for what in ("weight", "bias")]
    pair, problems = Pair(comm, seeded(lambda: Checkpointed(True, 2)), {"uses": dict.fromkeys(names, 2)},
                          static_graph=True), []
    for step in range(3):
        pair.clear()
        sum(pair.ddp(pair.inputs(step))).backward()
        pair.synced.backward(sum(pair.ours(pair.inputs(step))))
        problems += pair.differences(f"step {step}")
    return problems


class SomeHeads(nn.Module):
    """One of two heads, recomputed `times` times in backward; another layer is never used."""

    unused = {"never.weight", "never.bias"}

    def __init__(self, reentrant, times=1):
        super().__init__()
        self.reentrant, self.times = reentrant, times
        self.first, self.heads = whole(nn.Linear(4, 4, bias=False)), Heads()
        self.never = whole(nn.Linear(4, 3))

    def forward(self, x, which):
        x = self.first(x)
        return sum(checkpoint(lambda y: self.heads(y)[which], x, use_reentrant=self.reentrant) for _ in range(self.times))


def checkpointing_unused(comm):
    """recomputed layers of which some are not used: different ones on every rank, in every step (case 52)"""
    problems = []
    for reentrant, times, static in ((False, 1, False), (False, 2, False), (True, 1, False), (True, 1, True), (True, 2, True)):
        # With reentrant checkpoints DDP finds unused parameters only with a static graph. Where Weft needs
        # none, the reference uses non-reentrant checkpoints.
        pair = Pair(comm, seeded(lambda: SomeHeads(reentrant, times)), {"absent": True, "static": static},
                    find_unused_parameters=True, static_graph=static)
        pair.theirs.reentrant = reentrant and static
        for step in range(3):
            which = 0 if static else (comm.rank + step) % 2
            other = {"heads.two.weight", "heads.two.bias"} if static else set()
            pair.clear()
            (pair.ddp(pair.inputs(step), which) * comm.size).backward()
            pair.synced.backward(pair.ours(pair.inputs(step), which) * comm.size)
            problems += pair.differences(f"reentrant {reentrant}, {times} times, static {static}, step {step}",
                                         SomeHeads.unused | other)
        pair.synced.close()
    return problems


CHECKPOINT_BEHAVIOURS = {function.__name__: function for function in (checkpointing, declared_uses, checkpointing_unused)}
