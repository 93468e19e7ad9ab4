import jax
import jax.numpy as jnp
import weftsync.jax as wj

def f(x, token):
    y, token = wj.all_reduce(x, token, "sum")
    loss = (y * y).sum()
    _, token = wj.all_reduce(y, token, "mean")  # a metric
    BLOCK

gradient = jax.grad(f)(jnp.ones(2), wj.create_token())
assert gradient.tolist() == [8, 8]
