#!/usr/bin/env python3
"""Arrays of JAX, which are immutable. Ranks are threads. Usage: test_jax.py BUILD

JAX is installed once, into BUILD/jax. If that is not possible, the test is skipped.
"""
import gc
import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
JAX = "jax==0.10.2"
INSTALL_S = 600

if __name__ == "__main__" and importlib.util.find_spec("jax") is None:
    sys.path.insert(0, str(ROOT / "tools"))
    import package_venv
    try:
        venv = package_venv.prepare(sys.argv[1], "jax", [JAX, "numpy"], timeout=INSTALL_S)
    except RuntimeError as error:
        print(f"{JAX} cannot be installed:", " ".join(str(error).split())[-300:])
        sys.exit(77)
    os.execv(venv / "bin" / "python", [str(venv / "bin" / "python"), *sys.argv])

os.environ["JAX_PLATFORMS"] = "cpu"
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from ranks_of_threads import SIZE, cases, expect, expect_equal, expect_raises, np, ranks, weft  # noqa: E402


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


if __name__ == "__main__":
    cases.main(globals())
