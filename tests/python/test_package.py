#!/usr/bin/env python3
"""Communicators and collectives of the package weftsync. Ranks are threads. Usage: test_package.py WEFT"""
import array
import enum
import gc
import inspect
import logging
import math
import os
import re
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path

from dlpack import Producer, Torch
from ranks_of_threads import ROOT, SIZE, cases, expect, expect_equal, expect_raises, np, ranks, weft


def test_exports():
    """every enumeration that a public method takes is exported by the package"""
    kinds = [name for name, kind in vars(weft.constants).items() if isinstance(kind, type) and issubclass(kind, enum.Enum)]
    for owner in (weft.Averager, weft.Comm, weft.Context, weft.Hook, weft.Reducer):
        for method, function in inspect.getmembers(owner, inspect.isfunction):
            if not method.startswith("_") or method == "__init__":
                taken = set(re.findall(r"\w+", " ".join(map(str, function.__annotations__.values()))))
                missing = [kind for kind in kinds if kind in taken and kind not in weft.__all__]
                expect(not missing, f"{owner.__name__}.{method} takes them", missing)


def test_long_timeouts():
    """a timeout of any finite length is taken: what milliseconds cannot count has no limit"""
    from weftsync._handle import milliseconds
    expect_equal([milliseconds(seconds) for seconds in (0.0001, 1.5, 1e9)], [1, 1500, 10**12])
    expect_equal([milliseconds(seconds) for seconds in (1e14, 1e30, math.inf)], [weft.constants.TIMEOUT_INFINITE] * 3)
    with weft.Comm(rank=0, size=1, all_gather=lambda mine: [mine], timeout=1e30) as comm:
        request = comm.barrier(timeout=1e17, wait=False)
        request.wait(1e40)


def test_sparse_all_reduce():
    """sparse arrays are summed over all ranks, and duplicates add up"""
    def body(comm):
        at, shape = np.array([[comm.rank, 7, 7], [0, 1, 1]]), (100, 50, 2)
        indices, values = comm.sparse_all_reduce(at, np.full((3, 2), comm.rank + 1.0), shape)
        expect_equal((indices.tolist(), values.tolist()),
                     ([[0, 1, 2, 7], [0, 0, 0, 1]], [[1.0] * 2, [2.0] * 2, [3.0] * 2, [12.0] * 2]))
        indices, values = comm.sparse_all_reduce(np.array([90]), np.array([3 * comm.rank], np.int32), (100,))
        expect_equal((indices.tolist(), values.tolist(), values.dtype.name), ([[90]], [9], "int32"))
        indices, values = comm.sparse_all_reduce(np.zeros(0, int), np.zeros((0, 4), np.float32), (100, 4), "mean")
        expect_equal((indices.shape, values.shape), ((1, 0), (0, 4)))
        expect_raises(ValueError, "the indices are F64 (1,)", comm.sparse_all_reduce, np.zeros(1), np.zeros(1), (3,))
        expect_raises(ValueError, "the values have shape (2,), expected (1,)", comm.sparse_all_reduce, np.zeros(1, int), np.zeros(2), (3,))
        with comm.group():
            expect_raises(ValueError, "inside a group", comm.sparse_all_reduce, np.zeros(1, int), np.zeros(1), (3,))
        error = expect_raises(weft.WeftError, "", comm.sparse_all_reduce, np.array([3]), np.zeros(1), (3,))
        expect_equal(error.code, weft.Status.ERR_ARG)

    ranks(body)


