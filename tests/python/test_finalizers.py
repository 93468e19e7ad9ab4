#!/usr/bin/env python3
"""Objects that the garbage collector finds inside a callback of the library are destroyed after it."""
import collections
import ctypes
import functools
import gc
import operator
import signal
import sys
import threading

from ranks_of_threads import ROOT, cases, expect, expect_equal, np, weft
from weftsync import _abi
from weftsync._library import lib

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
    call = _abi.complete_fn(collector.collect)
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
    """the next call destroys a cycle that was collected inside a log callback"""
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


if __name__ == "__main__":
    cases.main(globals())
