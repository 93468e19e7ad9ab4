#!/usr/bin/env python3
"""Tests tools/two-hosts.sh: ranks of several simulated hosts run, and nothing remains afterwards. Usage:
test_hosts.py WEFT FOLDER_OF_EXAMPLES TWO_HOSTS
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

WEFT, EXAMPLES, TWO_HOSTS = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
DATA = Path("/usr/share/datasets/fashion-mnist")
INSIDE = "WEFT_TEST_HOSTS_INSIDE"
if os.geteuid() == 0 and INSIDE not in os.environ:
    # Runs the tests in a network and with mounts of their own, so that no other program changes what they
    # check for leftovers.
    WORDS = ["unshare", "--net", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /run && exec "$@"', "sh", sys.executable, *sys.argv]
    if cases.run([*WORDS[:6], "sh", "true"]).returncode == 0:
        os.environ[INSIDE] = "1"
        os.execvp(WORDS[0], WORDS)
MARK = f"weft-test-{os.getpid()}"  # in the environment of all processes that the tests start
ENVIRONMENT = {"MARK": MARK, "WEFT": WEFT, "WEFT_BACKEND": "ucx"}


def processes():
    """Return the ids of running processes that these tests have started."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int(entry.name) != os.getpid() and \
                    f"MARK={MARK}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def surroundings():
    """Return possible leftovers of a script: names of network namespaces, devices, mounts."""
    devices = sorted(line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:])
    names = sorted(os.listdir("/run/netns")) if Path("/run/netns").is_dir() else []
    return devices, names, Path("/proc/self/mounts").read_text()


BEFORE = surroundings()


def expect_nothing_left():
    cases.wait_until(lambda: not processes(), "all processes end")
    expect_equal(surroundings(), BEFORE)


def need_hosts(modules=False):
    if os.geteuid() != 0:
        cases.skip("makes network namespaces, which needs root")
    tried = cases.run([TWO_HOSTS, "--hosts", 1, "--ranks-per-host", 1, "true"], environment=ENVIRONMENT)
    if tried.returncode:
        cases.skip("no hosts here: " + tried.stderr.strip())
    line = next((line for line in cases.run([WEFT, "info"]).stdout.splitlines() if line.split()[:1] == ["ucx"]), "no ucx")
    if modules and (" available: " not in line or "not available" in line):
        cases.skip(line.strip())


def hosts(*words, timeout=120, environment=None):
    result = cases.run([TWO_HOSTS, *words], timeout=timeout, environment={**ENVIRONMENT, **(environment or {})})
    expect_nothing_left()
    return result


def carried(result):
    """Return (sent, received) bytes of each host's link."""
    return [tuple(map(int, pair)) for pair in re.findall(r"(\d+) bytes sent, (\d+) bytes received", result.stderr)]


def test_ranks():
    """each rank has its number, its host's network and shared memory, and the job's store and secret"""
    need_hosts()
    script = ('echo "$WEFT_RANK $WEFT_SIZE $WEFT_LOCAL_SIZE $(hostname) $(ls /sys/class/net | tr "\\n" ,) '
              '$(ls /dev/shm | wc -l) $WEFT_STORE $(cat $WEFT_SECRET_FILE)"; pwd')
    result = hosts("--hosts", 3, "--prefix", "none", "sh", "-c", script)
    lines = sorted(line.split() for line in result.stdout.splitlines() if " " in line)
    expect_equal([line[:6] for line in lines], [[str(r), "6", "2", f"host{r // 2}", "eth0,lo,", "0"] for r in range(6)], result)
    expect_equal(len({tuple(line[6:]) for line in lines}), 1, result)
    expect_equal(result.stdout.splitlines().count(os.getcwd()), 6, result)


def test_cores():
    """each host has cores of its own if there are enough, and all cores are assigned"""
    need_hosts()
    cores = os.sched_getaffinity(0)
    for count in (1, 2, 3):
        script = "import os; print(int(os.environ['WEFT_RANK']) // 2, *os.sched_getaffinity(0))"
        result = hosts("--hosts", count, "--prefix", "none", sys.executable, "-c", script)
        lines = sorted({line for line in result.stdout.splitlines() if line})
        expect_equal(len(lines), count, "ranks of a host have the same cores", result)
        owned = [core for line in lines for core in map(int, line.split()[1:])]
        expect_equal(set(owned), cores, result)
        expect(len(owned) == max(len(cores), count), "no more cores in common than must be", result)


def test_hello():
    """hello_allreduce runs on two hosts with two ranks each"""
    need_hosts(modules=True)
    result = hosts("--counters", EXAMPLES / "hello_allreduce")
    expect_equal(result.returncode, 0, result)
    expect_equal(sorted(result.stdout.splitlines()),
                 [f"[{r}] rank {r} of 4: the ranks' numbers sum to 6, counted 4 ranks" for r in range(4)])
    expect(len(carried(result)) == 2 and min(min(pair) for pair in carried(result)) > 1000, "bytes went over both cables", result)


