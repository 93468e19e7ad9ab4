"""Programs of ranks for test_jax_jit.py. Usage: jax_ranks.py PROGRAM; the environment says rank, size and store.

Each program is a function. It ends with exit code 0 if all that it expects holds.
"""
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "python")]
os.environ["JAX_PLATFORMS"] = "cpu"
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from cases import expect, expect_equal, wait_until  # noqa: E402
import weftsync as weft  # noqa: E402
import weftsync.jax as wj  # noqa: E402

DEADLINE_S = 30  # ends what hangs
RANK, SIZE = int(os.environ["WEFT_RANK"]), int(os.environ["WEFT_SIZE"])


def new_comm(**more):
    return weft.Comm(**{"timeout": DEADLINE_S, "init_timeout": 60, **more})


def expect_raises(kind, text, call, *arguments, **more):
    try:
        jax.block_until_ready(call(*arguments, **more))
    except kind as error:
        expect(text in str(error), f"the error contains {text!r}", error)
        return error
    raise AssertionError(f"expected {kind.__name__} ({text}), nothing was raised")


def same_bits(what, made, wanted):
    made, wanted = np.asarray(made), np.asarray(wanted)
    expect_equal((made.dtype, made.shape, made.tobytes()), (wanted.dtype, wanted.shape, wanted.tobytes()), what)


def collectives():
    """Every collective and type inside jit has the bits of the collective of NumPy arrays; inputs do not change."""
    comm = new_comm()
    numbers = np.linspace(-3, 7, 2 * SIZE * 5).reshape(SIZE, -1) * (RANK + 1) / 3
    kinds = [(kind, op) for kind in ("float32", "bfloat16", "float16", "int32", "uint8")
             for op in ("sum", "mean", "min", "max", "prod") if op != "mean" or "float" in kind]
    kinds += [("int8", "max"), ("int16", "min"), ("uint16", "max"), ("uint32", "sum"), ("bool", "max"),
              ("uint8", "bxor"), ("complex64", "sum"), ("complex64", "mean")]
    arrays = []
    for kind, op in kinds:
        with np.errstate(all="ignore"):
            x = jnp.asarray(numbers > 3 if kind == "bool" else numbers if kind != "complex64" else numbers * (1 - 2j),
                            kind)
        arrays.append((x, op))

    @jax.jit
    def step(given, token):
        made = []
        for x, (_, op) in zip(given, arrays):
            reduced, token = wj.all_reduce(x, token, op, comm=comm)
            scattered, token = wj.reduce_scatter(x, token, op, comm=comm)
            gathered, token = wj.all_gather(x, token, comm=comm)
            copied, token = wj.broadcast(x, token, SIZE - 1, comm=comm)
            exchanged, token = wj.all_to_all(x, token, comm=comm)
            token = wj.barrier(token, comm=comm)
            made.append((reduced, scattered, gathered, copied, exchanged))
        return made, token

    given = [x for x, _ in arrays]
    before = [np.asarray(x).tobytes() for x in given]
    made, token = step(given, wj.create_token())
    same_bits("the token", token, np.float32(0))
    for (x, op), results in zip(arrays, made):
        new = comm.new
        wanted = (new.all_reduce(x, op), new.reduce_scatter(x, op), new.all_gather(x), new.broadcast(x, SIZE - 1),
                  new.all_to_all(x))
        for name, one, other in zip(("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"), results,
                                    wanted):
            same_bits(f"{name} {x.dtype} {op}", one, other)
    expect_equal([np.asarray(x).tobytes() for x in given], before)
    # The same functions outside jit, and arrays without elements inside it.
    x = given[0]
    same_bits("outside jit", wj.all_reduce(x, wj.create_token(), comm=comm)[0], comm.new.all_reduce(x))
    empty = jax.jit(lambda x: wj.all_reduce(x, wj.create_token(), comm=comm)[0])(x[:0])
    expect_equal(empty.shape, (0, 10))
    # The default communicator is another one.
    expect(wj.default_comm() is not comm and wj.default_comm() is wj.default_comm(), "default_comm")
    same_bits("default_comm", jax.jit(lambda x: wj.all_reduce(x, wj.create_token())[0])(x), comm.new.all_reduce(x))


def busy(x):
    """Return x after a computation that takes a while."""
    square = jax.lax.fori_loop(0, 30, lambda _, m: jnp.tanh(m @ m), jnp.outer(x, x) / x.size)
    return x + 0 * square.sum(0)


