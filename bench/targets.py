"""The targets of Weft's plan, and whether a run of bench/peers.py meets them: the list `targets` of peers.json.

Each is {"work", "target", "goal", "measured", "value", "least", "most", "met", "why"}: the measured work, the target in words
and as a number, the result in words and as a number, its spread over the rounds, and whether it meets the target. `met` is
null, with the reason in `why`, if this run cannot decide. That is so if the run did not measure the work, lacked a peer or a
size that the target requires, had another number of ranks, or was quick.
"""
import dataclasses
import statistics

import hosts
import own
import planner
import training
from comparison import CROWDED_SIZES, SIZES, weft_of

MIB = 1 << 20
MEGABYTE = 10 ** 6
UNMEASURED = "not measured in this run"
WIRE_PERCENT = 3
# Steps between two hosts: the system, its description, and the required speedup over uncompressed.
STEPS = (
    ("weft-bf16", "hook bf16", 1.9),
    ("weft-reduce-bf16", "reduce_dtype bf16", 1.9),
    ("weft-int8", "hook int8", 3.5),
    ("weft-int8-2mib", "hook int8, buckets of 2 MiB", 3.5),
)
PLANNER_NOISE = 1.02
EXPOSED = {"ddp-weft": 0.5, "weft-copy": 0.3, "weft-view": 0.1}  # most of what is exposed with DDP on Gloo


@dataclasses.dataclass(frozen=True)
class Case:
    """The result of one case, such as a size. least, most: of the rounds."""
    value: float
    where: str = ""
    least: float = None
    most: float = None
    size: int = None


class Found:
    """The rows of a run by (work, bytes, system), and its other results."""

    def __init__(self, samples, rows, arguments):
        self.samples, self.arguments, self.memory = samples, arguments, arguments.memory
        self.quick = arguments.quick
        self.rows = {(row["work"], row["bytes"], row["system"]): row for row in rows}

    def of(self, work, system, least, most):
        """Returns the rows of a work's sizes within these bounds, in ascending order."""
        return [row for (name, size, who), row in sorted(self.rows.items())
                if name == work and who == system and least <= size <= most]

    def two_ranks(self):
        """Returns a reason if the run did not have two ranks."""
        return [] if self.arguments.ranks == 2 else [f"the run has {self.arguments.ranks} ranks"]

    def without(self, work, cases, sizes, peers=()):
        """Returns a reason if these cases lack sizes or peers that a target requires."""
        measured = {case.size for case in cases}
        missing = [size_text(size) for size in sizes if size not in measured]
        absent = [peer for peer in peers if any(self.samples.median((work, size, peer)) is None for size in measured)]
        return [f"without {', '.join(missing + absent)}"] if measured and missing + absent else []


def entry(work, target, goal, cases, more_is_better=True, unit="", lacks=()):
    """Makes an entry from the worst case. lacks: reasons that prevent a judgement."""
    worst = (min if more_is_better else max)(cases, key=lambda case: case.value, default=None)
    words = {"work": work, "target": target, "goal": goal}
    if worst is None:
        return {**words, "measured": UNMEASURED, "value": None, "least": None, "most": None, "met": None,
                "why": "; ".join(["not measured", *lacks])}
    met = worst.value >= goal if more_is_better else worst.value <= goal
    return {**words, "measured": f"{worst.value:.3g}{unit}" + (f" ({worst.where})" if worst.where else ""), "value": worst.value,
            "least": worst.least, "most": worst.most, "met": None if lacks else met,
            "why": f"not judged: {'; '.join(lacks)}" if lacks else None}


def quick(found):
    return ["a quick run"] if found.quick else []


def size_text(size):
    for unit, factor in (("MiB", MIB), ("KiB", 1024)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} bytes"


def ratios(found, work, system, least=0, most=1 << 40):
    """Returns the system's time over Weft's, at each size."""
    return [Case(row["weft_ratio"], f"{size_text(row['bytes'])}, {row.get('which', system)}", row["weft_ratio_least"],
                 row["weft_ratio_most"], row["bytes"]) for row in found.of(work, system, least, most) if "weft_ratio" in row]


def times_of(found, work, system, least=0, most=1 << 40):
    """Returns Weft's time over the system's, at each size."""
    return [dataclasses.replace(case, value=1 / case.value, least=1 / case.most, most=1 / case.least)
            for case in ratios(found, work, system, least, most)]


