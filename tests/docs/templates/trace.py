import numpy as np
import weftsync


def train(comm):
    for _ in range(3):
        comm.all_reduce(np.ones(1000, np.float32))


with weftsync.Context() as context, weftsync.Comm(context) as comm:
    BLOCK
