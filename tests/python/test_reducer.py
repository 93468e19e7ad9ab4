#!/usr/bin/env python3
"""Reducer of the package weftsync. Ranks are threads."""
import re
import threading

from ranks_of_threads import ROOT, SIZE, cases, expect, expect_equal, expect_raises, np, ranks, weft


def test_modes():
    """a reducer averages gradients of any strides, in copy mode and in view mode"""
    def body(comm):
        results = []
        for mode in ("copy", "view"):
            params = [weft.Param("w", (4, 3)), weft.Param("t", (4, 3), "f32", (1, 4)), weft.Param("b", (), "f64")]
            done = []
            with weft.Reducer(comm, params, mode=mode, bucket_limits=[0],
                              on_bucket=lambda step, bucket, status: done.append((step, bucket, status))) as reducer:
                grads = reducer.views if mode == "view" else [
                    np.zeros((4, 3), np.float32), np.zeros((3, 4), np.float32).T, np.zeros(())]
                expect_equal(grads[1].strides, (4, 16))
                for grad in grads:
                    grad[...] = comm.rank + np.arange(grad.size).reshape(grad.shape)
                with reducer.step():
                    reducer.ready("b", None if mode == "view" else grads[2])
                    reducer.ready(1, grads[1])
                    reducer.ready(0, grads[0])
                expect_equal([bucket.params for bucket in reducer.buckets()], [(2,), (1,), (0,)])
                expect_equal(reducer.stats().steps, 1)
                results.append([grad.tolist() for grad in grads])
                cases.wait_until(lambda: len(done) == 3, "on_bucket was called for every bucket")
                del grads
            expect_equal(sorted(done), [(0, bucket, weft.Status.OK) for bucket in range(3)])
        expect_equal(results[0], results[1])
        return results[0]

    wanted = (1 + np.arange(12.0).reshape(4, 3)).tolist()
    for result in ranks(body):
        expect_equal(result, [wanted, wanted, 1.0])


def test_gaps():
    """a gradient whose strides have gaps keeps them in copy mode, and is row-major in its view"""
    def body(comm):
        for mode in ("copy", "view"):
            with weft.Reducer(comm, [weft.Param("g", (3, 2), "f32", (4, 1))], mode=mode) as reducer:
                memory = np.full((3, 4), 7, np.float32)
                grad = memory[:, :2] if mode == "copy" else reducer.view("g")
                expect_equal(grad.strides, (16, 4) if mode == "copy" else (8, 4))
                grad[...] = comm.rank
                with reducer.step():
                    expect_raises(weft.WeftError, "'g'): its gradient is ", reducer.ready, "g", np.zeros((2, 3), np.float32))
                    reducer.ready("g", grad)
                expect_equal((grad.tolist(), memory[:, 2:].tolist()), ([[1.0] * 2] * 3, [[7.0] * 2] * 3))
                del grad

    ranks(body)


def test_accumulation():
    """local steps accumulate; the synchronised step averages the sum and divides it by the micro-batches"""
    def body(comm):
        out = []
        for adds in ("program", "reducer"):
            with weft.Reducer(comm, [weft.Param("w", (3,))], accumulate=adds) as reducer:
                grad = np.zeros(3, np.float32)
                for batch in range(3):
                    grad = comm.rank + batch + (grad if adds == "program" else np.zeros(3, np.float32))
                    with reducer.step(local=batch < 2, micro_batches=3 if batch == 2 else 1):
                        reducer.ready(0, grad)
                out.append(grad.tolist())
                expect_equal(reducer.report()["reducer"]["accumulation"], adds)
        with weft.Reducer(comm, [weft.Param("w", (3,))]) as reducer:
            expect_equal(reducer.report()["reducer"]["accumulation"], None)
            expect_raises(weft.WeftError, "WEFT_BEGIN_LOCAL needs a choice in weft_reducer_options.accumulation",
                          reducer.begin, local=True)
        expect_raises(ValueError, "accumulate is 'both', expected one of: unset, program, reducer",
                      weft.Reducer, comm, [weft.Param("w", (3,))], accumulate="both")
        return out

    expect_equal(ranks(body), [[[2.0] * 3] * 2] * SIZE)


