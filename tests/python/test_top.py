#!/usr/bin/env python3
"""weft top: shows what weft status shows, live, with rates. Usage: test_top.py WEFT"""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
import live_jobs  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

WEFT = os.path.abspath(sys.argv[1])
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
# Rank 1 computes for 40 ms longer than the others in each step.
UNEVEN = """
import time, numpy as np, weftsync as weft
comm = weft.Comm()
reducer = weft.Reducer(comm, [weft.Param("weight", (100000,))])
print("ready", flush=True)
while True:
    with reducer.step():
        time.sleep(0.05 if comm.rank == 1 else 0.01)
        reducer.ready(0, np.ones(100000, np.float32))
"""
IDLE = "import time, weftsync as weft\ncomm = weft.Comm()\nprint('ready', flush=True)\ntime.sleep(600)\n"


def top(*words, **more):
    return cases.run([WEFT, "top", *words], **more)


def test_rates():
    """it prints a table per interval, with steps and bytes per second, and the rank that the others wait for"""
    with tempfile.TemporaryDirectory() as folder, live_jobs.started(WEFT, folder, UNEVEN, 3, WEFT_JOB="uneven"):
        shown = top("uneven", "--interval", 1, "--count", 3)
        expect_equal(shown.returncode, 0, shown)
        expect_equal(shown.stdout.count("weft top, "), 3, shown.stdout)
        expect("\x1b" not in shown.stdout, "no terminal, no ANSI sequences", shown.stdout)
        first, *others = shown.stdout.split("weft top, ")[1:]
        expect("communicator" in first and "steps/s" not in first, "the first table has no rates", first)
        rates = re.search(r"  ([0-9.]+) steps/s, ([0-9.]+) operations/s, ([0-9.]+ [KM]iB)/s; rank (\d) was last in "
                          r"(\d+) % of the steps, by ([0-9.]+) ms", others[-1])
        expect(rates, "the line with rates", others[-1])
        expect(1 <= float(rates[1]) <= 20, "one step takes 50 ms or more", rates[0])
        expect_equal(rates[4], "1", rates[0])
        expect(int(rates[5]) > 50 and float(rates[6]) > 10, "rank 1 is late by 40 ms", rates[0])
        row = next(line for line in others[-1].splitlines() if line.startswith("      1 "))
        expect(" % by " in row, "the row of rank 1", row)


def test_no_job():
    """without a communicator the exit code is 1, and wrong options are refused"""
    none = top("no-such-job", "--count", 1)
    expect(none.returncode == 1 and "No process of this user has a communicator of the job no-such-job" in none.stdout, "none",
           none)
    for words, said in ((["--interval", "0"], "--interval"), (["--count", "0"], "--count"), (["--hosts", "a;b"], "list of hosts")):
        refused = top(*words)
        expect(refused.returncode == 2 and said in refused.stderr, "refused", words, refused)


def on_terminal(keys, *words):
    """Run weft top on a terminal, send the keys once it has drawn twice. Return its output, its exit code, and the
    terminal's settings before and after."""
    control, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 70, 0, 0))
    before = termios.tcgetattr(terminal)

    def own_terminal():
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    process = subprocess.Popen([WEFT, "top", "--interval", "0.2", *words], stdin=terminal, stdout=terminal, stderr=terminal,
                               preexec_fn=own_terminal)
    shown, sent, deadline = "", False, time.monotonic() + 30
    while process.poll() is None or select.select([control], [], [], 0.1)[0]:
        expect(time.monotonic() < deadline, "it quits", shown)
        if select.select([control], [], [], 0.1)[0]:
            shown += os.read(control, 65536).decode()
        if not sent and shown.count("weft top, ") >= 2:
            os.write(control, keys)
            sent = True
    after = termios.tcgetattr(terminal)
    os.close(control)
    os.close(terminal)
    return shown, process.returncode, before, after


def test_terminal():
    """on a terminal it draws over itself, q and Ctrl-C quit, and the terminal is as before"""
    with tempfile.TemporaryDirectory() as folder, live_jobs.started(WEFT, folder, IDLE, 2, WEFT_JOB="screen"):
        for keys in (b"xq", b"\x03"):
            shown, code, before, after = on_terminal(keys, "screen")
            expect_equal(code, 0, shown)
            expect(shown.startswith(ENTER) and shown.rstrip().endswith(LEAVE), "the other screen", repr(shown))
            expect_equal(after, before, "the settings of the terminal")
            frame = shown.split("\x1b[H")[-1]
            lines = re.sub(r"\x1b\[[?0-9]*[a-zA-Z]", "", frame).split("\r\n")
            expect(len(lines) <= 20 and all(len(line) <= 70 for line in lines), "it fits", lines)
            expect("q quits" in frame and "communicator" in frame, "the view", repr(frame))


def test_restored_after_signal():
    """a signal that ends it leaves the terminal as before"""
    control, terminal = pty.openpty()
    before = termios.tcgetattr(terminal)
    process = subprocess.Popen([WEFT, "top"], stdin=terminal, stdout=terminal, stderr=terminal)
    shown = ""
    while "weft top, " not in shown:
        expect(select.select([control], [], [], 20)[0], "it draws", shown)
        shown += os.read(control, 65536).decode()
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=20)
    while select.select([control], [], [], 0.1)[0]:
        shown += os.read(control, 65536).decode()
    expect(shown.endswith(LEAVE), "the screen", repr(shown))
    expect_equal(termios.tcgetattr(terminal), before, "the settings")


cases.main(globals())
