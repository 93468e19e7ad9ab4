#!/usr/bin/env python3
"""Ctrl-C during calls of the package weftsync: those that block, and those that start an operation.

In the cases of blocking calls this process is rank 1 and never makes the call that blocks; a child process is rank 0,
which is interrupted.
"""
import contextlib
import ctypes
import functools
import gc
import operator
import os
import signal
import subprocess
import sys
import threading
import time
import weakref

from ranks_of_threads import ROOT, cases, expect, expect_equal, np, weft
from weftsync import _abi, _interrupt
from weftsync._library import lib

# Seconds from the signal to the exception. Other tests run at the same time and may delay some calls by their work. So the
# limit of the slowest call includes such a delay, and that of the fastest quarter finds one that all calls have.
LIMIT = 0.2
ALLOWED = LIMIT + 1.0
PATIENCE = 30.0  # seconds until the test gives up


def comm_of(rank, store):
    return weft.Comm(weft.Context(), rank=rank, size=2, store=store, backend="shm", init_timeout=PATIENCE, timeout=60)


class Rank:
    """The objects that a rank of a case has created."""

    def __init__(self, number, store):
        self.number, self.store = number, store
        self.comm = comm_of(number, store)
        self.x, self.wide = np.ones(100, np.float32), np.ones(200, np.float32)
        self.value = np.ones(100, np.float32)
        self.other = self.reducer = self.averager = self.hook = None
        self.stuck = threading.Event()

    def make_reducer(self, **options):
        self.reducer = weft.Reducer(self.comm, [weft.Param.like("w", self.value, value=self.value)], **options)

    def step(self):
        self.reducer.begin()
        self.reducer.ready(0, self.x)
        self.reducer.finish()

    def failed(self):
        """Fail the communicator on both ranks, once both have called this."""
        with contextlib.suppress(weft.WeftError):  # rank 0 may abort before rank 1 has left the barrier
            self.comm.barrier()
        if self.number == 0:
            self.comm.abort("for the test")
        until(lambda: self.comm.error() is not None)

    def shrunk(self):
        self.failed()
        self.other = self.comm.shrink()

    def close(self):
        self.stuck.set()
        for one in (self.reducer, self.averager, self.hook, self.other, self.comm):
            if one is not None:
                with contextlib.suppress(weft.WeftError):
                    one.close()


def until(done):
    end = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > end:
            raise AssertionError(f"the condition is still false after {PATIENCE} s")
        time.sleep(0.001)


def nothing(rank):
    del rank


def begun(rank):
    """Fail a step after all its gradients were ready, and keep it for a retry over another communicator."""
    rank.make_reducer(retain=True)
    rank.reducer.begin()
    rank.reducer.ready(0, rank.x)
    rank.failed()
    with contextlib.suppress(weft.WeftError):
        rank.reducer.finish()
    rank.other = rank.comm.shrink()


def to_retry(rank):
    begun(rank)
    rank.reducer.rebind(rank.other)


def waits_for_callback(rank):
    """Make a reducer whose on_bucket callback does not return on rank 0, and do a step."""
    inside = threading.Event()

    def on_bucket(*_):
        inside.set()
        rank.stuck.wait(PATIENCE)

    rank.make_reducer(on_bucket=on_bucket if rank.number == 0 else None)
    rank.step()
    if rank.number == 0:
        expect(inside.wait(PATIENCE), "the callback runs")


def group(rank):
    with rank.comm.group():
        rank.comm.recv(rank.x, 1)


def unevenly(rank):
    rank.make_reducer(uneven=True)


def averager(rank):
    rank.averager = weft.Averager(rank.comm, {"w": rank.value}, 1)


def sharded(rank):
    rank.make_reducer(sharded=True)
    rank.step()


def ready(rank):
    rank.make_reducer()
    if rank.number == 0:
        rank.reducer.begin()
        rank.reducer.ready(0, rank.x)


def replanned(rank):
    rank.make_reducer()
    rank.step()


