#!/usr/bin/env python3
"""Objects that the garbage collector finds inside a callback of the library are destroyed after it."""
import collections
import contextlib
import ctypes
import functools
import gc
import operator
import signal
import sys
import threading
import weakref

from ranks_of_threads import ROOT, cases, expect, expect_equal, np, weft
from weftsync import _abi
from weftsync._library import lib

calls = []
LANES = 64  # number of lanes of a communicator over shm


def alone(context=None):
    """Make a communicator of one rank over shm, which has few lanes."""
    return weft.Comm(context, rank=0, size=1, store="unix:@weft-unused", backend="shm")


def one_param():
    return [weft.Param("w", (8,), "f32")]


class Collector:
    """Leaves unreachable cycles, and runs the garbage collector inside a callback and nowhere else."""

    def __init__(self):
        self.collected, self.handles = threading.Event(), []
        self.observe = lambda: len(self.alive())  # called in the callback, after the collection
        self.seen = None

    def __enter__(self):
        gc.collect()
        gc.disable()
        return self

    def __exit__(self, *_):
        gc.enable()

    def leave(self, *objects):
        """Put the objects into a cycle without other references. Keeps their handles, which show the destruction."""
        self.handles = [one._handle for one in objects]
        for one, another in zip(objects, objects[1:] + objects[:1]):
            one.partner = another
        self.collected.clear()

    def collect(self, *_):
        gc.collect()
        self.seen = self.observe()
        self.collected.set()
        return 0

    def alive(self):
        return [handle for handle in self.handles if handle.value]


def leave_all(collector):
    """Leave a communicator, its reducer and a complete request in a cycle."""
    comm = alone()
    reducer = weft.Reducer(comm, one_param())
    request = comm.barrier(wait=False)
    request.wait()
    collector.leave(comm, reducer, request)


def run_callback(comm, collector):
    """Run collector.collect in the callback of a request, on the thread weft-callback."""
    collector.collected.clear()
    call = _abi.complete_fn(collector.collect)
    calls.append(call)  # it still runs when collect has set its event
    request = comm.barrier(wait=False)
    lib.request_on_complete(request._handle, call, None)
    expect(collector.collected.wait(20), "the callback has run")
    request.wait()


def test_request_callback():
    """the next call destroys a cycle that was collected inside a request's callback"""
    with Collector() as collector, alone() as comm:
        leave_all(collector)
        run_callback(comm, collector)
        comm.barrier()
        expect_equal((collector.seen, collector.alive()), (2, []), "objects alive in the callback, and after the next call")


def test_lanes():
    """reducers that were collected inside callbacks free their lanes"""
    with Collector() as collector, alone() as comm:
        for _ in range(2 * LANES):
            collector.leave(weft.Reducer(comm, one_param()))
            run_callback(comm, collector)
        comm.barrier()
        expect_equal(collector.alive(), [])


class Collects(weft.HookFunctions):
    """A hook that communicates nothing, and collects garbage in plan or in its stage."""

    def __init__(self, where, collect):
        self.where, self.collect = where, collect

    def plan(self, bucket):
        if self.where == "plan":
            self.collect()
        return weft.HookPlan()

    def stage(self, bucket, stage):
        if self.where == "stage":
            self.collect()


def test_hook_callbacks():
    """the next call destroys cycles that were collected inside a hook's plan or stage callback"""
    for where in ("plan", "stage"):
        with Collector() as collector, weft.Context() as context, alone(context) as comm:
            with weft.CustomHook(context, Collects(where, collector.collect)) as hook:
                if where == "plan":
                    leave_all(collector)
                with weft.Reducer(comm, one_param(), hook=hook) as reducer:
                    x = np.ones(8, np.float32)
                    if where == "stage":
                        leave_all(collector)
                    with reducer.step():
                        reducer.ready(0, x)
                    comm.barrier()
                    expect(collector.collected.is_set(), f"{where} has run")
                    expect_equal(collector.alive(), [], where)


