#!/usr/bin/env python3
"""Communication hooks written in Python (CustomHook). Ranks are threads."""
import contextlib
import gc
import sys
import threading
import time
import weakref

from ranks_of_threads import ROOT, SIZE, cases, expect, expect_equal, expect_raises, np, ranks, weft


class Mean(weft.HookFunctions):
    """Averages the buckets, as the hook allreduce does, and counts the calls of its functions."""

    def __init__(self):
        self.calls = []

    def plan(self, bucket):
        self.calls.append("plan")
        return weft.HookPlan([weft.HookCollective("all_reduce", bucket.dtype, bucket.count, "avg")])

    def stage(self, bucket, stage):
        self.calls.append(f"stage {stage.index}")


class Fp16(weft.HookFunctions):
    """Does what the built-in hook fp16 does: divides, rounds to 16 bits, and adds."""

    def plan(self, bucket):
        half = weft.HookCollective("all_reduce", "f16", bucket.count, "sum", src="scratch", dst="scratch")
        return weft.HookPlan([half], scratch_bytes=2 * bucket.count)

    def stage(self, bucket, stage):
        half = bucket.scratch.view(np.float16)
        if stage.index == 0:
            half[...] = bucket.buffer * np.float32(1 / bucket.divisor)
        else:
            bucket.buffer[...] = half


def params_of(*counts):
    return [weft.Param(f"p{index}", (count,)) for index, count in enumerate(counts)]


def step(reducer, *gradients, **options):
    with reducer.step(**options):
        for index, gradient in enumerate(gradients):
            reducer.ready(index, gradient)


meet = threading.Barrier(SIZE, timeout=20)  # before a failure, which could otherwise end the previous call of a slow rank


@contextlib.contextmanager
def hooked(comm, functions, params, **options):
    """Make a reducer with a custom hook."""
    with weft.CustomHook(comm.context, functions) as hook, weft.Reducer(comm, params, hook=hook, **options) as reducer:
        yield reducer


def test_equal_to_built_in():
    """a hook in Python gives the bits of the built-in hook fp16, for several buckets and steps"""
    def body(comm):
        params, results = params_of(1000, 7, 300), []
        for make in (lambda: weft.CustomHook(comm.context, Fp16()), lambda: weft.Hook(comm.context, "fp16")):
            draw = np.random.default_rng(comm.rank)
            with make() as hook, weft.Reducer(comm, params, hook=hook, bucket_limits=[1000]) as reducer:
                for _ in range(3):
                    gradients = [draw.standard_normal(param.shape).astype(np.float32) for param in params]
                    step(reducer, *gradients)
                    results.append(b"".join(gradient.tobytes() for gradient in gradients))
                expect(len(reducer.buckets()) > 1, "several buckets", reducer.buckets())
        expect_equal([one == other for one, other in zip(results[:3], results[3:])], [True] * 3)
        return results

    for size in (2, 3):
        results = ranks(body, size=size)
        expect(all(one == results[0] for one in results), "equal results on all ranks")


class Median(weft.HookFunctions):
    """Gathers every rank's gradients in scratch, and takes the median."""

    def plan(self, bucket):
        block = bucket.count * bucket.dtype.size
        gather = weft.HookCollective("all_gather", bucket.dtype, bucket.count, src="scratch", dst="scratch", dst_offset=block)
        return weft.HookPlan([gather], scratch_bytes=block * (1 + bucket.size), result="scratch")

    def stage(self, bucket, stage):
        rows = bucket.scratch.view(np.float32).reshape(1 + bucket.size, bucket.count)
        if stage.index == 0:
            rows[0] = bucket.buffer
        else:
            rows[0] = np.median(rows[1:], axis=0)


