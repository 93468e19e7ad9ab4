#!/usr/bin/env python3
"""weft status: names what each rank of a live job does, also while ranks hang. Usage: test_status.py WEFT"""
import json
import os
import pwd
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
import live_jobs  # noqa: E402
from cases import expect, expect_equal, skip, wait_until  # noqa: E402

WEFT = os.path.abspath(sys.argv[1])
# Rank 0 waits in a step, rank 1 is stopped, rank 2 sleeps before the step, and the hook of rank 3 does not return.
HANGING = """
import os, signal, sys, time
import numpy as np, weftsync as weft
class Stuck(weft.HookFunctions):
    def plan(self, bucket):
        return weft.HookPlan([weft.HookCollective("all_reduce", bucket.dtype, bucket.count, "avg")])
    def stage(self, bucket, stage):
        if comm.rank == 3:
            time.sleep(600)
comm = weft.Comm()
hook = weft.CustomHook(comm.context, Stuck())
reducer = weft.Reducer(comm, [weft.Param("weight", (1000,))], hook=hook)
print("ready", flush=True)
if comm.rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
if comm.rank == 2:
    time.sleep(600)
with reducer.step():
    reducer.ready(0, np.ones(1000, np.float32))
"""


def started(folder, program, ranks=4, **environment):
    return live_jobs.started(WEFT, folder, program, ranks, **environment)


def status(*words, **more):
    return cases.run([WEFT, "status", *words], **more)


def report(*words, **more):
    told = status("--json", *words, **more)
    return json.loads(told.stdout)["communicators"]


def test_hanging_job():
    """of a job in which a rank is stopped, one sleeps and one's hook blocks, it names all three within a second"""
    with tempfile.TemporaryDirectory() as folder, started(folder, HANGING, WEFT_HEARTBEAT_MS="off", WEFT_JOB="hanging"):
        def settled():
            found = report("hanging")
            return found and not found[0]["ranks"][1]["answered"] and "step 0" in found[0]["ranks"][3]["does"]
        wait_until(settled, "rank 1 stops, and rank 3 is in its step")
        time.sleep(0.5)
        began = time.monotonic()
        comm = report("hanging")[0]
        expect(time.monotonic() - began < 1.5, "it takes its 0.7 s for rank 1", time.monotonic() - began)
        ranks = comm["ranks"]
        expect_equal([row["rank"] for row in ranks], [0, 1, 2, 3])
        expect("stopped" in ranks[1]["does"] and ranks[1]["pid"] > 0, "rank 1", ranks[1])
        expect("in no operation" in ranks[2]["does"], "rank 2", ranks[2])
        expect("stage" in ranks[3]["does"], "rank 3", ranks[3])
        expect("step 0" in ranks[0]["does"], "rank 0", ranks[0])
        expect_equal(comm["ranks_at_fault"], [1, 2, 3], comm)
        expect("Rank 1 gave no answer. Ranks 2, 3 did not take part." in comm["text"] and "flight record" not in comm["text"],
               "all three", comm["text"])
        text = status("hanging")
        expect_equal(text.returncode, 0, text)
        expect("stopped" in text.stdout and str(ranks[1]["pid"]) in text.stdout, "the table", text.stdout)
        expect_equal(report("another"), [])
        expect_equal(status("another").returncode, 1)


def test_waiting_job():
    """of ranks that wait in a collective it shows the call, for whom they wait and for how long"""
    program = """
import time, numpy as np, weftsync as weft
comm = weft.Comm()
print("ready", flush=True)
if comm.rank == 1:
    time.sleep(600)
comm.all_reduce(np.ones(1000, np.float32))
"""
    with tempfile.TemporaryDirectory() as folder, started(folder, program, ranks=3, WEFT_JOB="waiting"):
        wait_until(lambda: report("waiting") and (report("waiting")[0]["ranks"][0]["waiting_ms"] or 0) > 300, "it waits")
        comm = report("waiting")[0]
        for rank in (0, 2):
            row = comm["ranks"][rank]
            expect("all_reduce" in row["does"] and "1000" in row["does"], "the call", row)
            expect(1 in row["waits_for"], "for whom", row)
        expect_equal(comm["ranks_at_fault"], [1], comm)
        text = status("waiting").stdout
        expect(comm["text"] in text, "the diagnosis", text)
        with started(folder, program, ranks=2, WEFT_JOB="silent", WEFT_STATUS="off"):
            expect_equal(report("silent"), [])


