#!/usr/bin/env python3
"""The conformance suite over MPI: 8 ranks that mpirun starts run the program together.

Usage: test_launched.py BUILD CONFORMANCE [CATCH2-SELECTION]. By default the cases whose references are quickly made,
because each of the 8 makes them for itself; "*" runs all, "[huge]" among it.
"""
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
import mpi  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

BUILD, CONFORMANCE = (Path(word).resolve() for word in sys.argv[1:3])
RANKS = 8
TIMEOUT = 3000 if len(sys.argv) > 3 else 400
QUICK = ",".join(["every collective delivers the reference's bits at small*", "sums have*", "a rank that left*", "ranks may leave*",
                  "a failure from*", "destroying*", "a communicator splits*", "a part that*"])
ROWS = "launched"  # of tests/conformance/backends.cpp: all that mpirun starts
SELECTED = sys.argv[3] if len(sys.argv) > 3 else QUICK


def run_suite(flavour):
    if flavour not in mpi.each(BUILD):
        cases.skip(f"this build has no module for {mpi.TITLES[flavour]}, or there is no mpirun of it")
    # All ranks throw the same dice. What each of them finds is this case's result, not a report of its own.
    seed = str(random.randrange(1, 2**31))
    code, output = mpi.run(flavour, RANKS, [CONFORMANCE, SELECTED, "--use-colour", "no", "--rng-seed", seed], timeout=TIMEOUT,
                           WEFT_TEST_ROWS=ROWS, WEFT_TEST_REPORT="/dev/null")
    expect_equal((code, output.count("All tests passed")), (0, RANKS), f"--rng-seed {seed}", output[-8000:])
    expect("launched is left out" not in output, "a row was left out", output[-8000:])


def test_openmpi():
    """the conformance suite over Open MPI, ranks started by its mpirun"""
    run_suite("openmpi")


def test_mpich():
    """the conformance suite over MPICH, ranks started by its mpirun"""
    run_suite("mpich")


del sys.argv[1:]  # not a selection of the cases here
cases.main(globals())
