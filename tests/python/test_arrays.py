#!/usr/bin/env python3
"""Arrays of the caller: read-only arrays, bool, new arrays, and buffers in flight. Ranks are threads."""
import array
import gc
import mmap
import tempfile
import weakref
from multiprocessing import shared_memory

from dlpack import IS_COPIED, READ_ONLY, OldProducer, Producer
from ranks_of_threads import SIZE, cases, expect, expect_equal, expect_raises, np, ranks, weft


def read_only(values):
    values.flags.writeable = False
    return values


def test_read_only():
    """a read-only array is never written to, and the error names the form that returns a new array"""
    def body(comm):
        own = [np.ones(3) for _ in range(3)]
        shown = [Producer(own[0], READ_ONLY), Producer(own[1], IS_COPIED), OldProducer(own[2]),
                 read_only(np.ones(3))]
        for source in (bytes(3), memoryview(bytearray(3)).toreadonly(), *shown):
            error = expect_raises(ValueError, "is read-only", comm.all_reduce, source)
            expect("comm.new.all_reduce" in str(error), "the error names the alternative", error)
            expect_raises(ValueError, "is read-only", comm.recv, source, (comm.rank + 1) % SIZE)
        for source in shown:
            out = np.zeros(3)
            comm.all_reduce(source, out)
            made = comm.new.all_reduce(source)
            expect(type(made) is np.ndarray and made.flags.writeable, "a new NumPy array", made)
            expect_equal((out.tolist(), made.tolist()), ([3.0] * 3, [3.0] * 3))
        expect_equal([values.tolist() for values in own], [[1.0] * 3] * 3)
        expect_raises(TypeError, "version 2.0", comm.all_reduce, Producer(np.ones(3), major=2))
        expect_raises(TypeError, "host memory", comm.all_reduce, Producer(np.ones(3), device=2))

    ranks(body)


def test_read_only_of_reducers():
    """a reducer and an averager refuse read-only arrays for results, and the error says how to copy them"""
    def body(comm):
        constant = read_only(np.ones(3, np.float32))
        for source in (constant, OldProducer(np.ones(3, np.float32))):
            with weft.Reducer(comm, [weft.Param("w", (3,))]) as reducer, reducer.step():
                expect_raises(ValueError, "numpy.array", reducer.ready, "w", source)
                reducer.ready("w", np.ones(3, np.float32))
            expect_raises(ValueError, "numpy.array", weft.Reducer, comm, [weft.Param("w", (3,), value=source)])
            expect_raises(ValueError, "numpy.array", weft.Averager, comm, {"w": source}, 1)

    ranks(body)


def test_bool():
    """arrays of bool are communicated as they are, and reduced only by operations whose result is true or false"""
    def body(comm):
        mine = np.array([True, comm.rank == 1, False])
        for op, wanted in (("max", [True, True, False]), ("sum", [True, True, False]), ("bor", [True, True, False]),
                           ("min", [True, False, False]), ("prod", [True, False, False]), ("band", [True, False, False]),
                           ("bxor", [SIZE % 2 == 1, True, False])):
            for source in (mine.copy(), Producer(mine.copy()), memoryview(mine.copy())):
                comm.all_reduce(source, op=op)
                expect_equal(getattr(source, "values", np.asarray(source)).tolist(), wanted, op)
        expect_raises(weft.WeftError, "the dtype is bool", comm.all_reduce, mine, op="mean")
        gathered = comm.new.all_gather(mine)
        expect_equal((gathered.dtype, gathered[1].tolist()), (np.dtype(bool), [True, True, False]))
        expect_raises(ValueError, "src is BOOL, dst is U8", comm.all_reduce, mine, np.zeros(3, np.uint8), "max")

    ranks(body)


def test_complex():
    """complex arrays are summed and averaged as complex numbers, and other reductions are refused"""
    def body(comm):
        for kind in (np.complex64, np.complex128):
            mine = np.array([1 + 2j, comm.rank * 1j], kind)
            comm.all_reduce(mine)
            expect_equal(mine.tolist(), [SIZE * (1 + 2j), 1j * sum(range(SIZE))])
            mean = comm.new.all_reduce(np.full(3, comm.rank - 1j, kind), op="mean")
            expect_equal((mean.dtype, mean.tolist()), (np.dtype(kind), [(SIZE - 1) / 2 - 1j] * 3))
            error = expect_raises(weft.WeftError, "", comm.all_reduce, mine, op="max")
            expect("complex" in str(error), "the error names the type", error)

    ranks(body)


