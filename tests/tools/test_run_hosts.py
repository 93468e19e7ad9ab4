#!/usr/bin/env python3
"""weft run --hosts, with a program in place of ssh that starts commands on this machine. Usage: test_run_hosts.py WEFT"""
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import alive, expect, expect_equal, wait_until  # noqa: E402

WEFT = sys.argv[1]
# As ssh does, it carries standard input over, and what runs on the host survives its end. It writes what it was called
# with, so that the test sees what others on the machine would.
SSH = """
import os, subprocess, sys
folder, host, command = sys.argv[1:4]
with open(f"{folder}/{host}.call", "w") as file:
    file.write(command)
if host == "dead":
    print("ssh: connect to host dead port 22: No route to host", file=sys.stderr)
    sys.exit(255)
process = subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE, start_new_session=True,
                           env={name: value for name, value in os.environ.items() if not name.startswith("WEFT_")})
with open(f"{folder}/{host}.pids", "w") as file:
    file.write(f"{os.getpid()} {process.pid}")
def carry():
    while data := os.read(0, 4096):
        process.stdin.write(data)
        process.stdin.flush()
    process.stdin.close()
import threading
threading.Thread(target=carry, daemon=True).start()
code = process.wait()
sys.exit(code if code >= 0 else 255)
"""


class Hosts:
    """Runs weft run --hosts with that program; `folder` has its records."""

    def __enter__(self):
        self._temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self._temporary.name)
        (self.folder / "ssh.py").write_text(SSH)
        self.options = ["--ssh", f"{sys.executable} {self.folder}/ssh.py {self.folder}"]
        return self

    def __exit__(self, *_):
        self._temporary.cleanup()

    def command(self, hosts, script, *options):
        return [WEFT, "run", "--hosts", hosts, *self.options, *options, "--", "sh", "-c", script]

    def run(self, hosts, script, *options, **more):
        return cases.run(self.command(hosts, script, *options), **more)

    def pids(self, host):
        """The processes: this host's ssh, and weft run there."""
        return [int(pid) for pid in (self.folder / f"{host}.pids").read_text().split()]


def test_environment():
    """ranks of several hosts get their numbers, one store at the first host and one secret, which no command line has"""
    script = 'echo "$WEFT_RANK $WEFT_SIZE $WEFT_LOCAL_RANK $WEFT_LOCAL_SIZE $WEFT_STORE $(cat $WEFT_SECRET_FILE) $WEFT_BACKEND $MORE"'
    with Hosts() as hosts:
        result = hosts.run("127.0.0.1:2,user@b,[::1]:3", script, "--env", "MORE=it's", environment={"WEFT_BACKEND": "shm"})
        expect_equal(result.returncode, 0, result)
        lines = sorted(line.split() for line in result.stdout.splitlines())
        expect_equal([line[:5] for line in lines],
                     [["[0]", "0", "6", "0", "2"], ["[1]", "1", "6", "1", "2"], ["[2]", "2", "6", "0", "1"],
                      ["[3]", "3", "6", "0", "3"], ["[4]", "4", "6", "1", "3"], ["[5]", "5", "6", "2", "3"]], result)
        expect_equal({tuple(line[7:]) for line in lines}, {("shm", "it's")})
        stores, secrets = {line[5] for line in lines}, {line[6] for line in lines}
        expect(len(stores) == 1 and re.fullmatch(r"tcp://127\.0\.0\.1:[12]\d{4}", stores.pop()), "one store", lines)
        expect_equal(len(secrets), 1)
        secret = secrets.pop()
        expect(len(secret) == 64, "a secret", secret)
        for call in hosts.folder.glob("*.call"):
            expect(secret not in call.read_text(), "others see the command line", call.read_text())


def test_host_file():
    """a host file lists the same, --ranks takes the first ranks, and one host alone needs no store of TCP"""
    with Hosts() as hosts:
        path = hosts.folder / "hosts"
        path.write_text("# ours\na:1\n\nb slots=2  # more\n")
        command = [WEFT, "run", "--hostfile", path, *hosts.options, "--store", "tcp://127.0.0.1:7000"]
        script = ["--", "sh", "-c", 'echo "$WEFT_RANK $WEFT_SIZE $WEFT_STORE"']
        result = cases.run(command + script)
        expect_equal(sorted(result.stdout.splitlines()), [f"[{r}] {r} 3 tcp://127.0.0.1:7000" for r in range(3)], result)
        result = cases.run(command + ["-n", "2"] + script)
        expect_equal(sorted(result.stdout.splitlines()), [f"[{r}] {r} 2 tcp://127.0.0.1:7000" for r in range(2)], result)
        result = hosts.run("a:2", 'echo "$WEFT_SIZE $WEFT_STORE" | cut -c 1-8')
        expect_equal(sorted(result.stdout.splitlines()), ["[0] 2 unix:@", "[1] 2 unix:@"], result)
        here = cases.run([WEFT, "run", "--hosts", "localhost:2", "--ssh", "false", "--", "true"])
        expect_equal(here.returncode, 0, here)


