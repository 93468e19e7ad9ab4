"""Measures Weft and the machine for bench/peers.py: the rows that are compared with peers, and those without a peer.

Each part is a system as in systems.py: name, prepare(), measure(samples) once a round.
"""
import contextlib
import json
import os

from comparison import MEMORIES
from systems import WrongResult, execute, manifests, model, on_cores, run


def all_right(whole):
    """Returns the results of a `weft bench`; raises WrongResult if one is wrong."""
    if any(row["correct"] is False for row in whole["results"]):  # null: a hook whose results are not means
        raise WrongResult(f"wrong results: {whole['results']}")
    return whole


def checked_bench(command, path, environment=None):
    """Returns the checked results that a `weft bench` writes to this path, and its outcome. Removes an existing file first."""
    path.unlink(missing_ok=True)
    try:
        result = execute(command, environment)
    except RuntimeError:
        if path.exists():
            with contextlib.suppress(json.JSONDecodeError):  # it died while writing
                all_right(json.loads(path.read_text()))  # a wrong result also leads to an exit code
        raise
    if not path.exists():
        raise RuntimeError(f"{' '.join(map(str, command))}: ended without writing {path}")
    try:
        return all_right(json.loads(path.read_text())), result
    except json.JSONDecodeError as error:
        raise RuntimeError(f"{' '.join(map(str, command))}: its results {path} are not JSON: {error}") from None


class Weft:
    """Weft's collectives and steps, which are compared with the peers'."""
    name = "weft"

    def __init__(self, arguments):
        self.arguments = arguments
        self.tool = arguments.build / "tools" / "weft"
        self.version = ""

    def prepare(self):
        return "" if self.tool.exists() else f"{self.tool} is missing: run `make build` first"

    def whole_bench(self, *words, ranks=None, before=(), environment=None):
        """Returns the checked results of a `weft bench`. before: the first words of the command."""
        path = self.arguments.out / "weft.json"
        words = [*before, self.tool, "bench", *words, "--ranks", ranks or self.arguments.ranks, "--json", path]
        return checked_bench(words, path, environment)[0]

    def bench(self, *words, **more):
        return self.whole_bench(*words, **more)["results"]

    def measure(self, samples):
        for work in self.arguments.works:
            for memory in MEMORIES:
                for row in self.bench("all_reduce", "--memory", memory, "--sizes", ",".join(map(str, work.sizes)), *work.words,
                                      ranks=work.ranks, before=on_cores(work)):
                    samples.add((f"{work.name}_f32_{memory}", row["bytes"], "weft"), row["median_us"], row["p99_us"])
        for work, (manifest, powersgd_rank) in manifests(self.arguments).items():
            hook = ["--hook", f"powersgd rank={powersgd_rank} start=2"] if powersgd_rank > 0 else []
            row = self.bench("step", "--manifest", manifest, *hook, *self.arguments.iterations)[0]
            samples.add((work, row["bytes"], "weft"), row["median_us"], row["p99_us"])


class Part(Weft):
    """The base of measurements of Weft alone."""

    def prepare(self):
        return ""  # the tool exists, or the run would not have started


class Thresholds(Part):
    """Private buffers with the path that autotuning chose during group setup, and with each path alone. At any size, no setting
    of WEFT_SHM_THRESHOLDS can be faster than the fastest path. Processes differ, so each setting is repeated, interleaved, and
    the median of the processes counts. The thresholds that each process found are noted."""
    name = "thresholds"
    SETTINGS = {"measured": "", "one-shot": "one-shot=256K,pull=never", "two-shot": "one-shot=0,pull=never",
                "pulled": "one-shot=0,pull=0"}
    SIZES = tuple(4096 << shift for shift in range(11))
    ONE_SHOT_SIZES = tuple(size for size in SIZES if size <= 256 << 10)  # the staging's limit
    REPEATS = 4

    def measure(self, samples):
        for _ in range(1 if self.arguments.quick else self.REPEATS):
            for name, setting in self.SETTINGS.items():
                sizes = (self.ONE_SHOT_SIZES if name == "one-shot" else self.SIZES)[:2 if self.arguments.quick else None]
                whole = self.whole_bench("all_reduce", "--memory", "private", "--backend", "shm", "--sizes",
                                         ",".join(map(str, sizes)), *self.arguments.iterations,
                                         environment={"WEFT_SHM_THRESHOLDS": setting})
                for row in whole["results"]:
                    samples.add(("thresholds", row["bytes"], name), row["median_us"], row["p99_us"])
                if name == "measured":
                    samples.note("thresholds", {"found": whole["transports"]})


class Ready(Part):
    """The cost of reporting a gradient ready in view mode, where nothing is copied."""
    name = "ready"

    def measure(self, samples):
        row = next(row for row in self.bench("ready", *self.arguments.iterations) if row["work"] == "ready")
        samples.add(("ready", row["bytes"] // row["count"], "weft"), row["median_us"] / row["count"],
                    row["p99_us"] / row["count"])


class Memory(Part):
    """The memory of a reducer of ResNet-50 in view mode."""
    name = "memory"

    def measure(self, samples):
        if self.arguments.memory:
            return  # it never changes
        row = self.bench("step", "--manifest", model(self.arguments), "--mode", "view", "--iterations", 1, "--warmup", 1)[0]
        held = row["memory"]["bucket_bytes"] + row["memory"]["other_bytes"]
        self.arguments.memory.update(row["memory"], beyond=held / row["memory"]["gradient_bytes"] - 1)


class Limits(Part):
    """The machine's limits, without a library. Repeated, because the minimum counts (comparison.bound_us)."""
    name = "limits"
    REPEATS = 3

    def __init__(self, arguments):
        super().__init__(arguments)
        self.program = arguments.build / "bench" / "machine_limits"

    def prepare(self):
        cores = len(os.sched_getaffinity(0))
        if not self.program.exists():
            return f"{self.program} is missing: run `make build` first"
        return "" if cores >= max(self.arguments.ranks, 2) else f"needs a core for each rank, and two; there are {cores}"

    def measure(self, samples):
        sizes = [size for size in self.arguments.sizes if size >= 4096]
        for _ in range(1 if self.arguments.quick else self.REPEATS):
            text = run([self.program, "--threads", self.arguments.ranks, *sizes])
            for row in map(json.loads, text.splitlines()):
                samples.add((f"limit_{row['limit']}", row["bytes"], "machine"), row["median_us"], row["median_us"])
