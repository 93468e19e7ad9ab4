import jax
import jax.numpy as jnp
import weftsync.jax as wj

def loss(params, batch):
    return (params["w"] * batch).sum()

def update(params, gradients):
    return jax.tree.map(lambda value, gradient: value - gradient, params, gradients)

params = {"w": jnp.zeros(3)}
batches = [jnp.full(3, float(wj.default_comm().rank + 1))] * 2
BLOCK
assert params["w"].tolist() == [-3, -3, -3]