def test_sparse():
    """sparse gradients are averaged entry by entry, beside dense ones"""
    def body(comm):
        params = [weft.Param("e", (300, 2), sparse=1), weft.Param("w", (3,)), weft.Param("g", (30, 40), "f64", sparse=2)]
        with weft.Reducer(comm, params) as reducer:
            expect_equal([bucket.params for bucket in reducer.buckets()], [(2,), (1,), (0,)])
            with reducer.step():
                reducer.ready_sparse("e", np.array([5, comm.rank, 5]), np.full((3, 2), 3, np.float32))
                reducer.ready_sparse("g", np.array([[29], [39]]), np.array([3.0 * comm.rank]))
                reducer.ready("w", np.ones(3, np.float32))
                expect_raises(ValueError, "i64 indices", reducer.ready_sparse, "e", np.zeros(3), np.zeros((3, 2), np.float32))
                expect_raises(ValueError, "F32 values", reducer.ready_sparse, "e", np.zeros(3, int), np.zeros((3, 3), np.float32))
            return [part.tolist() for name in "eg" for part in reducer.sparse_result(name)]

    wanted = [[[*range(SIZE), 5]], [[3 / SIZE] * 2] * SIZE + [[6.0, 6.0]], [[29], [39]], [1.0 * sum(range(SIZE))]]
    for result in ranks(body):
        expect_equal(result, wanted)


def test_types():
    """gradients are reduced in another type, complex ones as pairs; out-of-view gradients are copied into views"""
    def body(comm):
        params = [weft.Param("w", (3,)), weft.Param("c", (2, 2), "c64", (1, 2)), weft.Param("z", (), complex)]
        with weft.Reducer(comm, params, mode="view", reduce_dtype="bf16", deterministic=True, copy_strays=True,
                          replan=True) as reducer:
            stray = np.array([1 + 2**-10, 2.0, 3.0 + comm.rank], np.float32)
            expect_equal([view.dtype.name for view in reducer.views], ["float32", "complex64", "complex128"])
            for _ in range(2):
                with reducer.step():
                    views = reducer.views
                    views[1][...] = np.array([[1, 2j], [3, 4 - 1j]]) * (1 + comm.rank)
                    views[2][...] = 1j
                    reducer.ready("w", stray)
                    reducer.ready("c")
                    reducer.ready("z")
            result = [view.tolist() for view in views]
            expect_equal({bucket.dtype.name for bucket in reducer.buckets()}, {"BF16", "F64"})
            del views
        return result

    for result in ranks(body):
        expect_equal(result, [[1.0, 2.0, 4.0], [[2, 4j], [6, 8 - 2j]], 1j])


def test_wrong_hook():
    """a hook that is not a Hook is a TypeError that says what is expected"""
    def body(comm):
        expect_raises(TypeError, "hook is a str, expected a Hook", weft.Reducer, comm, [weft.Param("w", (3,))], hook="x")
    ranks(body, 1)


def test_report():
    """the report is a dict with the settings, the times of the last step, and all memory"""
    def body(comm):
        with weft.Hook(comm.context, "fp16", order="ddp") as hook:
            with weft.Reducer(comm, [weft.Param("w", (3,)), weft.Param("b", ())], hook=hook, absent=True) as reducer:
                for _ in range(2):
                    with reducer.step(rest_absent=True):
                        reducer.ready("b", np.ones((), np.float32))
                report, stats = reducer.report(), reducer.stats()
        expect_equal(report["reducer"]["hook"], "fp16(order=ddp)[allreduce]")
        expect_equal((report["reducer"]["flags"], report["reducer"]["parameters"]), (["absent"], 2))
        expect_equal(report["steps"], {"synchronised": 2, "local": 0, "failed": 0, "same_pattern": True})
        expect_equal((report["last_step"]["absent_bytes"], stats.absent_bytes, stats.param_bytes), (12, 12, 16))
        expect_equal(report["last_step"]["step_ns"], stats.step_ns)
        expect_equal(sum(report["memory"].values()), stats.bucket_bytes + stats.scratch_bytes + stats.retained_bytes +
                     stats.hook_bytes + stats.other_bytes)
        expect_equal([bucket["parameters"] for bucket in report["buckets"]], [[1, 0]])  # re-planned in the ready order
        return stats.steps

    expect_equal(ranks(body), [2] * SIZE)