def test_sent_again():
    """--counters reports TCP retransmissions, which a switch causes when a fast sender overflows a slow link"""
    need_hosts(modules=True)
    result = hosts("--rate", "none,50mbit", "--ranks-per-host", 1, "--counters", WEFT, "bench", "--joined", "all_reduce", "--sizes", "4M",
                   "--iterations", 3, "--no-pin")
    expect_equal(result.returncode, 0, result)
    line = r"host (\d): (\d+) segments sent again, (\d+) of them after a timeout, (\d+) lost twice; (\d+) reports"
    again = [list(map(int, counts)) for counts in re.findall(line, result.stderr)]
    expect_equal([host for host, *_ in again], [0, 1], result)
    expect(again[0][1] > again[1][1], "the sender's", again)


def bench(size, *words):
    """Run an all-reduce of two ranks on two hosts, without autotuning. Return its JSON and the bytes that the
    links carried."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.json"
        result = hosts("--ranks-per-host", 1, "--counters", *words, WEFT, "bench", "--joined", "all_reduce", "--sizes", size,
                       "--iterations", 3, "--no-pin", "--json", path, environment={"WEFT_TUNE": "off"})
        expect_equal(result.returncode, 0, result)
        return json.loads(path.read_text()), carried(result)


def test_cable():
    """all data between hosts goes over their link, no faster than its rate, also where UCX could use shared memory"""
    need_hosts(modules=True)
    megabytes = 4
    whole, cables = bench("4M", "--rate", "200mbit")
    expect_equal(whole["transports"], "tcp/eth0", whole)
    expect(all(row["correct"] for row in whole["results"]), "right results", whole)
    sent = megabytes << 20  # two ranks: each half goes to its owner and its sum back, so one whole buffer each way
    moved = whole["results"][0]["moved_bytes"]
    expect(sent <= moved <= 1.03 * sent, "a call's bytes, as Weft counts them", moved, sent)
    expect(whole["bytes_sent"] > 6 * sent, "three calls' bytes, and those of three before", whole)
    for carried_bytes in (count for pair in cables for count in pair):
        expect(0.97 * whole["bytes_sent"] <= carried_bytes <= 1.03 * whole["bytes_sent"], "all bytes, and few besides", cables, whole)
    fastest_us = sent * 8 / 200  # 200 bits a microsecond
    measured_us = whole["results"][0]["min_us"]
    expect(measured_us > 0.8 * fastest_us, "no faster than the rate", whole["results"])


def test_rates():
    """each link has its own rate, with the matching bursts and segment sizes"""
    need_hosts()
    script = 'echo "$(hostname) $(tc qdisc show dev eth0) $(ip -d link show dev eth0)" | tr "\\n" " "; echo'
    result = hosts("--hosts", 3, "--ranks-per-host", 1, "--prefix", "none", "--rate", "4gbit,none,20mbit", "sh", "-c", script)
    lines = sorted(line for line in result.stdout.splitlines() if line.startswith("host"))
    for line, wanted in zip(lines, (("rate 4Gbit burst 196500b", "gso_max_size 65000"), ("noqueue", "gso_max_size 65536"),
                                    ("rate 20Mbit burst 32Kb", "gso_max_size 30000")), strict=True):
        expect(all(word in line for word in wanted), "the cable's limits", line, wanted, result.stderr)


def test_congestion_control():
    """hosts use the kernel's default TCP settings, also if the machine prefers another congestion control"""
    need_hosts()
    if "cubic" not in Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split():
        cases.skip("this kernel has no cubic")
    result = hosts("--ranks-per-host", 1, "--", "ip", "route")
    routes = [line for line in result.stdout.splitlines() if " dev eth0 " in line]
    expect(len(routes) == 2 and all("congctl cubic" in line for line in routes), "both hosts' routes", result)


def demo(count, backend):
    if not (EXAMPLES / "train_fashion").exists():
        cases.skip("no train_fashion, which needs Eigen and zlib")
    if not DATA.is_dir():
        cases.skip(f"no {DATA} (apt-get install dataset-fashion-mnist)")
    result = hosts("--hosts", count, "--counters", "--prefix", "others", "--timeout", 200, EXAMPLES / "train_fashion",
                   "--epochs", 1, "--limit", 2000, timeout=240, environment={"WEFT_BACKEND": backend})
    expect_equal(result.returncode, 0, result.stdout, result.stderr)
    last = result.stdout.strip().splitlines()[-1]
    used = backend or "shm+ucx"
    expect(f"ranks={2 * count} backend={used} " in last and "replicas=identical curve=matches" in last, "the last line", result.stdout)
    expect(all(min(pair) > 1 << 20 for pair in carried(result)) and len(carried(result)) == count, "gradients on cables", result)


def test_demo():
    """the demo trains on two hosts with two ranks each, with shared memory inside hosts: the same bits as one process"""
    need_hosts(modules=True)
    demo(2, "")


def test_demo_ucx():
    """the demo trains on two hosts with two ranks each over ucx alone: the same bits as one process"""
    need_hosts(modules=True)
    demo(2, "ucx")


