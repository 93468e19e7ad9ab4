#!/usr/bin/env python3
"""The conformance suite over MPI. Ranks that mpirun starts run the program together: 8 ranks, or 2 for more
than 2^31 bytes.

Usage: test_launched.py BUILD CONFORMANCE [CATCH2-SELECTION for the 8 ranks]

References are computed together, a share by each rank (tests/conformance/made_together.h). The default
selection leaves out the random programs, which run on a simulation of ranks and on no backend.
"""
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
import mpi  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

BUILD, CONFORMANCE = (Path(word).resolve() for word in sys.argv[1:3])
ROWS = "launched"  # rows of tests/conformance/backends.cpp that mpirun starts
TIMEOUT = 600
SELECTED = sys.argv[3:4] or ["~random programs*", "~[huge]"]


def run_suite(flavour, ranks, selected):
    if flavour not in mpi.each(BUILD):
        cases.skip(f"this build has no module for {mpi.TITLES[flavour]}, or there is no mpirun of it")
    # All ranks use the same seed. Their results are the result of this case, so they write no report of their
    # own.
    seed = os.environ.get("WEFT_TEST_SEED", "1")
    with tempfile.TemporaryDirectory() as shared, tempfile.NamedTemporaryFile("r", suffix=".report") as report:
        code, output = mpi.run(flavour, ranks, [CONFORMANCE, *selected, "--use-colour", "no", "--rng-seed", seed], timeout=TIMEOUT,
                               WEFT_TEST_ROWS=ROWS, WEFT_TEST_REPORT=report.name, WEFT_TEST_SHARED=shared)
        said = [line.rstrip("\n").split("\t") for line in report]
    expect_equal((code, output.count("All tests passed") + output.count("No tests ran")), (0, ranks), f"--rng-seed {seed}", output[-8000:])
    expect("launched is left out" not in output, "a row was left out", output[-8000:])
    return said


def run_huge(flavour):
    for event, _, detail in run_suite(flavour, 2, ["[huge]"]):
        if event == "skip":
            cases.skip(detail)


def test_openmpi():
    """the conformance suite over Open MPI, ranks started by its mpirun"""
    run_suite("openmpi", 8, SELECTED)


def test_mpich():
    """the conformance suite over MPICH, ranks started by its mpirun"""
    run_suite("mpich", 8, SELECTED)


def test_huge_openmpi():
    """more than 2^31 bytes in one call and in one message over Open MPI"""
    run_huge("openmpi")


def test_huge_mpich():
    """more than 2^31 bytes in one call and in one message over MPICH"""
    run_huge("mpich")


del sys.argv[1:]  # the argument is no selection of the cases here
cases.main(globals())
