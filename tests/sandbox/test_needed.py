#!/usr/bin/env python3
"""Programs on a system that refuses what they cannot do without: each rank's error names it. Also limits that do not matter.
Usage: test_needed.py REFUSE BUILD"""
import re
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
import programs  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

REFUSE, BUILD = Path(sys.argv[1]), Path(sys.argv[2])
WEFT, HELLO = BUILD / "tools/weft", BUILD / "examples/hello_allreduce"
TEXTS = {"ENOSYS": "Function not implemented", "EINVAL": "Invalid argument", "EPERM": "Operation not permitted"}


FAULTS = [WEFT, "bench", "faults", *programs.FEW_FAULTS]


def need_faults():
    """Skip the case in a build without the benchmarks."""
    if not (BUILD / "tools/weft-bench").exists():
        cases.skip("this build has no benchmarks")


def hello(before, backend="shm", ranks=2):
    """Run hello_allreduce behind the words `before`. Return its exit code, and the output of each rank."""
    result = cases.run([WEFT, "run", "-n", ranks, "--prefix", "all", "--timeout", 60, "--", *before, HELLO], timeout=90,
                       environment={"WEFT_BACKEND": backend})
    lines = re.findall(r"^\[(\d+)\] (.*)$", result.stdout + result.stderr, re.M)
    if any("this system allows no seccomp filter" in line for _, line in lines):
        cases.skip(lines[0][1])
    return result.returncode, ["\n".join(line for which, line in lines if int(which) == r) for r in range(ranks)], result


def expect_named(call, errno, text):
    code, said, result = hello([REFUSE, f"{call}={errno}", "--"])
    expect(code != 0, "the job fails", result)
    for output in said:
        expect(text in output and TEXTS[errno] in output, f"each rank's error has {text}", result)


def test_unknown_call():
    """a call that refuse does not know is an error that lists the known ones"""
    result = cases.run([REFUSE, "pidfd_close", "--", "true"])
    expect_equal(result.returncode, 2, result)
    expect("pidfd_close" in result.stderr and "pidfd_open" in result.stderr, "the choices", result)
    result = cases.run([REFUSE, "pidfd_open=EMFILE", "--", "true"])
    expect_equal(result.returncode, 2, result)
    expect("EMFILE" in result.stderr and "ENOSYS" in result.stderr, "the choices", result)


def test_memfd_create():
    """without memfd_create each rank of shm gets an error that names the call"""
    for errno in ("ENOSYS", "EPERM"):
        expect_named("memfd_create", errno, "memfd_create")


def test_seals():
    """without seals each rank of shm gets an error that names the call"""
    for errno in ("EINVAL", "EPERM"):
        expect_named("F_ADD_SEALS", errno, "F_ADD_SEALS")


def test_getrandom():
    """without getrandom each rank of shm gets an error that names the call, and so does weft run"""
    for errno in ("ENOSYS", "EPERM"):
        expect_named("getrandom", errno, "getrandom")
        result = cases.run([REFUSE, f"getrandom={errno}", "--", WEFT, "run", "-n", 2, "--", HELLO])
        expect(result.returncode != 0 and "getrandom: " + TEXTS[errno] in result.stderr, "the launcher's error", result)


def test_info():
    """weft info says why shm is not available"""
    for call in ("memfd_create", "F_ADD_SEALS"):
        result = cases.run([REFUSE, f"{call}=EPERM", "--", WEFT, "info"], timeout=120)
        expect_equal(result.returncode, 0, result)
        line = next((line for line in result.stdout.splitlines() if line.split()[:1] == ["shm"]), "")
        expect("not available" in line and call in line and TEXTS["EPERM"] in line, "the reason", result)


def test_other_backend():
    """without memfd_create the ranks of a host use another backend, or are told to look for the reasons"""
    code, said, result = hello([REFUSE, "memfd_create", "--"], backend="")
    for output in said:
        expect(("sum to 1" if code == 0 else "no backend is available on every rank") in output, "each rank", result)


def test_calls_are_made():
    """hello_allreduce makes each call that docs/reference/limits.md lists, so refusing it tests something"""
    for refused in ("SO_PEERPIDFD=kill", "SO_PEERPIDFD,pidfd_open=kill", "MADV_WIPEONFORK=kill", "MADV_POPULATE_WRITE=kill",
                    "process_vm_readv=kill", "MFD_NOEXEC_SEAL=kill", "sched_getaffinity=kill", "F_ADD_SEALS=kill"):
        code, _, result = hello([REFUSE, refused, "--"])
        expect(code != 0 and "was ended by SIGSYS" in result.stderr, f"the ranks die of {refused}", result)


def test_namespaces_are_made():
    """weft bench faults makes a namespace, so refusing it tests something"""
    need_faults()
    result = cases.run([REFUSE, "unshare=kill", "--", *FAULTS], timeout=120)
    expect_equal(result.returncode, -signal.SIGSYS, result)


def test_no_namespaces():
    """without namespaces weft bench faults runs, and says that files in /dev/shm are not checked"""
    need_faults()
    for errno in ("ENOSYS", "EPERM"):
        result = cases.run([REFUSE, f"unshare={errno}", "--", *FAULTS], timeout=120)
        expect_equal(result.returncode, 0, result)
        warning = next((line for line in result.stderr.splitlines() if "/dev/shm are not checked" in line), "")
        expect(warning.endswith(TEXTS[errno]), "the warning has the reason", result)


def test_limits():
    """shm needs neither locked memory nor /dev/shm"""
    before = ["prlimit", "--memlock=0", "--"]
    hidden = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=4k,mode=755 none /dev/shm && exec "$@"', "sh"]
    if cases.run([*hidden, "true"]).returncode == 0:
        before += hidden
    code, _, result = hello(before)
    expect_equal(code, 0, result)


del sys.argv[1:3]  # what follows selects cases
cases.main(globals())
