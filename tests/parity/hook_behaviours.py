"""Hooks over many steps, and optimisers that step bucket by bucket: functions as in behaviours.py."""
import copy
import hashlib
import struct
import threading
from types import SimpleNamespace
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook, quantization_hooks

import weftsync as weft
from binding import Synchronised
from pair import Heads, Pair, seeded


def optimiser_in_step(comm):
    """an optimiser that updates a bucket's parameters as soon as it is reduced, while others are communicated
    (cases 82, 83)"""
    told, plan, parameters = threading.Semaphore(0), [], []

    def update(step, bucket, status):
        with torch.no_grad():
            for index in plan[bucket]:
                parameters[index] -= parameters[index].grad
        told.release()

    pair = Pair(comm, seeded(Heads), {"on_bucket": update, "bucket_limits": [0], "replan": "none"})
    plan += [bucket.params for bucket in pair.synced.reducer.buckets()]
    parameters += pair.synced.parameters
    optimiser, problems = torch.optim.SGD(pair.theirs.parameters(), lr=1.0), []
    for step in range(4):
        pair.clear()
        sum(pair.ddp(pair.inputs(step))).backward()
        optimiser.step()
        pair.synced.backward(sum(pair.ours(pair.inputs(step))))
        if not all(told.acquire(timeout=10) for _ in plan):
            return [f"step {step}: not every bucket is told"]
        problems += [f"step {step}: {name}" for (name, one), two in zip(pair.ours.named_parameters(),
                                                                        pair.theirs.parameters()) if not torch.equal(one, two)]
    return problems


def layers():
    return nn.Sequential(nn.Linear(4, 17), nn.Tanh(), nn.Linear(17, 5), nn.Tanh(), nn.Linear(5, 3))


class ByBucket:
    """Updates the parameters of each bucket as soon as it is reduced, with an optimiser for each bucket."""

    def __init__(self, comm, module, optimiser, **options):
        self.told, self.optimisers = threading.Semaphore(0), []
        self.synced = Synchronised(module, comm, on_bucket=self.update, bucket_limits=[100], replan="none",
                                   **options)
        self.optimisers += [optimiser([self.synced.parameters[index] for index in bucket.params])
                            for bucket in self.synced.reducer.buckets()]

    def update(self, step, bucket, status):
        self.optimisers[bucket].step()
        self.told.release()

    def train(self, loss):
        self.synced.backward(loss)
        return all(self.told.acquire(timeout=10) for _ in self.optimisers)


def optimisers_by_bucket(comm):
    """Adam and AdamW in the buckets' callbacks give the weights of stepping after finish, bit by bit (cases
    82, 83)"""
    kinds = [lambda parameters: torch.optim.Adam(parameters, lr=0.03, eps=0.01),
             lambda parameters: torch.optim.AdamW(parameters, lr=0.03, eps=0.01, weight_decay=0.1)]
    problems = []
    for number, mode in ((number, mode) for number in range(2) for mode in ("copy", "view")):
        inside = seeded(layers)
        after = Pair(comm, copy.deepcopy(inside), {"mode": mode})
        each = ByBucket(comm, inside, kinds[number], mode=mode)
        optimisers = [kinds[number](module.parameters()) for module in (after.ours, after.theirs)]
        for step in range(10):
            inputs = [torch.randn(6, 4, generator=torch.Generator().manual_seed(100 * step + comm.rank))]
            after.ddp.zero_grad()
            for synced in (after.synced, each.synced):
                synced.zero_grad()
            after.ddp(*inputs).square().sum().backward()
            after.synced.backward(after.ours(*inputs).square().sum())
            for optimiser in optimisers:
                optimiser.step()
            if not each.train(inside(*inputs).square().sum()):
                return [f"step {step}: not every bucket is told"]
            # With two ranks DDP adds in the same order.
            equal = torch.equal if comm.size == 2 else lambda one, two: torch.allclose(one, two, rtol=1e-4, atol=1e-5)
            for (name, one), two, three in zip(inside.named_parameters(), after.ours.parameters(), after.theirs.parameters()):
                if not torch.equal(one, two) or not equal(one, three):
                    problems.append(f"optimiser {number}, {mode}, step {step}: {name}")
        each.synced.close()
        after.synced.close()
    return problems


def exact_hooks(comm):
    """a hundred steps under each hook give the exact mean, as all-reduce does; PowerSGD only rounds a matrix
    of rank one (case 75)"""
    start, problems = 60, []
    mean = (comm.size - 1) / 2
    for name, options in (("allreduce", {}), ("post_local_sgd", {"start": 1000, "local": "none"}),
                          ("powersgd", {"rank": 1, "start": start, "min_rate": 1})):
        for mode in ("copy", "view"):
            pair = Pair(comm, seeded(lambda: nn.Linear(12, 10)),
                        {"hook": weft.Hook(comm.context, name, **options), "mode": mode})
            if name == "powersgd":
                state = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=start, min_compression_rate=1)
                pair.ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
            for step in range(100):
                pair.ddp.zero_grad()
                pair.synced.zero_grad()
                batch = torch.full((1, 12), float(comm.rank))
                pair.ddp(batch).sum().backward()
                pair.synced.backward(pair.ours(batch).sum())
                ours, theirs = pair.ours.weight.grad, pair.theirs.weight.grad
                exact = name != "powersgd" or step < start
                right = bool((ours == mean).all()) if exact else torch.allclose(ours, torch.tensor(mean), rtol=1e-5)
                if not right or not torch.allclose(ours, theirs, rtol=1e-5):
                    problems.append(f"{name}, {mode}, step {step}: {ours.unique().tolist()}, DDP's {theirs.unique().tolist()}")
            pair.synced.close()
    return problems


