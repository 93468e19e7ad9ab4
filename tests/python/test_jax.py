#!/usr/bin/env python3
"""Arrays of JAX, which are immutable. Ranks are threads. Usage: test_jax.py BUILD

jax_environment.py installs JAX.
"""
import gc

import jax_environment  # noqa: F401
import jax
import jax.numpy as jnp
from ranks_of_threads import SIZE, cases, expect, expect_equal, expect_raises, np, ranks, weft
import weftsync.jax as wj
from weftsync.jax import _tree


def test_in_place():
    """an in-place collective on a JAX array is refused, and neither the array nor an alias of it changes"""
    def body(comm):
        x = jnp.ones(4)
        y = x
        other = (comm.rank + 1) % SIZE
        for call, arguments in ((comm.all_reduce, {}), (comm.reduce, {"root": comm.rank}),
                                (comm.recv, {"peer": other}), (comm.broadcast, {"root": other})):
            error = expect_raises(ValueError, "is read-only", call, x, **arguments)
            expect("comm.new.all_reduce" in str(error), "the error names the alternative", error)
        for call in (comm.all_gather, comm.all_to_all):
            expect_raises(ValueError, "is read-only", call, np.ones(SIZE, np.float32), jnp.ones(SIZE * SIZE))
        expect_equal((x.tolist(), y.tolist()), ([1.0] * 4, [1.0] * 4))
        with weft.Reducer(comm, [weft.Param("w", (4,))], mode="view") as reducer:
            with reducer.step():
                expect_raises(ValueError, "is read-only", reducer.ready, "w", x)
                reducer.view("w")[...] = x
                reducer.ready("w")
            expect_equal(reducer.view("w").tolist(), [1.0] * 4)

    ranks(body)


def test_bits():
    """a new JAX array has the bits of the in-place result on a NumPy array, in every type, and keeps them"""
    def body(comm):
        numbers = np.linspace(-3, 7, 1001) * (comm.rank + 1) / 3
        for kind, op in (("float32", "sum"), ("bfloat16", "mean"), ("float16", "sum"), ("int32", "max"),
                         ("uint8", "bxor"), ("bool", "max")):
            x = jnp.asarray(numbers > 4 if kind == "bool" else numbers, kind)
            before, wanted = np.asarray(x).tobytes(), np.array(x)
            comm.all_reduce(wanted, op=op)
            made = comm.new.all_reduce(x, op)
            gc.collect()
            expect(isinstance(made, jax.Array), "the type", type(made))
            expect_equal((made.dtype, made.shape), (x.dtype, x.shape), kind)
            expect_equal(np.asarray(made).tobytes(), wanted.tobytes(), kind)
            expect_equal(np.asarray(x).tobytes(), before, kind)
            later = comm.new.all_reduce(x, op, wait=False).result()
            expect_equal(np.asarray(later).tobytes(), wanted.tobytes(), kind)
            expect_equal(np.asarray(jnp.flip(made)).tobytes(), np.flip(wanted).tobytes(), kind)

    ranks(body)


