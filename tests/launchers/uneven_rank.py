#!/usr/bin/env python3
"""One rank of a reducer's steps, for test_uneven.py: prints its step reports as one line of JSON.
Usage: uneven_rank.py PYTHON_FOLDER KIB_OF_GRADIENTS BUCKETS STEPS LATE_RANK LATE_SECONDS (LATE_RANK -1: no
rank is late)
"""
import json
import sys
import time

sys.path.insert(0, sys.argv[1])
import numpy as np  # noqa: E402
import weftsync as weft  # noqa: E402

KIB, BUCKETS, STEPS, LATE_RANK = map(int, sys.argv[2:6])
LATE_SECONDS = float(sys.argv[6])
COUNT = KIB * 256 // BUCKETS

with weft.Comm() as comm:
    params = [weft.Param(f"layer{i}", (COUNT,), np.float32) for i in range(BUCKETS)]
    told = []
    with weft.Reducer(comm, params, bucket_limits=[0]) as reducer:
        gradients = [np.ones(COUNT, np.float32) for _ in params]
        for step in range(STEPS):
            for gradient in gradients:
                gradient.fill(comm.rank + step)
            reducer.begin()
            if comm.rank == LATE_RANK:
                time.sleep(LATE_SECONDS)
            for i in reversed(range(BUCKETS)):
                reducer.ready(i, gradients[i])
            reducer.finish()
            mean = step + (comm.size - 1) / 2
            last = reducer.report()["last_step"]
            told.append({"correct": all(bool((g == np.float32(mean)).all()) for g in gradients),
                         **{name: last[name] for name in ("step_ns", "exposed_ns", "straggler", "straggler_ns", "waited_ns")}})
    print(json.dumps({"rank": comm.rank, "steps": told}), flush=True)