def test_report_beside_ddp():
    """every field that docs/dev/reducer.md names for a field of DistributedDataParallel is in the report"""
    text = (ROOT / "docs/dev/reducer.md").read_text()
    table = re.search(r"^\| its field \| here \|\n\|---\|---\|\n((?:\|.*\n)+)", text, re.M)[1]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    paths = [path for _, here in rows if not here.startswith("no meaning") for path in re.findall(r"`([^`]+)`", here)]
    fields = [field for names, _ in rows for field in re.findall(r"\w+_\w+|[a-z]+", names.split("(")[0])]
    expect_equal(len(fields), len(set(fields)))
    expect(len(paths) >= 30 and all("`" in here or here.startswith("no meaning") for _, here in rows), "every row names a field or its reason", rows)

    def body(comm):
        with weft.Reducer(comm, [weft.Param("w", (3,)), weft.Param("b", ())], absent=True) as reducer:
            for _ in range(2):
                with reducer.step(rest_absent=True):
                    reducer.ready("b", np.ones((), np.float32))
            expect_raises(weft.WeftError, "outside a step", reducer.ready, "b", np.ones((), np.float32))
            return reducer.report()

    for report in ranks(body):
        for path in paths:
            at = report
            for name in path.split("."):
                name, each = name.removesuffix("[]"), name.endswith("[]")
                expect(name in at, f"the report has {path}", sorted(at))
                at = at[name][0] if each else at[name]
        expect_equal(report["reducer"]["devices"], [])


def test_ddp_buckets():
    """buckets are filled from the last parameter on; ddp_buckets=True makes those of DistributedDataParallel"""
    def body(comm):
        params = [weft.Param(name, (count,)) for name, count in (("a", 4), ("b", 4), ("c", 9))]
        for ddp, buckets in ((False, [(2,), (0, 1)]), (True, [(1, 2), (0,)])):
            with weft.Reducer(comm, params, bucket_limits=[16, 32], ddp_buckets=ddp) as reducer:
                expect_equal([bucket.params for bucket in reducer.buckets()], buckets)

    ranks(body)


def test_closed_communicator():
    """a reducer over a communicator that is closed is refused by name"""
    def body(comm):
        part = comm.split(0)
        part.close()
        expect_raises(ValueError, "the communicator is closed", weft.Reducer, part, [weft.Param("a", (4,))])
        with weft.Reducer(comm, [weft.Param("a", (4,))]) as reducer:
            expect_raises(ValueError, "the communicator is closed", reducer.rebind, part)

    ranks(body)


def test_defaults():
    """by default a reducer copies rank 0's values, re-plans after its first step, and copies gradients of other strides"""
    def body(comm):
        for kept in (False, True):
            weight, other = np.full((3, 2), comm.rank, np.float32), np.full(4, comm.rank, np.float64)
            params = [weft.Param.like("weight", weight, value=weight), weft.Param.like("other", other, value=other)]
            with weft.Reducer(comm, params, keep_values=kept, replan="none" if kept else "default", strict_strides=kept, bucket_limits=[0]) as reducer:
                whose = comm.rank if kept else 0
                expect_equal((weight.tolist(), other.tolist()), ([[whose] * 2] * 3, [whose] * 4))
                for step in range(2):
                    grads = [np.full((2, 3), comm.rank + step, np.float32).T, np.full(4, comm.rank, np.float64)]
                    with reducer.step():
                        if kept:
                            expect_raises(weft.WeftError, "with strides [1, 3], and must be", reducer.ready, 0, grads[0])
                            grads[0] = np.ascontiguousarray(grads[0])
                        for index in (0, 1):
                            reducer.ready(index, grads[index])
                    expect_equal(grads[0].tolist(), [[1 + step] * 2] * 3)
                stats = reducer.stats()
                expect_equal((stats.copied_gradients, stats.plan_generation), (0, 0) if kept else (2, 1))

    ranks(body)