def test_every_collective():
    """every collective has a form that takes and returns JAX arrays"""
    def body(comm):
        new, rank, counts = comm.new, comm.rank, [r + 1 for r in range(SIZE)]
        every = [jnp.arange(4.0) + r for r in range(SIZE)]
        mine, blocks = every[rank], jnp.stack(every)
        packed = jnp.arange(6.0)  # the blocks of counts
        own = jnp.split(packed, np.cumsum(counts)[:-1])[rank]
        sent = comm.send(mine, (rank + 1) % SIZE, wait=False)
        for what, made, wanted in (
                ("all_reduce", new.all_reduce(mine), sum(every)),
                ("reduce", new.reduce(mine, root=1), sum(every) if rank == 1 else None),
                ("an empty array", new.all_reduce(mine[:0]), mine[:0]),
                ("broadcast", new.broadcast(mine, 2), every[2]),
                ("all_gather", new.all_gather(mine), blocks),
                ("reduce_scatter", new.reduce_scatter(blocks), SIZE * mine),
                ("gather", new.gather(mine), blocks if rank == 0 else None),
                ("scatter", new.scatter(blocks if rank == 0 else None, like=mine), mine),
                ("all_to_all", new.all_to_all(blocks), jnp.stack([mine] * SIZE)),
                ("all_gather_v", new.all_gather_v(mine[:rank + 1], counts),
                 jnp.concatenate([every[r][:r + 1] for r in range(SIZE)])),
                ("reduce_scatter_v", new.reduce_scatter_v(packed, counts), SIZE * own),
                ("gather_v", new.gather_v(mine[:rank + 1], counts),
                 jnp.concatenate([every[r][:r + 1] for r in range(SIZE)]) if rank == 0 else None),
                ("scatter_v", new.scatter_v(packed if rank == 0 else None, counts, like=mine),
                 own),
                ("all_to_all_v", new.all_to_all_v(jnp.full(SIZE * (rank + 1), rank), [rank + 1] * SIZE, counts),
                 jnp.repeat(jnp.arange(SIZE), np.array(counts))),
                ("recv", new.recv(mine, (rank - 1) % SIZE), every[(rank - 1) % SIZE])):
            if wanted is None:
                expect(made is None, what, made)
                continue
            expect(isinstance(made, jax.Array), what, type(made))
            expect_equal((made.dtype, made.tolist()), (wanted.dtype, wanted.tolist()), what)
        sent.wait()

    ranks(body)


def gradients_of(rank):
    """Return a tree of every type and size class, with different values on each rank."""
    def values(*shape, kind="float32"):
        made = np.linspace(-2, 3, int(np.prod(shape))).reshape(shape) * (rank + 1) / 7
        return jnp.asarray(made * (1 - 2j) if "complex" in kind else made, kind)

    return {"layers": [{"w": values(17, 5), "b": values(5)} for _ in range(10)], "scalar": values(), "none": None,
            "half": [values(33, kind="float16"), values(9, 2, kind="bfloat16")], "empty": values(0, 3),
            "complex": (values(21, kind="complex64"),), "large": values(1 << 19),
            "integers": np.zeros(3, jax.dtypes.float0), "numpy": np.full(4, rank, np.float32)}


def test_average_gradients():
    """averages of a tree have the bits of each array's all_reduce, few operations do it, and no input changes"""
    def body(comm):
        tree = gradients_of(comm.rank)
        arrays, structure = jax.tree.flatten(tree)
        before, operations = [np.asarray(x).tobytes() for x in arrays], comm.query().operations
        made = wj.average_gradients(tree, comm)
        # One for each of f32, f16, bf16 and c64, and one for the large array.
        expect_equal(comm.query().operations - operations, 5)
        expect_equal(jax.tree.structure(made), structure)
        for x, average in zip(arrays, jax.tree.leaves(made)):
            if x.dtype == jax.dtypes.float0:
                expect(average is x, "float0", average)
                continue
            expect(isinstance(average, jax.Array), "the type", type(average))
            wanted = comm.new.all_reduce(x, "mean")
            expect_equal((average.dtype, average.shape, np.asarray(average).tobytes()),
                         (x.dtype, x.shape, np.asarray(wanted).tobytes()))
        expect_equal([np.asarray(x).tobytes() for x in arrays], before)
        operations = comm.query().operations
        totals = wj.average_gradients(tree, comm, op="sum", bucket_bytes=1000)
        # The f32 arrays fill five buckets of 1000 bytes.
        expect_equal(comm.query().operations - operations, 9)
        wanted = np.asarray(comm.new.all_reduce(arrays[1]))
        expect_equal(np.asarray(jax.tree.leaves(totals)[1]).tobytes(), wanted.tobytes())
        expect_equal(wj.average_gradients({"none": None}, comm), {"none": None})

    ranks(body)