def test_on_complete():
    """a function is called once with the status when a request is complete, also if it is already or fails"""
    def body(comm):
        seen, done = [], threading.Event()
        x = np.ones(3)
        request = comm.all_reduce(x, wait=False)
        request.on_complete(lambda status: (seen.append(status), done.set()))
        expect_raises(weft.WeftError, "", request.on_complete, seen.append)
        expect(done.wait(20), "the function was called")
        request.wait()
        late = comm.barrier(wait=False)
        late.wait()
        late.on_complete(seen.append)
        expect_equal(seen, [weft.Status.OK] * 2)
        request = comm.recv_tagged(x, wait=False)
        done.clear()
        request.on_complete(lambda status: (seen.append(status), done.set()))
        request.cancel()
        expect(done.wait(20), "the function was called")
        expect_equal(seen[2], weft.Status.ERR_CANCELLED)

    ranks(body)


def test_devices():
    """a context describes its devices, or gives the reason why there are none"""
    with weft.Context() as context:
        info = context.device("cuda")
        expect_equal(info.available, info.device_count > 0)
        expect(info.reason, "a reason", info)
        expect_raises(weft.WeftError, "", context.device, weft.DeviceKind.HOST)


def test_tagged():
    """tagged messages are received by source and tag, from any rank, and say what they are"""
    def body(comm):
        to, of = (comm.rank + 1) % SIZE, (comm.rank - 1) % SIZE
        out, large = np.zeros(8, np.int32), np.arange(100_000.0)
        # Received in another order than sent. The long one waits for its receive and holds back nothing.
        sent = [comm.send_tagged(large * (comm.rank + 1), to, 1, wait=False),
                comm.send_tagged(np.arange(5, dtype=np.int32) + comm.rank, to, 2, wait=False)]
        expect_equal(comm.recv_tagged(out, of, 2), weft.Message(of, 2, 5))
        expect(np.array_equal(out[:5], np.arange(5) + of) and not out[5:].any(), "data", out)
        inbox = np.zeros(100_000)
        request = comm.recv_tagged(inbox, wait=False)
        expect_equal(request.result(), weft.Message(of, 1, 100_000))
        expect(np.array_equal(inbox, large * (of + 1)), "data of the long message")
        for one in sent:
            one.wait()
        comm.send_tagged(out, comm.rank, 2**64 - 2)  # to itself
        expect_equal(comm.recv_tagged(out, weft.ANY_SOURCE, weft.ANY_TAG), weft.Message(comm.rank, 2**64 - 2, 8))
        comm.barrier()
        # A failure ends only its message.
        request = comm.recv_tagged(out, of, 7, wait=False)
        request.cancel()
        expect_raises(weft.WeftError, "cancelled", request.wait)
        expect_raises(weft.WeftError, "passed its deadline", comm.recv_tagged, out, of, 7, timeout=0.05)
        comm.send_tagged(np.zeros(9, np.int32), to, 3)
        expect_raises(weft.WeftError, f"rank {of} sends i32 x 9, rank {comm.rank} receives at most i32 x 8",
                      comm.recv_tagged, out, of, 3)
        expect_raises(ValueError, "tag is -1", comm.send_tagged, out, to, -1)
        expect_raises(ValueError, "expected 0 to", comm.send_tagged, out, to, weft.ANY_TAG)
        other = comm.send(out, to, wait=False)
        expect_raises(weft.WeftError, "only requests of weft_send_tagged", other.cancel)
        comm.recv(out, of)
        other.wait()
        comm.barrier()

    ranks(body)


