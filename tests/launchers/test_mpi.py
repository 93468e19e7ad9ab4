#!/usr/bin/env python3
"""The mpi backend under mpirun, with each MPI library that is here. Usage: test_mpi.py BUILD"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
import mpi  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

BUILD = Path(sys.argv[1]).resolve()
HELLO = BUILD / "examples" / "hello_allreduce"


def test_by_itself():
    """a program that knows nothing of MPI runs over it, under the mpirun of either library"""
    for flavour in mpi.each(BUILD):
        for backend, more in (("mpi", {}), ("shm+mpi", {"WEFT_HOSTS": "0,0,1"})):
            code, output = mpi.run(flavour, 3, [HELLO], WEFT_BACKEND=backend, **more)
            expect_equal(code, 0, flavour, backend, output)
            expect_equal(output.count("of 3: the ranks' numbers sum to 3,"), 3, flavour, backend, output)


def test_without_mpirun():
    """outside of an MPI job the backend is not available, and the error says why"""
    mpi.each(BUILD)
    result = cases.run([HELLO], environment=mpi.environment(WEFT_BACKEND="mpi"))
    expect(result.returncode == 1 and "not started by mpirun" in result.stderr, "no refusal", result)


if __name__ == "__main__":
    cases.main(globals())
