#!/usr/bin/env python3
"""The interpreter exits while Weft is in use, in every way that it has. Also subinterpreters, which are refused.

A child process is rank 0, and this process is rank 1. The child runs a program that prints "ready", and ends when its
input has a line.
"""
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

from ranks_of_threads import ROOT, cases, expect, expect_equal, expect_raises, np, weft

SECONDS = 10.0  # for a child to end: 0.1 s where the machine is idle
PATIENCE = 30.0
PREFIX = """
    import atexit, gc, multiprocessing, os, signal, sys, threading, time
    import numpy as np, weftsync as weft
    def comm_of(rank, store=sys.argv[1]):
        context = weft.Context(log=False)
        return weft.Comm(context, rank=rank, size=2, store=store, backend="shm", init_timeout=30, timeout=60)
    def alone():
        return weft.Comm(weft.Context(log=False), rank=0, size=1, store="unix:@weft-unused", backend="shm")
    def daemon(function, *arguments):
        threading.Thread(target=function, args=arguments, daemon=True).start()
        time.sleep(0.15)
    def ready():
        print("ready", flush=True)
        sys.stdin.readline()
"""
COMM = "comm = comm_of(0)\n"
REDUCER = COMM + """
reducer = weft.Reducer(comm, [weft.Param("w", (8,))])
x = np.ones(8, np.float32)
"""


class Child:
    """Rank 0, which runs a program, and the communicator of this process."""

    def __init__(self, program, prefix=PREFIX):
        self.store = f"unix:@weft-test-exit-{os.getpid()}-{time.monotonic_ns()}"
        self.process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(prefix) + textwrap.dedent(program), self.store],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
        self.comm = self.reducer = None
        try:
            self.comm = weft.Comm(weft.Context(log=False), rank=1, size=2, store=self.store, backend="shm",
                                  init_timeout=PATIENCE, timeout=PATIENCE)
        except BaseException:
            self.process.kill()
            print(self.process.communicate()[1])
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()
        for one in (self.reducer, self.comm):
            if one is not None:
                one.close()

    def make_reducer(self):
        self.reducer = weft.Reducer(self.comm, [weft.Param("w", (8,))])

    def end(self, code=0, seconds=SECONDS, error=""):
        """Let the child end. error: expression that its output of errors matches. Returns its lines of output."""
        lines = []
        while not lines or lines[-1] not in ("ready\n", ""):
            lines.append(self.process.stdout.readline())
        begin = time.monotonic()
        try:
            out, problems = self.process.communicate("\n", timeout=PATIENCE)
        except subprocess.TimeoutExpired as late:
            self.process.send_signal(6)
            raise AssertionError(f"the child does not end:\n{self.process.communicate()[1]}") from late
        taken = time.monotonic() - begin
        expect_equal(self.process.returncode, code, problems)
        expect(re.fullmatch(error, problems, re.DOTALL), "the output of errors", problems)
        expect(taken < seconds, f"the child ends within {seconds} s, it took {taken:.2f} s")
        return "".join(lines[:-1]) + out

    def expect_departed(self):
        """Expect that operations of this rank fail, and that the error names the child's rank."""
        try:
            if self.reducer is None:
                self.comm.barrier(timeout=PATIENCE)
            else:
                with self.reducer.step():
                    self.reducer.ready("w", np.ones(8, np.float32))
        except weft.WeftError as error:
            expect_equal(error.ranks, (0,), error)
            return
        raise AssertionError("this rank's operation has succeeded")


def test_ways_to_exit():
    """each way to exit gives its exit code while a request is outstanding, and the other rank learns who left"""
    for end, code, error in (("", 0, ""), ("sys.exit(7)", 7, ""), ("os._exit(8)", 8, ""),
                             ("raise KeyError('an error')", 1, "Traceback .*KeyError: 'an error'\n"),
                             ("os.kill(os.getpid(), signal.SIGTERM)", -15, ""),
                             ("raise KeyboardInterrupt", -2, "Traceback .*KeyboardInterrupt\n")):
        with Child(COMM + "request = comm.all_reduce(np.ones(1000), wait=False)\nready()\n" + end) as child:
            child.end(code, error=error)
            child.expect_departed()


def test_reducer_amid_a_step():
    """the interpreter exits in the middle of a reducer's step, and the step fails on the other rank"""
    for end, code in (("", 0), ("os._exit(8)", 8)):
        with Child(REDUCER + "reducer.begin()\nreducer.ready(0, x)\nready()\n" + end) as child:
            child.make_reducer()
            child.end(code)
            child.expect_departed()


# Calls of daemon threads, those of a row in one process. The other rank makes none of them.
BLOCKED = (
    ("comm.barrier()", "alone().recv_tagged(np.ones(8))", "comm_of(0, sys.argv[1] + 'another')",
     "weft.Comm(weft.Context(progress='caller'), rank=0, size=2, store=sys.argv[1] + 'third')"),
    ("comm.all_reduce(np.ones(8), wait=False).wait()",),
    ("comm.split(0)",),
    ("weft.Comm(rank=0, size=2, all_gather=lambda mine: time.sleep(60))",
     "weft.Comm(rank=0, size=2, all_gather=lambda mine: [sum(range(9)) for _ in iter(int, 1)])"),
)