def test_all_gather():
    """a hook gathers into its scratch, and its result lies there"""
    def body(comm):
        with hooked(comm, Median(), params_of(5, 3)) as reducer:
            gradients = [np.arange(5, dtype=np.float32) * (comm.rank + 1) ** 2, np.full(3, 10.0 ** comm.rank, np.float32)]
            step(reducer, *gradients)
            return [gradient.tolist() for gradient in gradients]

    expect_equal(ranks(body), [[[0.0, 4.0, 8.0, 12.0, 16.0], [10.0] * 3]] * 3)


def test_bucket():
    """a bucket has its parameters with names, shapes and places, and its arrays are views of its memory"""
    def body(comm):
        seen = []

        class Looks(Mean):
            def look(self, bucket):
                seen.append((bucket.index, bucket.bucket_count, bucket.is_last, bucket.dtype, bucket.count, bucket.step,
                             bucket.rank, bucket.size, bucket.entries))
                return {param.name: param for param in bucket.params}

            def plan(self, bucket):
                expect_raises(RuntimeError, "has no memory in plan", lambda: bucket.buffer)
                names = self.look(bucket)
                expect_equal([(p.index, p.dtype, p.shape, p.strides, p.count) for _, p in sorted(names.items())],
                             [(1, weft.DType.F32, (), (), 1), (0, weft.DType.F32, (4, 3), (1, 4), 12)])
                expect_equal((names["b"].parameter, names["w"].parameter), (0, value.ctypes.data))
                return super().plan(bucket)

            def stage(self, bucket, stage):
                names = self.look(bucket)
                if stage.index == 0:
                    expect_equal((stage.counts, stage.moved_count, bucket.divisor), (None, 0, float(comm.size)))
                    weight = bucket.gradient(names["w"])
                    expect_equal(weight.tolist(), (np.arange(12.0).reshape(4, 3) + comm.rank).tolist())
                    weight *= 2
                    expect_equal(bucket.buffer.sum(), weight.sum() + float(bucket.gradient(names["b"])))

        value = np.zeros((3, 4), np.float32).T
        params = [weft.Param.like("w", value, value=value), weft.Param("b", ())]
        with hooked(comm, Looks(), params, replan="none") as reducer:
            gradient = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(4, 3) + comm.rank)
            bias = np.ones((), np.float32)
            step(reducer, gradient, bias)
            expect_equal((gradient.tolist(), float(bias)), ((2 * np.arange(12.0).reshape(4, 3) + comm.size - 1).tolist(), 1.0))
        expect_equal(seen, [(0, 1, True, weft.DType.F32, 13, 0, comm.rank, comm.size, None)] * 3)

    ranks(body)


def test_bf16():
    """a bucket of bf16 elements appears as their bits in uint16"""
    def body(comm):
        kinds = []

        class Looks(Mean):
            def stage(self, bucket, stage):
                kinds.append((bucket.dtype, bucket.buffer.dtype.name))

        with hooked(comm, Looks(), params_of(4), reduce_dtype="bf16") as reducer:
            gradient = np.full(4, 2.0 + comm.rank, np.float32)
            step(reducer, gradient)
            expect_equal((set(kinds), gradient.tolist()), ({(weft.DType.BF16, "uint16")}, [3.0] * 4))

    ranks(body)


def test_pending():
    """a stage completes later, on a thread of the program, which writes the bucket until then"""
    def body(comm):
        threads = []

        class Later(Mean):
            def stage(self, bucket, stage):
                if stage.index == 0:
                    token = stage.later()
                    threads.append(threading.Thread(target=self.work, args=(bucket, token)))
                    threads[-1].start()

            def work(self, bucket, token):
                time.sleep(0.05)
                expect_equal([param.name for param in bucket.params], ["p0"])
                bucket.buffer[...] += 10
                token.complete()
                token.complete("a repeated completion does nothing")
                expect_raises(RuntimeError, "after the hook's function has returned", lambda: bucket.buffer)

        with hooked(comm, Later(), params_of(3)) as reducer:
            for _ in range(2):
                gradient = np.full(3, float(comm.rank), np.float32)
                step(reducer, gradient)
                expect_equal(gradient.tolist(), [11.0] * 3)
        for thread in threads:
            thread.join()
        return len(threads)

    expect_equal(ranks(body), [2] * 3)


