"""Trains a small network on two spirals, one process for each rank. The gradients are averaged inside jit.

    weftsync run -n 2 -- python3 examples/jax/train.py [--steps N] [--batch N]
    torchrun --nproc-per-node 2 examples/jax/train.py
"""
import argparse
import os
import statistics
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # collectives inside jit are for this platform
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import weftsync.jax as wj  # noqa: E402
from jax.flatten_util import ravel_pytree  # noqa: E402

WIDTHS = (2, 64, 64, 1)
RATE, MOMENTUM = 0.1, 0.9


def new_params(key):
    """Return the layers' weights and biases: on every rank the same ones, because the key is the same."""
    keys = jax.random.split(key, len(WIDTHS) - 1)
    return [(jax.random.normal(one, (inputs, outputs)) / inputs ** 0.5, jnp.zeros(outputs))
            for one, inputs, outputs in zip(keys, WIDTHS, WIDTHS[1:])]


def points(key, count):
    """Return points of two spirals, and to which one each belongs (0 or 1)."""
    first, second = jax.random.split(key)
    labels = jax.random.bernoulli(first, shape=(count,))
    radius = jax.random.uniform(second, (count,), minval=0.2)
    angle = 5 * radius + jnp.pi * labels
    return jnp.stack([radius * jnp.cos(angle), radius * jnp.sin(angle)], 1) * 3, labels.astype(jnp.float32)


def loss_of(params, inputs, labels):
    values = inputs
    for weights, biases in params[:-1]:
        values = jnp.tanh(values @ weights + biases)
    weights, biases = params[-1]
    scores = (values @ weights + biases)[:, 0]
    return jnp.mean(jnp.logaddexp(0, scores) - labels * scores)


@jax.jit
def train_step(params, speeds, batch, token):
    """Return new parameters, the mean loss of all ranks, and the token of the collective."""
    flat, unravel = ravel_pytree(jax.value_and_grad(loss_of)(params, *batch))
    flat, token = wj.all_reduce(flat, token, "mean")  # the loss and all gradients in one call
    loss, gradients = unravel(flat)
    speeds = jax.tree.map(lambda speed, gradient: MOMENTUM * speed + gradient, speeds, gradients)
    params = jax.tree.map(lambda param, speed: param - RATE * speed, params, speeds)
    return params, speeds, loss, token


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=256, help="points a step, of all ranks")
    parser.add_argument("--log-every", type=int, default=50, help="steps")
    arguments = parser.parse_args()
    comm = wj.default_comm()
    if arguments.steps < 1 or arguments.batch < 1 or arguments.batch % comm.size:
        parser.error(f"--steps and --batch have to be positive, and --batch a multiple of the {comm.size} ranks")
    key = jax.random.key(1)
    params, token = new_params(key), wj.create_token()
    speeds, times = jax.tree.map(jnp.zeros_like, params), []
    for step in range(1, arguments.steps + 1):
        # Every rank draws the whole batch and takes its own part, so that any number of ranks learns the same.
        whole = points(jax.random.fold_in(key, step), arguments.batch)
        batch = [array.reshape(comm.size, -1, *array.shape[1:])[comm.rank] for array in whole]
        begin = time.perf_counter()
        params, speeds, loss, token = jax.block_until_ready(train_step(params, speeds, batch, token))
        times.append(time.perf_counter() - begin)
        if comm.rank == 0 and (step == 1 or step % arguments.log_every == 0):
            print(f"step {step} loss {float(loss):.6f}", flush=True)
    if comm.rank == 0:
        print(f"loss={float(loss):.6f} step_ms={1000 * statistics.median(times):.2f}", flush=True)
    comm.close()


if __name__ == "__main__":
    main()
