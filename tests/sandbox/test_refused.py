#!/usr/bin/env python3
"""Programs to which the kernel refuses system calls, as an old kernel or a container's filter does: they pass
over the fallbacks, or their errors name the call. Usage: test_refused.py REFUSE BUILD PART

PART: of programs.py.
"""
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
import programs  # noqa: E402
from cases import expect_equal  # noqa: E402

REFUSE, BUILD, PART = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
# Without WEFT_TEST_ALL most programs run only with all calls refused together. The programs themselves run samples.
EVERY_ROW = bool(os.environ.pop("WEFT_TEST_ALL", ""))
del sys.argv[1:4]  # what follows selects cases

# Calls without which Weft works. They are refused row by row, and all together.
ROWS = {
    "pidfds": ["SO_PEERPIDFD", "pidfd_open", "pidfd_send_signal", "pidfd_getfd"],
    "MADV_WIPEONFORK": ["MADV_WIPEONFORK"],
    "MADV_POPULATE_WRITE": ["MADV_POPULATE_WRITE", "MADV_POPULATE_READ"],
    "process_vm_readv": ["process_vm_readv", "process_vm_writev"],
    "MFD_NOEXEC_SEAL": ["MFD_NOEXEC_SEAL"],
    "sets of cores": ["sched_setaffinity", "sched_getaffinity"],
    "calls of glibc and Python": ["clone3", "close_range", "statx", "faccessat2", "copy_file_range", "rseq"],
    "NUMA, namespaces and tracing": ["get_mempolicy", "set_mempolicy", "mbind", "move_pages", "unshare", "CLONE_NEWUSER",
                                     "ptrace", "perf_event_open", "io_uring_setup", "userfaultfd", "kcmp"],
}
ALL = "all of these"
ROWS[ALL] = [call for calls in ROWS.values() for call in calls]
# A system whose vm.memfd_noexec is 2 refuses the opposite of what a kernel before 6.3 does.
ROWS["executable memfds"] = ["memfd_create without MFD_NOEXEC_SEAL"]
BY = ["an old kernel", "a filter"]


def usual_errnos():
    """Return the errnos of each call: that of an old kernel, and perhaps that of a filter."""
    result = cases.run([REFUSE, "--list"])
    expect_equal(result.returncode, 0, result)
    return {name: errnos.split() for name, errnos in (line.split(": ") for line in result.stdout.splitlines())}


ERRNOS = usual_errnos()


def refusal(calls, by):
    """Return the words that refuse these calls as BY[by] does; None if it refuses none of them."""
    words = [f"{call}={ERRNOS[call][by]}" for call in calls if len(ERRNOS[call]) > by]
    return [REFUSE, ",".join(words), "--"] if words else None


# The rows with which a program runs in any case.
SAMPLES = {
    "unit tests of the control channel": ["pidfds"],
    "unit tests of shared memory": ["MADV_POPULATE_WRITE", "process_vm_readv", "MFD_NOEXEC_SEAL", "executable memfds", ALL],
    "unit tests of the paths of private buffers": ["process_vm_readv"],
    "conformance over shm": [ALL],
    "forked children of C programs": ["MADV_WIPEONFORK"],
    "C programs": [ALL],
    "killed processes": ["pidfds", ALL],
    "random faults": ["NUMA, namespaces and tracing", ALL],
    "Python": [ALL, "calls of glibc and Python"],
    "hello_allreduce": ROWS,
    "the demo": [ALL],
}


def add_case(title, program, row, by):
    def case():
        programs.expect_passes(program, refusal(ROWS[row], by))
    case.__doc__ = f"{title}: {BY[by]} refuses {row}"
    globals()[f"test_{title}_{row}_{by}"] = case


for name, one in programs.of(BUILD, PART, EVERY_ROW).items():
    for calls in ROWS if EVERY_ROW else SAMPLES[name]:
        for who in range(len(BY)):
            if refusal(ROWS[calls], who):
                add_case(name, one, calls, who)

cases.main(globals())