class Reduced:
    """Makes the entries of an all_reduce that is compared with peers."""

    def __init__(self, found, work, memory, name, sizes, lacks=()):
        self.found, self.work, self.weft, self.name = found, work, f"{work}_f32_{memory}", name
        self.sizes, self.always = sizes, [*quick(found), *lacks]

    def lacks(self, cases, least, most, peers):
        return self.always + self.found.without(self.work, cases, [size for size in self.sizes if least <= size <= most], peers)

    def faster(self, text, goal, system, least, most, absent=()):
        cases = ratios(self.found, self.weft, system, least, most)
        peers = self.found.arguments.every_peer if system.startswith("best") else [system]
        return entry(self.name, text, goal, cases, lacks=[*absent, *self.lacks(cases, least, most, peers)])

    def shorter(self, text, goal, system, least, most):
        cases = times_of(self.found, self.weft, system, least, most)
        return entry(self.name, text, goal, cases, more_is_better=False,
                     lacks=self.lacks(cases, least, most, self.found.arguments.every_peer))

    def of_bound(self, text, goal, least, most):
        cases = [Case(row["weft_of_bound"], size_text(row["bytes"]), row["bound_us"] / row["weft_most_us"],
                      row["bound_us"] / row["weft_least_us"], row["bytes"])
                 for row in self.found.of(self.weft, "weft", least, most) if "weft_of_bound" in row]
        return entry(self.name, text, goal, cases, lacks=self.lacks(cases, least, most, ()))


def arena(found):
    on = Reduced(found, "all_reduce", "arena", "all_reduce, 2 ranks, arena", SIZES, found.two_ranks())
    return [on.faster("from 4 MiB: >= 4 times the best peer", 4, "best", 4 * MIB, 100 * MIB),
            on.faster("from 4 MiB: >= 3 times the best tuned peer", 3, "best-tuned", 4 * MIB, 100 * MIB),
            on.faster("1 MiB: >= 1.6 times the best peer", 1.6, "best", MIB, MIB),
            on.faster("1-100 MiB: >= 8 times PyTorch's Gloo", 8, "gloo", MIB, 100 * MIB),
            on.of_bound("1-100 MiB: >= 0.65 of the bound by 2 n S bytes", 0.65, MIB, 100 * MIB)]


def private(found):
    """Returns the targets of private buffers. Two goals belong to another design, which writes into peers' private memory and
    therefore has to kill late ranks (fence=kill). Weft does not have it: its own path is measured for them, but not judged."""
    on = Reduced(found, "all_reduce", "private", "all_reduce, 2 ranks, private buffers", SIZES, found.two_ranks())
    other = "asked of writing into peers' memory with fence=kill"
    absent = ["Weft has no such path; measured is the one that it has"]
    return [on.faster("from 4 MiB: >= 1.4 times the best peer", 1.4, "best", 4 * MIB, 100 * MIB),
            on.faster("from 4 MiB: >= 1.1 times the best tuned peer", 1.1, "best-tuned", 4 * MIB, 100 * MIB),
            on.faster(f"from 4 MiB: >= 1.7 times the best peer, {other}", 1.7, "best", 4 * MIB, 100 * MIB, absent),
            on.faster(f"from 4 MiB: >= 1.3 times the best tuned peer, {other}", 1.3, "best-tuned", 4 * MIB, 100 * MIB, absent),
            on.faster("64 KiB-1 MiB: >= 1.2 times the best peer", 1.2, "best", 64 << 10, MIB)]


def small(found):
    """Yields the targets of small sizes, for arena and private buffers."""
    for work, name, sizes, lacks in (("all_reduce", "2 ranks", SIZES, found.two_ranks()),
                                     ("crowded_all_reduce", "4 ranks on 2 cores", CROWDED_SIZES, [])):
        for memory in ("arena", "private"):
            on = Reduced(found, work, memory, f"all_reduce, {name}, {memory}", sizes, lacks)
            yield on.shorter("8 B-4 KiB: <= 0.9 of the best peer's time", 0.9, "best", 8, 4096)


