#!/usr/bin/env python3
"""weft doctor finds faults that are planted into the system itself, and no error on this machine. Usage:
test_doctor.py WEFT REFUSE TWO_HOSTS HELLO_ALLREDUCE, where REFUSE may be empty (tests/sandbox/refuse.cpp)
"""
import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

WEFT, REFUSE, TWO_HOSTS, HELLO = sys.argv[1:5]


def report(result):
    """Return the JSON of a run, whose exit code must fit."""
    expect(result.returncode in (0, 1) and result.stdout.startswith("{"), "a report", result)
    whole = json.loads(result.stdout)
    errors = [one for one in whole["findings"] if one["severity"] == "error"]
    expect_equal(result.returncode, 1 if errors else 0, "the exit code", result)
    for one in whole["findings"]:
        expect_equal(sorted(one), ["hosts", "id", "mend", "ranks", "severity", "text"], one)
        expect(one["text"] and one["mend"], "text and mend", one)
    return whole


def doctor(*options, before=(), environment=None, timeout=120):
    """Run weft doctor --json behind the words of `before`."""
    return report(cases.run([*before, WEFT, "doctor", "--json", *options], environment=environment, timeout=timeout))


def found(whole, name, severity, word=""):
    """Return the findings of one check with this severity and this word in the text; there must be one."""
    matching = [one for one in whole["findings"]
                if (one["id"], one["severity"]) == (name, severity) and word in one["text"]]
    expect(matching, f"no {severity} {name} with {word!r}", json.dumps(whole["findings"], indent=1))
    return matching


def not_found(whole, name, word=""):
    matching = [one for one in whole["findings"] if one["id"] == name and word in one["text"]]
    expect(not matching, f"{name} is found without the fault", matching)


def planted(name, severity, word, *options, before=(), environment=None):
    """Check that a fault is found, and that it is not found without the fault."""
    not_found(doctor(*options), name, word)
    return found(doctor(*options, before=before, environment=environment), name, severity, word)


def shell(script):
    """Return words that run a script before the command behind them."""
    return ["sh", "-c", f'{script} && exec "$@"', "sh"]


def mounts(script):
    """Return words that run a script in a mount namespace of its own before the command behind them."""
    words = ["unshare", "--mount", *shell(script)]
    tried = cases.run([*words, "true"])
    if tried.returncode:
        cases.skip("no mounts of its own here: " + tried.stderr.strip())
    return words


@contextlib.contextmanager
def control_group(controller, **limits):
    """Make a control group with these limits; yield words that run the command behind them in it."""
    one = Path("/sys/fs/cgroup") / controller
    folder = (one if one.is_dir() else Path("/sys/fs/cgroup")) / f"weft-doctor-{os.getpid()}"
    version = 0 if one.is_dir() else 1
    try:
        folder.mkdir()
    except OSError as error:
        cases.skip(f"no control groups can be made here: {error}")
    try:
        try:
            for name, values in limits.items():
                file, value = values[version]
                (folder / file).write_text(value)
        except OSError as error:
            cases.skip(f"the control group takes no limit {name}: {error}")
        yield shell(f"echo $$ >{folder}/cgroup.procs")
    finally:
        cases.wait_until(lambda: not (folder / "cgroup.procs").read_text().split(), "the control group is empty")
        folder.rmdir()


def refuse(calls):
    if not REFUSE:
        cases.skip("sanitizers make system calls of their own")
    tried = cases.run([REFUSE, calls, "--", "true"])
    if tried.returncode == 77:
        cases.skip(tried.stderr.strip())
    return [REFUSE, calls, "--"]


def need_two_cores():
    if len(os.sched_getaffinity(0)) < 2:
        cases.skip("needs two cores")