def test_collectives():
    """every collective gives the result that NumPy computes from all ranks' arrays"""
    every = [np.arange(6, dtype=np.float64) * (rank + 1) for rank in range(SIZE)]
    total = sum(every)

    def body(comm):
        mine, out = every[comm.rank], np.zeros(6)
        comm.all_reduce(mine, out, "avg")
        expect(np.allclose(out, total / SIZE), "all_reduce", out)
        comm.all_reduce(mine.copy(), out, weft.Op.PREMUL_SUM, factor=2.0)
        expect(np.allclose(out, 2 * total), "premul_sum", out)
        comm.reduce(mine, out, "max", root=1)
        expect(comm.rank != 1 or np.array_equal(out, every[2]), "reduce", out)
        copy = mine.copy()
        comm.broadcast(copy, 2)
        expect(np.array_equal(copy, every[2]), "broadcast", copy)
        wide = np.zeros((SIZE, 6))
        comm.all_gather(mine, wide)
        expect(np.array_equal(wide, every), "all_gather", wide)
        part = np.zeros(2)
        comm.reduce_scatter(mine, part)
        expect(np.array_equal(part, total.reshape(SIZE, 2)[comm.rank]), "reduce_scatter", part)
        wide[:] = 0
        comm.gather(mine, wide if comm.rank == 0 else None)
        expect(comm.rank != 0 or np.array_equal(wide, every), "gather", wide)
        comm.scatter(every[1] if comm.rank == 1 else None, part, 1)
        expect(np.array_equal(part, every[1].reshape(SIZE, 2)[comm.rank]), "scatter", part)
        comm.all_to_all(mine, out)
        expect(np.array_equal(out.reshape(SIZE, 2), [one.reshape(SIZE, 2)[comm.rank] for one in every]), "all_to_all")
        to, of = (comm.rank + 1) % SIZE, (comm.rank - 1) % SIZE
        sent = comm.send(mine, to, wait=False)
        comm.recv(out, of)
        sent.wait()
        expect(np.array_equal(out, every[of]), "send and recv", out)
        comm.barrier()

    ranks(body)


def test_blocks():
    """collectives take blocks of different sizes, and calls of a group may be in any order"""
    def body(comm):
        counts, offsets = [r + 1 for r in range(SIZE)], [r * 4 for r in range(SIZE)]
        mine, wide = np.full(comm.rank + 1, comm.rank, np.float32), np.full(SIZE * 4, -1, np.float32)
        comm.all_gather_v(mine, wide, counts, offsets)
        for r in range(SIZE):
            expect(np.array_equal(wide[4 * r:4 * r + counts[r]], np.full(counts[r], r)), "all_gather_v", wide)
        packed = np.arange(sum(counts), dtype=np.float32)
        part = np.empty(comm.rank + 1, np.float32)
        own = packed[sum(counts[:comm.rank]):][:comm.rank + 1]
        comm.reduce_scatter_v(packed, part, counts)
        expect(np.array_equal(part, own * SIZE), "reduce_scatter_v", part)
        comm.scatter_v(packed if comm.rank == 1 else None, part, counts, root=1)
        expect(np.array_equal(part, own), "scatter_v", part)
        whole = np.empty_like(packed)
        comm.gather_v(part, whole if comm.rank == 1 else None, counts, root=1)
        expect(comm.rank != 1 or np.array_equal(whole, packed), "gather_v", whole)
        given = np.full(SIZE * (comm.rank + 1), comm.rank, np.int32)
        taken = np.empty(sum(counts), np.int32)
        comm.all_to_all_v(given, [comm.rank + 1] * SIZE, taken, counts)
        expect(np.array_equal(taken, np.repeat(np.arange(SIZE), counts)), "all_to_all_v", taken)
        to, of = (comm.rank + 1) % SIZE, (comm.rank - 1) % SIZE
        out = np.empty(50_000, np.float64)
        with comm.group():
            comm.recv(out, of)
            comm.send(np.full(50_000, comm.rank, np.float64), to)
        expect(np.array_equal(out, np.full(50_000, of)), "a group", out)

    ranks(body)


def test_backends():
    """the backends of one host give the same results, with arena memory"""
    def body(comm):
        memory = comm.alloc((4, 5), "f32")
        expect(not memory.any(), "new memory is zeroed")
        memory += comm.rank
        comm.all_reduce(memory)
        value = memory[3, 4]
        comm.free(memory)
        return comm.query().backend, float(value)

    for backend in ("loopback", "shm"):
        expect_equal(ranks(body, backend=backend), [(backend, 3.0)] * SIZE)