def thresholds(found):
    """Compares autotuned thresholds with the setting that has the lowest median over the processes."""
    samples, cases = found.samples, []
    for size in samples.sizes("thresholds"):
        measured = samples.median(("thresholds", size, "measured"))
        paths = [(us, name) for name in samples.systems("thresholds") if name != "measured"
                 if (us := samples.median(("thresholds", size, name))) is not None]
        if measured is not None and paths:
            _, name = min(paths)
            rounds = samples.ratios(("thresholds", size, "measured"), ("thresholds", size, name))
            cases.append(Case(statistics.median(rounds), f"{size_text(size)}, beside {name} alone", min(rounds), max(rounds), size))
    return [entry("all_reduce, private buffers, thresholds as measured", "<= 1.1 of the time with the best setting by hand", 1.1,
                  cases, more_is_better=False,
                  lacks=quick(found) + found.two_ranks() + found.without("thresholds", cases, own.Thresholds.SIZES))]


def steps(found):
    cases = [Case(row["weft_ratio"], "", row["weft_ratio_least"], row["weft_ratio_most"]) for row in
             found.of("step_resnet50", "ddp-gloo", 0, 1 << 40) if "weft_ratio" in row]
    return [entry("gradient step of ResNet-50, copy mode, 2 ranks", ">= 4 times DistributedDataParallel on Gloo, exposed", 4, cases,
                  lacks=quick(found) + found.two_ranks())]


def ready(found):
    cases = [Case(row["median_us"] * 1e3, "", row["least_us"] * 1e3, row["most_us"] * 1e3) for row in
             found.of("ready", "weft", 0, 1 << 40)]
    return [entry("ready(i) without its copy", "<= 100 ns", 100, cases, more_is_better=False, unit=" ns", lacks=quick(found))]


def share(us, size, rate):
    """Returns the used share of the data rate of a link, in one direction."""
    return hosts.wire_us(size, rate) / us


def shares(found, rate, least, most):
    return [Case(share(row["median_us"], row["bytes"], rate), size_text(row["bytes"]), share(row["most_us"], row["bytes"], rate),
                 share(row["least_us"], row["bytes"], rate), row["bytes"])
            for row in found.of(f"hosts_{rate}_all_reduce", "weft", least, most)]


def on_the_wire(found, rate):
    """Returns by how many percent the bytes on a link differ from the necessary bytes, in each direction."""
    cases = [Case(100 * abs(one["ratio"] - 1), f"{one['direction']} by host {one['host']}")
             for one in found.samples.noted.get("hosts", []) if one["rate"] == rate]
    spread = [case.value for case in cases]
    return [dataclasses.replace(case, least=min(spread), most=max(spread)) for case in cases]


def between_hosts(found):
    for rate in hosts.RATES:
        work, name, words = f"hosts_{rate}_all_reduce", f"two hosts, {rate}", "of what the cable carries in data"
        for text, goal, least, most in (("4-25 MB", 0.95, 4 * MEGABYTE, 25 * MEGABYTE),
                                        ("25-105 MB", 0.93 if rate == "10gbit" else 0.95, 25 * MEGABYTE, 105 * MEGABYTE)):
            cases = shares(found, rate, least, most)
            sizes = [size for size in hosts.SIZES if least <= size <= most]
            yield entry(f"all_reduce, {name}", f"{text}: >= {goal} {words}", goal, cases,
                        lacks=quick(found) + found.without(work, cases, sizes))
        yield entry(f"all_reduce, {name}", "8 bytes: <= 1.5 of UCX's own latency", 1.5, times_of(found, work, "ucx", 8, 8),
                    more_is_better=False, lacks=quick(found))
        yield entry(f"all_reduce, {name}, 4-105 MB", f"bytes on the cables: within {WIRE_PERCENT} % of the buffers'", WIRE_PERCENT,
                    on_the_wire(found, rate), more_is_better=False, unit=" %", lacks=quick(found))
        for system, what, goal in STEPS:
            cases = [dataclasses.replace(case, where="") for case in times_of(found, f"hosts_{rate}_step_resnet50", system)]
            yield entry(f"gradient step of ResNet-50, {name}", f"{what}: >= {goal} times as fast as uncompressed", goal, cases,
                        lacks=quick(found))


def planned(found):
    """Returns {(model, slower): exposed time with the model's plan over that with the limits' plan}."""
    over = {}
    for model, slower in planner.CASES:
        work = planner.work_of(model, slower)
        for size in found.samples.sizes(work):
            of_rounds = found.samples.ratios((work, size, "model"), (work, size, "limits"))
            if of_rounds:
                over[model, slower] = statistics.median(of_rounds)
    return over