def test_average_copies_nothing_large():
    """a large array is read and its average is written in place; small averages share their bucket's memory"""
    seen = []

    def body(comm):
        tree = {"large": jnp.ones(1 << 19), "a": jnp.ones((5, 5)), "b": jnp.ones(3)}
        read, written = [], {}
        original, converted = comm.all_reduce, _tree.converted

        def reading(src, *arguments, **more):
            read.append(src.address)
            return original(src, *arguments, **more)

        def recording(made, array):
            result = converted(made, array)
            written[made.address] = result.unsafe_buffer_pointer()
            return result

        comm.all_reduce, _tree.converted = reading, recording
        try:
            made = wj.average_gradients(tree, comm)
        finally:
            _tree.converted = converted
        expect(tree["large"].unsafe_buffer_pointer() in read, "the large array was copied", read)
        expect_equal(len(read), 2)
        expect_equal(written, {pointer: pointer for pointer in written.values()})
        del tree
        gc.collect()
        expect_equal(float(jnp.sum(made["b"])), 3.0)
        seen.append(comm.rank)

    ranks(body, size=1)
    expect_equal(seen, [0])


def test_average_errors():
    """trees that differ, and entries without an average, are errors that name the difference"""
    def body(comm):
        expect_raises(TypeError, "['n'] has the type int32", wj.average_gradients, {"n": jnp.arange(3)}, comm)
        expect_raises(TypeError, "outside jit", jax.jit(lambda x: wj.average_gradients([x], comm)), jnp.ones(3))
        error = expect_raises(weft.WeftError, "", wj.average_gradients,
                              {"a": jnp.ones(3), "b": jnp.ones(2 + (comm.rank == 1))}, comm)
        expect_equal(error.code, weft.Status.ERR_MISMATCH)

    ranks(body)


def test_outside_jit():
    """collectives outside jit return new arrays and a token; their gradients are those of the sum of the losses"""
    def body(comm):
        x = jnp.arange(4.0) + comm.rank
        total, token = wj.all_reduce(x, wj.create_token(), comm=comm)
        every, token = wj.all_gather(x, token, comm=comm)
        block, token = wj.reduce_scatter(every, token, "mean", comm=comm)
        root, token = wj.broadcast(x, token, 1, comm=comm)
        swapped, token = wj.all_to_all(every, token, comm=comm)
        token = wj.barrier(token, comm=comm)
        mine = np.arange(4.0, dtype=np.float32)
        for made, wanted in ((total, mine * SIZE + 3), (every, np.stack([mine + r for r in range(SIZE)])),
                             (block, mine + comm.rank), (root, mine + 1),
                             (swapped, np.stack([mine + comm.rank] * SIZE))):
            expect(isinstance(made, jax.Array) and made.dtype == jnp.float32, "the type", made)
            expect_equal(made.tolist(), wanted.tolist())
        expect_equal((token.shape, token.dtype, float(token)), ((), jnp.float32, 0.0))
        expect_equal(x.tolist(), (mine + comm.rank).tolist())

        def loss(x):
            total, token = wj.all_reduce(x ** 2, wj.create_token(), comm=comm)
            root, token = wj.broadcast(x, token, 2, comm=comm)
            return wj.tie((total * root).sum() * (comm.rank + 1), token)

        # The sum over ranks of (rank + 1) is 6; rank 2's x is also the root.
        squares = sum((mine + r) ** 2 for r in range(SIZE))
        wanted = 6 * 2 * (mine + comm.rank) * (mine + 2) + (6 * squares if comm.rank == 2 else 0)
        expect_equal(jax.grad(loss)(x).tolist(), wanted.tolist())

    ranks(body)


def test_deleted():
    """an array that is deleted, donated or dropped while an operation reads it keeps its memory"""
    def body(comm):
        count, made = 300_000, []
        if comm.rank > 0:
            comm.recv(np.zeros(1), 0)  # rank 0 has called by then
            made = [comm.new.all_reduce(np.full(count, 2.0, np.float32), wait=False) for _ in range(3)]
        else:
            for end in (lambda x: x.delete(), jax.jit(lambda x: 3 * x, donate_argnums=0), lambda x: None):
                x = jnp.full(count, 2.0).block_until_ready()
                made.append(comm.new.all_reduce(x, wait=False))
                jax.block_until_ready(end(x))
                del x
                gc.collect()
            jax.block_until_ready([jnp.full(count, 7.0) for _ in range(20)])  # takes memory that was freed
            for other in range(1, SIZE):
                comm.send(np.ones(1), other)
        for request in made:
            expect(bool((np.asarray(request.result()) == 2 * SIZE).all()), "the sum")

    ranks(body)


if __name__ == "__main__":
    cases.main(globals())