def test_log_callback():
    """a cycle that is collected inside a log function is destroyed"""
    with Collector() as collector:
        armed = threading.Event()

        def log(_, line):
            if armed.is_set() and "failed" in line:
                armed.clear()
                collector.collect()

        with weft.Context(log=log) as context, alone(context) as comm, alone() as other:
            leave_all(collector)
            armed.set()
            comm.abort("to write a log line")
            expect(collector.collected.wait(20), "the log was called")
            other.barrier()
            expect_equal(collector.alive(), [])


def test_outstanding_arrays():
    """arrays of outstanding operations stay alive until their deferred communicator is destroyed"""
    with Collector() as collector, alone() as comm:
        class Tracked(np.ndarray):
            """An array type that gc.get_objects() lists."""

        def arrays():
            return sum(type(one) is Tracked for one in gc.get_objects())

        def leave():
            gathering = weft.Gathering(2)
            comms, threads = [None, None], []
            for rank in range(2):
                def make(rank=rank):
                    comms[rank] = weft.Comm(rank=rank, size=2, all_gather=gathering.of(rank), backend="loopback")
                threads.append(threading.Thread(target=make))
                threads[-1].start()
            for thread in threads:
                thread.join()
            array = np.ones(1000).view(Tracked)
            request = comms[0].all_reduce(array, wait=False)  # rank 1 never calls it
            collector.leave(comms[0], request)
            return comms[1]

        peer = leave()
        collector.observe = lambda: (len(collector.alive()), arrays())
        run_callback(comm, collector)
        expect_equal(collector.seen, (1, 1), "in the callback")
        comm.barrier()
        gc.collect()
        expect_equal((collector.alive(), arrays()), ([], 0), "after it")
        peer.close()


def test_order():
    """the communicator of a cycle is destroyed before the finalizers of objects that its operations use"""
    with Collector() as collector:
        alive = []

        class Owner:
            def __del__(self):
                alive.append(len(collector.alive()))

        def leave():
            comm = alone()
            comm.owner = Owner()
            collector.leave(comm)

        for _ in range(8):
            leave()
            gc.collect()
        expect_equal(alive, [0] * 8)


def test_refused_close():
    """close inside a callback is refused, and works afterwards"""
    refused = []
    with alone() as comm:
        reducer = weft.Reducer(comm, one_param())

        def close(*_):
            try:
                reducer.close()
            except weft.WeftError as error:
                refused.append(error.code)

        call = _abi.complete_fn(close)
        request = comm.barrier(wait=False)
        request.wait()
        lib.request_on_complete(request._handle, call, None)
        expect_equal((refused, reducer.closed), ([weft.Status.ERR_STATE], False))
        reducer.close()
        expect(reducer.closed, "the reducer is closed")


def test_interrupted():
    """Ctrl-C while the garbage collector destroys objects is raised by the next call, and the objects are destroyed"""
    with Collector() as collector:
        comm = alone()
        other = alone()
        collector.leave(other, weft.Reducer(other, one_param()))
        del other
        # No Python code runs between the signal and the collection, so the handler runs inside the finalizers.
        signalled = functools.partial(ctypes.CDLL(None)["raise"], int(signal.SIGINT))
        collections.deque(map(operator.methodcaller("__call__"), (signalled, gc.collect)), maxlen=0)
        expect_equal(collector.alive(), [], "handles that are not destroyed")
        try:
            comm.barrier()
            raise AssertionError("Ctrl-C had no effect")
        except KeyboardInterrupt:
            pass
        comm.barrier()
        comm.close()


def test_exit():
    """the interpreter exits while objects wait for their destruction or are left in a cycle"""
    program = """if True:
        import gc, threading, weftsync as weft
        from weftsync import _abi
        from weftsync._library import lib
        comm = weft.Comm(rank=0, size=1, store="unix:@weft-unused", backend="shm")
        done = threading.Event()
        gc.disable()
        def leave():
            other = weft.Comm(rank=0, size=1, store="unix:@weft-unused", backend="shm")
            other.reducer = weft.Reducer(other, [weft.Param("w", (8,), "f32")])
        leave()
        def collect(*_):
            gc.collect()
            done.set()
        call = _abi.complete_fn(collect)
        request = comm.barrier(wait=False)
        lib.request_on_complete(request._handle, call, None)
        done.wait(20)
        leave()
        print("ends")
    """
    result = cases.run([sys.executable, "-X", "dev", "-c", program], timeout=30, environment={"PYTHONPATH": str(ROOT / "python")})
    expect_equal((result.returncode, result.stdout, result.stderr), (0, "ends\n", ""))