def test_log_variable():
    """WEFT_LOG=info prints lines of level info through the logger, and into WEFT_LOG_FILE, without a change of the program"""
    program = ("import weftsync\nwith weftsync.Comm() as comm:\n    pass\n"
               "print('handlers', len(__import__('logging').getLogger('weftsync').handlers))")
    def told(**variables):
        result = cases.run([sys.executable, "-c", program], environment={"WEFT_SIZE": "1", "PYTHONPATH": f"{ROOT}/python",
                                                                         **variables})
        expect_equal(result.returncode, 0, result)
        return result
    quiet = told()
    expect_equal((quiet.stderr, quiet.stdout), ("", "handlers 0\n"))
    shown = told(WEFT_LOG="info")
    expect("weft INFO: weft 0." in shown.stderr and "rank 0 of 1" in shown.stderr, "the line of the communicator", shown)
    with tempfile.TemporaryDirectory() as folder:
        silent = told(WEFT_LOG="info", WEFT_LOG_FILE=folder + "/%r.log")
        expect_equal((silent.stderr, silent.stdout), ("", "handlers 0\n"))
        expect("rank 0 of 1" in Path(folder, "0.log").read_text(), "the file has it")
    misspelt = told(WEFT_BACKND="shm")
    expect("did you mean WEFT_BACKEND?" in misspelt.stderr, "a variable that nothing reads", misspelt)
    wrong = cases.run([sys.executable, "-c", program], environment={"WEFT_SIZE": "1", "PYTHONPATH": f"{ROOT}/python",
                                                                    "WEFT_LOG": "all"})
    expect("off, error, warn, info or debug" in wrong.stderr, "the choices", wrong)


def test_metrics():
    """a context's metrics have the operations of its communicators"""
    def body(comm):
        comm.all_reduce(np.ones(3))
        text = comm.context.metrics()
        operations = re.search(r'^weft_comm_operations_total\{[^}]*rank="(\d)"\} (\d+)$', text, re.M)
        expect(operations and int(operations[1]) == comm.rank, "this rank's", text)
        return int(operations[2]) >= 1

    expect_equal(ranks(body), [True] * SIZE)


def test_launch_info():
    """launch_info reads the launcher's variables without a communicator, and an error names what contradicts"""
    names = [name for name in os.environ if name.startswith(("WEFT_", "OMPI_", "PMI", "SLURM_"))]
    kept = {name: os.environ.pop(name) for name in names}
    try:
        os.environ.update(RANK="5", WORLD_SIZE="8", LOCAL_RANK="1", LOCAL_WORLD_SIZE="4", GROUP_RANK="1")
        expect_equal(weft.launch_info(), weft.LaunchInfo(5, 8, 1, 4, 1, 0, "torchrun"))
        os.environ["RANK"] = "8"
        try:
            weft.launch_info()
            raise AssertionError("a rank beyond the size is refused")
        except weft.WeftError as error:
            expect("RANK is 8" in str(error), "it is named", error)
    finally:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"):
            os.environ.pop(name, None)
        os.environ.update(kept)
    places = ranks(lambda comm: (comm.query().local_rank, comm.query().local_size, comm.query().host_count))
    expect_equal(places, [(rank, SIZE, 1) for rank in range(SIZE)])


def test_types():
    """NumPy arrays, buffers and DLPack tensors are used without a copy, in every element type"""
    def body(comm):
        for name in ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f16", "f32", "f64"):
            values = np.ones(5, {"u": "uint", "i": "int", "f": "float"}[name[0]] + str(8 * weft.DType[name.upper()].size))
            comm.all_reduce(values)
            expect_equal(values.tolist(), [SIZE] * 5, name)
        values = array.array("d", [1, 2])
        comm.all_reduce(values)
        expect_equal(values.tolist(), [SIZE, 2 * SIZE])
        for kind in (Producer, Torch):
            tensor = kind(np.ones((2, 3), np.float32))
            comm.all_reduce(tensor)
            expect_equal(tensor.values.tolist(), [[SIZE] * 3] * 2, kind)
        comm.all_reduce(memoryview(tensor.values[1]))
        expect_equal(tensor.values.tolist(), [[SIZE] * 3, [SIZE * SIZE] * 3])
        comm.all_reduce(np.zeros(0, np.float32))
        for bad in ([1.0], "text", np.ones(2, "M8[s]"), np.ones(2, ">f4")):
            expect_raises(TypeError, "", comm.all_reduce, bad)
        expect_raises(ValueError, "strided", comm.all_reduce, np.ones((3, 3))[:, 1])
        expect_raises(ValueError, "expected 6 in dst", comm.all_gather, np.ones(2), np.ones(3))

    ranks(body)