def test_pending_fails():
    """a stage that is completed with an error fails the step on all ranks; one whose hook is closed fails at once"""
    def body(comm):
        class Later(Mean):
            def stage(self, bucket, stage):
                if stage.index == 0:
                    token = stage.later()
                    if comm.rank == 1:
                        token.complete(ValueError("no answer"))
                    else:
                        token.complete()

        with hooked(comm, Later(), params_of(3)) as reducer:
            meet.wait()
            error = expect_raises(weft.WeftError, "completed its stage with an error: ValueError: no answer",
                                  step, reducer, np.ones(3, np.float32))
            expect_equal((error.code, error.ranks), (weft.Status.ERR_HOOK, (1,)))
            expect_equal(type(error.__cause__), ValueError if comm.rank == 1 else type(None))

    ranks(body)

    def closed(comm):
        class Later(Mean):
            def stage(self, bucket, stage):
                stage.later()

        with weft.CustomHook(comm.context, Later()) as hook:
            reducer = weft.Reducer(comm, params_of(3), hook=hook)
        with reducer:
            meet.wait()
            expect_raises(weft.WeftError, "its CustomHook is closed", step, reducer, np.ones(3, np.float32))

    ranks(closed)


def test_failing_stage():
    """an exception in a stage fails the step on all ranks, with its type and its text, at most 255 bytes of them"""
    for text in ("bad factors", "ä" * 300, "zero\0byte", ""):
        def body(comm):
            class Fails(Mean):
                def stage(self, bucket, stage):
                    here = bucket.buffer
                    if comm.rank == 1:
                        raise KeyError(text) if not text else ArithmeticError(text)
                    del here

            with hooked(comm, Fails(), params_of(3)) as reducer:
                meet.wait()
                error = expect_raises(weft.WeftError, "hook 'Fails' failed in stage: ", step, reducer, np.ones(3, np.float32))
                expect_equal((error.code, error.ranks), (weft.Status.ERR_HOOK, (1,)))
                wanted = {"": "KeyError: ''", "zero\0byte": "ArithmeticError: zero?byte"}.get(text, f"ArithmeticError: {text}")
                cut = wanted.encode()[:255].decode(errors="ignore")
                expect(f"stage: {cut} (communication hook failed)" in error.text, "the text of the exception", error.text)
                expect_equal(error.__cause__ is not None, comm.rank == 1)
                if comm.rank == 1:
                    expect_equal(error.__cause__.args, (text,))
                    frames = error.__cause__.__traceback__
                    while frames.tb_next is not None:
                        frames = frames.tb_next
                    expect_equal(dict(frames.tb_frame.f_locals), {}, "variables of the stage that raised")

        ranks(body)


def test_failing_plan():
    """what plan raises, or returns instead of a plan, fails the creation of the reducer on all ranks"""
    all_reduce = weft.HookCollective("all_reduce", "f32", 3, "sum")
    for made, text in ((weft.WeftError(weft.Status.ERR_UNSUPPORTED, "f32 is too wide"), "f32 is too wide (not supported)"),
                       (None, "plan returned a NoneType, expected a HookPlan"),
                       (weft.HookPlan([all_reduce] * 9), "the plan has 9 collectives, at most 8 are allowed"),
                       (weft.HookPlan([weft.HookCollective("reduce_all", "f32", 3)]), "coll is 'reduce_all', expected one of"),
                       (weft.HookPlan([weft.HookCollective("all_reduce", "f31", 3)]), "no element type 'f31'"),
                       (weft.HookPlan(result="nowhere"), "result is 'nowhere', expected one of: bucket, scratch")):
        def body(comm):
            class Plans(Mean):
                def plan(self, bucket):
                    if comm.rank == 0:
                        if isinstance(made, Exception):
                            raise made
                        return made
                    return super().plan(bucket)

            with weft.CustomHook(comm.context, Plans()) as hook:
                error = expect_raises(weft.WeftError, text, weft.Reducer, comm, params_of(3), hook=hook)
                expect_equal((error.code, error.__cause__ is not None), (weft.Status.ERR_HOOK, comm.rank == 0))

        ranks(body)