def sparse(rank):
    from weftsync._library import check
    entries, result = _abi.Sparse(), _abi.Sparse()
    shape = (ctypes.c_int64 * 2)(10, 4)
    check(lib.sparse_all_reduce(rank.comm._handle, entries, shape, 2, 1, weft.DType.F32, weft.Op.SUM, None, result, None))


class Waits(weft.HookFunctions):
    """A hook whose stages do not return until the rank closes."""

    def __init__(self, stuck):
        self.stuck, self.inside = stuck, threading.Event()

    def plan(self, bucket):
        return weft.HookPlan()

    def stage(self, bucket, stage):
        self.inside.set()
        self.stuck.wait(PATIENCE)


def in_stage(rank):
    """Begin a step in which a stage of the hook runs."""
    functions = Waits(rank.stuck)
    rank.hook = weft.CustomHook(rank.comm.context, functions)
    params = [weft.Param("v", (100,)), weft.Param("w", (100,))]
    rank.reducer = weft.Reducer(rank.comm, params, hook=rank.hook, bucket_limits=[0], replan="none")
    rank.reducer.begin()
    rank.reducer.ready(1, rank.x)
    expect(functions.inside.wait(PATIENCE), "the stage runs")


# Maps each blocking function to the preparation on both ranks, and the call of rank 0 that rank 1 never makes.
BLOCKING = {
    "comm_create": (None, None),
    "comm_split": (nothing, lambda r: r.comm.split(0)),
    "comm_shrink": (Rank.failed, lambda r: r.comm.shrink()),
    "comm_destroy": (waits_for_callback, lambda r: r.comm.close()),
    "context_destroy": (waits_for_callback, lambda r: r.comm.context.close()),
    "all_reduce": (nothing, lambda r: r.comm.all_reduce(r.x)),
    "reduce": (nothing, lambda r: r.comm.reduce(r.x, r.wide[:100])),
    "broadcast": (nothing, lambda r: r.comm.broadcast(r.x, 1)),
    "all_gather": (nothing, lambda r: r.comm.all_gather(r.x, r.wide)),
    "reduce_scatter": (nothing, lambda r: r.comm.reduce_scatter(r.wide, r.x)),
    "gather": (nothing, lambda r: r.comm.gather(r.x, r.wide)),
    "scatter": (nothing, lambda r: r.comm.scatter(None, r.x, 1)),
    "all_to_all": (nothing, lambda r: r.comm.all_to_all(r.wide, np.empty_like(r.wide))),
    "barrier": (nothing, lambda r: r.comm.barrier()),
    "send": (nothing, lambda r: r.comm.send(np.ones(1 << 20), 1)),
    "recv": (nothing, lambda r: r.comm.recv(r.x, 1)),
    "send_tagged": (nothing, lambda r: r.comm.send_tagged(np.ones(1 << 20), 1, 7)),
    "recv_tagged": (nothing, lambda r: r.comm.recv_tagged(r.x)),
    "all_gather_v": (nothing, lambda r: r.comm.all_gather_v(r.x, r.wide, [100, 100])),
    "reduce_scatter_v": (nothing, lambda r: r.comm.reduce_scatter_v(r.wide, r.x, [100, 100])),
    "gather_v": (nothing, lambda r: r.comm.gather_v(r.x, r.wide, [100, 100])),
    "scatter_v": (nothing, lambda r: r.comm.scatter_v(None, r.x, [100, 100], root=1)),
    "all_to_all_v": (nothing, lambda r: r.comm.all_to_all_v(r.wide, [100, 100], np.empty_like(r.wide), [100, 100])),
    "sparse_all_reduce": (nothing, sparse),
    "group_end": (nothing, group),
    "request_wait": (nothing, lambda r: r.comm.barrier(wait=False).wait()),
    "reducer_create": (nothing, lambda r: r.make_reducer()),
    "reducer_destroy": (waits_for_callback, lambda r: r.reducer.close()),
    "reducer_begin": (lambda r: r.make_reducer(check_interval=1), lambda r: r.reducer.begin()),
    "reducer_finish": (Rank.make_reducer, Rank.step),
    "reducer_wait_param": (ready, lambda r: r.reducer.wait_param(0)),
    "reducer_gather_params": (sharded, lambda r: (r.reducer.gather_params(), r.reducer.wait_param(0))),
    "reducer_broadcast": (Rank.make_reducer, lambda r: r.reducer.broadcast()),
    "reducer_check": (Rank.make_reducer, lambda r: r.reducer.check()),
    "reducer_join": (unevenly, lambda r: r.reducer.join()),
    "reducer_replan": (replanned, lambda r: r.reducer.replan()),
    "reducer_rebind": (begun, lambda r: r.reducer.rebind(r.other)),
    "reducer_retry": (to_retry, lambda r: r.reducer.retry()),
    "hook_save": (in_stage, lambda r: r.hook.save()),
    "hook_load": (in_stage, lambda r: r.hook.load(weft.CustomHook(r.comm.context, Waits(r.stuck)).save())),
    "averager_create": (nothing, averager),
    "averager_step": (averager, lambda r: r.averager.step()),
}
# Functions that wait neither for another rank nor for code of the program.
OTHERS = set("""version status_string context_create backend_count backend_query device_query capability
    comm_rank comm_size comm_query comm_abort comm_error last_error comm_alloc comm_free sparse_release group_begin
    request_test request_cancel request_on_complete request_error request_release hook_create hook_create_custom
    hook_stage_complete hook_create_saved hook_destroy reducer_grad_view reducer_ready
    reducer_absent reducer_result reducer_ready_tensor reducer_ready_sparse reducer_sparse_result reducer_norms
    reducer_owned reducer_report reducer_param reducer_error reducer_bucket_count reducer_bucket
    reducer_query reducer_verdict averager_destroy trace_start trace_stop trace_write flight_write launch_query metrics_text
    unique_id_create""".split())