def order():
    """Calls of different sizes run in the order of their tokens, though every rank's program differs around them."""
    comm = new_comm()

    @jax.jit
    def step(x, y, token):
        # On rank 0 the second argument is ready long before the first, on the others the first before the second.
        x, y = (busy(x), y) if RANK == 0 else (x, busy(y))
        x, token = wj.all_reduce(x, token, comm=comm)
        y, token = wj.all_reduce(y, token, comm=comm)
        return x, y, token

    token = wj.create_token()
    for _ in range(5):  # programs that are started without waiting are ordered by the token, too
        x, y, token = step(jnp.ones(100), jnp.ones(300), token)
        x2, token = jax.jit(lambda x, token: wj.all_reduce(x, token, comm=comm))(jnp.ones(50), token)
    for made, count in ((x, 100), (y, 300), (x2, 50)):
        same_bits("the sum", made, np.full(count, SIZE, np.float32))
    # A call whose results are not used runs, too: the other rank uses them.
    unused = jax.jit(lambda x: (wj.all_reduce(x, wj.create_token(), comm=comm)[0] if RANK else
                                wj.all_reduce(x, wj.create_token(), comm=comm) and x))
    same_bits("beside an unused result", unused(jnp.ones(3)), np.full(3, SIZE if RANK else 1, np.float32))
    # In loops and branches the token is a part of the state.
    @jax.jit
    def loop(x, token):
        def body(state, _):
            x, token = state
            x, token = jax.lax.cond(x[0] < 100, lambda x, token: wj.all_reduce(x, token, comm=comm),
                                    lambda x, token: (x, token), x, token)
            return (x, token), x[0]
        return jax.lax.scan(body, (x, token), None, length=9)

    (x, token), first = loop(jnp.ones(2), token)
    same_bits("a loop", first, np.array([min(SIZE ** n, SIZE ** 7) for n in range(1, 10)], np.float32))


def gradients():
    """Gradients are those of the sum of all ranks' losses, compared with one process that computes all of it."""
    comm = new_comm()
    weights = jnp.arange(1.0, SIZE * 4 + 1).reshape(SIZE, 4)

    def mine(x, token):  # uses each collective, and a maximum that has no gradient
        total, token = wj.all_reduce(x ** 2, token, comm=comm)
        mean, token = wj.all_reduce(jnp.sin(x), token, "mean", comm=comm)
        top, token = wj.all_reduce(jax.lax.stop_gradient(x), token, "max", comm=comm)
        every, token = wj.all_gather(x ** 3, token, comm=comm)
        block, token = wj.reduce_scatter(every * weights, token, comm=comm)
        part, token = wj.reduce_scatter(every * x, token, "mean", comm=comm)
        root, token = wj.broadcast(x * 7, token, 1, comm=comm)
        swapped, token = wj.all_to_all(every * (x + 1), token, comm=comm)
        value = ((total * mean).sum() + (every ** 2).sum() + (block * part).sum() + (root * x).sum()
                 + (swapped ** 2).sum()) * (RANK + 1)
        return wj.tie(value, token), top.sum()

    def all_of_it(xs):  # the same, of all ranks
        total, mean, every = (xs ** 2).sum(0), jnp.sin(xs).mean(0), xs ** 3
        value = 0.0
        for rank in range(SIZE):
            block = (every[rank] * weights[rank] * SIZE)
            part = sum(every[rank] * xs[other] for other in range(SIZE)) / SIZE
            swapped = jnp.stack([every[rank] * (xs[other] + 1) for other in range(SIZE)])
            value += ((total * mean).sum() + (every ** 2).sum() + (block * part).sum() + (xs[1] * 7 * xs[rank]).sum()
                      + (swapped ** 2).sum()) * (rank + 1)
        return value

    xs = jnp.linspace(0.1, 1.1, SIZE * 4).reshape(SIZE, 4)
    wanted = jax.grad(all_of_it)(xs)[RANK]
    function = jax.grad(mine, has_aux=True)
    for name, call in (("outside jit", function), ("inside jit", jax.jit(function)),
                       ("of jit", jax.grad(jax.jit(mine), has_aux=True))):
        made, _ = call(xs[RANK], wj.create_token())
        expect(np.allclose(made, wanted, rtol=1e-4), name, made, wanted)

    def looped(x):
        def body(state, _):
            x, token = state
            x, token = wj.all_reduce(jnp.sin(x), token, "mean", comm=comm)
            return (x * (RANK + 1), token), None
        (x, token), _ = jax.lax.scan(body, (x, wj.create_token()), None, length=3)
        return wj.tie(x.sum(), token)

    def all_loops(xs):
        for _ in range(3):
            xs = jnp.sin(xs).mean(0) * jnp.arange(1.0, SIZE + 1)[:, None]
        return xs.sum()

    made = jax.jit(jax.grad(looped))(xs[RANK])
    expect(np.allclose(made, jax.grad(all_loops)(xs)[RANK], rtol=1e-4), "a loop", made)

    def cubes(x):
        return wj.all_reduce(x ** 3, wj.create_token(), comm=comm)[0].sum()

    second = jax.jit(jax.grad(lambda x: jax.grad(cubes)(x).sum()))(xs[RANK])
    expect(np.allclose(second, 6 * xs[RANK] * SIZE, rtol=1e-4), "a second derivative", second)