def test_ranks_meet():
    """the ranks of two hosts create a communicator with the secret of weft run"""
    with Hosts() as hosts:
        result = hosts.run("127.0.0.1:1,b:1", f"exec {os.path.abspath(WEFT)} info --joined", "--prefix", "none")
        expect_equal(result.returncode, 0, result)
        expect("one-shot up to" in result.stdout, "rank 0 describes their communicator", result)


def test_failure():
    """a rank that fails ends the ranks of all hosts and decides the exit code; its host and the others are named"""
    with Hosts() as hosts:
        result = hosts.run("a:1,b:2", '[ "$WEFT_RANK" = 2 ] && exit 7; exec sleep 600', "--grace", "0.1")
        expect_equal(result.returncode, 7, result)
        expect("host b ended with exit code 7; ending those that still run: a" in result.stderr, "who", result.stderr)
        expect(not any(alive(pid) for host in "ab" for pid in hosts.pids(host)), "nothing is left")


def test_unreachable():
    """a host that cannot be reached is named, and ends the job with 255"""
    with Hosts() as hosts:
        result = hosts.run("a:1,dead:1", "exec sleep 600", "--grace", "0.1")
        expect_equal(result.returncode, 255, result)
        expect("host dead: the connection failed or was lost" in result.stderr and "No route" in result.stderr, "why",
               result.stderr)
        expect(not any(alive(pid) for pid in hosts.pids("a")), "nothing is left")


def test_lost_connection():
    """if the connection to a host is lost, its ranks end there by themselves, and the job ends"""
    with Hosts() as hosts:
        process = subprocess.Popen(hosts.command("a:1,b:1", "echo $$; exec sleep 600", "--grace", "0.1"), text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        ranks = [int(process.stdout.readline().split()[1]) for _ in range(2)]
        ssh, remote = hosts.pids("b")
        os.kill(ssh, signal.SIGKILL)
        _, errors = process.communicate(timeout=30)
        expect_equal(process.returncode, 128 + signal.SIGKILL, errors)
        wait_until(lambda: not any(alive(pid) for pid in [remote, *ranks]), "the ranks end")


def test_signals():
    """Ctrl-C reaches the ranks of all hosts as the same signal; a second one kills them"""
    script = 'trap "echo interrupted; exit 5" INT; echo ready; while :; do sleep 0.05; done'
    with Hosts() as hosts:
        process = subprocess.Popen(hosts.command("a:1,b:1", script), text=True, stdout=subprocess.PIPE,
                                   preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        for _ in range(2):
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
        expect_equal(sorted(output.splitlines()), ["[0] interrupted", "[1] interrupted"], output)
        expect_equal(process.returncode, 128 + signal.SIGINT)
        stubborn = 'trap "echo no" INT TERM; echo ready $$; while :; do sleep 0.05; done'
        process = subprocess.Popen(hosts.command("a:1,b:1", stubborn), text=True, stdout=subprocess.PIPE,
                                   preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        ranks = [int(process.stdout.readline().split()[-1]) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        for _ in range(2):
            expect("no" in process.stdout.readline(), "they refuse")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        expect_equal(process.returncode, 128 + signal.SIGINT)
        wait_until(lambda: not any(alive(pid) for pid in ranks), "they are killed")


def test_bad_usage():
    """wrong lists of hosts and combinations are refused with what is allowed"""
    def refused(words, *parts):
        result = cases.run([WEFT, "run", *words, "--", "true"])
        expect_equal(result.returncode, 2, words, result)
        for part in parts:
            expect(part in result.stderr, f"it says {part}", result.stderr)

    for hosts in ("", ",", "a:0", "a:x", "a:1:2", "[::1", "[::1]2", "-oProxyCommand=x", "a b", "a;b", "a,a", "a:70000"):
        refused(["--hosts", hosts], "list of hosts")
    refused(["--hosts", "a:2", "-n", "3"], "the hosts have 2 ranks, but --ranks is 3")
    mixed = cases.run([WEFT, "run", "--hosts", "localhost:1,b:1", "--ssh", "false", "--", "true"])
    expect(mixed.returncode == 1 and "write its name" in mixed.stderr, "others cannot reach localhost", mixed)
    refused(["--hosts", "a", "--hostfile", "x"], "--hostfile")
    refused(["--hostfile", "/nowhere/hosts"], "/nowhere/hosts")
    refused(["--hosts", "a", "--first-rank", "1"], "--first-rank")
    refused(["--hosts", "a", "--env", "=x"], "NAME=VALUE")
    refused(["--hosts", "a", "--env", "NOT_SET_ANYWHERE"], "is not set here")
    refused(["-n", "1", "--env", "A=1"], "--env is for --hosts")
    refused([], "--ranks is required")
    with tempfile.NamedTemporaryFile("w", suffix=".hosts") as file:
        for text, part in (("", "names no host"), ("a threads=2", "slots=RANKS"), ("a slots=x", "number of ranks")):
            file.seek(0)
            file.truncate()
            file.write(text)
            file.flush()
            refused(["--hostfile", file.name], part)


cases.main(globals())
