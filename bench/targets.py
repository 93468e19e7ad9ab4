"""The targets of Weft's plan, and whether a run of bench/peers.py meets them: the list `targets` of peers.json.

Each is {"work", "target", "goal", "measured", "value", "met"}: what is measured, the target in words and as a number,
what was found in words and as a number, and whether that meets it; null where this run did not measure it.
"""
import hosts

MIB = 1 << 20
MEGABYTE = 10 ** 6


class Found:
    """The rows of a run by (work, bytes, system), and what else it has found."""

    def __init__(self, samples, rows, arguments):
        self.samples, self.memory = samples, arguments.memory
        self.rows = {(row["work"], row["bytes"], row["system"]): row for row in rows if row["ranks"] == 2 or row["ranks"] == 4}

    def of(self, work, system, least, most):
        """Rows of a work's sizes within these bounds, in their order."""
        return [row for (name, size, who), row in sorted(self.rows.items())
                if name == work and who == system and least <= size <= most]


def entry(work, target, goal, cases, more_is_better=True, unit=""):
    """cases: [(value, what it is of)]; the worst one counts."""
    worst = (min if more_is_better else max)(cases, default=None)
    if worst is None:
        return {"work": work, "target": target, "goal": goal, "measured": "not measured in this run", "value": None, "met": None}
    value, where = worst
    met = value >= goal if more_is_better else value <= goal
    return {"work": work, "target": target, "goal": goal, "measured": f"{value:.3g}{unit}" + (f" ({where})" if where else ""),
            "value": value, "met": met}


def size_text(size):
    for unit, factor in (("MiB", MIB), ("KiB", 1024)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} bytes"


def ratios(found, work, system, least, most):
    """How many times as long the system took, at each size."""
    return [(row["weft_ratio"], f"{size_text(row['bytes'])}, {row.get('which', system)}")
            for row in found.of(work, system, least, most)]


def times_of(found, work, system, least, most):
    """Weft's time in the system's, at each size."""
    return [(1 / ratio, where) for ratio, where in ratios(found, work, system, least, most)]


def arena(found):
    work, name = "all_reduce_f32_arena", "all_reduce, 2 ranks, arena"
    bound = [(row["weft_of_bound"], size_text(row["bytes"])) for row in found.of(work, "weft", MIB, 100 * MIB)
             if "weft_of_bound" in row]
    return [
        entry(name, "from 4 MiB: >= 4 times the best peer", 4, ratios(found, work, "best", 4 * MIB, 100 * MIB)),
        entry(name, "from 4 MiB: >= 3 times the best tuned peer", 3, ratios(found, work, "best-tuned", 4 * MIB, 100 * MIB)),
        entry(name, "1 MiB: >= 1.6 times the best peer", 1.6, ratios(found, work, "best", MIB, MIB)),
        entry(name, "1-100 MiB: >= 8 times PyTorch's Gloo", 8, ratios(found, work, "gloo", MIB, 100 * MIB)),
        entry(name, "1-100 MiB: >= 0.65 of the bound by 2 n S bytes", 0.65, bound)]


def private(found):
    work, name = "all_reduce_f32_private", "all_reduce, 2 ranks, private buffers"
    return [
        entry(name, "from 4 MiB: >= 1.4 times the best peer", 1.4, ratios(found, work, "best", 4 * MIB, 100 * MIB)),
        entry(name, "from 4 MiB: >= 1.1 times the best tuned peer", 1.1, ratios(found, work, "best-tuned", 4 * MIB, 100 * MIB)),
        entry(name, "64 KiB-1 MiB: >= 1.2 times the best peer", 1.2, ratios(found, work, "best", 64 << 10, MIB))]


def small(found):
    """Arena buffers and private ones each."""
    return [entry(f"all_reduce, {what}, {memory}", "8 B-4 KiB: <= 0.9 of the best peer's time", 0.9,
                  times_of(found, f"{name}_f32_{memory}", "best", 8, 4096), more_is_better=False)
            for name, what in (("all_reduce", "2 ranks"), ("crowded_all_reduce", "4 ranks on 2 cores"))
            for memory in ("arena", "private")]


def thresholds(found):
    samples, cases = found.samples, []
    for size in samples.sizes("thresholds"):
        measured = samples.least(("thresholds", size, "measured"))
        paths = [(us, name) for name in samples.systems("thresholds") if name != "measured"
                 if (us := samples.least(("thresholds", size, name))) is not None]
        if measured is not None and paths:
            best, name = min(paths)
            cases.append((measured / best, f"{size_text(size)}, beside {name} alone"))
    return [entry("all_reduce, private buffers, thresholds as measured", "<= 1.1 of the time with the best setting by hand", 1.1,
                  cases, more_is_better=False)]


def steps(found):
    row = [(row["weft_ratio"], "") for (work, _, system), row in found.rows.items()
           if work == "step_resnet50" and system == "ddp-gloo" and "weft_ratio" in row]
    return [entry("gradient step of ResNet-50, copy mode, 2 ranks", ">= 4 times DistributedDataParallel on Gloo, exposed", 4, row)]


def ready(found):
    cases = [(row["median_us"] * 1e3, "") for (work, _, _), row in found.rows.items() if work == "ready"]
    return [entry("ready(i) without its copy", "<= 100 ns", 100, cases, more_is_better=False, unit=" ns")]


def share(row, rate):
    """Of what the cable can carry in data, one way: with two ranks each sends all bytes once."""
    return row["bytes"] * 8 / (row["median_us"] * 1e-6) / (hosts.RATES[rate] * hosts.PAYLOAD)


def between_hosts(found):
    for rate in hosts.RATES:
        work, name, words = f"hosts_{rate}_all_reduce", f"two hosts, {rate}", "of what the cable carries in data"
        large = 0.93 if rate == "10gbit" else 0.95

        def shares(least, most, work=work, rate=rate):
            return [(share(row, rate), size_text(row["bytes"])) for row in found.of(work, "weft", least, most)]

        yield entry(f"all_reduce, {name}", f"4-25 MB: >= 0.95 {words}", 0.95, shares(4 * MEGABYTE, 25 * MEGABYTE))
        yield entry(f"all_reduce, {name}", f"25-105 MB: >= {large} {words}", large, shares(25 * MEGABYTE, 105 * MEGABYTE))
        yield entry(f"all_reduce, {name}", "8 bytes: <= 1.5 of UCX's own latency", 1.5, times_of(found, work, "ucx", 8, 8),
                    more_is_better=False)
        for hook, goal in (("bf16", 1.9), ("int8", 3.5)):
            # weft_ratio is the hook's time over that without one.
            yield entry(f"gradient step of ResNet-50, {name}", f"hook {hook}: >= {goal} times as fast as uncompressed", goal,
                        times_of(found, f"hosts_{rate}_step_resnet50", f"weft-{hook}", 0, 1 << 40))


def gpu():
    return [{**entry("GPU flatten or unflatten with scale", ">= 0.85 of a device-to-device copy", 0.85, []),
             "measured": "needs a GPU: `make gpu` measures it"}]


def memory(found):
    cases = [(100 * found.memory["beyond"], "")] if found.memory else []
    return [entry("memory beyond the gradients, ResNet-50, view mode", "<= 2 %", 2, cases, more_is_better=False, unit=" %")]


def judge(samples, rows, arguments):
    """The list `targets` of peers.json."""
    found = Found(samples, rows, arguments)
    return [*arena(found), *private(found), *small(found), *thresholds(found), *steps(found), *ready(found),
            *between_hosts(found), *gpu(), *memory(found)]