def test_hosts():
    """--hosts asks the processes of other hosts over ssh and shows all in one table"""
    program = """
import time, weftsync as weft
comm = weft.Comm()
print("ready", flush=True)
time.sleep(600)
"""
    with tempfile.TemporaryDirectory() as folder, started(folder, program, ranks=2, WEFT_JOB="far"):
        ssh = Path(folder) / "ssh"
        ssh.write_text('#!/bin/sh\nhost=$1\nshift\ncase $host in dead) echo no route >&2; exit 255;; hung) exec sleep 600;; mute) exec >&-; exec sleep 600;; esac\nexec sh -c "$*"\n')
        ssh.chmod(0o755)
        found = report("far", "--hosts", "a,dead", "--ssh", str(ssh))
        expect_equal([row["answered"] for row in found[0]["ranks"]], [True, True], found)
        told = status("--hosts", "a,dead", "--ssh", str(ssh))
        expect("host dead gave no whole answer: no route" in told.stderr, "the host that cannot be reached", told)
        began = time.monotonic()
        told = status("--hosts", "a,hung,mute", "--ssh", str(ssh), "--wait", "2", "--json")
        expect(2 <= time.monotonic() - began < 8, "it waits as long as it may", time.monotonic() - began)
        for host in ("hung", "mute"):  # the other one has closed its standard output, and runs on
            expect(f"host {host} gave no whole answer: none within 2 s" in told.stderr, "the host that does not answer", told)
        expect_equal(len(json.loads(told.stdout)["communicators"]), 1, told)
        refused = status("--hosts", "a;b")
        expect(refused.returncode == 2 and "list of hosts" in refused.stderr, "no host", refused)


def test_other_user():
    """another user gets no answer, neither from weft status nor from the socket itself"""
    if os.getuid() != 0:
        skip("only root can become another user")
    program = "import time, weftsync as weft\ncomm = weft.Comm()\nprint('ready', flush=True)\ntime.sleep(600)\n"
    ask = """
import os, socket, sys
os.setgid(%d); os.setuid(%d)
names = [line.split()[-1] for line in open("/proc/net/unix") if "@weft-status-0-" in line]
answers = []
for name in names:
    s = socket.socket(socket.AF_UNIX)
    s.connect("\\0" + name[1:])
    answers.append(s.recv(100))
print(len(names), any(answers))
"""
    nobody = pwd.getpwnam("nobody")
    with tempfile.TemporaryDirectory() as folder, started(folder, program, ranks=1, WEFT_JOB="private"):
        asked = cases.run([sys.executable, "-c", ask % (nobody.pw_gid, nobody.pw_uid)])
        count, answered = asked.stdout.split()
        expect(int(count) >= 1 and answered == "False", "no answer", asked)
        expect_equal(len(report("private")), 1)


# Binds the name of its own status socket first, as another process of another pid namespace may.
TAKEN = """
import os, socket, time
taken = [socket.socket(socket.AF_UNIX) for _ in range(4)]
for number, one in enumerate(taken):
    one.bind(f"\\0weft-status-{os.getuid()}-{os.getpid()}-{number}")
import weftsync as weft
comm = weft.Comm()
print("ready", flush=True)
time.sleep(600)
"""


def test_taken_name():
    """a process whose socket's name is taken answers at another one"""
    with tempfile.TemporaryDirectory() as folder, started(folder, TAKEN, ranks=2, WEFT_JOB="taken"):
        found = report("taken")
        expect_equal([row["answered"] for row in found[0]["ranks"]], [True, True], found)


# A rank that ends without destroying anything, while a child that it has forked runs.
ORPHAN = """
import os, sys, time
import weftsync as weft
comm = weft.Comm()
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(os.getpid(), child, flush=True)
os._exit(0)
"""


def test_forked_child():
    """a child that outlives its rank is not taken for the rank"""
    process = subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True,
                               env={**os.environ, "PYTHONPATH": f"{live_jobs.ROOT}/python", "WEFT_SIZE": "1",
                                    "WEFT_JOB": "orphan"})
    dead, child = (int(word) for word in process.stdout.readline().split())
    try:
        process.wait(10)
        names = Path("/proc/net/unix").read_text()
        expect(f"@weft-status-{os.getuid()}-{dead}-" in names, "the child holds the socket", names)
        pids = [json.loads(line).get("pid") for line in status("--lines").stdout.splitlines()]
        expect(dead not in pids, "the dead rank", dead, pids)
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()


cases.main(globals())
