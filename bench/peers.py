#!/usr/bin/env python3
"""Weft beside its peers, by the same protocol, interleaved in one run. `make bench-peers` calls it.

Peers: Debian's Open MPI 4 as it comes and with its best switches, and PyTorch 2.13 with Gloo (all_reduce, and
DistributedDataParallel on ResNet-50's parameters, on 10,000 tiny ones, and with PowerSGD). What is not installed is left out, with a word about it.
Before every timed call each rank writes its buffer anew and all meet in a barrier; a time is the slowest rank's.
Every round runs all systems one after the other; the medians of the rounds' medians are compared.

Writes BUILD/bench/peers.json (a list of work, bytes, ranks, system, median_us, p99_us, weft_ratio; a ratio above 1
means that Weft is faster) and BUILD/bench/peers.md, the table with the machine's name.
"""
import argparse
import datetime
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "bench" / "peers"
MANIFEST = ROOT / "bench" / "manifests" / "resnet50.json"
STEPS = {"step_resnet50": "ResNet-50 (161 gradients, 102 MB)", "step_tiny": "10,000 gradients of 16 bytes",
         "step_resnet50_powersgd": "ResNet-50 with PowerSGD of rank 4"}
POWERSGD_RANK = 4
TIMEOUT_S = 900
sys.path.insert(0, str(ROOT / "tools"))
import torch_venv  # noqa: E402

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# Open MPI allocates a buffer for every call; glibc must not give its pages back each time.
KEEP_PAGES = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 31)}
NO_SINGLE_COPY = ["--mca", "btl_vader_single_copy_mechanism", "none"]
SEGMENTED_RING = ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", "5",
                  "--mca", "coll_tuned_allreduce_algorithm_segmentsize", str(128 << 10)]
# The tuned system is, at each size, the best of these.
OPENMPI_VARIANTS = [([], {}), ([], KEEP_PAGES), (NO_SINGLE_COPY, KEEP_PAGES), (SEGMENTED_RING, KEEP_PAGES),
                    (SEGMENTED_RING + NO_SINGLE_COPY, KEEP_PAGES), (["--mca", "coll_sm_priority", "90"], KEEP_PAGES)]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, nargs="?", default=ROOT / "build")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", default="8,4096,65536,262144,1048576,4194304,16777216,67108864,104857600",
                        help="bytes, divided by commas")
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    arguments.sizes = [int(size) for size in arguments.sizes.split(",")]
    return arguments


def say(text):
    print(f"bench-peers: {text}", file=sys.stderr, flush=True)


def run(command, environment=None, cwd=None):
    """Standard output of a command that must succeed."""
    result = subprocess.run([str(word) for word in command], env={**os.environ, **(environment or {})}, cwd=cwd,
                            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: exit code {result.returncode}\n"
                           f"{result.stdout[-2000:]}{result.stderr[-2000:]}")
    return result.stdout


def json_lines(text):
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    wrong = [line for line in lines if not line["correct"]]
    if wrong:
        raise RuntimeError(f"wrong results: {wrong}")
    return lines


def manifests(arguments):
    """The lists of parameters of the steps that are compared, and PowerSGD's rank or 0."""
    tiny = arguments.build / "bench" / "tiny.json"
    if not tiny.exists():
        tiny.write_text(json.dumps({"name": "tiny", "params": [{"name": f"tiny.{i}", "shape": [4]} for i in range(10000)]}))
    return {"step_resnet50": (MANIFEST, 0), "step_tiny": (tiny, 0), "step_resnet50_powersgd": (MANIFEST, POWERSGD_RANK)}


class Samples:
    """Medians and p99s by (work, bytes, system), one of each a round."""

    def __init__(self):
        self.medians, self.p99s = {}, {}

    def add(self, key, median_us, p99_us):
        self.medians.setdefault(key, []).append(median_us)
        self.p99s.setdefault(key, []).append(p99_us)

    def median(self, key):
        return statistics.median(self.medians[key]) if key in self.medians else None

    def p99(self, key):
        return statistics.median(self.p99s[key])