def test_state():
    """values are broadcast from a rank, buffers as steps begin, and an error names values that differ"""
    def body(comm):
        weight = np.full((3, 2), comm.rank, np.float32).T  # not row-major
        mean, count = np.full(4, comm.rank, np.int64), np.array(comm.rank, np.uint8)
        params = [weft.Param.like("weight", weight, value=weight), weft.Param.like("mean", mean, value=mean, flags="buffer"),
                  weft.Param("count", (), "u8", value=count.ctypes.data, flags="state_only"),
                  weft.Param(f"{comm.rank}'s own", (comm.rank,), flags="ignored")]
        with weft.Reducer(comm, params, buffers=True, buffers_root="last_active", uneven=True, check_interval=2,
                          keep_values=True) as reducer:
            error = expect_raises(weft.WeftError, "'weight') is the first that differs", reducer.check)
            expect_equal(error.ranks, (1, 2))
            expect_raises(weft.WeftError, "step 0 cannot begin", reducer.begin)
            reducer.broadcast(1, what="params", chunk_bytes=16, in_flight=3, timeout=10)
            expect_equal((weight.tolist(), mean.tolist(), int(count)), ([[1.0] * 3] * 2, [comm.rank] * 4, comm.rank))
            expect_raises(weft.WeftError, "'count') is the first that differs", reducer.check)
            reducer.broadcast(1, what="state")
            reducer.check()
            reducer.begin(no_data=comm.rank == 2)
            expect_equal(mean.tolist(), [1] * 4)
            expect_raises(weft.WeftError, "'mean') is a buffer", reducer.ready, "mean", mean)
            if comm.rank < 2:
                reducer.ready(0, np.ones((3, 2), np.float32).T)
            reducer.finish()
            count[...] = comm.rank
            reducer.broadcast("last_active")
            expect_equal(int(count), 1)
            expect_raises(weft.WeftError, "root is 9: allowed are 0 to 2" if comm.rank == 0 else "rank 0 cannot broadcast",
                          reducer.broadcast, 9 if comm.rank == 0 else 0)
            expect_raises(ValueError, "'last'", reducer.broadcast, "last")
        expect_raises(ValueError, "the value of weight", weft.Param("weight", (2, 3), value=weight).address)
        expect_raises(ValueError, "read-only", weft.Param("b", (1,), "u8", value=np.frombuffer(b"x", np.uint8)).address)

    ranks(body)


def test_misuse():
    """misuse of a reducer raises an error that names the parameter"""
    def body(comm):
        with weft.Reducer(comm, [weft.Param("w", (2, 3)), weft.Param("b", (3,))], strict_strides=True) as reducer:
            grad, bias = np.ones((2, 3), np.float32), np.ones(3, np.float32)
            expect_raises(weft.WeftError, "", reducer.ready, 0, grad)
            reducer.begin()
            for wrong, sides in ((bias, "f32 [3], and must be f32 [2, 3]"),
                                 (np.ones((3, 2), np.float32).T, "f32 [2, 3] with strides [1, 2], and must be f32 [2, 3]"),
                                 (np.ones((2, 3)), "f64 [2, 3], and must be f32 [2, 3]"),
                                 (np.ones((2, 3), np.uint16), "u16 [2, 3]")):
                error = expect_raises(weft.WeftError, "'w'): its gradient is ", reducer.ready, "w", wrong)
                expect(sides in str(error), f"the error contains both sides: {sides}", error)
                expect_equal(error.code, weft.Status.ERR_ARG)
            expect_raises(ValueError, "the gradient of w is read-only", reducer.ready, "w",
                          np.frombuffer(bytes(24), np.float32).reshape(2, 3))
            expect_raises(weft.WeftError, "parameter 7 is unknown", reducer.ready, 7, grad)
            reducer.ready("w", grad)
            expect_raises(weft.WeftError, "'w'", reducer.ready, "w", grad)
            error = expect_raises(weft.WeftError, "'b'", reducer.finish)
            expect_equal((error.code, reducer.error().code), (weft.Status.ERR_STATE,) * 2)
            reducer.ready("b", bias)
            reducer.finish()
        other = [weft.Param("w", (2, 3 + (comm.rank == 1)))]
        return str(expect_raises(weft.WeftError, "'w'", weft.Reducer, comm, other))

    texts = ranks(body)
    expect(all("4" in text and "3" in text for text in texts), "both sides are named on every rank", *texts)


