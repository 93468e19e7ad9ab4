#!/usr/bin/env python3
"""weft bench faults: a short run finds nothing, a finding is repeatable, and it can be interrupted.

Usage: test_faults.py WEFT
"""
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
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
    """30 runs with a fixed seed: no hang, no disagreement, no leftovers"""
    result = faults("--runs", 30, "--seed", 20261121)
    expect_equal(result.returncode, 0, result.stdout, result.stderr)
    expect_equal(last_line(result.stdout), (30, 0, 0, 0))


def test_again():
    """a single run is drawn as it is among all others, and is in the file of results"""
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


def test_seed():
    """a seed that is negative or no number is an error that names the range"""
    for seed in ("x", "-3", "1.5", "9223372036854775808"):
        result = faults(f"--seed={seed}", "--runs", 1)
        expect_equal(result.returncode, 2, result)
        expect(seed in result.stderr and "0 to 9223372036854775807" in result.stderr, "the range", result)


def files_meanwhile(create, *words):
    """Run `weft bench faults WORDS` and call create(process, number) every 20 ms until it ends."""
    with subprocess.Popen([WEFT, "bench", "faults", "--backends", "shm", "--ranks", "2", "--phases", "small", "--verbose",
                           *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        first = process.stdout.readline()
        expect(first.startswith("run 0: "), "a line for a run", first)
        deadline = time.monotonic() + 150
        number = 0
        while process.poll() is None and time.monotonic() < deadline:
            create(process, number)
            number += 1
            time.sleep(0.02)
        process.kill()
        output, errors = process.communicate()
    return process.returncode, output, errors


def test_unrelated_files():
    """files that another program creates in /dev/shm meanwhile do not count as leftovers of the job"""
    made = []

    def create(_process, number):
        made.append(Path(f"/dev/shm/weft-unrelated-{os.getpid()}-{number}"))
        made[-1].touch()
    try:
        _, output, errors = files_meanwhile(create, "--runs", "4")
    finally:
        for path in made:
            path.unlink()
    expect(len(made) > 5, "files came meanwhile", made)
    runs, _, _, leftovers = last_line(output)
    expect_equal((runs, leftovers), (4, 0), output, errors)


def test_leftover_file():
    """a file that the job leaves in /dev/shm is reported as a leftover, by name"""
    if os.geteuid() != 0:
        cases.skip("the runs have a /dev/shm of their own, which needs root")

    name = f"weft-left-{os.getpid()}-"

    def create(process, number):  # in the folder that the job's processes see
        with contextlib.suppress(FileNotFoundError):  # the process may have just ended
            Path(f"/proc/{process.pid}/root/dev/shm/{name}{number}").touch()
    code, output, errors = files_meanwhile(create, "--runs", "4")
    outside = list(Path("/dev/shm").glob(name + "*"))
    for path in outside:
        path.unlink()
    expect(not outside and "not checked" not in errors, "a /dev/shm of its own", len(outside), errors)
    expect_equal(code, 1, output, errors)
    expect(re.search(rf"leftover in run \d: /dev/shm/{name}\d", output) is not None, "it is named", output)


def test_interrupt():
    """SIGINT ends it with its ranks, and it prints the results so far"""
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