# Functions that wait as tested ones do: fail like finish (capi/test_interrupt), stream_wait_param like wait_param.
LIKE_OTHERS = {"reducer_fail", "reducer_stream_wait_param"}


class Child:
    """Rank 0, in a process of its own that reads commands from its input."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen([sys.executable, __file__, *arguments], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
        self.timer = threading.Timer(110, self.process.kill)
        self.timer.start()

    def say(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self):
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the child ended: {self.process.communicate()[1]}")
        return line.split(maxsplit=1)

    def interrupt(self, number=signal.SIGINT):
        self.process.send_signal(number)
        return time.monotonic()

    def end(self):
        self.timer.cancel()
        self.process.kill()
        self.process.communicate()


def child():
    """Run as rank 0: each input line is a case and its store. Prints blocked, then how the call ended."""
    print("started", flush=True)
    for line in sys.stdin:
        name, store = line.split()
        prepare, call = BLOCKING[name]
        rank = Rank(0, store) if prepare else None
        if prepare:
            prepare(rank)
        print("blocked", name, flush=True)
        try:
            call(rank) if call else comm_of(0, store)
            print("returned", flush=True)
        except KeyboardInterrupt:
            print("raised", time.monotonic(), flush=True)
        except BaseException as error:
            print("other", repr(error), flush=True)
        if rank is not None:
            rank.close()


def store_name(what):
    return f"unix:@weft-test-{os.getpid()}-{what}"


def test_every_call_is_known():
    """every function of the library is tested here, or listed as not blocking"""
    known = set(BLOCKING) | OTHERS | LIKE_OTHERS
    expect_equal({name.removeprefix("weft_") for name in _abi.PROTOTYPES} - known, set(), "functions that are not listed")
    expect_equal(known - {name.removeprefix("weft_") for name in _abi.PROTOTYPES}, set(), "functions that do not exist")


def test_every_blocking_call():
    """every blocking call raises KeyboardInterrupt within 1.2 s of Ctrl-C, and a quarter of the calls within 0.2 s"""
    rank0, late, wrong = Child("child"), {}, {}
    try:
        rank0.hear()
        for name, (prepare, _) in BLOCKING.items():
            store = store_name(name)
            rank0.say(f"{name} {store}")
            mine = Rank(1, store) if prepare else None
            if prepare:
                prepare(mine)
            expect_equal(rank0.hear(), ["blocked", name + "\n"], "the child is blocked in", name)
            time.sleep(0.02)
            sent = rank0.interrupt()
            how, *more = rank0.hear()
            if how != "raised":
                wrong[name] = (how, *more)
            else:
                late[name] = float(more[0]) - sent
            if mine is not None:
                mine.close()
    finally:
        rank0.end()
    expect_equal(wrong, {}, "calls that do not raise KeyboardInterrupt")
    expect(max(late.values()) < ALLOWED, "seconds until KeyboardInterrupt", late)
    expect(sorted(late.values())[len(late) // 4] < LIMIT, "seconds until KeyboardInterrupt of the fastest quarter", late)


def sigterm(handled):
    rank0 = Child("sigterm", handled)
    store = store_name("sigterm" + handled)
    try:
        rank0.hear()
        rank0.say(store)
        with comm_of(1, store):
            rank0.hear()
            time.sleep(0.02)
            sent = rank0.interrupt(signal.SIGTERM)
            rank0.process.wait(PATIENCE)
            return rank0.process.returncode, time.monotonic() - sent
    finally:
        rank0.end()


def sigterm_child(handled):
    """Block in a barrier. If handled, install a SIGTERM handler that exits."""
    if handled == "handled":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    print("started", flush=True)
    with comm_of(0, sys.stdin.readline().strip()) as comm:
        print("blocked", flush=True)
        comm.barrier()


def test_sigterm():
    """SIGTERM ends a blocked process at once, through Python's handler where the program has set one"""
    for handled, code in (("default", -signal.SIGTERM), ("handled", 7)):
        returned, seconds = sigterm(handled)
        expect_equal(returned, code, handled)
        expect(seconds < ALLOWED + 1, "seconds until the process has ended", handled, seconds)


