"""The programs of other suites that tests of old kernels, sandboxes and page sizes start."""
import os
import re
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402


def of(build, part, all_files):
    """Return a map of names to commands and their environment. Part quick: the programs of `make test`. Part programs:
    processes that are killed, Python, and the examples."""
    def unit(*files):
        return [build / "tests/unit/unit", ",".join(f"[#test_{file}]~[.]" for file in files)]

    if part == "quick":
        capi = build / "tests/capi/capi"
        return {
            "unit tests of the control channel": (unit("mesh", "heartbeat") if all_files else unit("mesh"), {}),
            "unit tests of shared memory": (unit("shm_pair", "shm_segment"), {}),
            "unit tests of the paths of private buffers": (unit("shm_hostile", "shm_thresholds"), {}),
            "conformance over shm": ([build / "tests/conformance/conformance", "~random programs*~[huge]"],
                                     {"WEFT_TEST_ROWS": "shm, "}),
            "forked children of C programs": ([capi, "[#test_arguments]"], {}),
            "C programs": ([capi, "[#test_collectives],[#test_reducer],[#test_lifetime]"], {}),
        }
    weft = build / "tools/weft"
    return {
        "killed processes": ([build / "tests/fault/fault_kill"], {}),
        "Python": ([sys.executable, TESTS / "python/test_step.py", weft], {"WEFT_LIBRARY": str(build / "libweft.so")}),
        "hello_allreduce": ([weft, "run", "-n", 3, "--timeout", 60, "--", build / "examples/hello_allreduce"], {}),
        "the demo": ([weft, "run", "-n", 2, "--timeout", 200, "--", build / "examples/train_fashion", "--epochs", 1,
                      "--limit", 4000], {}),
    }


def expect_passes(command, environment):
    """Run a program's command, perhaps behind that of a launcher, which must pass and leave nothing out."""
    result = cases.run(command, timeout=280, environment={"WEFT_TEST_REPORT": os.devnull, **environment})
    if "this system allows no seccomp filter" in result.stderr:
        cases.skip(result.stderr.strip().splitlines()[-1])
    output = result.stdout + result.stderr
    expect_equal(result.returncode, 0, output[-8000:])
    left_out = re.search("shm, (threads|processes) is left out", output)
    expect(not left_out, "a row of the conformance suite was left out", output[-8000:])