def on_hosts(script, count=2, rate="none"):
    """Run the script on simulated hosts with a rank each."""
    if os.geteuid() != 0:
        cases.skip("makes network namespaces, which needs root")
    line = next((line for line in cases.run([WEFT, "info"]).stdout.splitlines() if line.split()[:1] == ["ucx"]), "no ucx")
    if " available: " not in line or "not available" in line:
        cases.skip(line.strip())
    result = cases.run([TWO_HOSTS, "--hosts", count, "--ranks-per-host", 1, "--rate", rate, "--prefix", "others", "--grace", 30, "sh", "-c",
                        script],
                       environment={"WEFT": WEFT}, timeout=150)
    if result.returncode == 125:
        cases.skip("no hosts here: " + result.stderr.strip())
    return result


def hosts(script, count=2, rate="none", options=""):
    """Return the report of `weft doctor --joined`, which follows the script on simulated hosts."""
    return report(on_hosts(f'{script}\nexec "$WEFT" doctor --joined --json {options}', count, rate))


def write_ssh(folder, script):
    """Write a program in place of ssh, which gets HOST COMMAND; return its path."""
    path = Path(folder) / "ssh"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return path


def test_healthy():
    """there is no error on this machine, for a process alone and for ranks together"""
    alone = doctor()
    expect_equal(len(alone["facts"]), 1, alone)
    together = doctor("--ranks", 4)
    expect_equal((len(together["facts"]), len(together["transfers"])), (4, 6), together)
    for one in together["transfers"]:
        expect(one["low"] < one["high"] and one["latency_us"] > 0 and one["bytes_per_s"] > 1e6, "what was measured", one)
    for whole in (alone, together):
        errors = [one for one in whole["findings"] if one["severity"] == "error"]
        expect(not errors, "no errors", errors)


def test_healthy_hosts():
    """there is no error for two hosts that reach each other"""
    whole = hosts("true")
    expect_equal([one["severity"] for one in whole["findings"] if one["severity"] == "error"], [], whole["findings"])
    expect_equal(len({facts["machine"] for facts in whole["facts"]}), 2, whole)
    expect_equal(len(whole["transfers"]), 1, whole)


def test_hosts_option():
    """--hosts examines the ranks of several hosts together, and names a host that gives no answer"""
    with tempfile.TemporaryDirectory() as folder:
        ssh = write_ssh(folder, '[ "$1" != dead ] || { echo no route >&2; exit 255; }\nexec sh -c "$2"\n')
        whole = doctor("--hosts", "127.0.0.1,127.0.0.2:2,dead", "--ssh", ssh)
        expect_equal((len(whole["facts"]), len(whole["transfers"])), (3, 3), whole)
        one = found(whole, "hosts", "error", "host dead gave no whole answer: no route")[0]
        expect_equal((one["ranks"], one["hosts"]), ([], ["dead"]), one)
        errors = [each for each in whole["findings"] if each["severity"] == "error"]
        expect_equal(errors, [one])
        alone = cases.run([WEFT, "doctor", "--hosts", "dead", "--ssh", ssh])
        expect(alone.returncode == 1 and "no host gave a whole answer" in alone.stderr, "none at all", alone)
        for words in (["--hosts", "a;b"], ["--hosts", "a", "--ranks", "2"], ["--hosts", "a", "--hostfile", "b"]):
            expect_equal(cases.run([WEFT, "doctor", *words]).returncode, 2, words)


def test_hosts_over_network():
    """--hosts tries the addresses and measures the bandwidth between hosts"""
    with tempfile.TemporaryDirectory() as folder:
        # The host of a rank is entered through that rank's shell.
        write_ssh(folder, f'exec nsenter --target "$(cat {folder}/$1)" --net --uts --ipc --mount sh -c "$2"\n')
        on_hosts(f"""
            if [ "$WEFT_RANK" = 1 ]; then
              echo $$ >{folder}/new && mv {folder}/new {folder}/host1
              for try in $(seq 1200); do [ -e {folder}/code ] && exit; sleep 0.1; done
            fi
            while [ ! -e {folder}/host1 ]; do sleep 0.1; done
            "$WEFT" doctor --json --hosts host0,host1 --ssh {folder}/ssh >{folder}/report
            echo $? >{folder}/code""")
        expect_equal((Path(folder) / "code").read_text(), "0\n")
        whole = json.loads((Path(folder) / "report").read_text())
        expect_equal(len({facts["machine"] for facts in whole["facts"]}), 2, whole)
        expect_equal(len(whole["transfers"]), 1, whole)
        not_found(whole, "reachability")