def test_misuse():
    """a hook without plan or stage, of another class or with another name on a rank is refused"""
    def body(comm):
        class NoStage(weft.HookFunctions):
            def plan(self, bucket):
                return weft.HookPlan()

        expect_raises(TypeError, "NoStage has no function stage", weft.CustomHook, comm.context, NoStage())
        expect_raises(TypeError, "functions is a object, expected", weft.CustomHook, comm.context, object())
        named = Mean()
        named.name = ""
        expect_raises(weft.WeftError, "weft_hook_table.name is missing", weft.CustomHook, comm.context, named)
        named.name = f"mean of rank {comm.rank}"
        with weft.CustomHook(comm.context, named) as hook:
            expect_raises(weft.WeftError, "mean of rank", weft.Reducer, comm, params_of(3), hook=hook)

    ranks(body)


def test_state():
    """what save returns comes back through load; an exception of either is raised, also from an empty state"""
    def body(comm):
        class Counts(Mean):
            name = "counts"

            def __init__(self, state=b""):
                super().__init__()
                self.state = state

            def save(self):
                if self.state == b"no":
                    raise LookupError("no state")
                return self.state

            def load(self, state):
                if state == b"bad":
                    raise ValueError("cannot use it")
                self.state = state

        for state in (b"", b"\0steps 7" * 1000):
            with weft.CustomHook(comm.context, Counts(state)) as hook, weft.CustomHook(comm.context, Counts()) as other:
                other.load(hook.save())
                expect_equal(other._calls.functions.state, state)
        with weft.CustomHook(comm.context, Counts(b"bad")) as hook, weft.CustomHook(comm.context, Counts(b"old")) as other:
            error = expect_raises(weft.WeftError, "failed in load: ValueError: cannot use it", other.load, hook.save())
            expect_equal((other._calls.functions.state, type(error.__cause__)), (b"old", ValueError))
        with weft.CustomHook(comm.context, Counts(b"no")) as hook:
            error = expect_raises(weft.WeftError, "failed in save: LookupError: no state", hook.save)
            expect_equal(type(error.__cause__), LookupError)
        with weft.CustomHook(comm.context, Mean()) as hook, weft.CustomHook(comm.context, Counts()) as other:
            expect_raises(weft.WeftError, "", other.load, hook.save())
            hook.load(hook.save())  # without functions the state is empty

    ranks(body, size=1)


def test_events():
    """a hook learns of a re-plan, of a rank without data, and of another communicator"""
    def body(comm):
        class Learns(Mean):
            def replan(self, bucket_count):
                self.calls.append(f"replan {bucket_count}")

            def join(self, bucket):
                self.calls.append(f"join {bucket.index}")

            def rebind(self, rank, size):
                self.calls.append(f"rebind {rank}/{size}")

        functions = Learns()
        gradients = [np.ones(3, np.float32), np.ones(4, np.float32)]
        with hooked(comm, functions, params_of(3, 4), uneven=True, replan="none") as reducer:
            step(reducer, *gradients)
            reducer.replan(bucket_limits=[0])
            expect_equal(functions.calls, ["plan", "stage 0", "stage 1", "replan 2", "plan", "plan"])
            functions.calls.clear()
            if comm.rank == 2:
                reducer.join()
            else:
                step(reducer, *gradients)
                reducer.join()
            expect_equal([call for call in functions.calls if call[0] == "j"], ["join 0", "join 1"][:2 * (comm.rank == 2)])
            part = comm.split(0 if comm.rank < 2 else None)
            functions.calls.clear()
            if part is not None:
                reducer.rebind(part)
                expect("rebind" in functions.calls[0], "the first call", functions.calls)
                expect_equal(functions.calls[0], f"rebind {comm.rank}/2")
                step(reducer, *gradients)
        if part is not None:
            part.close()

    ranks(body)

    def without_replan(comm):
        with hooked(comm, Mean(), params_of(3, 4)) as reducer:
            for _ in range(3):
                step(reducer, np.ones(3, np.float32), np.ones(4, np.float32))
            expect_equal(reducer.stats().plan_generation, 0)

    ranks(without_replan)


