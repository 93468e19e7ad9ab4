"""Measures between two hosts, for bench/peers.py. The hosts are namespaces of this machine, joined by links of a limited
rate (tools/two-hosts.sh), with one rank and one core each. Open MPI and Gloo over TCP, and UCX's own ping-pong, use the same
links. Weft is also measured on four hosts, which share the cores. Counts the bytes that Weft's all-reduces send on the links.
"""
import json
import re
import shutil

from own import Part, checked_bench
from systems import AS_ROOT, PEERS, ROOT, json_lines, model, run, say

TWO_HOSTS = ROOT / "tools" / "two-hosts.sh"
AGENT = ROOT / "tests" / "launchers" / "agent.sh"  # replaces ssh for mpirun
RATES = {"1gbit": 1e9, "10gbit": 1e10}  # bits per second
BURSTS = {"1gbit": 32 << 10, "10gbit": 192 << 10}  # bytes, equal to TWO_HOSTS's
UNLIMITED = "none"
SIZES = (4 << 20, 16 << 20, 25 << 20, 100 << 20)
FOUR_SIZES = (4 << 20, 25 << 20)
FOUR = "four hosts"
QUICK_SIZE = 4 << 20
WARMUP = 2
# Options of a step, by the system's name in peers.json.
STEPS = {
    "weft": (),
    "weft-bf16": ("--hook", "bf16"),
    "weft-int8": ("--hook", "int8"),
    "weft-reduce-bf16": ("--reduce-dtype", "bf16"),
    "weft-int8-2mib": ("--hook", "int8", "--bucket-limits", "1M,2M"),
}
LATENCY_CALLS = 2000
TIMEOUT_S = 240
# Data bytes in a frame of 1514 bytes on the link: no program can use more of the rate.
PAYLOAD = 1448 / 1514

UCX_PING_PONG = """
export UCX_TLS=tcp UCX_NET_DEVICES=eth0
[ "$WEFT_RANK" = 1 ] || exec ucx_perftest -p 7100
for attempt in $(seq 100); do
  ucx_perftest host0 -p 7100 -t tag_lat -s 8 -n 20000 -w 2000 && exit 0
  sleep 0.05
done
exit 1
"""
GLOO = """
export RANK=$WEFT_RANK WORLD_SIZE=$WEFT_SIZE MASTER_ADDR=host0 MASTER_PORT=29500 GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1
exec taskset -c "$1" "${@:2}"
"""
# mpirun runs on the first host and starts a rank on each; the second host's own process waits for it. Open MPI does not
# know which cores belong to which host.
OPEN_MPI = """
done=$1; shift
if [ "$WEFT_RANK" = 1 ]; then until [ -e "$done" ]; do sleep 0.05; done; exit 0; fi
"$@"; code=$?; touch "$done"; exit $code
"""
ON_OWN_CORE = 'cores=({}); exec taskset -c "${{cores[OMPI_COMM_WORLD_RANK % ${{#cores[@]}}]}}" "$@"'


def wire_us(size, rate):
    """Returns the least time that a link needs for so many bytes of data. With two ranks each sends all bytes once."""
    return size * 8 / (RATES[rate] * PAYLOAD) * 1e6


def carried(text):
    """Returns [(bytes sent, bytes received)] of each host's link, from TWO_HOSTS's output."""
    line = r"^two-hosts: host \d+: (\d+) bytes sent, (\d+) bytes received$"
    return [tuple(map(int, pair)) for pair in re.findall(line, text, re.M)]


def sent_again(text):
    """Returns [{counter: value}] of each host's TCP, from TWO_HOSTS's output."""
    line = (r"^two-hosts: host \d+: (\d+) segments sent again, (\d+) of them after a timeout, (\d+) lost twice; "
            r"(\d+) reports of segments sent again that had arrived before$")
    names = ("sent_again", "timeouts", "lost_twice", "needless")
    return [dict(zip(names, map(int, found))) for found in re.findall(line, text, re.M)]


