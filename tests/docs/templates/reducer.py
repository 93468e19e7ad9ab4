import numpy as np
import weftsync

with weftsync.Comm() as comm, weftsync.Reducer(comm, [weftsync.Param("weight", (3,))]) as reducer:
    for step in range(3):
        with reducer.step():
            reducer.ready("weight", np.ones(3, np.float32))
    BLOCK
    if straggler := reducer.report()["straggler"]:
        assert straggler["text"].startswith(f"rank {straggler['rank']} was last in "), straggler