def test_sparse():
    """a hook sees the entries of sparse gradients, changes them and leaves some out"""
    def body(comm):
        class Largest(weft.HookFunctions):
            """Keeps the row with the largest value."""

            sparse = True

            def plan(self, bucket):
                entries = bucket.entries
                expect_equal((entries.row_count, entries.row_elements, entries.rows.shape, entries.values.shape),
                             (50, 2, (0,), (0, 2)))
                return weft.HookPlan([weft.HookCollective("all_reduce", bucket.dtype, 0, "sum")])

            def stage(self, bucket, stage):
                entries = bucket.entries
                if stage.index == 0:
                    expect_equal((entries.rows.tolist(), bucket.count), ([comm.rank, 20, 30], 0))
                    best = int(entries.values.max(axis=1).argmax())
                    entries.rows[0], entries.values[0] = entries.rows[best], entries.values[best]
                    expect_raises(ValueError, "keep(4): the gradient has 3 entries", entries.keep, 4)
                    entries.keep(1)
                    expect_equal(len(entries.values), 1)
                    self.kept = entries
                else:
                    entries.values[...] += 1

        functions = Largest()
        with hooked(comm, functions, [weft.Param("e", (50, 2), sparse=1)]) as reducer:
            with reducer.step():
                values = np.array([[1, 1], [2, 9], [3, 3 + 10 * (comm.rank == 2)]], np.float32)
                reducer.ready_sparse("e", np.array([comm.rank, 20, 30]), values)
            expect_raises(RuntimeError, "after the stage has returned", functions.kept.keep, 0)
            return [part.tolist() for part in reducer.sparse_result("e")]

    for result in ranks(body):
        expect_equal(result, [[[20, 30]], [[5.0, 19.0], [4.0, 14.0]]])


class OwnMean(weft.HookFunctions):
    """Averages the buckets, and leaves this rank the results of its share alone."""

    shares = True

    def plan(self, bucket):
        self.planned = bucket.shares
        return weft.HookPlan([weft.HookCollective("all_reduce", bucket.dtype, bucket.count, "avg")])

    def stage(self, bucket, stage):
        if stage.index == 1 and bucket.shares is not None:
            bucket.buffer[:bucket.shares[bucket.rank]] = -1
            bucket.buffer[bucket.shares[bucket.rank + 1]:] = -1


def test_shares():
    """a hook sees the shares of a sharded reducer; without sharding there are none, and without the flag it is refused"""
    def body(comm):
        functions, params = OwnMean(), params_of(1000, 7)
        with hooked(comm, functions, params, sharded=True) as reducer:
            expect_equal((functions.planned[0], functions.planned[-1], len(functions.planned)), (0, 1007, comm.size + 1))
            gradients = [np.full(param.shape, comm.rank, np.float32) for param in params]
            step(reducer, *gradients)
            for owned in reducer.owned():
                part = gradients[owned.param][owned.offset:owned.offset + owned.count]
                expect_equal(part.tolist(), [(comm.size - 1) / 2] * owned.count)
        with hooked(comm, functions, params) as reducer:
            expect_equal(functions.planned, None)
        with weft.CustomHook(comm.context, Mean()) as hook:
            expect_raises(weft.WeftError, "cannot be used with WEFT_REDUCER_SHARDED", weft.Reducer, comm, params, hook=hook,
                          sharded=True)

    ranks(body)