class UcxPingPong:
    """Measures the latency of 8 bytes: half a round trip."""
    name = "ucx"

    def __init__(self, hosts):
        self.hosts = hosts

    def prepare(self):
        return "" if shutil.which("ucx_perftest") else "ucx_perftest is missing (apt-get install ucx-utils)"

    def measure(self, samples, rate):
        if rate == UNLIMITED:
            return
        text = self.hosts.run(rate, "bash", "-c", UCX_PING_PONG)
        final = next((line.split() for line in text.splitlines() if line.startswith("Final:")), None)
        if final is None:
            raise RuntimeError(f"ucx_perftest printed no line that begins with Final: {text[-500:]}")
        samples.add((f"hosts_{rate}_all_reduce", 8, self.name), float(final[2]), float(final[2]))


class OpenMpiTcp:
    name = "openmpi4-tcp"

    def __init__(self, hosts):
        self.hosts = hosts
        self.peer = next((peer for peer in hosts.peers if peer.name == "openmpi4"), None)

    def prepare(self):
        return "" if self.peer else "there is no openmpi4 in this run"

    def measure(self, samples, rate):
        done = self.hosts.arguments.out / "mpirun.done"
        done.unlink(missing_ok=True)
        on_own_core = ["bash", "-c", ON_OWN_CORE.format(" ".join(map(str, self.hosts.arguments.cores))), "-"]
        mpirun = ["mpirun", "--bind-to", "none", "--mca", "plm_rsh_agent", AGENT, "--mca", "oob_tcp_if_include", "eth0", "--mca", "btl", "tcp,self",
                  "--mca", "btl_tcp_if_include", "eth0", "--host", "host0:1,host1:1", "-n", 2, *on_own_core, self.peer.built]
        for iterations, sizes in self.hosts.calls(rate):
            text = self.hosts.run(rate, "bash", "-c", OPEN_MPI, "-", done, *mpirun, "--iterations", iterations, *sizes,
                                  environment=AS_ROOT)
            done.unlink(missing_ok=True)
            self.hosts.add(samples, rate, self.name, json_lines(text, len(sizes)))


class GlooTcp:
    """PyTorch with Gloo over TCP. Its ranks share all cores, as on one host: see systems.Torch."""
    name = "gloo-tcp"

    def __init__(self, hosts):
        self.hosts = hosts
        self.peer = next((peer for peer in hosts.peers if peer.name == "gloo"), None)

    def prepare(self):
        return "" if self.peer else "there is no gloo in this run"

    def measure(self, samples, rate):
        for iterations, sizes in self.hosts.calls(rate):
            text = self.hosts.run(rate, "bash", "-c", GLOO, "-", ",".join(map(str, self.hosts.arguments.cores)),
                                  self.peer.python, PEERS / "torch_rank.py", "all_reduce", "--iterations",
                                  min(iterations, 500), *sizes)
            self.hosts.add(samples, rate, self.name, json_lines(text, len(sizes)))


class Between(Part):
    """The base of Weft's measurements on several hosts."""

    def command(self, rate, *words, hosts=2):
        return [TWO_HOSTS, "--weft", self.tool, "--hosts", hosts, "--ranks-per-host", 1, "--rate", rate, "--prefix", "none",
                "--counters", "--timeout", TIMEOUT_S, "--", *words]

    def run(self, rate, *command, environment=None):
        """Returns the command's output on both hosts."""
        return run(self.command(rate, *command), environment)

    def prepare(self):
        try:
            self.run(UNLIMITED, self.tool, "bench", "all_reduce", "--joined", "--sizes", 8, "--iterations", 1)
        except RuntimeError as error:
            return f"no hosts here: {error}"
        return ""

    def weft_bench(self, rate, *words, hosts=2, environment=None):
        """Returns the checked results of a `weft bench`, and the script's report about the links."""
        path = self.arguments.out / "hosts.json"
        command = self.command(rate, self.tool, "bench", *words, "--joined", "--json", path, hosts=hosts)
        whole, result = checked_bench(command, path, environment)
        return whole, result.stderr


