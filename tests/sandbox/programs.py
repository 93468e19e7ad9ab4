"""The programs of other suites that tests of old kernels, sandboxes and page sizes start."""
import re
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402


class Program(NamedTuple):
    command: list
    environment: dict = {}
    has_cases: bool = True  # it reports its test cases (support/cases.py, support/main.cpp)


# Two short runs of `weft bench faults`, which makes a namespace for its /dev/shm.
FEW_FAULTS = ["--runs", 2, "--seed", 3, "--backends", "shm", "--ranks", "2-3", "--phases", "small"]
# The cases that are skipped where the kernel refuses a call.
NEED_CALLS = {
    "the death of a process whose forked child keeps the connection open is detected by its pidfd": "pidfd_open",
    "shm thresholds select the path, and no bit of a sum depends on them": "process_vm_readv",
}


def of(build, part, all_files):
    """Return a map of names to programs. Part quick: the programs of `make test`. Part programs: processes that are killed,
    Python, and the examples."""
    def unit(*files):
        return Program([build / "tests/unit/unit", ",".join(f"[#test_{file}]~[.]" for file in files)])

    if part == "quick":
        capi = build / "tests/capi/capi"
        return {
            "unit tests of the control channel": unit("mesh", "heartbeat") if all_files else unit("mesh"),
            "unit tests of shared memory": unit("shm_pair", "shm_segment"),
            "unit tests of the paths of private buffers": unit("shm_hostile", "shm_thresholds"),
            "conformance over shm": Program([build / "tests/conformance/conformance", "~random programs*~[huge]"],
                                            {"WEFT_TEST_ROWS": "shm, "}),
            "forked children of C programs": Program([capi, "[#test_arguments]"]),
            "C programs": Program([capi, "[#test_collectives],[#test_reducer],[#test_lifetime]"]),
        }
    weft = build / "tools/weft"
    has_bench = (build / "tools/weft-bench").exists()
    faults = Program([weft, "bench", "faults", *FEW_FAULTS], has_cases=False)
    return {
        **({"random faults": faults} if has_bench else {}),
        "killed processes": Program([build / "tests/fault/fault_kill"]),
        "Python": Program([sys.executable, TESTS / "python/test_step.py", weft], {"WEFT_LIBRARY": str(build / "libweft.so")}),
        "hello_allreduce": Program([weft, "run", "-n", 3, "--timeout", 60, "--", build / "examples/hello_allreduce"],
                                   has_cases=False),
        "the demo": Program([weft, "run", "-n", 2, "--timeout", 200, "--", build / "examples/train_fashion", "--epochs", 1,
                             "--limit", 4000], has_cases=False),
    }


def may_skip(name, reason, refused):
    """Return True if a case of this name may be skipped for this reason. `refused`: the words of the launcher `refuse`."""
    call = NEED_CALLS.get(name)
    return call is not None and reason == f"the kernel refuses {call}" and any(f"{call}=" in str(word) for word in refused)


def expect_passes(program, before=(), environment=None):
    """Run a program, perhaps behind the words of a launcher: it must pass, run cases and skip none but those of
    NEED_CALLS."""
    with tempfile.NamedTemporaryFile("r", suffix=".report") as report:
        result = cases.run([*before, *program.command], timeout=280,
                           environment={**program.environment, **(environment or {}), "WEFT_TEST_REPORT": report.name})
        lines = [line.rstrip("\n").split("\t", 2) for line in report]
    if "this system allows no seccomp filter" in result.stderr:
        cases.skip(result.stderr.strip().splitlines()[-1])
    output = result.stdout + result.stderr
    expect_equal(result.returncode, 0, output[-8000:])
    expect(not program.has_cases or any(line[0] == "pass" for line in lines), "no case ran", output[-8000:])
    skipped = [(name, reason) for event, name, reason in lines if event == "skip" and not may_skip(name, reason, before)]
    expect_equal(skipped, [], "skipped cases and their reasons", output[-8000:])
    left_out = re.search("shm, (threads|processes) is left out", output)
    expect(not left_out, "a row of the conformance suite was left out", output[-8000:])