def test_daemon_threads():
    """the interpreter exits while daemon threads block in calls: the calls end, and the threads end silently"""
    for calls in BLOCKED:
        with Child(COMM + "".join(f"daemon(lambda: {call})\n" for call in calls) + "ready()") as child:
            try:
                child.end()
                child.expect_departed()
            except AssertionError as error:
                raise AssertionError(calls) from error


def test_daemon_thread_in_a_step():
    """the interpreter exits while a daemon thread is in finish: the step fails on the other rank"""
    with Child(REDUCER + "reducer.begin()\nreducer.ready(0, x)\ndaemon(reducer.finish)\nready()") as child:
        child.make_reducer()
        child.end()
        child.expect_departed()


def test_daemon_threads_that_go_on():
    """the interpreter exits while daemon threads start one operation after the other and ignore exceptions"""
    program = COMM + """
def call(comm):
    while True:
        try:
            comm.send_tagged(np.ones(8), comm.rank, 3)
            comm.recv_tagged(np.ones(8))
            comm.barrier(wait=False)
        except Exception:
            pass
comms = [alone() for _ in range(3)]
for one in (comm, *comms):
    daemon(call, one)
ready()
"""
    for _ in range(2):
        with Child(program) as child:
            child.end()
            child.expect_departed()


def test_callbacks():
    """the interpreter exits while a callback runs on a thread of the library, also one that never returns"""
    def run(call):
        program = COMM + f"""
runs = threading.Event()
def call(*_):
    runs.set()
    {call}
x, own = np.ones(8, np.float32), alone()
reducer = weft.Reducer(own, [weft.Param("w", (8,))], on_bucket=call)
with reducer.step():
    reducer.ready(0, x)
runs.wait(20)
ready()
"""
        with Child(program) as child:
            child.end(seconds=6 + SECONDS)
            child.expect_departed()

    calls = ("time.sleep(0.3)", "[sum(range(9)) for _ in iter(int, 1)]", "threading.Event().wait()")
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as together:
        list(together.map(run, calls))


def test_atexit():
    """functions of atexit use Weft; those that run after its end get an error, and cannot make new objects"""
    prefix = """
    import atexit
    def late():
        for call in (lambda: weft.Comm(rank=0, size=1, store="unix:@weft-unused"), comm.barrier):
            try:
                call()
            except (RuntimeError, weft.WeftError) as error:
                print(type(error).__name__, error)
    atexit.register(late)
""" + PREFIX
    program = COMM + """
own = alone()
def early():
    y = own.new.all_reduce(np.ones(2))
    print(comm.rank, request.done(), y)
request = comm.all_reduce(np.ones(8), wait=False)
atexit.register(early)
ready()
"""
    with Child(program, prefix) as child:
        early, late, used = child.end().splitlines()
        expect_equal(early, "0 False [1. 1.]")
        expect(late.startswith("RuntimeError the interpreter exits"), late)
        expect(used.startswith("WeftError ERR_ARG"), used)
        child.expect_departed()


PROCESSES = """
def work(store, code):
    if store:
        comm = comm_of(0, store)
        comm.barrier()
        request = comm.recv_tagged(np.ones(8), wait=False)
    sys.exit(code)

if __name__ == "__main__":
    other = alone()
    daemon(other.recv_tagged, np.ones(8))
    process = multiprocessing.get_context(sys.argv[2]).Process(target=work, args=(sys.argv[1], 5))
    process.start()
    process.join()
    print(process.exitcode, flush=True)
"""


def test_processes():
    """a process that multiprocessing has made exits with its own code, and the other rank learns who left"""
    for method, own in (("fork", True), ("fork", False), ("spawn", True)):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "program.py"
            path.write_text(textwrap.dedent(PREFIX) + PROCESSES)
            store = f"unix:@weft-test-exit-{os.getpid()}-{time.monotonic_ns()}" if own else ""
            process = subprocess.Popen([sys.executable, "-W", "ignore", "-X", "faulthandler", path, store, method],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                       env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
            try:
                if own:
                    with weft.Comm(weft.Context(log=False), rank=1, size=2, store=store, backend="shm",
                                   init_timeout=PATIENCE, timeout=PATIENCE) as comm:
                        comm.barrier()
                        error = expect_raises(weft.WeftError, "", comm.barrier)
                        expect_equal(error.ranks, (0,), error)
                out, problems = process.communicate(timeout=PATIENCE)
                expect_equal((process.returncode, out, problems), (0, "5\n", ""), method, own)
            finally:
                process.kill()
                process.communicate()


def test_subinterpreters():
    """a subinterpreter cannot import the package, and the error says what to do; the main interpreter works on"""
    program = f"""
import sys
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
other = interpreters.create()
interpreters.run_string(other, '''if True:
    import sys
    sys.path[:0] = {sys.path!r}
    for _ in range(2):
        try:
            import weftsync
        except ImportError as error:
            print(error, flush=True)
''')
import weftsync
with weftsync.Comm(rank=0, size=1, store="unix:@weft-unused", backend="shm") as comm:
    comm.barrier()
interpreters.destroy(other)
"""
    result = cases.run([sys.executable, "-c", program], environment={"PYTHONPATH": str(ROOT / "python")})
    lines = result.stdout.splitlines()
    expect_equal((result.returncode, len(lines)), (0, 2), result.stdout, result.stderr)
    for line in lines:
        expect("cannot be used in a subinterpreter" in line and "multiprocessing" in line, line)


if __name__ == "__main__":
    cases.main(globals())