def test_launchers():
    """ranks of weft run and of mpirun examine their job together"""
    result = cases.run([WEFT, "run", "-n", 3, "--prefix", "others", "--", WEFT, "doctor", "--joined", "--json"], timeout=120)
    expect_equal(len(report(result)["facts"]), 3, result)
    mpirun = shutil.which("mpirun")
    if mpirun:
        words = ["--oversubscribe"] if "Open MPI" in cases.run([mpirun, "--version"]).stdout else []
        result = cases.run([mpirun, *words, "-n", 2, WEFT, "doctor", "--joined", "--json"], timeout=120,
                           environment={"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
        whole = report(result)
        expect_equal((len(whole["facts"]), len(whole["transfers"])), (2, 1), result)


def test_text():
    """the text has errors first, a mend for each finding, and a summary as its last line"""
    result = cases.run([WEFT, "doctor", "--ranks", 2], environment={"WEFT_BACKEND": "smh", "WEFT_FLIGHT": "/nowhere"})
    expect_equal(result.returncode, 1, result)
    lines = result.stdout.splitlines()
    expect(lines[0].startswith('error: backends: WEFT_BACKEND is "smh"') and lines[1].startswith("  mend: "), "the error", lines)
    expect(lines[-1].startswith("weft doctor: 2 ranks on 1 host: 1 error, "), "the summary", lines)
    expect(lines[-2].startswith("transfers were not measured"), "what was left out", lines)
    expect(any(line.startswith("warning: flight-folder: ") for line in lines), "a warning", lines)


def test_list():
    """--list names every check once, with its worst severity and a mend"""
    result = cases.run([WEFT, "doctor", "--list", "--json"])
    checks = json.loads(result.stdout)["checks"]
    expect(len(checks) >= 25 and len({check["id"] for check in checks}) == len(checks), "the checks", checks)
    expect(all(check["worst"] in ("error", "warning", "note") and check["looks_at"] and check["mend"] for check in checks),
           "what each says", checks)
    text = cases.run([WEFT, "doctor", "--list"])
    expect_equal([line.split()[0] for line in text.stdout.splitlines()], [check["id"] for check in checks])


def test_usage():
    """wrong options exit with code 2 and point to the help"""
    for words in (["--yaml"], ["--ranks", "1"], ["--ranks", "x"], ["--wait", "0"], ["host"]):
        result = cases.run([WEFT, "doctor", *words])
        expect_equal(result.returncode, 2, words, result)
        expect("--help" in result.stderr, "it points to --help", result.stderr)


def test_open_files():
    """too few descriptors for the ranks are found, and such a job fails"""
    def job(files):
        # With the socket of weft status the ranks get further, and notice it only after the minute of init_timeout_ms.
        return cases.run([WEFT, "run", "-n", 4, "--", "prlimit", f"--nofile={files}", HELLO], environment={"WEFT_STATUS": "off"})
    one = planted("open-files", "error", "15 files", "--ranks", "4", before=["prlimit", "--nofile=15"])[0]
    result = job(15)
    reasons = ("Too many open files", "raise `ulimit -n` to")  # later, or before it connects
    expect(result.returncode != 0 and any(reason in result.stderr for reason in reasons), "the job fails", result)
    needed = int(one["text"].split()[-1])
    result = job(needed)
    expect_equal(result.returncode, 0, needed, result)


def test_address_space():
    """a limit of address space with which jobs fail is found, and one with which they get less memory"""
    small = shell("ulimit -v 100000")
    planted("address-space", "error", "97.7 MiB", before=small)
    job = cases.run([WEFT, "run", "-n", 2, "--", *small, HELLO])
    expect(job.returncode != 0 and "Cannot allocate memory" in job.stdout + job.stderr, "the job fails", job)
    planted("address-space", "warning", "15.3 GiB", before=shell("ulimit -v 16000000"))


def test_locked_memory():
    """a small limit of locked memory is found where there is an RDMA device, and not elsewhere"""
    device = "mount -t tmpfs none /sys/class && mkdir -p /sys/class/infiniband/mlx5_0"
    planted("locked-memory", "error", "64 KiB", before=[*mounts(device), "prlimit", "--memlock=65536"])
    not_found(doctor(before=["prlimit", "--memlock=65536"]), "locked-memory")


def test_small_dev_shm():
    """a small /dev/shm is found"""
    planted("dev-shm", "warning", "free", before=mounts("mount -t tmpfs -o size=32m none /dev/shm"))


def test_read_only_folders():
    """a read-only container is found: /dev/shm, temporary files and flight records"""
    with tempfile.TemporaryDirectory() as folder:
        before = mounts(f"mount -t tmpfs -o ro none /dev/shm && mount -t tmpfs -o ro none {folder}")
        planted("dev-shm", "warning", "Read-only", before=before)
        planted("temporary-folder", "note", folder, before=before, environment={"TMPDIR": folder})
        planted("flight-folder", "warning", folder, before=before, environment={"WEFT_FLIGHT": f"{folder}/records"})
        found(doctor(before=before, environment={"WEFT_BACKEND": "nccl"}), "dev-shm", "error", "Read-only")


def test_one_core():
    """ranks that are bound to one core are found"""
    need_two_cores()
    core = min(os.sched_getaffinity(0))
    one = planted("shared-cores", "warning", f"core {core}", "--ranks", "2", before=["taskset", "-c", core])[0]
    expect_equal(one["ranks"], [0, 1], one)
    planted("core-binding", "note", "one core", before=["taskset", "-c", core])


def test_cpu_quota():
    """a control group's limit of processor time is found"""
    limits = {"quota": (("cpu.cfs_quota_us", "50000"), ("cpu.max", "50000 100000"))}
    with control_group("cpu", **limits) as words:
        planted("cpu-quota", "warning", "0.5 cores", before=words)


def test_memory_limit():
    """a control group's limit of memory is found"""
    limits = {"limit": (("memory.limit_in_bytes", "150M"), ("memory.max", "150M"))}
    with control_group("memory", **limits) as words:
        planted("memory", "warning", "the control group", before=words)


def test_threads():
    """a control group's limit of tasks, or a filter that refuses threads, is found"""
    with control_group("pids", limit=(("pids.max", "3"), ("pids.max", "3"))) as words:
        planted("threads", "error", "cannot start", before=words)
    planted("threads", "error", "not permitted", before=refuse("clone3=EPERM"))


def test_filter():
    """system calls that a seccomp filter refuses are found, with what Weft does without them"""
    for calls, severity, word in (("memfd_create=EPERM", "warning", "a seccomp filter refuses memfd_create"),
                                  ("F_ADD_SEALS=EPERM", "warning", "memfd_create with seals"),
                                  ("getrandom=ENOSYS", "error", "refuses getrandom"),
                                  ("sched_getaffinity=EPERM", "warning", "sched_getaffinity (Operation not permitted)"),
                                  ("MADV_POPULATE_WRITE", "note", "MADV_POPULATE_WRITE"),
                                  ("MADV_WIPEONFORK", "note", "MADV_WIPEONFORK"),
                                  ("pidfd_open", "note", "refuses pidfd_open"),
                                  ("pidfd_open=kill", "error", "ends processes that call pidfd_open")):
        planted("system-calls", severity, word, before=refuse(calls))


def test_cross_memory():
    """a filter or ptrace_scope that forbids reading other ranks' memory is found"""
    filtered = refuse("process_vm_readv=EPERM")
    planted("cross-memory", "warning", "process_vm_readv", before=filtered)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()  # UCX reads it
    scope = ("mount -t tmpfs none /proc/sys/kernel && (cd /proc/sys/kernel && mkdir yama random && echo 1 >yama/ptrace_scope "
             f"&& echo {boot} >random/boot_id)")
    planted("cross-memory", "warning", "ptrace_scope is 1", before=[*mounts(scope), *filtered])


def test_user_namespace():
    """a user that stands for others is found, unless there is a secret; so is a rootless container"""
    nobody = ["unshare", "--user"]
    if cases.run([*nobody, "true"]).returncode:
        cases.skip("no user namespaces here")
    planted("user-namespace", "error", "65534", before=nobody)
    secret = {"WEFT_SECRET": "a secret of many characters"}
    not_found(doctor(before=nobody, environment=secret), "user-namespace", "65534")
    planted("user-namespace", "note", "rootless", before=[*nobody, "--map-root-user"])


def test_backends():
    """a backend that does not exist, one that is not available, and one that a rank lacks are found"""
    planted("backends", "error", "known: ", environment={"WEFT_BACKEND": "smh"})
    planted("backends", "error", "WEFT_UCX_TLS", environment={"WEFT_BACKEND": "ucx", "WEFT_UCX_TLS": "nonsense"})
    script = f'[ "$WEFT_RANK" = 1 ] && export WEFT_UCX_TLS=nonsense; exec {shlex.quote(WEFT)} doctor --joined --json'
    whole = report(cases.run([WEFT, "run", "-n", 2, "--prefix", "others", "--", "sh", "-c", script], timeout=120))
    if next(one for one in whole["facts"][0]["software"]["backends"] if one["name"] == "ucx")["available"]:
        expect_equal(found(whole, "backends", "warning", "ucx")[0]["ranks"], [1], whole["findings"])


def test_settings():
    """variables for tests and debuggers are found"""
    planted("settings", "warning", "WEFT_HEARTBEAT_MS=off", environment={"WEFT_HEARTBEAT_MS": "off"})
    planted("settings", "warning", "WEFT_FAILPOINTS", environment={"WEFT_FAILPOINTS": "operation@7000=kill"})


def test_environment():
    """variables of a launcher that contradict each other are found"""
    result = cases.run([WEFT, "doctor", "--joined"], environment={"WEFT_RANK": "2", "WEFT_SIZE": "2"})
    expect_equal(result.returncode, 1, result)
    expect(result.stderr.startswith("error: environment: WEFT_RANK is 2, but WEFT_SIZE is 2"), "the variables", result)
    found(doctor("--joined"), "environment", "error", "no launcher")


def test_wrong_variables():
    """values with which every job fails are errors without a job too, and misspelt variables are named"""
    for name, value in (("WEFT_HEARTBEAT_MS", "5"), ("WEFT_PORTS", "x"), ("WEFT_SECRET", "a"), ("WEFT_SECRET_FILE", "/nope"),
                        ("WEFT_TUNE", "foo"), ("WEFT_LOCAL_RANK", "5"), ("WEFT_SIZE", "0"), ("WEFT_INTERFACES", "nope0")):
        found(doctor(environment={name: value}), "environment", "error", "/nope" if value == "/nope" else name)
    planted("settings", "warning", "did you mean WEFT_METRICS?", environment={"WEFT_METRIC": "/tmp"})


def test_ports():
    """the store of weft doctor --joined listens within WEFT_PORTS"""
    first = cases.free_ports(4)[0]
    with tempfile.TemporaryDirectory() as folder:
        environment = {"WEFT_RANK": "0", "WEFT_SIZE": "2", "WEFT_STORE": f"file://{folder}", "WEFT_PORTS": f"{first}-{first + 3}",
                       "WEFT_SECRET": "a secret of many characters"}
        with subprocess.Popen([WEFT, "doctor", "--joined", "--wait", "3"], env={**os.environ, **environment},
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                sockets = lambda: {os.readlink(fd) for fd in Path(f"/proc/{process.pid}/fd").iterdir() if os.path.islink(fd)}
                listening = lambda: [int(words[1].split(":")[1], 16) for path in ("/proc/net/tcp", "/proc/net/tcp6")
                                     for words in map(str.split, Path(path).read_text().splitlines()[1:])
                                     if words[3] == "0A" and f"socket:[{words[9]}]" in sockets()]
                cases.wait_until(listening, "the store listens")
                ports = listening()
                expect(all(first <= port <= first + 3 for port in ports), f"within {first}-{first + 3}", ports)
            finally:
                process.kill()


def test_missing_rank():
    """a rank that does not come is named by those that wait for it"""
    environment = {"WEFT_RANK": "0", "WEFT_SIZE": "3", "WEFT_STORE": f"unix:@weft-doctor-{os.getpid()}"}
    result = cases.run([WEFT, "doctor", "--joined", "--json", "--wait", "1"], environment=environment)
    found(report(result), "rendezvous", "error", "1, 2")


def test_wrong_secret():
    """ranks that have different secrets are found, and each reports it"""
    script = f'[ "$WEFT_RANK" = 1 ] && unset WEFT_SECRET_FILE && export WEFT_SECRET=another-secret-than-the-others; exec {shlex.quote(WEFT)} doctor --joined --wait 2'
    result = cases.run([WEFT, "run", "-n", 2, "--grace", 20, "--", "sh", "-c", script], timeout=60)
    expect_equal(result.returncode, 1, result)
    expect("[1] error: rendezvous: " in result.stderr and "secret" in result.stderr, "rank 1 says why", result)


def test_unreachable_host():
    """two hosts that do not reach each other are named, though both reach the store"""
    whole = hosts('[ "$WEFT_RANK" != 1 ] || ip route add unreachable 10.87.0.3/32', count=3)
    texts = [one["text"] for one in found(whole, "reachability", "error")]
    expect(any("rank 1 (host1) cannot connect to rank 2 (host2): 10.87.0.3: " in text for text in texts), "the pair", texts)
    expect(not any("rank 0" in text for text in texts), "no other pair", texts)


def test_unreachable_address():
    """an address that does not answer is found where another one works"""
    whole = hosts('[ "$WEFT_RANK" = 1 ] && ip addr add 10.99.0.2/32 dev eth0 || ip route add 10.99.0.0/24 dev eth0 '
                  '&& ip neigh add 10.99.0.2 lladdr 02:00:00:00:00:99 dev eth0 2>/dev/null; true')
    one = found(whole, "reachability", "warning", "10.99.0.2")[0]
    expect("rank 0 (host0) cannot connect to some addresses of rank 1 (host1)" in one["text"], "the pair", one)


def test_dropped_packets():
    """a path that drops large packets is found, though connections are made"""
    whole = hosts("ip link set eth0 mtu 9000 gso_max_segs 1", options="--wait 3")
    found(whole, "path-mtu", "error", "data does not pass")


def test_other_mtu():
    """an MTU that differs between hosts is found, and a small one"""
    whole = hosts('[ "$WEFT_RANK" != 1 ] || ip link set eth0 mtu 1000')
    found(whole, "mtu", "warning", "1000 on rank 1 (host1) and 1500 on rank 0 (host0)")
    expect_equal(found(whole, "mtu", "warning", "at most 1000 bytes")[0]["ranks"], [1], whole["findings"])


def test_no_network():
    """a process in a network without addresses is told so"""
    alone = ["unshare", "--net"]
    if cases.run([*alone, "true"]).returncode:
        cases.skip("no network namespaces here")
    found(doctor(before=alone), "addresses", "note", "loopback")


def test_slow_link():
    """the pairs behind a slow link are named, and no others"""
    # Hosts that share a core wait for its time slices, so here each may use all; other programs disturb some runs.
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    wanted = [[0, 3], [1, 3], [2, 3]]
    for _ in range(3):
        whole = hosts(f"taskset -pc {cores} $$ >/dev/null", count=4, rate="1gbit,1gbit,1gbit,50mbit")
        slow = sorted(one["ranks"] for one in whole["findings"]
                      if one["id"] == "transfers" and "the median pair between hosts" in one["text"])
        if slow == wanted:
            break
    if slow != wanted and os.getloadavg()[0] > 2 * os.cpu_count():
        cases.skip("other programs use the cores, so the times are theirs")
    expect_equal(slow, wanted, whole["transfers"])


cases.main(globals())