def test_requests():
    """a request and its arrays are kept until it is complete, even if the program has dropped both"""
    def body(comm):
        values = np.full(1000, comm.rank, np.float32)
        request = comm.all_reduce(values, wait=False)
        request.wait(timeout=20)
        expect(request.done() and values[0] == 3, "the sum", values)
        if comm.rank == 0:
            inbox = np.zeros(4, np.float32)
            alive = weakref.ref(inbox)
            comm.recv(inbox, 1, wait=False)
            del inbox
            gc.collect()
            expect(alive() is not None, "the array is kept until the request is complete")
            pending = comm.recv(np.zeros(4, np.float32), 2, wait=False)
            error = expect_raises(weft.WeftError, "", pending.wait, timeout=0)
            expect_equal(error.code, weft.Status.ERR_NOT_DONE)
        comm.barrier()
        if comm.rank != 0:
            comm.send(np.ones(4, np.float32), 0)
        else:
            pending.wait(timeout=20)

    ranks(body)


def test_mismatch():
    """different counts raise an error on all ranks, which names the rank"""
    def body(comm):
        error = expect_raises(weft.WeftError, "rank", comm.all_reduce, np.ones(5 - (comm.rank == 2)))
        return error.code, comm.error().code

    for codes in ranks(body):
        expect_equal(codes, (weft.Status.ERR_MISMATCH,) * 2)


def test_refused_calls():
    """a call that the library refuses raises an error with the argument, its value and what is allowed"""
    def body(comm):
        values = np.ones(3)
        for text, call in (("root is 9: allowed are 0 to 2", lambda: comm.broadcast(values, 9)),
                           ("cannot send to itself", lambda: comm.send(values, comm.rank)),
                           ("size_bytes is 0", lambda: comm.alloc(0)),
                           ("op band requires an integer dtype", lambda: comm.all_reduce(values, op="band"))):
            error = expect_raises(weft.WeftError, text, call)
            expect(error.code in (weft.Status.ERR_ARG, weft.Status.ERR_UNSUPPORTED), "the code", error)
        expect(comm.error() is None, "the communicator works")

    ranks(body)


def test_all_gather():
    """an exception of the program's all_gather is the cause of the error, and so is a result of the wrong size"""
    for all_gather, kind, text in ((lambda mine: [mine, b"x"], ValueError, "expected 1 parts"),
                                   (lambda mine: 1 / 0, ZeroDivisionError, "")):
        error = expect_raises(weft.WeftError, "all_gather", weft.Comm, rank=0, size=1, all_gather=all_gather)
        expect(isinstance(error.__cause__, kind) and text in str(error.__cause__), "the cause", repr(error.__cause__))


def test_unique_id():
    """ranks create a communicator with the bytes of rank 0's Context.unique_id; other bytes are refused"""
    contexts = [weft.Context(), weft.Context()]
    made, sums = contexts[0].unique_id(), [np.array([1]), np.array([2])]

    def rank(number):
        with weft.Comm(contexts[number], rank=number, size=2, unique_id=made) as comm:
            comm.all_reduce(sums[number])
    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expect_equal([int(each[0]) for each in sums], [3, 3])
    expect_raises(weft.WeftError, "has created a communicator before", weft.Comm, contexts[0], rank=0, size=2, unique_id=made)
    expect_raises(weft.WeftError, "are no invitation", weft.Comm, rank=1, size=2, unique_id=bytes(len(made)))
    expect_raises(ValueError, "unique_id has 3 bytes; expected 256", weft.Comm, rank=1, size=2, unique_id=b"abc")
    expect_raises(ValueError, "got store, unique_id", weft.Comm, store="unix:@x", unique_id=made)
    for context in contexts:
        context.close()


