#!/usr/bin/env python3
"""Compares the reducer with recorded results of PyTorch's DistributedDataParallel: buckets, and averaged gradients.

tests/parity/record.py wrote the records. Ranks are threads.
"""
import json
import sys

from ranks_of_threads import ROOT, expect, expect_equal, np, ranks, weft

sys.path.insert(0, str(ROOT / "tests" / "parity"))
import cases  # noqa: E402
import compare  # noqa: E402

RECORDED = ROOT / "tests" / "parity" / "recorded"
# All arrays are read here: numpy uses ast.literal_eval, which fails now and then in several threads of Python 3.11.
STEPS = dict(np.load(RECORDED / "steps.npz"))
INDEX = json.loads(STEPS["index"].tobytes())


def test_plans():
    """buckets and their limits are those that PyTorch plans, for 204 lists of parameters (cases 1 to 4, 6 to 8)"""
    plans = json.loads((RECORDED / "plans.json").read_text())["plans"]
    expect_equal(len(plans), 204)

    def body(comm):
        for plan in plans:
            params = [weft.Param(str(number), (size,), kind)
                      for number, (size, kind) in enumerate(zip(plan["sizes"], plan["kinds"]))]
            with weft.Reducer(comm, params, bucket_limits=plan["limits"], ddp_buckets=True) as reducer:
                buckets = reducer.buckets()
            expect_equal([list(bucket.params) for bucket in buckets], plan["buckets"], plan)
            expect_equal([bucket.limit_bytes for bucket in buckets], plan["closed"], plan)

    ranks(body, size=1)


def test_buffers():
    """running statistics are those of PyTorch, which broadcasts rank 0's before each forward pass (case 85)"""
    for size, recorded in json.loads((RECORDED / "buffers.json").read_text())["ranks"].items():
        def body(comm, recorded=recorded):
            mean, var, count = np.zeros(3, np.float32), np.ones(3, np.float32), np.zeros((), np.int64)
            params = [weft.Param("weight", (3,))] + [
                weft.Param.like(name, array, value=array, flags="buffer")
                for name, array in (("running_mean", mean), ("running_var", var), ("num_batches_tracked", count))]
            with weft.Reducer(comm, params, buffers=True) as reducer:
                for wanted in recorded[comm.rank]:
                    with reducer.step():
                        batch = np.array(wanted["batch"], np.float32)
                        mean[...] = 0.9 * mean + 0.1 * batch.mean(0)
                        var[...] = 0.9 * var + 0.1 * batch.var(0, ddof=1)
                        count[...] += 1
                        reducer.ready(0, np.zeros(3, np.float32))
                    close = np.allclose(mean, wanted["running_mean"], 1e-5, 1e-7) and np.allclose(
                        var, wanted["running_var"], 1e-5)
                    expect(close and count == wanted["num_batches_tracked"], f"{mean} {var} {count}", wanted)

        ranks(body, size=int(size))


def widened(array, kind):
    """Return the values in f64. Arrays of bf16 hold their bits."""
    return ((array.view(np.uint16).astype(np.uint32) << 16).view(np.float32) if kind == "bf16" else array).astype(float)


class Params:
    """The parameters of a recorded entry. Makes arrays of their layout."""

    def __init__(self, entry):
        self.entries, self.used = entry["params"], entry.get("used", {})
        self.list = [weft.Param(name, shape, kind, strides) for name, shape, kind, strides in self.entries]

    def users(self, index, size):
        """Return the ranks that have a gradient of a parameter."""
        return self.used.get(self.entries[index][0], range(size))

    def store(self, index, values):
        """Return values as an array with the parameter's strides."""
        _, shape, _, strides = self.entries[index]
        if strides is None:
            return np.array(values)
        memory = np.empty(values.size, values.dtype)
        array = np.lib.stride_tricks.as_strided(memory, shape, [stride * values.itemsize for stride in strides])
        array[...] = values
        return array


