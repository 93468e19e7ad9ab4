#!/usr/bin/env python3
"""weft bench faults: a short run finds nothing, what it finds is repeatable, and it can be ended.

Usage: test_faults.py WEFT
"""
import json
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

WEFT = sys.argv[1]
LAST = r"faults: (\d+) runs, (\d+) hangs, (\d+) disagreements, (\d+) leftovers, detect p99=\d+ ms, recover p99=\d+ ms"


def faults(*words, timeout=240):
    return cases.run([WEFT, "bench", "faults", *words], timeout=timeout)


def last_line(text):
    match = re.fullmatch(LAST, text.splitlines()[-1])
    expect(match is not None, "it ends with its last line", text)
    return tuple(int(number) for number in match.groups())


def test_short_run():
    """30 runs with a fixed seed: no hang, no disagreement, nothing left behind"""
    result = faults("--runs", 30, "--seed", 20261121)
    expect_equal(result.returncode, 0, result.stdout, result.stderr)
    expect_equal(last_line(result.stdout), (30, 0, 0, 0))


def test_again():
    """one run alone is drawn as it is among all others, and is in the file of results"""
    with tempfile.TemporaryDirectory() as folder:
        texts = []
        for words in (("--runs", 3), ("--only", 2)):
            path = Path(folder) / "faults.json"
            result = faults(*words, "--seed", 7, "--ranks", "2-3", "--backends", "shm", "--json", path)
            expect_equal(result.returncode, 0, result.stdout, result.stderr)
            texts.append(json.loads(path.read_text())["runs"][-1]["text"])
        expect_equal(texts[0], texts[1])


def test_finding():
    """a job that cannot work is a disagreement, and the line that repeats it is printed"""
    result = faults("--runs", 1, "--seed", 1, "--ranks", 2, "--backends", "loopback", "--phases", "small")
    expect_equal(result.returncode, 1, result.stdout, result.stderr)
    expect_equal(last_line(result.stdout), (1, 0, 1, 0))
    again = re.search(r"again: weft (.*)", result.stdout)
    expect(again is not None, "it says how to repeat it", result.stdout)
    expect_equal(cases.run([WEFT, *again[1].split()]).returncode, 1)


def test_interrupt():
    """SIGINT ends it, its ranks included, and it says what it has seen so far"""
    with subprocess.Popen([WEFT, "bench", "faults", "--runs", "100000", "--backends", "shm", "--verbose"],
                          stdout=subprocess.PIPE, text=True) as process:
        first = process.stdout.readline()
        expect(first.startswith("run 0: "), "a line for a run", first)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=20)
        expect_equal(process.returncode, 130, output)
        expect(last_line(output)[0] >= 1, "the runs so far", output)
    expect(f"weft-faults-{process.pid}-" not in Path("/proc/net/unix").read_text(), "no socket of it is left")


cases.main(globals())