def test_absent_rank():
    """a rank that does not call a collective is named when the deadline passes"""
    def body(comm):
        if comm.rank == 1:
            cases.wait_until(lambda: comm.error() is not None, "the other ranks give up")
            return comm.error().ranks
        error = expect_raises(weft.WeftError, "", comm.barrier, timeout=2)
        expect(error.code in (weft.Status.ERR_TIMEOUT, weft.Status.ERR_PEER_FAILED), "the code", error)
        return error.ranks

    expect_equal(ranks(body), [(1,)] * SIZE)


def test_device():
    """an error names a CUDA device that this process does not see, and a negative device"""
    with weft.Context(stream_waits=True) as context:
        for device in (1_000_000, -1):
            error = expect_raises(weft.WeftError, f"weft_comm_options.device is {device}", weft.Comm, context, rank=0, size=1,
                                  all_gather=lambda mine: [mine], device=device)
            expect(error.code in (weft.Status.ERR_ARG, weft.Status.ERR_UNAVAILABLE), "the code", error)


def test_wrong_arguments():
    """arguments that do not fit together raise an error with the reason"""
    expect_raises(ValueError, "rank and size", weft.Comm, store="unix:@nobody")
    error = expect_raises(weft.WeftError, "other", weft.Comm, rank=0, size=1, store="unix:@weft-python-other",
                          backend="other")
    expect(error.code in (weft.Status.ERR_ARG, weft.Status.ERR_UNAVAILABLE), "the code", error)

    def fail(comm):
        if comm.rank == 1:
            raise ValueError("raised by rank 1")
        comm.barrier()

    expect_raises(ValueError, "raised by rank 1", ranks, fail)


def test_choices():
    """an unknown name raises ValueError, which lists the choices"""
    def body(comm):
        for op in ("mean", "average", "avg", "MEAN", weft.Op.AVG):
            value = np.full(2, comm.rank, np.float32)
            comm.all_reduce(value, op=op)
            expect_equal(value.tolist(), [1.0, 1.0], op)
        error = expect_raises(ValueError, "'median'", comm.all_reduce, np.ones(2), op="median")
        for name in ("sum", "avg", "mean", "average", "min", "premul_sum"):
            expect(f"{name}" in str(error).split(": ")[-1].split(", "), name, error)
        params = [weft.Param(name, (2,)) for name in ("weight", "bias")]
        for name, choice, options in (("mode", "view", {"mode": "views"}),
                                      ("divide_by", "active", {"divide_by": "ranks"}),
                                      ("reduce_dtype", "bf16", {"reduce_dtype": "bfloat"})):
            error = expect_raises(ValueError, name, weft.Reducer, comm, params, **options)
            expect(choice in str(error) and list(options.values())[0] in str(error), "the choices", error)
        expect_raises(ValueError, "state_only", weft.Param, "w", (2,), flags="state")
        with weft.Reducer(comm, params) as reducer:
            expect_raises(ValueError, "buffers", reducer.broadcast, what="values")
            expect_raises(ValueError, "model", reducer.replan, planner="best")
            for call in (reducer.index, reducer.param, reducer.view, reducer.wait_param, reducer.ready,
                         reducer.absent):
                error = expect_raises(ValueError, "'weights'", call, "weights")
                expect("weight, bias" in str(error), "the parameters", error)
            expect_raises(ValueError, "'weights'", reducer.replan, [["weights"], ["bias"]])
        many = [weft.Param(f"p{index}", (1,)) for index in range(1000)]
        with weft.Reducer(comm, many) as reducer:
            error = expect_raises(ValueError, "'p'", reducer.index, "p")
            expect("and 980 more" in str(error) and len(str(error)) < 300, "the error is short", error)

    ranks(body)
    expect_raises(ValueError, "thread, caller", weft.Context, progress="threads")


