"""Ranks with different numbers of batches, compared with PyTorch's Join context: functions as in
behaviours.py."""
import threading

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join

import weftsync as weft
from pair import Heads, Pair, seeded, train


def join_case(comm, initial, hook):
    """Rank r has 2 r batches and then joins. Return the problems, and the bytes that this rank sent."""
    count = 2 * comm.rank
    options = {"uneven": True, "divide_by": "world" if initial else "active"}
    if hook == "fp16":
        options["hook"] = weft.Hook(comm.context, hook, order="ddp")
    if hook == "powersgd":
        options["hook"] = weft.Hook(comm.context, hook, rank=1, start=1, min_rate=1, feedback="off", warm_start=0)
    pair = Pair(comm, seeded(Heads), options)
    if hook == "fp16":
        pair.ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if hook == "powersgd":
        pair.ddp.register_comm_hook(powerSGD_hook.PowerSGDState(
            None, 1, start_powerSGD_iter=1, min_compression_rate=1, use_error_feedback=False, warm_start=False),
            powerSGD_hook.powerSGD_hook)
    # The matrices of Heads have equal rows, so PowerSGD only rounds them.
    equal = torch.equal if hook != "powersgd" else lambda one, two: torch.allclose(one, two, rtol=1e-4, atol=1e-3)
    with pair.ddp.join(divide_by_initial_world_size=initial):
        theirs = train(pair.theirs, lambda batch: sum(pair.ddp(batch)).backward(), pair, range(count))
    ours = train(pair.ours, lambda batch: pair.synced.backward(sum(pair.ours(batch))), pair, range(count))
    joined = pair.synced.reducer.join()
    pair.synced.broadcast_state(joined.last_active)
    what = f"divided by the {'initial' if initial else 'active'} ranks{hook and ', ' + hook}"
    problems = [f"{what}: gradients of step {step}" for step, (one, two) in enumerate(zip(ours, theirs))
                if not all(map(equal, one, two))]
    problems += [f"{what}: state of {name}" for (name, one), two in zip(pair.ours.named_parameters(),
                                                                        pair.theirs.parameters()) if not equal(one, two)]
    if (joined.steps, joined.last_active) != (2 * (comm.size - 1) - count, comm.size - 1):
        problems.append(f"{what}: {joined}")
    return problems, pair.synced.reducer.stats().sent_bytes


def uneven_inputs(comm):
    """ranks with fewer batches, one of them with none, join: gradients of every step and the final state
    agree (cases 56 to 58)"""
    plain, plain_bytes = join_case(comm, True, "")
    active, _ = join_case(comm, False, "")
    half, _ = join_case(comm, True, "fp16")
    compressed, compressed_bytes = join_case(comm, True, "powersgd")
    return plain + active + half + compressed + ["nothing was compressed"] * (compressed_bytes >= plain_bytes)


def stop_when_exhausted(comm):
    """the first rank without data stops all, at the same step (case 59)"""
    pair = Pair(comm, seeded(Heads), {"uneven": True, "stop_when_exhausted": True})
    count, done = 2 + comm.rank, [0, 0]

    def once(which, synchronise):
        train((pair.theirs, pair.ours)[which], synchronise, pair, [0])
        done[which] += 1

    texts = []
    try:
        with pair.ddp.join(throw_on_early_termination=True):
            for _ in range(count):
                once(0, lambda batch: sum(pair.ddp(batch)).backward())
    except RuntimeError as error:
        texts.append(str(error))
    try:
        for _ in range(count):
            once(1, lambda batch: pair.synced.backward(sum(pair.ours(batch))))
        pair.synced.reducer.join()
    except weft.WeftError as error:
        texts.append(str(error))
    problems = [] if done[0] == done[1] == 2 else [f"steps done: {done}"]
    if len(texts) != 2 or "exhausted" not in texts[0] or "ranks [0] have no more data" not in texts[1]:
        problems.append(f"errors: {texts}")
    return problems


def two_joined(comm):
    """two models under one Join context; Weft's reducers join on a thread each (case 62)"""
    count = 2 * (comm.size - 1 - comm.rank)
    pairs = [Pair(comm, seeded(Heads), {"uneven": True}), Pair(comm, seeded(lambda: nn.Sequential(Heads())), {"uneven": True})]
    theirs, ours, joined = [], [], [None, None]
    with Join([pair.ddp for pair in pairs], divide_by_initial_world_size=True):
        for step in range(count):
            for pair in pairs:
                theirs += train(pair.theirs, lambda batch: sum(pair.ddp(batch)).backward(), pair, [step])
    for step in range(count):
        for pair in pairs:
            ours += train(pair.ours, lambda batch: pair.synced.backward(sum(pair.ours(batch))), pair, [step])

    def join(number):
        joined[number] = pairs[number].synced.reducer.join(timeout=60)

    threads = [threading.Thread(target=join, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = (2 * (comm.size - 1) - count, 0)
    problems = [f"joined: {result}" for result in joined if (result.steps, result.last_active) != expected]
    problems += [f"gradients of step {number // 2}, model {number % 2}" for number, (one, two) in enumerate(zip(ours, theirs))
                 if not all(map(torch.equal, one, two))]
    for number, pair in enumerate(pairs):
        pair.synced.broadcast_state(0)
        problems += [f"state of {name}, model {number}" for (name, one), two in
                     zip(pair.ours.named_parameters(), pair.theirs.parameters()) if not torch.equal(one, two)]
        pair.synced.close()
    return problems


JOIN_BEHAVIOURS = {function.__name__: function for function in (uneven_inputs, stop_when_exhausted, two_joined)}