class Finalizer:
    """Calls a function when the garbage collector finds this object, which is a cycle."""

    def __init__(self, function):
        self.function, self.me = function, self

    def __del__(self):
        self.function()


def leave_misuse(comm):
    """Leave a cycle of objects whose finalizers close them, raise exceptions, and start operations."""
    def fail():
        raise RuntimeError("raised by a finalizer")

    other, own = alone(), Finalizer(fail)
    reducer, request = weft.Reducer(other, one_param()), other.barrier(wait=False)
    own.parts = [Finalizer(call) for call in (
        fail, other.close, reducer.close, request.close, lambda: comm.all_reduce(np.ones(2)), lambda: other.barrier(wait=False),
        lambda: reducer.begin(), request.wait, lambda: other.abort("by a finalizer"))]
    own.cycle = [own, other, reducer, request]
    weakref.finalize(other, fail)
    return [one._handle for one in (other, reducer, request)]


@contextlib.contextmanager
def ignored_exceptions():
    """Collect the exceptions that Python ignores, by type."""
    found, before = collections.Counter(), sys.unraisablehook
    sys.unraisablehook = lambda ignored: found.update([ignored.exc_type.__name__])
    try:
        yield found
    finally:
        gc.collect()
        sys.unraisablehook = before


def test_misuse_in_finalizers():
    """finalizers that close, fail or start operations inside a callback get errors, and everything is destroyed later"""
    with Collector() as collector, alone() as comm, alone() as other, ignored_exceptions() as ignored:
        for _ in range(3):
            handles = leave_misuse(other)
            run_callback(comm, collector)
            comm.barrier()
            gc.collect()
            comm.barrier()
            expect_equal([handle.value for handle in handles], [None] * 3)
        expect(ignored["WeftError"] > 0 and ignored["RuntimeError"] > 0, ignored)
        expect_equal(other.new.all_reduce(np.ones(2)).tolist(), [1.0, 1.0])


def test_finalizers_beside_other_threads():
    """no other thread destroys an object while finalizers of the same collection may still use it"""
    with Collector() as collector, alone() as comm, alone() as other:
        seen = []

        def leave():
            left = alone()

            def use():
                other.barrier()  # destroys what is queued
                seen.append(left.closed)

            def finalize():
                thread = threading.Thread(target=use)
                thread.start()
                thread.join(20)
                with contextlib.suppress(weft.WeftError):
                    left.abort("by a finalizer")

            left.me = [left, Finalizer(finalize)]
            return left._handle

        handle = leave()
        run_callback(comm, collector)
        comm.barrier()
        expect_equal((seen, handle.value), ([False], None), "closed beside the finalizer, and the handle at the end")


class Averages(weft.HookFunctions):
    """A hook whose stages collect garbage."""

    def plan(self, bucket):
        return weft.HookPlan([weft.HookCollective("all_reduce", bucket.dtype, bucket.count, "avg")])

    def stage(self, bucket, stage):
        gc.collect()