def test_version():
    """the package has the version of meson.build and of the library"""
    stated = re.search(r"^  version: '(.*)',$", (ROOT / "meson.build").read_text(), re.M).group(1)
    expect_equal(weft.__version__, stated)
    major, minor, patch = map(int, weft.__version__.split("."))
    expect_equal(weft.version(), major * 10000 + minor * 100 + patch)


def test_context():
    """a context lists its backends, logs to a function of the program, and creates hooks by name"""
    lines = []
    with weft.Context(log=lambda level, line: lines.append((level, line)), log_level=weft.LogLevel.DEBUG) as context:
        names = {backend.name: backend for backend in context.backends()}
        expect(names["shm"].available and names["loopback"].available, "backends", names)
        expect(context.supports("shm", weft.Coll.ALL_REDUCE, "bf16", weft.Op.SUM), "shm sums bf16")
        expect(not context.supports("shm", weft.Coll.ALL_REDUCE, "f32", weft.Op.BXOR), "shm has no bitwise reduction of floats")
        with weft.Hook(context, "allreduce") as hook, weft.Comm(context, rank=0, size=1,
                                                                store="unix:@weft-python-one") as comm:
            weft.Reducer(comm, [weft.Param("w", (1,))], hook=hook).close()
        with weft.Hook(context, "fp16", inner=weft.Hook(context, "allreduce")) as around:
            expect_equal(around.name, "fp16")
        with weft.Hook(context, "powersgd", rank=2) as hook:
            blob = hook.save()
            hook.load(blob)
            expect_equal(hook.save(), blob)
            expect_raises(weft.WeftError, "is truncated", hook.load, blob[:-1])
        expect_raises(weft.WeftError, "none-of-these", weft.Hook, context, "none-of-these")
        expect_raises(weft.WeftError, "depth", weft.Hook, context, "allreduce", depth=4)
    expect(lines and all(isinstance(line, str) for _, line in lines), "log lines", lines)
    expect(context.closed and weft.version() >= 900, "closed")


def test_log():
    """without a function warnings go to the logger "weftsync", and log=False logs nothing"""
    lines = []

    class Lines(logging.Handler):
        def emit(self, record):
            lines.append((record.levelno, record.getMessage()))

    logger, handler = logging.getLogger("weftsync"), Lines()
    logger.addHandler(handler)
    try:
        def lines_of(**options):
            lines.clear()
            with weft.Context(**options) as context, weft.Comm(context, rank=0, size=1, store="unix:@weft-python-log"):
                return list(lines)

        expect_equal(lines_of(), [])  # nothing that deserves a warning
        logger.setLevel(logging.INFO)
        told = lines_of()
        expect(told and {level for level, _ in told} == {logging.INFO}, "lines of level INFO", told)
        expect_equal(lines_of(log_level=weft.LogLevel.WARN), [])
        expect_equal(lines_of(log=False), [])
    finally:
        logger.setLevel(logging.NOTSET)
        logger.removeHandler(handler)


def test_late_rank():
    """a rank that is late is named on the logger of the other ranks after 5 s"""
    lines = []

    class Lines(logging.Handler):
        def emit(self, record):
            lines.append((record.levelno, record.getMessage()))

    handler = Lines()
    logging.getLogger("weftsync").addHandler(handler)
    try:
        def body(comm):
            if comm.rank == 1:
                time.sleep(8)
            comm.barrier()

        ranks(body, 2)
    finally:
        logging.getLogger("weftsync").removeHandler(handler)
    found = [line for level, line in lines if level == logging.WARNING and "barrier" in line and "rank 1" in line]
    expect(found, "a warning that names rank 1", lines)