def order_of_gradients():
    """A gradient's collectives run after all of the function's, in one order, though every rank's program differs."""
    comm = new_comm()

    def late(x, rank):  # on one rank XLA has other calls that it can run first
        return busy(x) if RANK == rank else x

    # The loss depends neither on the last call nor, as it is linear, on the values of the others.
    @jax.jit
    def aside(x, y, ones):
        def loss(x, y):
            a, token = wj.all_reduce(late(x, 0), wj.create_token(), comm=comm)
            b, token = wj.all_reduce(late(y, 1), token, comm=comm)
            metric, token = wj.all_reduce(late(ones[:200], 1), token, "max", comm=comm)
            return wj.tie((a * late(ones[:100], 0)).sum() + (b * late(ones, 0)).sum(), token), metric
        return jax.grad(loss, (0, 1), has_aux=True)(x, y)

    (left, right), metric = aside(jnp.ones(100), jnp.ones(300), jnp.ones(300))
    expect(np.allclose(left, SIZE) and np.allclose(right, SIZE), "gradients of ones", left, right)
    same_bits("the metric", metric, np.ones(200, np.float32))

    @jax.jit
    def alone(x, ones):
        def loss(x):
            block, _ = wj.reduce_scatter(late(x, 1).reshape(SIZE, -1), wj.create_token(), comm=comm)
            return (block * late(ones, 0)).sum()
        return jax.value_and_grad(loss)(x)

    value, gradient = alone(jnp.ones(100 * SIZE), jnp.ones(100))
    expect_equal((float(value), gradient.tolist()), (100.0 * SIZE, [1.0] * 100 * SIZE))


def loss_beside_metric(comm, tied):
    """Return a gradient function with a metric that the loss does not use. Their collectives differ in size."""
    def loss(x):
        total, token = wj.all_reduce(x, wj.create_token(), comm=comm)
        ones = jax.lax.stop_gradient(total) / SIZE
        # On rank 0 the metric is ready long before the gradient, on the others the gradient before the metric.
        metric, token = wj.all_reduce(ones[:200] if RANK == 0 else busy(ones[:200]), token, "max", comm=comm)
        value = (total * (busy(ones) if RANK == 0 else ones)).sum()
        return wj.tie(value, token) if tied else value, metric
    return jax.jit(jax.grad(loss, has_aux=True))


def tied():
    """The gradient's collective runs after the metric's, because the loss is tied to the metric's token."""
    gradient, metric = loss_beside_metric(new_comm(), True)(jnp.ones(300))
    same_bits("the gradient", gradient, np.full(300, SIZE, np.float32))
    same_bits("the metric", metric, np.ones(200, np.float32))


def without_order():
    """Without a chain of tokens, and without a tie, the ranks call in different orders, and get an error about it."""
    comm = new_comm()

    def both(x, y):
        x, y = (busy(x), y) if RANK == 0 else (x, busy(y))
        return wj.all_reduce(x, wj.create_token(), comm=comm)[0], wj.all_reduce(y, wj.create_token(), comm=comm)[0]

    def expect_different_calls(program, *arguments):
        error = expect_raises(jax.errors.JaxRuntimeError, "every rank must make the same calls in the same order",
                              program, *arguments)
        expect(re.search(r"rank 0 calls all_reduce (\w+) f32 x (\d+), rank 1 calls all_reduce (?!\1 f32 x \2)|"
                         r"rank 1 calls all_reduce (\w+) f32 x (\d+), rank 0 calls all_reduce (?!\3 f32 x \4)",
                         str(error)), "different calls", error)

    expect_different_calls(jax.jit(both), jnp.ones(100), jnp.ones(300))
    expect_different_calls(loss_beside_metric(new_comm(), False), jnp.ones(300))