def train(comm, other, lines):
    """Train some steps. Callbacks of all kinds collect garbage that the steps leave."""
    completed = []
    params = [weft.Param(f"p{i}", (64,)) for i in range(3)]
    with weft.CustomHook(comm.context, Averages()) as hook:
        with weft.Reducer(comm, params, hook=hook, bucket_limits=[0], on_bucket=lambda *_: gc.collect()) as reducer:
            for step in range(4):
                gradients = [np.full(64, float(comm.rank), np.float32) for _ in params]
                leave_misuse(other)
                with reducer.step():
                    for index, gradient in enumerate(gradients):
                        leave_misuse(other)
                        reducer.ready(index, gradient)
                expect_equal([gradient.tolist() for gradient in gradients], [[1.0] * 64] * 3)
                total = comm.new.all_reduce(np.ones(5), op=weft.Reduction(lambda into, more: (gc.collect(), np.add(into, more, into))))
                expect_equal(total.tolist(), [3.0] * 5)
                request = comm.all_reduce(np.ones(4), wait=False)
                request.on_complete(lambda status: (gc.collect(), completed.append(status)))
                request.wait()
                comm.recv_tagged(np.zeros(1), (comm.rank - 1) % 3, 3, wait=False)
                comm.send_tagged(np.ones(1), (comm.rank + 1) % 3, 3)
                if step == 1:
                    gc.freeze()
    with contextlib.suppress(weft.WeftError):  # another rank may abort before this one has left the barrier
        comm.barrier()
    comm.abort("to write a log line")
    cases.wait_until(lambda: len(completed) == 4 and lines, "the callbacks have run")


def test_training():
    """a training whose garbage is collected at every allocation, threads switching all the time, has no deadlock"""
    lines, phases = [], collections.Counter()
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    with ignored_exceptions() as ignored, alone() as other:
        def watch(phase, info):
            phases[phase] += 1
            other.error()  # allowed in every callback of the library

        gc.callbacks.append(watch)
        try:
            for switch, backend in ((interval, "loopback"), (1e-6, "loopback"), (1e-6, "shm")):
                sys.setswitchinterval(switch)
                gc.set_threshold(1, 1, 1)
                context = functools.partial(weft.Context, log=lambda *line: (gc.collect(), lines.append(line)))
                groups = [threading.Thread(target=run_group, args=(context, backend, other, lines)) for _ in range(2)]
                for group in groups:
                    group.start()
                for group in groups:
                    group.join(30)
                expect_equal([group.is_alive() for group in groups], [False] * 2, "groups of ranks that have not ended")
        finally:
            gc.callbacks.remove(watch)
            gc.set_threshold(*threshold)
            sys.setswitchinterval(interval)
            gc.unfreeze()
            gc.collect()
    expect(ignored["WeftError"] > 0 and phases["start"] > 0, ignored, phases)
    expect_equal(failures, [])


failures = []


def run_group(context, backend, other, lines):
    """Train with three ranks, which are threads."""
    gathering = weft.Gathering(3)

    def run(rank):
        try:
            with context() as own, weft.Comm(own, rank=rank, size=3, all_gather=gathering.of(rank), backend=backend,
                                             timeout=20, init_timeout=20) as comm:
                train(comm, other, lines)
        except BaseException as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_lock_of_log_function():
    """a communicator that is destroyed under a lock which the log function takes is destroyed all the same"""
    program = """if True:
        import gc, logging, threading, weftsync as weft
        inside, comms, gathering = threading.Event(), [None, None], weft.Gathering(2)
        class Handler(logging.Handler):
            def emit(self, record):
                print(record.getMessage(), flush=True)
            def acquire(self):
                inside.set()
                super().acquire()
        handler = Handler()
        logging.getLogger("weftsync").addHandler(handler)
        def make(rank):
            context = weft.Context(log=False if rank else None)
            comms[rank] = weft.Comm(context, rank=rank, size=2, all_gather=gathering.of(rank), backend="shm")
        threads = [threading.Thread(target=make, args=(rank,)) for rank in range(2)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        gc.disable()
        with handler.lock:
            def leave():
                comm = comms.pop(0)
                comm.me = comm
            leave()
            inside.clear()
            comms[0].abort("by the test")
            inside.wait(20)
            gc.collect()
            print("destroyed", flush=True)
        comms[0].close()
    """
    result = cases.run([sys.executable, "-c", program], timeout=30, environment={"PYTHONPATH": str(ROOT / "python")})
    expect_equal((result.returncode, result.stderr), (0, ""))
    lines = result.stdout.splitlines()
    expect_equal(lines[0], "destroyed")
    expect(len(lines) > 1, "the lines are written later", lines)


if __name__ == "__main__":
    cases.main(globals())
