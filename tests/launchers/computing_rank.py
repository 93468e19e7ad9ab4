#!/usr/bin/env python3
"""One rank of all-reduces that nobody waits for, for test_computing.py. Rank 0 prints the median seconds of one as a line of JSON:
while it waits ("waiting"), and while it computes on its core ("computing").
Usage: computing_rank.py PYTHON_FOLDER KIB CALLS
"""
import json
import statistics
import sys
import time

sys.path.insert(0, sys.argv[1])
import numpy as np  # noqa: E402
import weftsync as weft  # noqa: E402

KIB, CALLS = map(int, sys.argv[2:4])
DEADLINE_S = 20

with weft.Comm() as comm:
    data, times = np.ones(KIB * 256, np.float32), {"waiting": [], "computing": []}
    for call in range(2 * CALLS + 2):
        way = ("waiting", "computing")[call % 2]
        comm.barrier()
        begin = time.perf_counter()
        request = comm.all_reduce(data, wait=False)
        while way == "computing" and not request.done() and time.perf_counter() - begin < DEADLINE_S:
            sum(range(2000))
        request.wait()
        times[way].append(time.perf_counter() - begin)
    if comm.rank == 0:
        print(json.dumps({way: statistics.median(found[1:]) for way, found in times.items()}), flush=True)