def test_reduction_of_the_program():
    """a function of the program combines the ranks' arrays in rank order, and its exception is the error's cause"""
    def body(comm):
        def combine(into, other):  # of pairs: the composition of the functions x -> a x + b
            a, b = into[0::2].copy(), into[1::2].copy()
            c, d = other[0::2], other[1::2]
            into[0::2], into[1::2] = a * c, a * d + b

        compose = weft.Reduction(combine, unit=2)
        mine = np.tile([comm.rank + 2.0, comm.rank + 1.0], 5)
        a, b = 1.0, 0.0
        for rank in range(SIZE):
            a, b = a * (rank + 2), a * (rank + 1) + b
        result = comm.new.all_reduce(mine, op=compose)
        expect_equal(result.tolist(), [a, b] * 5)
        request = comm.all_reduce(mine, op=weft.Reduction(combine, unit=2), wait=False)
        request.wait()
        expect_equal(mine.tolist(), [a, b] * 5)
        expect_raises(weft.WeftError, "multiple of weft_reduction.unit", comm.all_reduce, np.ones(3), op=compose)
        expect_raises(TypeError, "expected a function", weft.Reduction, 3)
        expect_raises(ValueError, "at least 1", weft.Reduction, combine, 0)

        def fails(into, other):
            raise KeyError("no such thing")

        error = expect_raises(weft.WeftError, "", comm.all_reduce, np.ones(4 * SIZE), op=weft.Reduction(fails if comm.rank == 1 else combine, 2))
        expect_equal(type(error.__cause__), KeyError if comm.rank == 1 else type(None))
        expect("weft_reduction.combine" in str(error), "the error names the function", error)

    ranks(body)


def test_types_differ():
    """src and dst of different types are refused by every collective"""
    def body(comm):
        wide, narrow, counts = np.ones(SIZE), np.ones(SIZE, np.float32), [1] * SIZE
        for call, more in ((comm.all_reduce, {}), (comm.all_to_all, {}), (comm.all_gather_v, {"counts": counts}),
                           (comm.reduce_scatter_v, {"counts": counts}),
                           (comm.gather_v, {"counts": counts, "root": comm.rank}),
                           (comm.scatter_v, {"counts": counts, "root": comm.rank})):
            expect_raises(ValueError, "src is F64, dst is F32", call, wide, narrow, **more)
        expect_raises(ValueError, "src is F64, dst is F32", comm.all_to_all_v, wide, counts, narrow, counts)

    ranks(body)


def test_new_arrays():
    """every collective has a form that returns a new array and does not change its argument"""
    def body(comm):
        new, rank = comm.new, comm.rank
        every = [np.arange(6, dtype=np.float32).reshape(3, 2) * (r + 1) for r in range(SIZE)]
        total, blocks, mine = sum(every), np.stack(every), read_only(every[rank].copy())
        counts, prefixes = [r + 1 for r in range(SIZE)], [each.ravel()[:r + 1] for r, each in enumerate(every)]
        flat, own = np.concatenate(prefixes), prefixes[rank]
        at_1 = lambda one: one if rank == 1 else None  # noqa: E731
        to, of = (rank + 1) % SIZE, (rank - 1) % SIZE
        sent = comm.send(mine, to, wait=False)
        for what, made, wanted in (
                ("all_reduce", new.all_reduce(mine, "max"), every[2]),
                ("premul_sum", new.all_reduce(mine, "premul_sum", factor=2.0), 2 * total),
                ("a scalar", new.all_reduce(np.full((), float(rank))), np.full((), 3.0)),
                ("reduce", new.reduce(mine, root=1), at_1(total)),
                ("broadcast", new.broadcast(mine, 2), every[2]),
                ("all_gather", new.all_gather(mine), blocks),
                ("reduce_scatter", new.reduce_scatter(blocks * (rank + 1)), every[rank] * 6),
                ("gather", new.gather(mine, 1), at_1(blocks)),
                ("scatter", new.scatter(at_1(blocks), 1, like=mine), every[rank]),
                ("scatter with src on all ranks", new.scatter(blocks * (rank == 1), 1), every[rank]),
                ("all_to_all", new.all_to_all(blocks * (rank + 1)),
                 np.stack([every[rank] * (r + 1) for r in range(SIZE)])),
                ("all_gather_v", new.all_gather_v(own, counts), flat),
                ("reduce_scatter_v", new.reduce_scatter_v(flat, counts), SIZE * own),
                ("gather_v", new.gather_v(own, counts, 1), at_1(flat)),
                ("scatter_v", new.scatter_v(at_1(flat), counts, root=1, like=mine), own),
                ("all_to_all_v", new.all_to_all_v(np.full(SIZE * (rank + 1), rank), [rank + 1] * SIZE, counts),
                 np.repeat(np.arange(SIZE), counts)),
                ("recv", new.recv(mine, of), every[of])):
            if wanted is None:
                expect(made is None, what, made)
                continue
            expect_equal((made.dtype, made.tolist()), (wanted.dtype, wanted.tolist()), what)
            expect(not np.shares_memory(made, mine), what)
        sent.wait()
        expect_equal(mine.tolist(), every[rank].tolist())

        request = new.all_reduce(mine, wait=False)
        expect_equal(request.result().tolist(), total.tolist())
        expect(request.result() is request.result(), "result() returns the same array each time")
        with comm.group():
            expect_raises(ValueError, "wait=False", new.recv, mine, of)
            request = new.recv(mine, of, wait=False)
            comm.send(mine, to)
        expect_equal(request.result().tolist(), every[of].tolist())
        expect_equal(new.all_reduce(np.zeros((0, 2), np.float32)).shape, (0, 2))
        backwards = np.arange(3.0)[::-1]
        for call in (new.all_reduce, new.all_gather) + ((new.broadcast,) if rank == 0 else ()):
            expect_raises(ValueError, "strided", call, backwards)
        expect_raises(ValueError, "src has the shape (4,)", new.reduce_scatter, np.ones(SIZE + 1))
        expect_raises(ValueError, "like is None", new.recv, None, of)

    ranks(body)