def test_dynamic():
    """a dynamic collective moves what the ranks need, and an optional one is left out in some steps"""
    def body(comm):
        class Moves(weft.HookFunctions):
            def __init__(self):
                self.moved = []

            def plan(self, bucket):
                most = 8
                gather = weft.HookCollective("all_gather", "f32", most, src="scratch", dst="scratch", dst_offset=4 * most,
                                             flags="dynamic")
                mean = weft.HookCollective("all_reduce", "f32", bucket.count, "avg", flags=weft.HookCollectiveFlag.OPTIONAL)
                return weft.HookPlan([gather, mean], scratch_bytes=4 * most * (1 + bucket.size))

            def stage(self, bucket, stage):
                numbers = bucket.scratch.view(np.float32)
                if stage.index == 0:
                    numbers[:comm.rank + 1] = comm.rank
                    stage.dynamic_count = comm.rank + 1
                elif stage.index == 1:
                    blocks = numbers[8:8 + bucket.size * stage.moved_count].reshape(bucket.size, stage.moved_count)
                    self.moved.append((stage.counts, stage.moved_count, blocks[:, 0].tolist()))
                    stage.dynamic_count = bucket.count if bucket.step == 1 else 0

        functions = Moves()
        with hooked(comm, functions, params_of(4)) as reducer:
            results = []
            for _ in range(2):
                gradient = np.full(4, float(comm.rank), np.float32)
                step(reducer, gradient)
                results.append(float(gradient[0]))
        expect_equal(functions.moved, [((1, 2, 3), 3, [0.0, 1.0, 2.0])] * 2)
        expect_equal(results, [float(comm.rank), 1.0])

    ranks(body)


def test_inside_another():
    """a custom hook works inside a built-in one, which passes its exceptions on"""
    def body(comm):
        class Inner(Mean):
            def stage(self, bucket, stage):
                super().stage(bucket, stage)
                if bucket.step == 1 and comm.rank == 1:
                    raise ValueError("in the second step")

        functions = Inner()
        custom = weft.CustomHook(comm.context, functions)
        with weft.Hook(comm.context, "bf16", inner=custom) as hook:
            with weft.Reducer(comm, params_of(3), hook=hook) as reducer:
                gradient = np.full(3, float(comm.rank), np.float32)
                step(reducer, gradient)
                expect_equal((functions.calls, gradient.tolist()), (["plan", "stage 0", "stage 1"], [1.0] * 3))
                meet.wait()
                error = expect_raises(weft.WeftError, "ValueError: in the second step", step, reducer, gradient)
                expect_equal(type(error.__cause__), ValueError if comm.rank == 1 else type(None))
        custom.close()

    ranks(body)


def test_lifetime():
    """the library keeps the functions alive as long as a reducer uses the hook, and frees them then"""
    def body(comm):
        functions = Mean()
        alive = weakref.ref(functions)
        with weft.CustomHook(comm.context, functions) as hook:
            del functions
            reducer = weft.Reducer(comm, params_of(3), hook=hook)
        del hook
        gc.collect()
        expect(alive() is not None, "the functions live")
        step(reducer, np.ones(3, np.float32))
        reducer.close()
        del reducer
        cases.wait_until(lambda: gc.collect() is not None and alive() is None, "the functions are freed")

    ranks(body)


def test_kept_array():
    """an array that a stage has kept is no dangling pointer: it keeps the reducer alive, which then stays usable"""
    def body(comm):
        kept = []

        class Keeps(Mean):
            def stage(self, bucket, stage):
                self.bucket = bucket
                kept.append(bucket.buffer)

        functions = Keeps()
        hook = weft.CustomHook(comm.context, functions)
        reducer = weft.Reducer(comm, params_of(3), hook=hook)
        step(reducer, np.ones(3, np.float32))
        for name in ("buffer", "scratch", "entries"):
            expect_raises(RuntimeError, "is used after the hook's function has returned", getattr, functions.bucket, name)
        alive = weakref.ref(reducer)
        del reducer
        gc.collect()
        expect(alive() is not None and not alive().closed, "the reducer is open")
        expect_equal(kept[-1].shape, (3,))
        kept.clear()
        cases.wait_until(lambda: gc.collect() is not None and alive() is None, "the reducer is freed")
        hook.close()

    ranks(body)