def test_timeouts():
    """timeouts that are not positive are refused with the value and what is allowed"""
    def body(comm):
        values = np.ones(3)
        for wrong in (-3, 0, -math.inf, math.nan):
            for call in (lambda: comm.all_reduce(values, timeout=wrong), lambda: comm.barrier(timeout=wrong),
                         lambda: weft.Comm(timeout=wrong), lambda: weft.Comm(init_timeout=wrong)):
                error = expect_raises(ValueError, f"a timeout is {wrong} s", call)
                expect("math.inf" in str(error), "what is allowed", error)
        request = comm.barrier(wait=False)
        expect_raises(ValueError, "a timeout is -4 s", request.wait, -4)
        request.wait(timeout=math.inf)

    ranks(body)

    def waits(comm):
        if comm.rank == 0:
            comm.recv(np.ones(3), 1, timeout=0.2)

    expect_raises(weft.WeftError, "recv f64 x 3 from rank 1", ranks, waits)


def test_error_texts_after_a_failure():
    """errors of wrong arguments keep their texts when the communicator has failed"""
    def body(comm):
        comm.abort("for a test")
        expect_raises(weft.WeftError, "op is 55: allowed", comm.all_reduce, np.ones(3), op=55)
        expect_raises(weft.WeftError, "root is 9", comm.broadcast, np.ones(3), root=9)
        expect_raises(weft.WeftError, "for a test", comm.barrier)

    ranks(body)


def test_split():
    """a communicator splits by color"""
    def body(comm):
        part = comm.split(None if comm.rank == 0 else 1, key=-comm.rank)
        if part is None:
            return None
        with part:
            value = np.full(1, comm.rank)
            part.all_reduce(value)
            return part.rank, part.size, int(value[0])

    expect_equal(ranks(body), [None, (1, 2, 3), (0, 2, 3)])


def test_processes():
    """processes of `weft run` find each other by the environment, and objects left open are destroyed at exit"""
    program = "import numpy as np, weftsync as weft; c = weft.Comm(); x = np.ones(2); c.all_reduce(x); r = weft.Reducer(c, " \
              "[weft.Param('w', (2,), 'f64')]); r.begin(); r.ready(0, x); r.finish(); print(x, c.rank, c.size)"
    result = cases.run([sys.argv[1], "run", "-n", "2", "--", sys.executable, "-c", program],
                       environment={"PYTHONPATH": str(ROOT / "python")})
    expect_equal(result.returncode, 0, result.stdout, result.stderr)
    for rank in range(2):
        expect(f"[2. 2.] {rank} 2" in result.stdout, f"rank {rank}", result.stdout, result.stderr)


def test_library_missing():
    """a library that cannot be loaded raises ImportError with the path that was tried"""
    result = cases.run([sys.executable, "-c", "import weftsync; weftsync.version()"],
                       environment={"PYTHONPATH": str(ROOT / "python"), "WEFT_LIBRARY": "/nowhere/libweft.so"})
    expect("ImportError" in result.stderr and "/nowhere/libweft.so" in result.stderr, "the error", result.stderr)


def test_modules_beside_the_library():
    """a module is searched beside the library that the dynamic linker has found"""
    library = Path(os.environ["WEFT_LIBRARY"])
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "libweft.so.0.9").symlink_to(library.resolve())
        result = cases.run([sys.executable, "-c", "from weftsync import _library; print(_library.module_file('x.so', 'NONE'))"],
                           environment={"PYTHONPATH": str(ROOT / "python"), "WEFT_LIBRARY": "libweft.so.0.9",
                                        "LD_LIBRARY_PATH": folder})
    expect_equal(result.stdout, f"{folder}/weft-0.9/x.so\n", result.stderr)


if __name__ == "__main__":
    cases.main(globals())