def replay(name, size, mode, accumulate="program", **options):
    """Replay a recorded entry on size ranks. Returns the differences of all steps and ranks."""
    entry = INDEX["entries"][name]
    params, batches = Params(entry), entry.get("batches", 1)

    def body(comm):
        problems = []
        with weft.Reducer(comm, params.list, mode=mode, bucket_limits=[entry.get("limit", 2**20)],
                          absent="used" in entry, accumulate=accumulate) as reducer:
            for step in range(INDEX["steps"]):
                stacks = [STEPS[f"{name}/{size}/{step}/{index}"] for index in range(len(params.list))]
                results = run_step(reducer, comm, params, stacks, batches, accumulate)
                for index, (stack, result) in enumerate(zip(stacks, results)):
                    param, _, kind, _ = params.entries[index]
                    if reducer.mode == weft.GradientMode.COPY and not params.users(index, size):
                        expect(result.size == 0, "a gradient that is absent everywhere is left unchanged")
                        continue
                    parts = stack[:-1].reshape(size, batches, *stack.shape[1:])
                    problem = judge(kind, widened(result, kind), widened(stack[-1], kind), parts)
                    if problem:
                        problems.append(f"{name}, {size} ranks, {mode}, step {step}: {param}: {problem}")
        return problems

    return sum(ranks(body, size=size, **options), [])


def run_step(reducer, comm, params, stacks, batches, accumulate):
    """Return the gradients after one synchronised step."""
    grads = list(reducer.views) if reducer.mode == weft.GradientMode.VIEW else [None] * len(stacks)
    order = np.random.default_rng(comm.rank).permutation(len(stacks))  # each rank has another ready order
    for batch in range(batches):
        with reducer.step(local=batch < batches - 1, rest_absent=bool(params.used)):
            for index in order:
                if comm.rank not in params.users(index, comm.size):
                    continue
                mine = stacks[index][comm.rank * batches + batch]
                mine = mine.view(np.uint16) if params.list[index].dtype == weft.DType.BF16 else mine
                if grads[index] is None or batch and accumulate == "reducer":
                    grads[index] = params.store(index, mine)
                elif batch:
                    add_to(grads[index], mine, params.list[index].dtype)
                else:
                    grads[index][...] = mine
                if reducer.mode == weft.GradientMode.VIEW:
                    reducer.ready(int(index))
                else:
                    reducer.ready(int(index), grads[index])
    for index, grad in enumerate(grads):
        if grad is None and params.users(index, comm.size):
            like = stacks[index][0]
            grads[index] = params.store(index, np.zeros_like(
                like.view(np.uint16) if params.list[index].dtype == weft.DType.BF16 else like))
            reducer.result(index, grads[index])
    return [np.zeros(0) if grad is None else np.array(grad) for grad in grads]


def add_to(grad, more, dtype):
    """Add more to grad in the gradient's type, as a framework accumulates micro-batches."""
    if dtype == weft.DType.BF16:
        total = (widened(grad, "bf16").astype(np.float32) + widened(more, "bf16").astype(np.float32)).view(np.uint32)
        grad[...] = ((total + 0x7FFF + ((total >> 16) & 1)) >> 16).astype(np.uint16)
    else:
        grad += more


def judge(kind, ours, theirs, parts):
    """Return the difference between ours and theirs, judged by the ranks' sums of micro-batches; empty for none."""
    sums = []
    for rank in parts:
        total = np.array(rank[0].view(np.uint16) if kind == "bf16" else rank[0])
        for more in rank[1:]:
            add_to(total, more.view(np.uint16) if kind == "bf16" else more,
                   weft.DType.BF16 if kind == "bf16" else None)
        sums.append(widened(total, kind))
    return compare.difference(kind, ours, theirs, sums, len(sums))


def replay_all(names, **options):
    problems = [problem for name in names for size in (2, 3, 4) for mode in ("copy", "view")
                for problem in replay(name, size, mode, **options)]
    expect(not problems, f"{len(problems)} differences", *problems[:10])


def test_averages():
    """averages are PyTorch's, in every type and with large and small values (cases 7, 8, 11, 12, 18, 26)"""
    replay_all(["average", "view", "large f16", "small f16", "several buckets"])


def test_layouts():
    """averages are PyTorch's, for gradients of any dense layout (case 13)"""
    replay_all(["layouts", "layouts, one bucket each"])


def test_accumulated():
    """accumulated gradients are PyTorch's under no_sync, whoever adds them up (cases 20, 55)"""
    replay_all(["accumulated", "accumulated in views"])
    problems = [problem for size in (2, 3, 4) for problem in replay("accumulated", size, "copy", accumulate="reducer")]
    expect(not problems, f"{len(problems)} differences", *problems[:10])


def test_unused():
    """parameters that some ranks lack, or all ranks, give the results of PyTorch's unused parameters (cases 33, 34, 45)"""
    replay_all(["unused", "unused, in views"])


def test_over_shm():
    """averages are PyTorch's over shared memory"""
    replay_all(["average", "accumulated"], backend="shm")


if __name__ == "__main__":
    cases.main(globals())