class Hosts(Between):
    name = "hosts"

    def __init__(self, arguments, peers):
        super().__init__(arguments)
        self.peers = peers  # available ones
        self.across = []
        self.left_out = {}  # peers that do not run across hosts, and reasons

    def calls(self, rate):
        """Returns (iterations, sizes): many calls of the small size, few of those that take a second. The large sizes must be
        much larger than a link's burst."""
        large = (QUICK_SIZE,) if self.arguments.quick else SIZES
        assert all(size >= 20 * BURSTS.get(rate, 0) for size in large), f"too small for {rate}: {large}"
        of_large = (2 if self.arguments.quick else 4, large)
        return [of_large] if rate == UNLIMITED else [(20 if self.arguments.quick else LATENCY_CALLS, (8,)), of_large]

    def prepare(self):
        problem = super().prepare()
        if problem:
            return problem
        for kind in (OpenMpiTcp, GlooTcp, UcxPingPong):
            peer = kind(self)
            problem = peer.prepare()
            if problem:
                self.leave_out(peer, problem)
            else:
                self.across.append(peer)
        return ""

    def leave_out(self, peer, problem):
        say(f"left out between hosts: {peer.name}: {problem}")
        self.left_out[f"{peer.name} between hosts"] = problem

    def add(self, samples, rate, system, rows):
        for row in rows:
            samples.add((f"hosts_{rate}_all_reduce", row["bytes"], system), row["median_us"], row["p99_us"])

    def measure(self, samples):
        for rate in (*RATES, UNLIMITED):
            for iterations, sizes in self.calls(rate):
                self.measure_weft(samples, rate, iterations, sizes)
            for peer in list(self.across):
                say(f"  hosts: {rate}: {peer.name}")
                try:
                    peer.measure(samples, rate)
                except RuntimeError as error:
                    self.across.remove(peer)
                    samples.forget(peer.name)
                    self.leave_out(peer, f"it fails: {error}")
            if rate != UNLIMITED:
                self.measure_steps(samples, rate)
        if FOUR in self.left_out:
            return
        try:
            self.measure_four(samples)
        except RuntimeError as error:  # the results of two hosts stay
            say(f"left out: {FOUR}: {error}")
            self.left_out[FOUR] = f"it fails: {error}"
            samples.forget(FOUR)

    def measure_weft(self, samples, rate, iterations, sizes):
        say(f"  hosts: {rate}: weft, {', '.join(map(str, sizes))} bytes")
        # Where the links' bytes are counted, group setup measures nothing: autotuning would not change these sizes' algorithm.
        environment = {} if sizes == (8,) else {"WEFT_TUNE": "off"}
        whole, said = self.weft_bench(rate, "all_reduce", "--sizes", ",".join(map(str, sizes)), "--iterations", iterations,
                                      "--warmup", WARMUP, environment=environment)
        self.add(samples, rate, "weft", whole["results"])
        if sizes == (8,):
            return  # other traffic exceeds these bytes
        # With two ranks each sends all bytes once in each call.
        expected = sum(row["bytes"] * row["calls"] for row in whole["results"])
        for host, ((sent, received), again) in enumerate(zip(carried(said), sent_again(said), strict=True)):
            for direction, count, tcp in (("sent", sent, again), ("received", received, {})):
                samples.note("hosts", {"rate": rate, "host": host, "direction": direction, "expected_bytes": expected,
                                       "wire_bytes": count, "ratio": round(count / expected, 5), **tcp})

    def measure_steps(self, samples, rate):
        for system, options in STEPS.items():
            say(f"  hosts: {rate}: step, {' '.join(options) or 'uncompressed'}")
            whole, _ = self.weft_bench(rate, "step", "--manifest", model(self.arguments), *options, "--iterations",
                                       1 if self.arguments.quick else 3, "--warmup", WARMUP)
            row = whole["results"][0]
            samples.add((f"hosts_{rate}_step_resnet50", row["bytes"], system), row["median_us"], row["p99_us"])

    def measure_four(self, samples):
        say("  hosts: four of them")
        sizes = FOUR_SIZES[:1] if self.arguments.quick else FOUR_SIZES
        whole, _ = self.weft_bench("1gbit", "all_reduce", "--sizes", ",".join(map(str, sizes)), "--iterations",
                                   1 if self.arguments.quick else 4, "--warmup", WARMUP, hosts=4)
        self.add(samples, "4x1gbit", "weft", whole["results"])
