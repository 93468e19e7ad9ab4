"""Test cases for programs that are tested from outside: functions whose names start with test_.

A file of cases ends with `cases.main(globals())`. Each case is reported to tests/run.py as a Catch2 test case
is (tests/support/main.cpp). A docstring is the case's name; `skip(reason)` ends a case as skipped.
"""
import contextlib
import fnmatch
import os
import random
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path


class Skip(Exception):
    pass


def skip(reason):
    raise Skip(reason)


def run(command, timeout=60, environment=None, **more):
    """Run the command to its end and capture its text; fail the case if the command does not end within
    timeout."""
    return subprocess.run([str(word) for word in command], timeout=timeout, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, env={**os.environ, **(environment or {})}, check=False, **more)


def expect(condition, what, *evidence):
    if not condition:
        raise AssertionError("\n".join([what] + [str(one) for one in evidence]))


def expect_equal(actual, wanted, *evidence):
    expect(actual == wanted, f"got {actual!r} instead of {wanted!r}", *evidence)


def wait_until(condition, what, seconds=10):
    """Poll until condition() is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        expect(time.monotonic() < deadline, f"not within {seconds} s: {what}")
        time.sleep(0.01)


def alive(pid):
    """Return True if a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def free_ports(count=1):
    """Return consecutive ports of 127.0.0.1 on which no process listens. They lie outside the kernel's
    ephemeral range: another program's connection could otherwise take one before the test does."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(1000):
        ports = [random.randrange(1024, max(first, 2048) - count)]
        ports += [ports[0] + i for i in range(1, count)]
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in ports:
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return ports
    raise AssertionError("no free ports")


def tell(event, name="", detail=""):
    path = os.environ.get("WEFT_TEST_REPORT")
    if path:
        with open(path, "a", encoding="utf-8") as report:
            report.write("\t".join(text.replace("\n", " ").replace("\t", " ") for text in (event, name, detail)) + "\n")


def main(names):
    """Run the cases whose functions are in names; a last argument with asterisks filters by name."""
    pattern = sys.argv[-1] if len(sys.argv) > 1 and "*" in sys.argv[-1] else "*"
    tell("program", "cases")
    passed, failed, skipped = 0, 0, 0
    for key, function in list(names.items()):
        name = (getattr(function, "__doc__", None) or key).strip()
        if not key.startswith("test_") or not fnmatch.fnmatch(name, pattern):
            continue
        tell("start", name)
        try:
            function()
            passed += 1
            tell("pass", name)
        except Skip as reason:
            skipped += 1
            print(f"{name}: skipped: {reason}")
            tell("skip", name, str(reason))
        except Exception:  # any exception fails the case
            failed += 1
            print(f"{name}: failed\n{traceback.format_exc()}")
            tell("fail", name)
    if not os.environ.get("WEFT_TEST_REPORT"):  # tests/run.py counts otherwise
        print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed else 0)