class Weft:
    def __init__(self, arguments):
        self.arguments = arguments
        self.tool = arguments.build / "tools" / "weft"

    def bench(self, *words):
        path = self.arguments.build / "bench" / "weft.json"
        run([self.tool, "bench", *words, "--ranks", self.arguments.ranks, "--json", path])
        return json.loads(path.read_text())["results"]

    def measure(self, samples):
        sizes = ",".join(map(str, self.arguments.sizes))
        for memory in ("arena", "private"):
            for row in self.bench("all_reduce", "--memory", memory, "--sizes", sizes):
                samples.add((f"all_reduce_f32_{memory}", row["bytes"], "weft"), row["median_us"], row["p99_us"])
        for work, (manifest, powersgd_rank) in manifests(self.arguments).items():
            hook = ["--hook", f"powersgd rank={powersgd_rank} start=2"] if powersgd_rank > 0 else []
            row = self.bench("step", "--manifest", manifest, *hook)[0]
            samples.add((work, row["bytes"], "weft"), row["median_us"], row["p99_us"])


class OpenMpi:
    """Open MPI 4 of the system."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.program = arguments.build / "peers" / "mpi_all_reduce"
        self.version = ""

    def prepare(self):
        if not (shutil.which("mpicc") and shutil.which("mpirun")):
            return "Open MPI is missing (apt-get install openmpi-bin libopenmpi-dev)"
        self.version = run(["mpirun", "--version"], AS_ROOT).splitlines()[0].replace("mpirun (Open MPI)", "Open MPI")
        if "Open MPI 4" not in self.version:
            return f"the system's MPI is not Open MPI 4 but {self.version}"
        run(["mpicc", "-O2", "-std=c11", PEERS / "mpi_all_reduce.c", "-o", self.program])
        return ""

    def measure(self, samples):
        best = {}
        for index, (switches, environment) in enumerate(OPENMPI_VARIANTS):
            text = run(["mpirun", "-n", self.arguments.ranks, "--bind-to", "core", *(["--oversubscribe"] if
                        self.arguments.ranks > os.cpu_count() else []), *switches, self.program,
                        *self.arguments.sizes], {**AS_ROOT, **environment})
            for row in json_lines(text):
                if index == 0:
                    samples.add(("all_reduce", row["bytes"], "openmpi4"), row["median_us"], row["p99_us"])
                if row["bytes"] not in best or row["median_us"] < best[row["bytes"]][0]:
                    best[row["bytes"]] = (row["median_us"], row["p99_us"])
        for size, (median, p99) in best.items():
            samples.add(("all_reduce", size, "openmpi4-tuned"), median, p99)


class Torch:
    """PyTorch with Gloo, in a virtual environment of its own. Its ranks share the cores that the others' ranks are
    bound to: bound to one each, Gloo's own threads starve (milliseconds a call)."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.python = None
        self.version = ""

    def prepare(self):
        try:
            self.python = torch_venv.prepare(self.arguments.build, say)
        except RuntimeError as error:
            return str(error)
        self.version = "PyTorch " + run([self.python, "-W", "ignore", "-c", "import torch; print(torch.__version__)"]).strip()
        return ""

    def job(self, *words):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        ranks = self.arguments.ranks
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:ranks]))
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks),
                  "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        processes = [subprocess.Popen(["taskset", "-c", cores, str(self.python), str(PEERS / "torch_rank.py"), *map(str, words)],
                                      env={**os.environ, **common, "RANK": str(rank)}, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(ranks)]
        try:
            outputs = [process.communicate(timeout=TIMEOUT_S) for process in processes]
        finally:
            for process in processes:
                process.kill()
        for process, (out, err) in zip(processes, outputs):
            if process.returncode != 0:
                raise RuntimeError(f"torch_rank.py: exit code {process.returncode}\n{out}{err[-2000:]}")
        return json_lines(outputs[0][0])

    def measure(self, samples):
        for row in self.job("all_reduce", *self.arguments.sizes):
            samples.add(("all_reduce", row["bytes"], "gloo"), row["median_us"], row["p99_us"])
        for work, (manifest, powersgd_rank) in manifests(self.arguments).items():
            row = self.job("ddp", manifest, powersgd_rank)[0]
            # Exposed time: what synchronising adds to the same backward.
            samples.add((work, row["bytes"], "ddp-gloo"), row["median_us"] - row["local_us"],
                        row["p99_us"] - row["local_us"])
            samples.add((f"whole {work}", row["bytes"], "ddp-gloo"), row["median_us"], row["p99_us"])