def test_others_learn():
    """operations of the other ranks fail, and the error names the interrupted rank"""
    rank0, store = Child("child"), store_name("others")
    try:
        rank0.hear()
        rank0.say(f"barrier {store}")
        with Rank(1, store).comm as comm:
            rank0.hear()
            time.sleep(0.02)
            rank0.interrupt()
            expect_equal(rank0.hear()[0], "raised")
            until(lambda: comm.error() is not None)
            error = comm.error()
            expect_equal((error.code, error.ranks), (weft.Status.ERR_INTERRUPTED, (0,)))
            expect("rank 0: the program interrupted barrier" in error.text, error.text)
    finally:
        rank0.end()


def test_handlers_that_return():
    """a handler that raises nothing runs while a call blocks, and the call continues"""
    program = """if True:
        import os, signal, threading, time, numpy as np, weftsync as weft
        ran = []
        signal.signal(signal.SIGUSR1, lambda *_: ran.append(time.monotonic()))
        def body(comm):
            if comm.rank == 1:
                os.kill(os.getpid(), signal.SIGUSR1)
                end = time.monotonic() + 20
                while not ran and time.monotonic() < end:
                    time.sleep(0.001)
            x = np.ones(1)
            comm.all_reduce(x)
            return float(x[0]), len(ran)
        gathering = weft.Gathering(2)
        def rank(r, out):
            with weft.Comm(rank=r, size=2, all_gather=gathering.of(r), backend="loopback") as comm:
                out.append(body(comm))
        outs = [[], []]
        other = threading.Thread(target=rank, args=(1, outs[1]))
        other.start()
        rank(0, outs[0])
        other.join()
        print(outs)
    """
    result = cases.run([sys.executable, "-c", program], environment={"PYTHONPATH": str(ROOT / "python")})
    expect_equal(result.stdout, "[[(2.0, 1)], [(2.0, 1)]]\n", result.stderr)