def test_lent():
    """a buffer in flight cannot be resized, and can be as soon as its request is complete"""
    def body(comm):
        lent = ((bytearray(4), np.uint8), (array.array("d", [0] * 4), np.float64))
        if comm.rank == 0:
            requests = [comm.recv(buffer, 1, wait=False) for buffer, _ in lent]
            for (buffer, _), request in zip(lent, requests):
                expect_raises(BufferError, "", buffer.append, 1)
                expect(not request.done(), "not complete")
                expect_raises(weft.WeftError, "NOT_DONE", request.wait, timeout=0)
                expect_raises(BufferError, "", buffer.append, 1)
        comm.barrier()
        for index, (buffer, dtype) in enumerate(lent):
            if comm.rank == 1:
                comm.send(np.ones(4, dtype), 0)
            if comm.rank == 0:
                if index == 0:
                    requests[0].wait(timeout=20)
                else:
                    cases.wait_until(requests[1].done, "the message arrives")
                buffer.append(1)
                expect_equal(list(buffer), [1] * 5)

    ranks(body)


def test_lent_and_dropped():
    """the communicator keeps a buffer of a request that was dropped, until the operation is complete"""
    def body(comm):
        buffer, values = bytearray(4), np.zeros(4)
        if comm.rank == 0:
            comm.recv(buffer, 1, wait=False)
            comm.recv(values, 1, wait=False)
            gc.collect()
            expect_raises(BufferError, "", buffer.append, 1)
            expect_raises(ValueError, "resize", values.resize, 8, refcheck=False)
            whole = np.zeros(8)
            request = comm.recv(whole[4:], 1, wait=False)
            expect_raises(ValueError, "resize", whole.resize, 800_000, refcheck=False)
            alive = weakref.ref(values)
            del values
            gc.collect()
            expect(alive() is not None, "the array is kept")
        comm.barrier()
        if comm.rank == 1:
            comm.send(np.ones(4, np.uint8), 0)
            comm.send(np.ones(4), 0)
            comm.send(np.ones(4), 0)
        if comm.rank == 0:
            cases.wait_until(lambda: all(request.over() for request in comm._outstanding), "the messages arrive")
            buffer.append(1)
            expect_equal((list(buffer), alive()), ([1] * 5, None))

    ranks(body)


