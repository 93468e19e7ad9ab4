"""Stores the measurements of bench/peers.py, and makes the rows of peers.json from them."""
import dataclasses
import re
import statistics

STEPS = {"step_resnet50": "ResNet-50 (161 gradients, 102 MB)", "step_tiny": "10,000 gradients of 16 bytes",
         "step_resnet50_powersgd": "ResNet-50 with PowerSGD of rank 4"}
MEMORIES = ("arena", "private")
SIZES = (8, 64, 512, 1024, 4096, 65536, 262144, 1 << 20, 4 << 20, 16 << 20, 25 << 20, 64 << 20, 100 << 20)
CROWDED_SIZES = (8, 64, 512, 4096)

# The prefix of the works of each part of the run.
PARTS = {"thresholds": "thresholds", "ready": "ready", "limits": "limit_", "hosts": "hosts_", "four hosts": "hosts_4x",
         "planner": "planner_", "training": "training_"}
BETWEEN_HOSTS = re.compile(r"hosts_\w+?_training_")  # of the part hosts_training
MODES = ("weft-copy", "weft-view")  # of a training step; the faster one is compared with others
BESIDE = ("whole ", "alone ")  # the first words of works that tables show, and peers.json does not contain


@dataclasses.dataclass(frozen=True)
class Work:
    """An all_reduce that all systems execute. Weft's times are stored under NAME_f32_MEMORY, other systems' under NAME."""
    name: str
    ranks: int
    sizes: tuple
    cores: tuple  # if they are fewer than the ranks, the ranks share them
    words: tuple = ()  # more options of `weft bench` and of the peers' programs
    seconds: float = 0  # approximate limit for each size, for slow peers; 0: no limit

    @property
    def crowded(self):
        return self.ranks > len(self.cores)


def is_of(work, part):
    """Returns True if a part of the run measures a work."""
    for words in BESIDE:
        work = work.removeprefix(words)
    if part == "hosts_training" or BETWEEN_HOSTS.match(work):
        return part == "hosts_training" and BETWEEN_HOSTS.match(work) is not None
    return part in PARTS and work.startswith(PARTS[part])


class Samples:
    """Medians and p99s in microseconds by (work, bytes, system), at least one of each in a round, and other notes."""

    def __init__(self):
        self.medians, self.p99s, self.rounds = {}, {}, {}
        self.round = 0  # the current round
        self.noted = {}  # name: list of values that peers.json contains unchanged

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
        """Returns {round: median of its measurements}."""
        found = {}
        for number, us in zip(self.rounds.get(key, ()), self.medians.get(key, ())):
            found.setdefault(number, []).append(us)
        return {number: statistics.median(values) for number, values in found.items()}

    def ratios(self, key, mine):
        """Returns its time over that of `mine` for each round that has both: a disturbance of a whole round affects both."""
        theirs, ours = self.by_round(key), self.by_round(mine)
        return [us / ours[number] for number, us in theirs.items() if number in ours]

    def forget(self, system):
        """Drops the samples of a system, or of a part of the run, that did not finish: they cannot be compared."""
        mine = {system, f"{system}-tuned"} | ({"ddp-gloo"} if system == "gloo" else set())
        for values in (self.medians, self.p99s, self.rounds):
            for key in [key for key in values if key[2] in mine or is_of(key[0], system)]:
                del values[key]
        self.noted.pop(system, None)

    def systems(self, work):
        """Returns the systems in the order in which they were measured."""
        return list(dict.fromkeys(key[2] for key in self.medians if key[0] == work))

    def sizes(self, work):
        return sorted({key[1] for key in self.medians if key[0] == work})


def fastest(samples, size, tuned, work="all_reduce"):
    """Returns the fastest peer at a size, with default settings only, or with tuned settings too."""
    peers = [name for name in samples.systems(work) if tuned or not name.endswith("-tuned")]
    measured = [(samples.median((work, size, name)), name) for name in peers]
    return min([(median, name) for median, name in measured if median is not None], default=(None, None))[1]


def bound_us(samples, size):
    """Returns the lower bound of an all_reduce of so many bytes: all cores together move what every rank reads and writes
    once, without a library, and one core signals another. Uses the minimum of all samples of the limits, since disturbances
    only add to a time. None: not measured."""
    moved = [us for limit in ("limit_arena", "limit_copy") if (us := samples.least((limit, size, "machine"))) is not None]
    flag = samples.least(("limit_flag", 8, "machine"))
    return None if flag is None or (not moved and size >= 4096) else max(min(moved, default=0.0), flag)


def rounded(value):
    return float(f"{value:.5g}")


def times_row(samples, work, key, ranks):
    """Returns the row with one system's times."""
    return {"work": work, "bytes": key[1], "ranks": ranks, "system": key[2], "median_us": rounded(samples.median(key)),
            "least_us": rounded(min(samples.medians[key])), "most_us": rounded(max(samples.medians[key])),
            "p99_us": rounded(samples.p99(key))}


def beside_weft(samples, row, key, mine):
    """Adds Weft's time to a row; None if Weft has none. The ratio is the median of the rounds' ratios."""
    ratios = samples.ratios(key, mine)
    if not ratios:
        return None
    return {**row, "weft_ratio": rounded(statistics.median(ratios)), "weft_ratio_least": rounded(min(ratios)),
            "weft_ratio_most": rounded(max(ratios)), "weft_median_us": rounded(samples.median(mine)),
            "weft_least_us": rounded(min(samples.medians[mine])), "weft_most_us": rounded(max(samples.medians[mine]))}


def all_reduce_rows(samples, work):
    """Yields the rows of Weft and every peer, and the fastest peer's again as "best" and "best-tuned"."""
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
    """Returns the number of ranks of a work. Hosts have one rank each."""
    if work.startswith(("hosts_", "planner_")):
        return 4 if work.startswith("hosts_4x") else 2
    return arguments.ranks


def compare(samples, arguments):
    """Returns the rows of peers.json."""
    rows = [row for work in arguments.works for row in all_reduce_rows(samples, work)]
    done = {name for work in arguments.works for name in (work.name, *(f"{work.name}_f32_{memory}" for memory in MEMORIES))}
    for key in samples.medians:
        if key[0] not in done and not key[0].startswith(BESIDE):
            row = times_row(samples, key[0], key, ranks_of(key[0], arguments))
            rows.append(beside_weft(samples, row, key, (key[0], key[1], weft_of(samples, *key[:2]))) or row)
    return rows


def weft_of(samples, work, size):
    """Returns the system whose times of a work are Weft's: "weft", or the faster of two modes."""
    modes = [(samples.median((work, size, mode)), mode) for mode in MODES]
    return min([(median, mode) for median, mode in modes if median is not None], default=(None, "weft"))[1]