def test_interrupts():
    """Ctrl-C in plan or in a stage on the main thread is raised by the program's call, and fails the other rank"""
    program = """if True:
        import signal, sys, threading, numpy as np, weftsync as weft
        where = sys.argv[1]
        class Stops(weft.HookFunctions):
            def plan(self, bucket):
                if where == "plan" and bucket.rank == 0:
                    signal.raise_signal(signal.SIGINT)
                return weft.HookPlan([weft.HookCollective("all_reduce", "f32", bucket.count, "avg")])
            def stage(self, bucket, stage):
                if where == "stage" and bucket.rank == 0:
                    signal.raise_signal(signal.SIGINT)
        gathering = weft.Gathering(2)
        def rank(r):
            with weft.Context(progress="caller", log=False) as context:
                with weft.Comm(context, rank=r, size=2, all_gather=gathering.of(r), backend="loopback", timeout=20) as comm:
                    try:
                        hook = weft.CustomHook(context, Stops())
                        with weft.Reducer(comm, [weft.Param("w", (3,))], hook=hook) as reducer:
                            with reducer.step():
                                reducer.ready(0, np.ones(3, np.float32))
                    except weft.WeftError as error:
                        sys.stdout.write(f"{r} failed: {'KeyboardInterrupt' in error.text} {error.ranks}\\n")
                    except KeyboardInterrupt:
                        sys.stdout.write(f"{r} raised\\n")
        other = threading.Thread(target=rank, args=(1,))
        other.start()
        rank(0)
        other.join()
    """
    for where in ("plan", "stage"):
        result = cases.run([sys.executable, "-c", program, where], environment={"PYTHONPATH": str(ROOT / "python")})
        expect_equal((sorted(result.stdout.splitlines()), result.stderr), (["0 raised", "1 failed: True (0,)"], ""), where)


def test_exit():
    """the interpreter exits with an open reducer: idle, in a step, with a pending stage and with a stage that runs, also
    one that ends by nothing"""
    program = """if True:
        import sys, threading, time, numpy as np, weftsync as weft
        how = sys.argv[1]
        inside = threading.Event()
        class Stays(weft.HookFunctions):
            def plan(self, bucket):
                return weft.HookPlan([weft.HookCollective("all_reduce", "f32", bucket.count, "avg")])
            def stage(self, bucket, stage):
                if stage.index == 0 and how == "pending":
                    self.token = stage.later()
                inside.set()
                while how == "running":
                    pass
                if how == "sleeping":
                    time.sleep(600)
                while how == "stubborn":
                    try:
                        time.sleep(0.001)
                    except BaseException:
                        pass
        comm = weft.Comm(weft.Context(log=False), rank=0, size=1, store="unix:@weft-unused", backend="shm")
        reducer = weft.Reducer(comm, [weft.Param("v", (3,)), weft.Param("w", (3,))], hook=weft.CustomHook(comm.context, Stays()),
                               bucket_limits=[0])
        if how == "idle":
            with reducer.step():
                reducer.ready(1, np.ones(3, np.float32))
                reducer.ready(0, np.ones(3, np.float32))
        else:
            reducer.begin()
            reducer.ready(1, np.ones(3, np.float32))
            inside.wait()
        print("ends", flush=True)
    """
    for how in ("idle", "step", "pending", "running", "sleeping", "stubborn"):
        begin = time.monotonic()
        result = cases.run([sys.executable, "-X", "dev", "-c", program, how], timeout=40,
                           environment={"PYTHONPATH": str(ROOT / "python")})
        expect_equal((result.returncode, result.stdout, result.stderr), (0, "ends\n", ""), how)
        expect(time.monotonic() - begin < 30, "seconds until the process has ended", how, time.monotonic() - begin)


if __name__ == "__main__":
    cases.main(globals())