def test_lent_to_calls():
    """a buffer cannot be resized during a blocking call, in an open group, or while a reducer uses it"""
    def body(comm):
        buffer = bytearray(4)
        with comm.group():
            if comm.rank == 0:
                comm.recv(buffer, 1)
                expect_raises(BufferError, "", buffer.append, 1)
            if comm.rank == 1:
                comm.send(buffer, 0)
                expect_raises(BufferError, "", buffer.append, 1)
        buffer.append(1)

        value, gradient, later = (array.array("f", [1] * 3) for _ in range(3))
        params = [weft.Param("w", (3,), value=value), weft.Param("g", (3,), gradient=gradient)]
        reducer = weft.Reducer(comm, params)
        for each in (value, gradient):
            expect_raises(BufferError, "", each.append, 1)
        reducer.begin()
        reducer.ready("w", later)
        reducer.ready("g")
        expect_raises(BufferError, "", later.append, 1)
        reducer.finish()
        later.append(1)
        expect_raises(BufferError, "", value.append, 1)
        copied = array.array("f", [0] * 3)
        reducer.result("w", copied)
        copied.append(1)
        reducer.close()
        averager = weft.Averager(comm, {"w": value}, 1)
        gradient.append(1)
        expect_raises(BufferError, "", value.append, 1)
        averager.close()
        value.append(1)

    ranks(body)


def test_lent_memory_of_others():
    """memory that an array was made of cannot be closed or resized in flight, and a closed one is refused"""
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(4096)
        mapping, mapped = mmap.mmap(-1, 4096), np.memmap(file.name, np.uint8, "r+", shape=64)
        shared, plain, base = shared_memory.SharedMemory(create=True, size=4096), bytearray(64), memoryview(bytearray(64))
        try:
            parts = [np.ndarray(64, np.uint8, buffer=mapping), mapped[8:72:1][:8], np.ndarray(64, np.uint8, buffer=shared.buf),
                     np.ndarray(64, np.uint8, buffer=plain), np.frombuffer(base, np.uint8), base]
            actions = [mapping.close, lambda: mapping.resize(8192), mapped._mmap.close, shared.close,
                       lambda: plain.append(1), base.obj.clear]

            def body(comm):
                if comm.rank == 0:
                    requests = [comm.recv(part, 1, wait=False) for part in parts]
                    for action in actions:
                        expect_raises(BufferError, "", action)
                comm.barrier()
                for part in parts if comm.rank == 1 else ():
                    comm.send(np.full(len(part), 7, np.uint8), 0)
                if comm.rank == 0:
                    for request in requests:
                        request.wait(timeout=20)
                    expect_equal([bytes(part[:1]) for part in parts], [b"\7"] * len(parts))
                comm.barrier()
                if comm.rank == 0:
                    del requests, request
                    gc.collect()
                    for action in (mapping.close, mapped._mmap.close, lambda: plain.append(1), shared.close):
                        action()
                    for part in parts[:3]:
                        expect_raises(ValueError, "the array's memory is gone", comm.recv, part, 1)

            ranks(body)
        finally:
            parts.clear()
            shared.unlink()


def test_lent_to_a_step():
    """calls of an open step that are refused free nothing that the step uses"""
    def body(comm):
        def lent(kind="f"):
            return array.array(kind, [1] * 3)

        given, other, absent = lent(), lent(), lent()
        with weft.Reducer(comm, [weft.Param("w", (3,)), weft.Param("v", (3,))], absent=True, bucket_limits=[0],
                          replan="none") as reducer:
            reducer.begin(gradients={"v": absent})
            reducer.ready("w", given)
            expect_raises(weft.WeftError, "ERR_STATE", reducer.ready, "w", other)
            expect_raises(weft.WeftError, "ERR_STATE", reducer.result, "w", other)
            expect_raises(weft.WeftError, "ERR_STATE", reducer.begin, gradients={"w": other, "v": other})
            for one in (given, absent):
                expect_raises(BufferError, "", one.append, 1)
            other.append(1)
            if comm.rank == 0:
                reducer.absent("v")
            else:
                reducer.ready("v", absent)
            reducer.finish()
            expect_equal((list(given), list(absent)), ([1.0] * 3, [np.float32((SIZE - 1) / SIZE)] * 3))
            for one in (given, absent):
                one.append(1)
            values = np.ones(3, np.float32)
            reducer.begin()
            reducer.ready("w", values)
            reducer.absent("v")
            expect_raises(ValueError, "resize", values.resize, 800_000, refcheck=False)
            values.setflags(write=False)  # checked at the call only
            reducer.finish()
            expect_equal(values.tolist(), [1.0] * 3)

    ranks(body)


if __name__ == "__main__":
    cases.main(globals())