def test_in_all_gather():
    """Ctrl-C in the program's own all_gather ends the creation of the communicator with KeyboardInterrupt"""
    program = """if True:
        import os, signal, threading, time, weftsync as weft
        def all_gather(mine):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(20)
        try:
            weft.Comm(rank=0, size=2, all_gather=all_gather)
        except KeyboardInterrupt:
            print("raised")
    """
    result = cases.run([sys.executable, "-c", program], environment={"PYTHONPATH": str(ROOT / "python")})
    expect_equal(result.stdout, "raised\n", result.stderr)
    expect_equal(result.stderr, "")


def test_forked_by_a_thread():
    """Ctrl-C ends a blocking call in a child that a thread forks which had blocked in the library before"""
    program = """if True:
        import os, signal, sys, threading, time, weftsync as weft
        def fork():
            with weft.Context() as context:
                try:
                    weft.Comm(context, rank=0, size=2, store=sys.argv[1], init_timeout=0.5)
                except weft.WeftError:
                    pass
                if os.fork() == 0:
                    child()
                os.wait()
        def child():
            signal.signal(signal.SIGINT, signal.default_int_handler)
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            begin = time.monotonic()
            try:
                weft.Comm(rank=0, size=2, store=sys.argv[1], init_timeout=10)
            except KeyboardInterrupt:
                print("raised" if time.monotonic() - begin < 8 else "late", flush=True)
            except BaseException as error:
                print(repr(error), flush=True)
            os._exit(0)
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
    """
    result = cases.run([sys.executable, "-W", "ignore", "-c", program, store_name("forked")],
                       environment={"PYTHONPATH": str(ROOT / "python")})
    expect_equal(result.stdout, "raised\n", result.stderr)


@contextlib.contextmanager
def replaced(name, make):
    """Replace a function of the library by make(function), as long as the with block runs."""
    function = getattr(lib, name)
    setattr(lib, name, make(function))
    try:
        yield
    finally:
        setattr(lib, name, function)