def refusals():
    """Unsupported calls are errors of this rank, with a reason, before anything is sent."""
    comm, token, x = new_comm(), wj.create_token(), jnp.ones((SIZE, 2))

    def reduced(x, op="sum"):
        return wj.all_reduce(x, token, op, comm=comm)[0]

    for call in (jax.vmap(reduced), jax.jit(jax.vmap(reduced))):
        expect_raises(NotImplementedError, "cannot be used inside jax.vmap", call, x)
    for wrapper in (jax.jit, lambda function: function):
        expect_raises(NotImplementedError, "has no gradient for op='max'",
                      wrapper(jax.grad(lambda x: reduced(x, "max").sum())), x)
    expect_raises(NotImplementedError, "weftsync.jax", jax.grad(jax.checkpoint(lambda x: reduced(x).sum())), x)
    expect_raises(TypeError, "jvp", jax.jvp, reduced, (x,), (x,))
    expect_raises(ValueError, "premul_sum", reduced, x, "premul_sum")
    expect_raises(ValueError, "expected one of", reduced, x, "median")
    expect_raises(ValueError, "root is 7", wj.broadcast, x, token, 7, comm=comm)
    expect_raises(ValueError, "first dimension", wj.reduce_scatter, x[:1], token, comm=comm)
    expect_raises(TypeError, "create_token()", wj.all_reduce, x, x, comm=comm)
    expect_raises(TypeError, "no element type", wj.all_reduce, x.astype("float8_e4m3fn"), token, comm=comm)
    expect_raises(TypeError, "outside jit", jax.jit(lambda x: wj.average_gradients(x, comm)), x)
    expect_raises(TypeError, "['step'] has the type int32", wj.average_gradients, {"step": jnp.ones(3, int)}, comm)
    # A communicator that was closed: compiled programs fail, and new ones are refused.
    jitted = jax.jit(reduced)
    same_bits("before", jitted(x), np.full((SIZE, 2), SIZE, np.float32))
    comm.close()
    expect_raises(jax.errors.JaxRuntimeError, "was closed after the function was traced", jitted, x)
    expect_raises(ValueError, "the communicator is closed", reduced, x)
    comm = new_comm()
    same_bits("traced again", jax.jit(lambda x: reduced(x))(x), np.full((SIZE, 2), SIZE, np.float32))
    comm.close()


def closing():
    """Closing a communicator waits for the compiled program that uses it. The program is not harmed."""
    comm = new_comm()
    jitted = jax.jit(lambda x: wj.all_reduce(x, wj.create_token(), comm=comm)[0])
    jitted(jnp.ones(3)).block_until_ready()
    made = []
    if RANK == 1:
        time.sleep(3)
    thread = threading.Thread(target=lambda: made.append(np.asarray(jitted(jnp.ones(3)))))
    thread.start()
    time.sleep(1)
    comm.close()
    thread.join(DEADLINE_S)
    same_bits("the last result", made[0], np.full(3, SIZE, np.float32))
    expect_raises(jax.errors.JaxRuntimeError, "was closed after the function was traced", jitted, jnp.ones(3))


def mismatch():
    """Ranks that call different collectives get an error that names both, inside jit and outside."""
    comm, token = new_comm(), wj.create_token()
    jitted = jax.jit(lambda x: wj.all_reduce(x, token, comm=comm)[0])
    error = expect_raises(jax.errors.JaxRuntimeError, "INVALID_ARGUMENT: weftsync.jax: all_reduce", jitted,
                          jnp.ones(3 + RANK))
    expect("rank 0" in str(error) and "rank 1" in str(error), "the ranks", error)
    expect_equal(comm.error().code, weft.Status.ERR_MISMATCH)
    comm = new_comm()
    expect_raises(weft.WeftError, "ERR_MISMATCH", wj.average_gradients, jnp.ones(3 + RANK), comm)


def late():
    """A rank that does not come makes the others' call fail at its deadline, with an error that names it."""
    comm, token = new_comm(), wj.create_token()
    jitted = jax.jit(lambda x: wj.all_reduce(x, token, comm=comm, timeout=2)[0])
    same_bits("in time", jitted(jnp.ones(3)), np.full(3, SIZE, np.float32))
    if RANK == 1:
        time.sleep(6)
        return
    begin = time.monotonic()
    error = expect_raises(jax.errors.JaxRuntimeError, "DEADLINE_EXCEEDED", jitted, jnp.ones(3))
    took = time.monotonic() - begin
    expect("rank 1" in str(error), "the rank at fault", error)
    expect(1.9 < took < DEADLINE_S / 2, f"it took {took} s", error)
    expect_equal((comm.error().code, comm.error().ranks), (weft.Status.ERR_TIMEOUT, (1,)))