def test_absent():
    """an absent parameter receives the other ranks' sum; one that is absent everywhere is left unchanged"""
    def body(comm):
        params = [weft.Param(name, (2,)) for name in ("all", "some", "placed", "none")]
        grads = {param.name: np.full(2, 3.0 * comm.rank, np.float32) for param in params}
        with weft.Reducer(comm, params, absent=True) as reducer:
            reducer.begin(gradients={"placed": grads["placed"]})
            reducer.ready("all", grads["all"])
            if comm.rank == 1:
                reducer.ready("some", grads["some"])
                reducer.ready("placed", grads["placed"])
            else:
                reducer.absent("some")
                expect_raises(weft.WeftError, "'some'", reducer.ready, "some", grads["some"])
            reducer.finish(rest_absent=True)
            if comm.rank != 1:
                reducer.result("some", grads["some"])
            expect_raises(weft.WeftError, "'none'", reducer.result, "none", grads["none"])
            expect(reducer.param("none").absent_everywhere and not reducer.param("some").absent_everywhere, "absent")
            expect_equal((reducer.stats().absent_params, reducer.stats().absent_everywhere),
                         (1 if comm.rank == 1 else 3, 1))
        return {name: float(grad[0]) for name, grad in grads.items()}

    expect_equal(ranks(body), [{"all": 3.0, "some": 1.0, "placed": 1.0, "none": 3.0 * rank} for rank in range(SIZE)])


def test_gradient_places():
    """a parameter with a fixed gradient array needs none at ready, and receives its result there when it is absent"""
    def body(comm):
        grads = [np.full((2, 3), 3.0 * comm.rank, np.float32).T, np.full(2, 3.0 * comm.rank)]
        params = [weft.Param.like("a", grads[0], gradient=grads[0]),
                  weft.Param("b", (2,), "f64", gradient=grads[1].ctypes.data)]
        with weft.Reducer(comm, params, absent=True) as reducer:
            with reducer.step(rest_absent=True):
                reducer.ready("a")
                if comm.rank == 1:
                    reducer.ready("b")
            ready_ns = reducer.report()["last_step"]["ready_times_ns"]
            expect_equal([ns is not None for ns in ready_ns], [True, comm.rank == 1])
        expect_raises(ValueError, "the gradient of a is F32", weft.Param("a", (2, 3), gradient=grads[0]).gradient_address)
        return [grad.tolist() for grad in grads]

    expect_equal(ranks(body), [[[[3.0] * 2] * 3, [1.0, 1.0]]] * SIZE)


def test_norms():
    """norms are those of the results; a step is clipped, or skipped on all ranks if one rank skips it"""
    def body(comm):
        with weft.Reducer(comm, [weft.Param("a", (2,)), weft.Param("b", (3,))], norms=True) as reducer:
            grads = [np.full(2, 3.0, np.float32), np.full(3, 2.0, np.float32)]
            with reducer.step(clip_norm=3.0):
                for index, grad in enumerate(grads):
                    reducer.ready(index, grad)
            norms = reducer.norms()
            reducer.begin()
            for index, grad in enumerate(grads):
                reducer.ready(index, grad)
            reducer.finish(skip=comm.rank == 1)
            skipped = [reducer.norms().skipped, reducer.skipped]
            clipped, broken = [grad.tolist() for grad in grads], []
            for wrong in (np.inf, 1.0):
                grads[0][0] = wrong if comm.rank == 2 else 1.0
                with reducer.step(skip_nonfinite=True):
                    for index, grad in enumerate(grads):
                        reducer.ready(index, grad)
                skipped.append(reducer.skipped)
                broken.append(reducer.norms().nonfinite)
            return norms, skipped, clipped, broken

    for norms, skipped, grads, broken in ranks(body):
        expect_equal((norms.nonfinite, broken), ((), [(0,), ()]))
        expect_equal((norms.total, norms.params), (30 ** 0.5, (18 ** 0.5, 12 ** 0.5)))
        expect_equal((norms.clip_factor, norms.skipped, skipped), (3 / 30 ** 0.5, False, [True, True, True, False]))
        expect(abs(sum(x * x for grad in grads for x in grad) - 9) < 1e-5, "clipped to 3, then unchanged")


