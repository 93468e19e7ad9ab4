"""What bench/peers.py has measured, and the rows of peers.json that are made of it."""
import dataclasses
import statistics

STEPS = {"step_resnet50": "ResNet-50 (161 gradients, 102 MB)", "step_tiny": "10,000 gradients of 16 bytes",
         "step_resnet50_powersgd": "ResNet-50 with PowerSGD of rank 4"}
MEMORIES = ("arena", "private")
SIZES = (8, 64, 512, 1024, 4096, 65536, 262144, 1 << 20, 4 << 20, 16 << 20, 25 << 20, 64 << 20, 100 << 20)
CROWDED_SIZES = (8, 64, 512, 4096)

# How the works of a part of the run begin.
PARTS = {"thresholds": "thresholds", "ready": "ready", "limits": "limit_", "hosts": "hosts_", "four hosts": "hosts_4x",
         "planner": "planner_"}


@dataclasses.dataclass(frozen=True)
class Work:
    """An all_reduce that all systems are asked for. Weft's times are of NAME_f32_MEMORY, the others' of NAME."""
    name: str
    ranks: int
    sizes: tuple
    cores: tuple  # fewer than ranks: they share them
    words: tuple = ()  # more options of `weft bench` and of the peers' programs
    seconds: float = 0  # of each size, about, where a peer is slow; 0: as long as it takes

    @property
    def crowded(self):
        return self.ranks > len(self.cores)


class Samples:
    """Medians and p99s in microseconds by (work, bytes, system), at least one of each a round; and what else is noted."""

    def __init__(self):
        self.medians, self.p99s, self.rounds = {}, {}, {}
        self.round = 0  # that is being measured
        self.noted = {}  # name: list of what is written to peers.json as it is

    def add(self, key, median_us, p99_us):
        self.medians.setdefault(key, []).append(median_us)
        self.p99s.setdefault(key, []).append(p99_us)
        self.rounds.setdefault(key, []).append(self.round)

    def note(self, name, what):
        self.noted.setdefault(name, []).append({"round": self.round + 1, **what})

    def median(self, key):
        return statistics.median(self.medians[key]) if key in self.medians else None

    def least(self, key):
        return min(self.medians[key], default=None) if key in self.medians else None

    def p99(self, key):
        return statistics.median(self.p99s[key])

    def by_round(self, key):
        """{round: median of what it has measured}."""
        found = {}
        for number, us in zip(self.rounds.get(key, ()), self.medians.get(key, ())):
            found.setdefault(number, []).append(us)
        return {number: statistics.median(values) for number, values in found.items()}

    def ratios(self, key, mine):
        """How many times as long as `mine` it took, in each round that has both: what a whole round suffers from, both do."""
        theirs, ours = self.by_round(key), self.by_round(mine)
        return [us / ours[number] for number, us in theirs.items() if number in ours]

    def forget(self, system):
        """A system, or a part of the run, did not come to its end: what it did is no comparison."""
        mine = {system, f"{system}-tuned"} | ({"ddp-gloo"} if system == "gloo" else set())
        works = PARTS.get(system)
        for values in (self.medians, self.p99s, self.rounds):
            for key in [key for key in values if key[2] in mine or (works is not None and key[0].startswith(works))]:
                del values[key]
        self.noted.pop(system, None)

    def systems(self, work):
        """In the order in which they were measured."""
        return list(dict.fromkeys(key[2] for key in self.medians if key[0] == work))

    def sizes(self, work):
        return sorted({key[1] for key in self.medians if key[0] == work})


def fastest(samples, size, tuned, work="all_reduce"):
    """The peer that is fastest at a size, among those as they come, or those with their best switches too."""
    peers = [name for name in samples.systems(work) if tuned or not name.endswith("-tuned")]
    measured = [(samples.median((work, size, name)), name) for name in peers]
    return min([(median, name) for median, name in measured if median is not None], default=(None, None))[1]


def bound_us(samples, size):
    """No all_reduce of so many bytes can be faster: what every rank reads and writes once is moved by all cores together
    without a library, and one rank hears of another. The least that any sample of the limits took, since what disturbs a
    machine only adds to a time. None: not measured."""
    moved = [us for limit in ("limit_arena", "limit_copy") if (us := samples.least((limit, size, "machine"))) is not None]
    flag = samples.least(("limit_flag", 8, "machine"))
    return None if flag is None or (not moved and size >= 4096) else max(min(moved, default=0.0), flag)


def rounded(value):
    return float(f"{value:.5g}")


def times_row(samples, work, key, ranks):
    """Of what one system did."""
    return {"work": work, "bytes": key[1], "ranks": ranks, "system": key[2], "median_us": rounded(samples.median(key)),
            "least_us": rounded(min(samples.medians[key])), "most_us": rounded(max(samples.medians[key])),
            "p99_us": rounded(samples.p99(key))}


def beside_weft(samples, row, key, mine):
    """The same with Weft's time beside it; None if Weft did not do that. The ratio is the median of the rounds' ratios."""
    ratios = samples.ratios(key, mine)
    if not ratios:
        return None
    return {**row, "weft_ratio": rounded(statistics.median(ratios)), "weft_ratio_least": rounded(min(ratios)),
            "weft_ratio_most": rounded(max(ratios)), "weft_median_us": rounded(samples.median(mine)),
            "weft_least_us": rounded(min(samples.medians[mine])), "weft_most_us": rounded(max(samples.medians[mine]))}


def all_reduce_rows(samples, work):
    """Weft's and every peer's, the fastest again as "best" and "best-tuned"."""
    for memory in MEMORIES:
        name = f"{work.name}_f32_{memory}"
        for size in work.sizes:
            mine = (name, size, "weft")
            keys = [("weft", mine)] + [(system, (work.name, size, system)) for system in samples.systems(work.name)]
            for best, tuned in (("best", False), ("best-tuned", True)):
                which = fastest(samples, size, tuned, work.name)
                keys += [(best, (work.name, size, which))] if which else []
            for system, key in keys:
                row = samples.median(key) and beside_weft(samples, times_row(samples, name, key, work.ranks), key, mine)
                if row:
                    bound = None if work.crowded else bound_us(samples, size)
                    row |= {"system": system} | ({"which": key[2]} if system.startswith("best") else {})
                    row |= {"bound_us": rounded(bound), "weft_of_bound": rounded(bound / row["weft_median_us"])} if bound else {}
                    yield row


def ranks_of(work, arguments):
    """Hosts have one each."""
    if work.startswith(("hosts_", "planner_")):
        return 4 if work.startswith("hosts_4x") else 2
    return arguments.ranks


def compare(samples, arguments):
    """The rows of peers.json."""
    rows = [row for work in arguments.works for row in all_reduce_rows(samples, work)]
    done = {name for work in arguments.works for name in (work.name, *(f"{work.name}_f32_{memory}" for memory in MEMORIES))}
    for key in samples.medians:
        if key[0] not in done and not key[0].startswith("whole "):
            row = times_row(samples, key[0], key, ranks_of(key[0], arguments))
            rows.append(beside_weft(samples, row, key, (key[0], key[1], "weft")) or row)
    return rows