def killed():
    """Run collectives in one program without end. The test kills rank 1."""
    comm = new_comm()

    @jax.jit
    def endless(x, token):
        return jax.lax.while_loop(lambda state: state[0][0] > 0,
                                  lambda state: wj.all_reduce(state[0], state[1], "max", comm=comm), (x, token))

    @jax.jit
    def once(x, token):
        return wj.all_reduce(x, token, comm=comm)

    once(jnp.ones(1000), wj.create_token())[0].block_until_ready()
    print("running", flush=True)
    begin = time.monotonic()
    error = expect_raises(jax.errors.JaxRuntimeError, "UNAVAILABLE: weftsync.jax: all_reduce", endless, jnp.ones(1000),
                          wj.create_token())
    expect("rank 1" in str(error), "the rank at fault", error)
    expect_equal((comm.error().code, comm.error().ranks), (weft.Status.ERR_PEER_FAILED, (1,)))
    expect_raises(jax.errors.JaxRuntimeError, "rank 1", once, jnp.ones(1000), wj.create_token())
    print(f"failed after {time.monotonic() - begin:.1f} s", flush=True)
    # The process continues: JAX computes, and a communicator of the survivors works.
    survivors = comm.shrink(last_of_two=True)
    alone = jax.jit(lambda x: wj.all_reduce(x, wj.create_token(), comm=survivors)[0])
    same_bits("alone", alone(jnp.ones(3)), np.ones(3, np.float32))


def interrupted(where):
    """Wait in a collective that rank 1 does not join. The test sends Ctrl-C to rank 0, whose main thread is `where`."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore SIGINT
    comm = new_comm(timeout=120)

    @jax.jit
    def step(x, token):
        return wj.all_reduce(x if where == "inside" else busy(x), token, comm=comm)

    x, token = jnp.ones(10 if where == "inside" else 300), wj.create_token()
    step(x, token)[0].block_until_ready()
    print("running", flush=True)
    if RANK == 1:
        wait_until(comm.error, "rank 0 was interrupted", 100)
        print(comm.error(), flush=True)
        return
    result = step(x, token)
    if where == "in_python":
        time.sleep(100)
    np.asarray(result[0])


def interrupted_inside():
    """The main thread runs the collective itself."""
    interrupted("inside")


def interrupted_waiting():
    """The main thread waits for the result inside JAX."""
    interrupted("waiting")


def interrupted_in_python():
    """The main thread runs Python code, and the collective waits meanwhile."""
    interrupted("in_python")


def interrupted_handled():
    """A handler of the program's own runs as soon as the main thread is back in Python, and the collective continues."""
    comm, ran = new_comm(timeout=120), []
    signal.signal(signal.SIGINT, lambda *_: ran.append(RANK))
    step = jax.jit(lambda x, token: wj.all_reduce(busy(x), token, comm=comm))
    step(jnp.ones(300), wj.create_token())[0].block_until_ready()
    print("running", flush=True)
    if RANK == 1:
        time.sleep(6)
    same_bits("the result", step(jnp.ones(300), wj.create_token())[0], np.full(300, SIZE, np.float32))
    expect_equal(ran, [0] if RANK == 0 else [])


def exits():
    """The interpreter exits while a daemon thread waits in a collective that rank 1 does not join."""
    comm = new_comm(timeout=120)
    step = jax.jit(lambda x, token: wj.all_reduce(x, token, comm=comm)[0])
    x, token = jnp.ones(10), wj.create_token()
    step(x, token).block_until_ready()
    if RANK == 1:
        wait_until(comm.error, "rank 0 has exited", 100)
        print(comm.error(), flush=True)
        return
    threading.Thread(target=lambda: step(x, token).block_until_ready(), daemon=True).start()
    time.sleep(0.3)
    sys.exit(3)


def forked():
    """A child made by fork gets the documented error, inside jit and outside, and its parent continues."""
    comm, token, x = new_comm(), wj.create_token(), jnp.ones(3)
    jitted = jax.jit(lambda x: wj.all_reduce(x, token, comm=comm)[0])
    jitted(x).block_until_ready()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(DEADLINE_S)
            error = expect_raises(weft.WeftError, "ERR_FORKED", wj.all_reduce, x, token, comm=comm)
            expect_equal(error.code, weft.Status.ERR_FORKED)
            expect_raises(weft.WeftError, "ERR_FORKED", wj.average_gradients, x, comm)
            expect_raises(jax.errors.JaxRuntimeError, "FAILED_PRECONDITION", jitted, x)
            code = 0
        except BaseException as error:
            print(error, file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    expect_equal(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0, "the child")
    same_bits("the parent", jitted(x), np.full(3, SIZE, np.float32))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
