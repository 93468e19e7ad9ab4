#!/usr/bin/env python3
"""An all-reduce between hosts of one core each, on which the program computes meanwhile. Usage:
test_computing.py WEFT LIBRARY TWO_HOSTS
"""
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

WEFT, LIBRARY, TWO_HOSTS = sys.argv[1:4]
RANK = Path(__file__).resolve().parent / "computing_rank.py"
PYTHON = RANK.parent.parent.parent / "python"


def test_computing():
    """it takes at most 1.5 times as long as one that the program waits for: the progress thread gets the core when data is there"""
    if os.geteuid() != 0:
        cases.skip("makes network namespaces, which needs root")
    if len(os.sched_getaffinity(0)) < 2:
        cases.skip("needs a core for each host")
    result = cases.run([TWO_HOSTS, "--hosts", 2, "--ranks-per-host", 1, "--prefix", "none", "--rate", "1gbit", "--timeout", 100,
                        sys.executable, RANK, PYTHON, 16 << 10, 5],
                       environment={"WEFT": WEFT, "WEFT_LIBRARY": LIBRARY, "WEFT_BACKEND": "ucx"}, timeout=110)
    if result.returncode == 125:
        cases.skip("no hosts here: " + result.stderr.strip())
    if "No module named 'numpy'" in result.stderr or "not available" in result.stderr:
        cases.skip("NumPy or UCX is not here")
    expect_equal(result.returncode, 0, result.stdout, result.stderr)
    times = json.loads(next(line for line in result.stdout.splitlines() if line.startswith("{")))
    expect(times["computing"] < 1.5 * times["waiting"], "it is not slowed down", times)


if __name__ == "__main__":
    cases.main(globals())
