import numpy as np
import weftsync

with weftsync.Comm() as comm:
    x = np.arange(3, dtype=np.float32)
    BLOCK
    assert x.tolist() == [0, 1, 2] and y.tolist() == [0, 2, 4] and z.tolist() == [x.tolist()] * 2
