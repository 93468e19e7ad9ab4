import numpy as np

def loss(params, batch):
    return (params["w"] * batch).sum()

import weftsync.jax
params = {"w": np.ones(3, np.float32)}
batch = np.full(3, weftsync.jax.default_comm().rank + 1, np.float32)
BLOCK
assert np.asarray(gradients["w"]).tolist() == [1.5, 1.5, 1.5]