def matrix_steps(comm, pair, steps, zero=None):
    """Run steps of a single matrix on both sides, whose gradients differ between ranks. Yields number, Weft's
    and DDP's result. zero: the number of a step whose gradients are zeros."""
    for step in range(steps):
        for module in (pair.ddp, pair.synced):
            module.zero_grad()
        inputs = torch.randn(6, 41, generator=torch.Generator().manual_seed(100 * step + comm.rank)) * (step != zero)
        pair.ddp(inputs).square().sum().backward()
        pair.synced.backward(pair.ours(inputs).square().sum())
        yield step, pair.ours.weight.grad, pair.theirs.weight.grad


def with_state(blob, steps, rank, ranks, arrays):
    """Return the blob that the hook would have saved with other state; docs/dev/hooks.md has the format."""
    def text(words):
        return struct.pack("<I", len(words)) + words.encode()

    (length,) = struct.unpack_from("<I", blob, 16)
    state = struct.pack("<IQiiI", 2, steps, rank, ranks, len(arrays))
    for kind, values in sorted(arrays.items()):
        state += text(kind) + struct.pack("<Q", 1) + text("weight") + struct.pack("<Q", values.numel())
        state += values.contiguous().numpy().tobytes()
    whole = blob[:20 + length] + struct.pack("<Q", len(state)) + state
    return whole + hashlib.blake2b(whole, digest_size=32).digest()


def powersgd_beside(comm):
    """PowerSGD with DDP's feedback gives the results of DDP's hook, from the same Q and the same errors (case
    73)"""
    start, problems = 2, []
    for rank, warm, feedback in ((1, True, True), (2, True, True), (4, True, True), (4, True, False)):
        hook = weft.Hook(comm.context, "powersgd", rank=rank, start=start, feedback="ddp" if feedback else "off")
        pair = Pair(comm, seeded(lambda: nn.Linear(41, 37, bias=False)), {"hook": hook})
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=start,
                                            use_error_feedback=feedback, warm_start=warm)
        pair.ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        for step, ours, theirs in matrix_steps(comm, pair, 8):
            if step == start:  # the first compressed step, in which each has its own Q
                if torch.allclose(ours, theirs, rtol=1e-3):
                    problems.append("nothing was compressed")
                arrays = {"q": state.q_memory_dict[0].view(41, rank).t()}
                if feedback:
                    arrays["error"] = state.error_dict[0]
                hook.load(with_state(hook.save(), step + 1, comm.rank, comm.size, arrays))
            elif not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4 * float(theirs.abs().max())):
                problems.append(f"rank {rank}, step {step}: {(ours - theirs).abs().max()} of {theirs.abs().max()}")
        pair.synced.close()
    return problems


def gathered_at_once(out, tensor, group=None, async_op=False):
    """dist.all_gather, whose future holds the result as one tensor, as NCCL's does and PyTorch's quantisation
    expects."""
    dist.all_gather(out, tensor, group=group)
    done = torch.futures.Future()
    done.set_result([torch.stack(out)])
    return SimpleNamespace(get_future=lambda: done)


def quantized_beside(comm):
    """quantize gives the results of DDP's quantisation, with a scale for a tensor and for 512 values (case
    80)"""
    problems = []
    stand_in = SimpleNamespace(all_gather=gathered_at_once, get_rank=dist.get_rank, group=dist.group)
    for per, theirs_hook in (("tensor", quantization_hooks.quantization_pertensor_hook),
                             ("channel", quantization_hooks.quantization_perchannel_hook)):
        hook = weft.Hook(comm.context, "quantize", per=per)
        pair = Pair(comm, seeded(lambda: nn.Linear(41, 37, bias=False)), {"hook": hook})
        pair.ddp.register_comm_hook(None, theirs_hook)
        with mock.patch.object(quantization_hooks, "dist", stand_in):
            for step, ours, theirs in matrix_steps(comm, pair, 4, zero=2):
                if not torch.allclose(ours, theirs, rtol=1e-6, atol=1e-6 * float(theirs.abs().max())):
                    problems.append(f"{per}, step {step}: {(ours - theirs).abs().max()} of {theirs.abs().max()}")
        pair.synced.close()
    return problems


HOOK_BEHAVIOURS = {function.__name__: function for function in (optimiser_in_step, optimisers_by_bucket, exact_hooks,
                                                                powersgd_beside, quantized_beside)}