def test_sharded():
    """each rank receives the results that it owns, updates these slices, and all values are gathered"""
    def body(comm):
        for own_whole in (False, True):
            values = [np.zeros(100, np.float32), np.zeros((3, 5), np.float32)]
            params = [weft.Param(name, value.shape, value=value) for name, value in zip("ab", values)]
            with weft.Reducer(comm, params, sharded=True, own_whole=own_whole) as reducer:
                for step in range(3):
                    grads = [np.full(value.shape, comm.rank + step, np.float32) for value in values]
                    with reducer.step():
                        for index, grad in enumerate(grads):
                            reducer.ready(index, grad)
                    for each in reducer.owned():
                        part = slice(each.offset, each.offset + each.count)
                        values[each.param].reshape(-1)[part] -= grads[each.param].reshape(-1)[part]
                    reducer.gather_params()
                    reducer.wait_param("a")
                    expect_equal(set(values[0].tolist()), {-sum((SIZE - 1) / 2 + done for done in range(step + 1))})
                slices = [each for rank in range(SIZE) for each in reducer.owned(rank)]
                expect_equal(sum(each.count for each in slices), 115)
                if own_whole:
                    expect_equal(sorted(each.param for each in slices), [0, 1])
            expect_equal(values[1].tolist(), [[values[0][0]] * 5] * 3)

    ranks(body)


def test_join():
    """ranks that have run out of data join; sums are divided by all ranks, those that have data, or their weights"""
    def body(comm):
        results = []
        for divide_by in ("world", "active", "weights"):
            with weft.Reducer(comm, [weft.Param("w", (1,), "f64")], uneven=True, divide_by=divide_by) as reducer:
                for _ in range(comm.rank + 1):
                    grad = np.full(1, comm.rank + 1.0)
                    with reducer.step(weight=comm.rank + 1.0 if divide_by == "weights" else 1.0):
                        reducer.ready(0, grad)
                    results.append(round(float(grad[0]), 6))
                joined = reducer.join()
                expect_equal((joined.steps, joined.last_active), (SIZE - 1 - comm.rank, SIZE - 1))
        return results

    expect_equal(ranks(body)[2], [2.0, 1.666667, 1.0, 2.0, 2.5, 3.0, 2.333333, 2.6, 3.0])


def test_plans():
    """buckets follow the program's plan or the ready order, and views move with them"""
    def body(comm):
        params = [weft.Param(name, (4,)) for name in "abc"]
        with weft.Reducer(comm, params, mode="view", plan=[["c", "a"], ["b"]]) as reducer:
            expect_equal([bucket.params for bucket in reducer.buckets()], [(2, 0), (1,)])
            for order, record in (("bca", False), ("acb", True)):
                for view in reducer.views:
                    view[:] = comm.rank
                with reducer.step(record=record):
                    for name in order:
                        reducer.ready(name)
                reducer.replan(bucket_limits=[16])
                expect_equal([bucket.params for bucket in reducer.buckets()], [("abc".index(name),) for name in order])
                expect_equal([float(view[0]) for view in reducer.views], [1.0] * 3)
            expect_equal(reducer.stats().plan_generation, 2)

    ranks(body)