@contextlib.contextmanager
def pair():
    """Make two ranks that the main thread, where signal handlers run, may both use."""
    gathering, comms = weft.Gathering(2), [None, None]

    def make(rank):
        comms[rank] = weft.Comm(rank=rank, size=2, all_gather=gathering.of(rank), backend="loopback", timeout=PATIENCE)

    threads = [threading.Thread(target=make, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with comms[0], comms[1]:
        yield comms


def interrupt_start(name, call, started=True):
    """Make a call that Ctrl-C interrupts before or after its operation has started."""
    def interrupted(function):
        def start(*arguments):
            code = function(*arguments) if started else None
            signal.raise_signal(signal.SIGINT)
            return code
        return start

    with replaced(name, interrupted):
        try:
            call()
        except KeyboardInterrupt:
            return
    raise AssertionError("Ctrl-C had no effect")


def test_signal_before_a_callback():
    """Ctrl-C before the first instruction of the program's function: the function has failed, and the next call raises"""
    calls = []
    signalled = functools.partial(ctypes.CDLL(None)["raise"], int(signal.SIGINT))
    stage = dict(_abi.HookTable._fields_)["stage"]
    for function, failed, arguments in (
            (_interrupt.c_function(stage, lambda *some: calls.append(some) or 0, 16), 16, (0, 0, 0, 0)),
            (weft.Reduction(lambda *some: calls.append(some)).struct.combine, 1, (0, 0, 0, 0, weft.DType.U8)),
            (_interrupt.void_function(_abi.log_fn, lambda *some: calls.append(some)), None, (0, 0, 0))):
        plain = ctypes.CFUNCTYPE(ctypes.c_int32 if failed else None, *(ctypes.c_size_t for _ in arguments))
        call = functools.partial(plain(ctypes.cast(function, ctypes.c_void_p).value), *arguments)
        # No Python code runs between the signal and the function.
        codes = list(map(operator.methodcaller("__call__"), (signalled, call)))
        expect_equal((codes[1], calls), (failed, []), "the function's result, and calls of the program's function")
        expect_equal([type(error) for error in _interrupt.raised], [KeyboardInterrupt])
        with contextlib.suppress(KeyboardInterrupt):
            _interrupt.raise_raised()
            raise AssertionError("Ctrl-C had no effect")
        expect_equal((call(), len(calls)), (failed and 0, 1), "without a signal")
        calls.clear()


# Maps functions that start an operation to the call of rank 0, and the call of rank 1 that completes it.
STARTING = {
    "all_reduce": (lambda c, x: c.all_reduce(x, wait=False), lambda c, y: c.all_reduce(y)),
    "recv": (lambda c, x: c.recv(x, 1, wait=False), lambda c, y: c.send(y, 0)),
    "recv_tagged": (lambda c, x: c.recv_tagged(x, 1, 3, wait=False), lambda c, y: c.send_tagged(y, 0, 3)),
}


def test_start():
    """Ctrl-C while an operation starts: its array stays alive until it is complete, or is freed if it did not start"""
    for name, (start, complete) in STARTING.items():
        with pair() as (comm, peer):
            array = np.ones(1 << 16)
            alive = weakref.ref(array)
            interrupt_start(name, lambda: start(comm, array), started=False)
            expect_equal(len(comm._outstanding), 0, name, "requests of operations that did not start")
            interrupt_start(name, lambda: start(comm, array))
            del array
            gc.collect()
            expect(alive() is not None, "the array lives while the operation uses it", name)
            complete(peer, np.full(1 << 16, 2.0))
            cases.wait_until(lambda: all(one.over() for one in comm._outstanding), "the operation is complete")
            comm.barrier(wait=False)
            peer.barrier()
            gc.collect()
            expect_equal(alive(), None, "the array after the operation", name)


def test_ready():
    """Ctrl-C while a gradient is handed over: the gradient lives until the step has ended"""
    with weft.Comm(rank=0, size=1, store="unix:@weft-unused", backend="shm") as comm:
        with weft.Reducer(comm, [weft.Param("v", (8,)), weft.Param("w", (8,))]) as reducer:
            for started in (False, True):
                array = np.ones(8, np.float32)
                alive = weakref.ref(array)
                reducer.begin()
                interrupt_start("reducer_ready_tensor", lambda: reducer.ready("w", array), started)
                del array
                gc.collect()
                expect(alive() is not None, "the gradient lives while the step is open", started)
                if not started:
                    reducer.ready("w", np.ones(8, np.float32))
                reducer.ready("v", np.ones(8, np.float32))
                reducer.finish()
                gc.collect()
                expect_equal(alive(), None, "the gradient after the step", started)


def test_start_in_group():
    """Ctrl-C while a call of a group is queued: the call's array lives until the group has ended"""
    with pair() as (comm, peer):
        requests = [peer.send(np.full(1 << 16, 2.0), 0, wait=False)]
        with comm.group():
            array = np.ones(1 << 16)
            alive = weakref.ref(array)
            interrupt_start("recv", lambda: comm.recv(array, 1))
            del array
            gc.collect()
            expect(alive() is not None, "the array lives while the group is open")
        requests[0].wait()
        gc.collect()
        expect_equal(alive(), None, "the array after the group")


def test_many_outstanding():
    """a call tests few of many outstanding requests, and later calls drop all that are complete"""
    with pair() as (comm, peer):
        tests, count = [], 300

        def counted(function):
            def test(*arguments):
                tests.append(1)
                return function(*arguments)
            return test

        with replaced("request_test", counted):
            first = comm.recv_tagged(np.zeros(1), 1, 9, wait=False)  # stays outstanding
            for _ in range(count):
                comm.recv_tagged(np.zeros(1), 1, 5, wait=False)
        expect(len(tests) <= 16 * count, "number of tests", len(tests))
        for _ in range(count):
            peer.send_tagged(np.ones(1), 0, 5)
        cases.wait_until(lambda: sum(not one.over() for one in comm._outstanding) == 1, "the messages arrive")
        for _ in range(count):
            comm.send_tagged(np.ones(1), 0, 6)
        expect_equal(list(comm._outstanding), [first])
        peer.send_tagged(np.ones(1), 0, 9)
        first.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child()
    elif sys.argv[1:2] == ["sigterm"]:
        sigterm_child(sys.argv[2])
    else:
        cases.main(globals())