def planners(found):
    """Yields the targets of the planner. A saving counts for a manifest in one case: with the recorded backward, or, for the two
    manifests whose communication takes longer than the backward, with a slower one."""
    name, over = "step behind a recorded backward, two hosts, 1gbit, by model", planned(found)
    cases = [Case(ratio, f"{model}, x{slower}") for (model, slower), ratio in over.items()]
    missing = [f"{model}, x{slower}" for model, slower in planner.CASES if (model, slower) not in over]
    lacks = quick(found) + ([f"without {'; '.join(missing)}"] if over and missing else [])
    yield entry(name, f"never longer exposed than by limits (<= {PLANNER_NOISE}, for the noise)", PLANNER_NOISE, cases,
                more_is_better=False, lacks=lacks)
    slowest = {model: max(slower for name, slower in planner.CASES if name == model) for model, _ in planner.CASES}
    for words, chosen in (("as recorded", dict.fromkeys(slowest, 1)), ("BERT-base and GPT-2 twice as slow", slowest)):
        saved = sorted((Case(100 * (1 - over[which]), f"{which[0]}, the second best") for which in chosen.items() if which in over),
                       key=lambda case: case.value, reverse=True)
        yield entry(name, f"exposed >= 10 % less on two of the three manifests, {words}", 10, saved[1:2], unit=" %", lacks=lacks)


def trainings(found):
    """Yields the targets of PyTorch's training steps."""
    for way, goal in EXPOSED.items():
        cases, lacks = [], []
        for model in training.MODELS:
            work = training.work_of(model)
            for size in found.samples.sizes(work):
                base = (work, size, "ddp-gloo")
                ratios = found.samples.ratios((work, size, way), base)
                if ratios and min(found.samples.medians[base]) > 0:
                    cases.append(Case(statistics.median(ratios), model, min(ratios), max(ratios), size))
                elif ratios:
                    lacks.append(f"{model} with DDP on Gloo exposes nothing in some round")
        yield entry(f"training step of PyTorch, 2 ranks, {training.WAYS[way][0]}", f"exposed <= {goal} of DDP's on Gloo", goal, cases,
                    more_is_better=False, lacks=quick(found) + found.two_ranks() + lacks)


def trainings_between_hosts(found):
    """Yields the targets of PyTorch's training steps between two hosts, each judged by its worst model."""
    for rate, of_bound, over_ddp, bf16 in (("1gbit", 1.02, 1.0, None), ("10gbit", 1.05, 1.07, 1.25)):
        work = f"training step of PyTorch, two hosts, {rate}"
        cases, lacks = {"bound": [], "ddp-gloo": [], "weft-bf16": []}, quick(found)
        for model in training.MODELS:
            name = training.work_of(model, rate)
            for size in found.samples.sizes(name):
                mine = (name, size, weft_of(found.samples, name, size))
                for system, one, other in (("bound", mine, "bound"), ("ddp-gloo", (name, size, "ddp-gloo"), mine[2]),
                                           ("weft-bf16", (name, size, "ddp-gloo"), "weft-bf16")):
                    ratios = found.samples.ratios(one, (name, size, other))
                    if ratios:
                        cases[system].append(Case(statistics.median(ratios), model, min(ratios), max(ratios), size))
        if 0 < len(cases["ddp-gloo"]) < len(training.MODELS):
            lacks = [*lacks, "a model is missing"]
        yield entry(work, f"<= {of_bound} of the least possible", of_bound, cases["bound"], more_is_better=False, lacks=lacks)
        yield entry(work, f">= {over_ddp} times as fast as DDP on Gloo", over_ddp, cases["ddp-gloo"], lacks=lacks)
        if bf16 is not None:
            yield entry(work, f"bf16: >= {bf16} times as fast as DDP on Gloo", bf16, cases["weft-bf16"], lacks=lacks)


def gpu():
    return [{**entry("GPU flatten or unflatten with scale", ">= 0.85 of a device-to-device copy", 0.85, []),
             "measured": "needs a GPU: `make gpu` measures it"}]


def memory(found):
    cases = [Case(100 * found.memory["beyond"])] if found.memory else []
    return [entry("memory beyond the gradients, ResNet-50, view mode", "<= 2 %", 2, cases, more_is_better=False, unit=" %",
                  lacks=quick(found))]


def judge(samples, rows, arguments):
    """Returns the list `targets` of peers.json."""
    found = Found(samples, rows, arguments)
    return [*arena(found), *private(found), *small(found), *thresholds(found), *steps(found), *ready(found),
            *between_hosts(found), *planners(found), *trainings(found), *trainings_between_hosts(found), *gpu(), *memory(found)]