def compare(samples, arguments):
    """The rows of peers.json."""
    rows = []

    def add(work, size, system, key):
        mine, other = samples.median((work, size, "weft")), samples.median(key)
        if mine is not None and other is not None:
            rows.append({"work": work, "bytes": size, "ranks": arguments.ranks, "system": system,
                         "median_us": round(other, 3), "p99_us": round(samples.p99(key), 3),
                         "weft_ratio": round(other / mine, 3), "weft_median_us": round(mine, 3)})

    for memory in ("arena", "private"):
        for size in arguments.sizes:
            for system in ("openmpi4", "openmpi4-tuned", "gloo"):
                add(f"all_reduce_f32_{memory}", size, system, ("all_reduce", size, system))
    for key in samples.medians:
        if key[0] in STEPS and key[2] == "ddp-gloo":
            add(*key, key)
    return rows


def microseconds(value):
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def table(samples, rows, arguments, versions):
    """The comparison as Markdown."""
    machine = json.loads(run([arguments.build / "tools" / "weft", "info", "--json"]))
    lines = [f"{machine['cpu']}, {machine['cores']} cores, {machine['kernel']}, {machine['system']}; Weft "
             f"{machine['weft']}, {', '.join(versions)}; {datetime.date.today().isoformat()}; {arguments.ranks} ranks, "
             f"{arguments.rounds} rounds.", ""]
    ratio = {(row["work"], row["bytes"], row["system"]): row for row in rows}
    systems = [s for s in ("openmpi4", "openmpi4-tuned", "gloo") if any(row["system"] == s for row in rows)]
    lines += ["all_reduce of f32, in place; microseconds, and in brackets that time over Weft's (arena / private):", "",
              "| bytes | Weft, arena | Weft, private | " + " | ".join(systems) + " |",
              "|---|---|---|" + "---|" * len(systems)]
    for size in arguments.sizes:
        cells = [str(size)] + [microseconds(samples.median((f"all_reduce_f32_{memory}", size, "weft")))
                               for memory in ("arena", "private")]
        for system in systems:
            arena, private = (ratio[(f"all_reduce_f32_{memory}", size, system)] for memory in ("arena", "private"))
            cells.append(f"{microseconds(arena['median_us'])} ({arena['weft_ratio']:.2f} / {private['weft_ratio']:.2f})")
        lines.append("| " + " | ".join(cells) + " |")
    for row in rows:
        if row["work"] in STEPS:
            whole = samples.median((f"whole {row['work']}", row["bytes"], "ddp-gloo"))
            lines += ["", f"Gradient step of {STEPS[row['work']]}, copy mode: Weft {row['weft_median_us'] / 1000:.1f} ms; "
                      f"DistributedDataParallel on Gloo {row['median_us'] / 1000:.1f} ms exposed ({row['weft_ratio']:.2f} times), "
                      f"{whole / 1000:.1f} ms with its backward."]
    return "\n".join(lines) + "\n"


def main():
    arguments = parse_arguments()
    weft = Weft(arguments)
    if not weft.tool.exists():
        say(f"{weft.tool} is missing: run `make build` first")
        return 1
    for folder in ("bench", "peers"):
        (arguments.build / folder).mkdir(parents=True, exist_ok=True)
    systems, versions = [weft], []
    for peer in (OpenMpi(arguments), Torch(arguments)):
        problem = peer.prepare()
        if problem:
            say(f"left out: {problem}")
        else:
            systems.append(peer)
            versions.append(peer.version)
    load = os.getloadavg()[0]
    if load > 0.5:
        say(f"other programs are running here (load {load:.1f}); the numbers will be worse and less certain")
    samples = Samples()
    for number in range(arguments.rounds):
        for system in systems:
            say(f"round {number + 1} of {arguments.rounds}: {type(system).__name__}")
            system.measure(samples)
    rows = compare(samples, arguments)
    text = table(samples, rows, arguments, versions)
    (arguments.build / "bench" / "peers.json").write_text(json.dumps(rows, indent=1) + "\n")
    (arguments.build / "bench" / "peers.md").write_text(text)
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