def test_demo_four_hosts():
    """the demo trains on four hosts with two ranks each: the same bits as one process"""
    need_hosts(modules=True)
    demo(4, "")


def test_exit_code():
    """the first failure on any host ends the rest and decides the exit code"""
    need_hosts()
    result = hosts("--grace", "0.1", "sh", "-c", '[ "$WEFT_RANK" = 3 ] && exit 7; exec sleep 600')
    expect_equal(result.returncode, 7, result)
    expect("rank 3 ended with exit code 7" in result.stderr, "it says which", result)
    expect_equal(hosts("--timeout", "0.2", "sleep", "600").returncode, 124)
    expect_equal(hosts("./no such program").returncode, 127)


def test_rank_killed():
    """a killed rank is detected by the ranks of the other host"""
    need_hosts(modules=True)
    script = '[ "$WEFT_RANK" != 3 ] || export WEFT_FAILPOINTS=operation@0=kill; exec "$0"'
    result = hosts("--grace", 10, "sh", "-c", script, EXAMPLES / "hello_allreduce")
    expect_equal(result.returncode, 137, result)
    for rank in range(3):
        said = [line for line in result.stderr.splitlines() if line.startswith(f"[{rank}] ")]
        expect(any("rank 3" in line for line in said), f"rank {rank} names it", result)


def test_nothing_left():
    """nothing remains after SIGINT, SIGTERM, SIGHUP or SIGKILL, whatever processes the ranks have left running"""
    need_hosts()
    script = "setsid sleep 600 & touch /dev/shm/left; echo up; exec sleep 600"
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
        # A shell cannot trap signals that are ignored when it starts, as SIGINT is when the tests run in the
        # background.
        process = subprocess.Popen([TWO_HOSTS, "--", "sh", "-c", script], stdout=subprocess.PIPE, text=True,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env={**os.environ, **ENVIRONMENT},
                                   preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        for _ in range(4):
            process.stdout.readline()
        expect(len(processes()) >= 12, "they run", processes())
        process.send_signal(number)
        process.communicate(timeout=60)
        expect_equal(process.returncode, -number if number == signal.SIGKILL else 128 + number)
        expect_nothing_left()


def test_early_signal():
    """nothing remains after a signal that arrives during the hosts' creation"""
    need_hosts()
    for delay_ms in range(0, 200, 20):
        subprocess.run(["timeout", "--signal", "TERM", str(delay_ms / 1000 + 0.001), TWO_HOSTS, "sleep", "600"], check=False,
                       timeout=60, stdin=subprocess.DEVNULL, capture_output=True, env={**os.environ, **ENVIRONMENT})
        expect_nothing_left()


def test_needs():
    """a user who cannot create hosts gets an error that names what is missing"""
    with tempfile.TemporaryDirectory() as folder:
        for program in ("bash", "env", "realpath", "id", "dirname", "unshare", "nsenter", "setpriv", "setsid", "mount"):
            found = cases.run(["sh", "-c", f"command -v {program}"]).stdout.strip()
            if found:
                os.symlink(found, Path(folder) / program)
        result = hosts("true", environment={"PATH": folder})
        expect(result.returncode == 125 and "needs ip tc" in result.stderr and "iproute2" in result.stderr, "iproute2", result)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        copy = Path(shutil.copy(TWO_HOSTS, folder))
        other = ["setpriv", "--reuid", 65534, "--clear-groups"] if os.geteuid() == 0 else []
        result = cases.run([*other, copy, "true"], environment=ENVIRONMENT, cwd=folder)
        expect(result.returncode == 125 and "needs root" in result.stderr, "root", result)


def test_usage():
    """wrong usage exits with code 2 and explains the usage; --help lists the requirements"""
    for words in ([], ["--hosts", "0", "true"], ["--hosts", "x", "true"], ["--nothing", "1", "true"], ["--rate"],
                  ["--rate", "1gbit,"], ["--rate", ",1gbit", "true"]):
        result = hosts(*words)
        expect_equal(result.returncode, 2, words, result)
        expect(result.stderr.startswith("two-hosts: "), "it says what", result)
    result = hosts("--rate", "1gbit,2gbit", "--hosts", "3", "true")
    expect(result.returncode == 2 and "2 links, but there are 3 hosts" in result.stderr, "rates of other links", result)
    result = hosts("--help")
    expect(result.returncode == 0 and "sch_netem" in result.stdout and "--rate" in result.stdout, "help", result)


def test_unshaped():
    """a rate or delay that the kernel does not support is an error that names the kernel's option"""
    need_hosts()
    result = hosts("--rate", "3 apples", "true")
    expect(result.returncode == 125 and "CONFIG_NET_SCH_TBF" in result.stderr, "rate", result)
    result = hosts("--delay", "1ms", "true")
    expect(result.returncode == 0 or "CONFIG_NET_SCH_NETEM" in result.stderr, "delay", result)
    expect_equal(hosts("--rate", "none", "true").returncode, 0)


cases.main(globals())
