"""The model of a training step for bench/predict.py: hooks, their bytes on the wire and core times, and the step's timeline."""
import math
from typing import NamedTuple

# GB/s of f32 values on one core, of bench/kernels with operands of 256 KiB: AMD EPYC with AVX2, best of 15 measurements.
ENCODE = {"bf16": 25.7, "fp16": 53.0, "int8": 10.7, "fp8": 6.7, "onebit": 4.5, "topk 1 %": 0.4}
DECODE = {"bf16": 46.2, "fp16": 52.7, "int8": 21.3, "fp8": 9.9, "onebit": 8.3, "topk 1 %": 20.0}
LEFT, RIGHT, RESIDUAL = 10.3, 19.0, 10.0  # products of rank 4: P = M Q, Q = M^T P, M - P Q^T
# Bytes that a codec sends for a byte of f32.
CODED = {"int8": (1 + 4 / 256) / 4, "fp8": (1 + 4 / 256) / 4, "onebit": (1 / 8 + 4 / 64) / 4, "topk 1 %": 8 * 0.01 / 4}
RANK = 4
HOOKS = ("allreduce", "bf16", "fp16", "int8", "fp8", "onebit", "topk 1 %", "powersgd rank=4")
# Algorithms that the model tries, with the most ranks of those whose schedules grow with the square of the ranks.
ALL_REDUCE = ("direct", "ring", "halving_doubling", "doubling")


class Exchange(NamedTuple):
    """A collective of a bucket. bytes: of the vector; of all_to_all and all_gather: of one block."""
    collective: str
    algorithms: tuple[str, ...]
    bytes: int
    element: int


class Work(NamedTuple):
    """The communication of a bucket: exchanges one after the other, core seconds before, between each two, and after."""
    exchanges: tuple[Exchange, ...]
    before_s: float
    between_s: float
    after_s: float


def rounded(size, unit):
    return max(unit, math.ceil(size / unit) * unit)


def work_of(hook, shapes, ranks):
    """Returns the work of a bucket with parameters of these shapes."""
    size = 4 * sum(math.prod(shape) for shape in shapes)
    if hook == "allreduce":
        return Work((Exchange("all_reduce", ALL_REDUCE, size, 4),), 0, 0, 0)
    if hook in ("bf16", "fp16"):  # sums of 16-bit values are folded at once, which only `direct` does
        return Work((Exchange("all_reduce", ("direct",), size // 2, 2),), size / ENCODE[hook] / 1e9, 0, size / DECODE[hook] / 1e9)
    if hook in CODED:
        block = rounded(size * CODED[hook] / ranks, 4)
        encode, decode = size / ENCODE[hook] / 1e9, size / DECODE[hook] / 1e9
        exchanges = (Exchange("all_to_all", ("direct",), block, 4), Exchange("all_gather", ("direct", "ring", "doubling"), block, 4))
        return Work(exchanges, encode, decode + encode / ranks, decode)
    compressed = [(shape[0], math.prod(shape[1:])) for shape in shapes
                  if len(shape) > 1 and (shape[0] + math.prod(shape[1:])) * RANK * 2 < math.prod(shape)]
    matrices = 4 * sum(rows * columns for rows, columns in compressed)
    first = size - matrices + 4 * RANK * sum(rows for rows, _ in compressed)
    second = 4 * RANK * sum(columns for _, columns in compressed)
    exchanges = [Exchange("all_reduce", ALL_REDUCE, first, 4)] + ([Exchange("all_reduce", ALL_REDUCE, second, 4)] if second else [])
    return Work(tuple(exchanges), matrices / LEFT / 1e9, matrices / RIGHT / 1e9, matrices / RESIDUAL / 1e9)


def step_s(compute_s, ready, works, seconds):
    """Returns the duration of a step. ready: of each bucket, in launch order. seconds(exchange): its time on the network.

    The network carries one exchange at a time and a core does one stage at a time, each in the order in which they become
    due; of those that are due at once, that of the bucket launched first.
    """
    stages = [[("core", work.before_s), *(part for exchange in work.exchanges[:-1]
                                          for part in (("net", seconds(exchange)), ("core", work.between_s))),
               ("net", seconds(work.exchanges[-1])), ("core", work.after_s)] for work in works]
    due, at = list(ready), [0] * len(works)
    free = {"core": 0.0, "net": 0.0}
    open_buckets = set(range(len(works)))
    while open_buckets:
        begins = {bucket: max(due[bucket], free[stages[bucket][at[bucket]][0]]) for bucket in open_buckets}
        bucket = min(open_buckets, key=lambda one: (begins[one], one))
        resource, duration = stages[bucket][at[bucket]]
        due[bucket] = free[resource] = begins[bucket] + duration
        at[bucket] += 1
        if at[bucket] == len(stages[bucket]):
            open_buckets.remove(bucket)
    return max(compute_s, *due)