def test_local_sgd():
    """post_local_sgd averages over its own communicator, and an averager averages in levels"""
    def body(comm):
        part = comm.split(comm.rank // 2)
        hook = weft.Hook(comm.context, "post_local_sgd", comm=part, start=1)
        value = np.full((3, 2), float(comm.rank), np.float32)
        results = []
        with weft.Reducer(comm, [weft.Param("w", (1,))], hook=hook) as reducer:
            for _ in range(2):
                grad = np.full(1, float(comm.rank), np.float32)
                with reducer.step():
                    reducer.ready(0, grad)
                results.append(float(grad[0]))
        with weft.Averager(comm, {"w": value.T}, [(1, part), (3, None)], warmup=2) as averager:
            periods = [averager.step() for _ in range(3)]
        expect_equal(periods, [0, 0, 3])
        expect_raises(weft.WeftError, "period of level 0 is 0", weft.Averager, comm, {"w": value}, 0)
        blob = hook.save()
        expect_raises(weft.WeftError, "a communicator of its own", weft.Hook, comm.context, saved=blob)
        expect_equal(weft.Hook(comm.context, comm=part, saved=blob).save(), blob)
        part.close()
        return results, float(value[2, 1])

    own = [0.5, 0.5, 2.0][:SIZE]
    expect_equal(ranks(body), [([1.0, own[rank]], 1.0) for rank in range(SIZE)])


def test_recovery():
    """the survivors shrink, rebind and retry the failed step"""
    begun = threading.Barrier(SIZE, timeout=20)  # the survivors have begun the second step

    def body(comm):
        grad = np.full(4, comm.rank + 1.0, np.float32)
        # A re-plan would make the survivors wait for rank 2 in begin.
        reducer = weft.Reducer(comm, [weft.Param("w", (4,))], retain=True, replan="none")
        with reducer.step():
            reducer.ready(0, grad)
        if comm.rank == 2:
            begun.wait()
            comm.close()
            return None
        grad[:] = comm.rank + 1
        reducer.begin()
        reducer.ready(0, grad)
        begun.wait()
        expect_raises(weft.WeftError, "", reducer.finish)
        survivors = comm.shrink()
        reducer.rebind(survivors)
        verdict = reducer.verdict()
        expect_equal((verdict.last_committed_step, verdict.can_retry), (0, True))
        reducer.retry()
        reducer.close()
        survivors.barrier()
        survivors.close()
        return grad.tolist()

    expect_equal(ranks(body), [[1.5] * 4, [1.5] * 4, None])


def test_other_communicators():
    """a reducer continues over fewer ranks, over more, and over all again"""
    def body(comm):
        means, parts = [], [comm]
        with weft.Reducer(comm, [weft.Param("w", (2,))]) as reducer:
            for size in (4, 2, 3, 4):
                if size < 4:
                    parts.append(comm.split(0 if comm.rank < size else None))
                part = parts[-1] if size < 4 else comm
                if part is None:
                    continue
                if means:
                    reducer.rebind(part)
                grad = np.full(2, float(comm.rank), np.float32)
                with reducer.step(commit=True):
                    reducer.ready(0, grad)
                means.append(float(grad[0]))
        for part in parts[1:]:
            if part is not None:
                part.close()
        return means

    expect_equal(ranks(body, size=4), [[1.5, 0.5, 1.0, 1.5], [1.5, 0.5, 1.0, 1.5], [1.5, 1.0, 1.5], [1.5, 1.5]])



def test_sharded_other_communicators():
    """a sharded reducer's slices follow the ranks of its communicator, fewer or more"""
    def body(comm):
        for own_whole in (False, True):
            values = [np.zeros(count, np.float32) for count in (100, 7, 33, 64)]
            params = [weft.Param(f"p{index}", value.shape, value=value) for index, value in enumerate(values)]
            parts, bound = [comm], False
            with weft.Reducer(comm, params, sharded=True, own_whole=own_whole, norms=True, bucket_limits=[500]) as reducer:
                for size in (4, 2, 3, 4):
                    if size < 4:
                        parts.append(comm.split(0 if comm.rank < size else None))
                    part = parts[-1] if size < 4 else comm
                    if part is None:
                        continue
                    if bound:
                        reducer.rebind(part)
                    bound = True
                    grads = [np.full(value.shape, comm.rank + 1.0, np.float32) for value in values]
                    with reducer.step(commit=True):
                        for index, grad in enumerate(grads):
                            reducer.ready(index, grad)
                    mean = (size + 1) / 2
                    for each in reducer.owned():
                        piece = slice(each.offset, each.offset + each.count)
                        expect_equal(set(grads[each.param][piece].tolist()), {mean})
                        values[each.param][piece] = size
                    expect(abs(reducer.norms().total - mean * 204 ** 0.5) < 1e-9, "the norm of all slices")
                    owned = [each for rank in range(size) for each in reducer.owned(rank)]
                    expect_equal(sum(each.count for each in owned), 204)
                    reducer.gather_params()
                    for index, value in enumerate(values):
                        reducer.wait_param(index)
                        expect_equal(set(value.tolist()), {float(size)})
            for part in parts[1:]:
                if part is not None:
                    part.close()

    ranks(body, size=4)


def test_threads():
    """ready may be called from several threads at once"""
    count = 64

    def body(comm):
        grads = [np.full(10, comm.rank, np.float32) for _ in range(count)]
        with weft.Reducer(comm, [weft.Param(f"p{i}", (10,)) for i in range(count)], bucket_limits=[100]) as reducer:
            for _ in range(3):
                reducer.begin()
                workers = [threading.Thread(target=lambda part: [reducer.ready(i, grads[i]) for i in part],
                                            args=(range(first, count, 4),)) for first in range(4)]
                for worker in workers:
                    worker.start()
                for worker in workers:
                    worker.join()
                reducer.finish()
        return sorted({float(value) for grad in grads for value in grad})

    expect_equal(ranks(body), [[1.0]] * SIZE)


if __name__ == "__main__":
    cases.main(globals())
