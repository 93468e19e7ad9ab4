#!/usr/bin/env python3
""".ci/run: what its phase turn covers over some commits, its seed, and phases that a system cannot run.

A copy of the script runs in a folder of its own, with commands that only write down how they were called.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/mutants"))
import run as mutants  # noqa: E402

SEED = 0x0123456 + 1
FAKES = {
    "git": 'case $1 in rev-parse) echo 0123456789abcdef ;; *) echo "$COMMITS" ;; esac',
    "make": 'echo "make $*" >>"$LOG"; echo "3 passed, 0 failed, 2 skipped"',
    "meson": "",
    "ninja": 'echo "ninja $*" >>"$LOG"',
    "python3": 'echo "python3 $*" >>"$LOG"; [ "$1" != tools/without_features.py ] || mkdir -p "$2"',
    "unshare": 'exit "$UNSHARE"',
}


class CiTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.place = Path(folder.name)
        (self.place / ".ci").mkdir()
        shutil.copy(ROOT / ".ci/run", self.place / ".ci")
        (self.place / "build-ci").mkdir()
        (self.place / "tools").mkdir()
        for path, script in {**{f"bin/{name}": script for name, script in FAKES.items()}, "tools/setup.sh": ""}.items():
            (self.place / path).parent.mkdir(exist_ok=True)
            (self.place / path).write_text(f"#!/bin/sh\n{script}\n")
            (self.place / path).chmod(0o755)

    def run_ci(self, *phases, commits=0, unshare=0):
        """Return the result, and the calls of commands."""
        log = self.place / "log"
        log.write_text("")
        result = subprocess.run([self.place / ".ci/run", *phases], text=True, capture_output=True, check=False, env={
            "PATH": f"{self.place}/bin:{os.environ['PATH']}", "LOG": str(log), "COMMITS": str(commits), "UNSHARE": str(unshare)})
        return result, log.read_text().splitlines()

    def expect_all(self, patterns, lines):
        self.assertEqual([one for one in patterns if not any(re.search(one, line) for line in lines)], [])

    def test_the_turns_of_some_commits_cover_everything(self):
        lines = []
        for commits in range(9 * 4):
            result, calls = self.run_ci("turn", commits=commits)
            self.assertEqual(result.returncode, 0, result)
            lines += calls
        self.expect_all([f"run.py build-ci-address .*--suite {suite} .*prefix" for suite in ("unit", "capi", "conformance", "fuzz")], lines)
        self.expect_all([f"run.py build-ci-thread .*--suite {suite} .*prefix" for suite in ("unit", "capi", "conformance")], lines)
        self.expect_all(["ninja -C build-ci-address .*fuzzers", "test-arm64 .*SUITE=unit$", "test-arm64 .*SUITE=capi python$",
                         "test-arm64 .*SUITE=conformance$", "SUITE=sandbox .*--all-cases.* FILTER=sandbox/", "test-deb", "test-recipes",
                         "SUITE=sandbox .*--all-cases.* FILTER=programs", "SUITE=capi FILTER=allocations .*--all-cases",
                         "run.py build .*prefix without", "SUITE=age ", "test-mutants", "run_ddp.py .*--ranks 4"], lines)
        unseeded = [line for line in lines if re.search("^make .* test |run.py.*--jobs", line)
                    and not re.search(f"SEED={SEED} |--seed {SEED} ", line)]
        self.assertEqual(unseeded, [])

    def test_the_parts_of_the_mutants_have_all_of_them(self):
        numbers = []
        for turn in range(17):
            _, calls = self.run_ci("mutants", commits=9 * turn)
            part, = re.findall("--part (.*)$", calls[-1])
            numbers += mutants.part_of_list(part)
        self.assertEqual(sorted(numbers), list(range(1, len(mutants.MUTANTS) + 1)))

    def test_a_phase_that_the_system_cannot_run_is_skipped(self):
        result, calls = self.run_ci("test", "arm64", unshare=1)
        self.assertEqual((result.returncode, [line for line in calls if "test-arm64" in line]), (0, []), result)
        self.assertIn("arm64: cases passed 0, failed 0, skipped 1\n", result.stdout)
        self.assertIn("\n== ci: skipped arm64: this system lets no namespace", result.stdout)
        self.assertEqual(result.stdout.splitlines()[-1], "3 passed, 0 failed, 3 skipped")
        result, calls = self.run_ci("test", "arm64")
        self.assertEqual(result.stdout.splitlines()[-1], "3 passed, 0 failed, 2 skipped")
        self.assertIn("test-arm64", calls[-1])

    def test_an_unknown_phase_is_an_error_that_lists_the_phases(self):
        result, calls = self.run_ci("test", "nosuch")
        self.assertEqual((result.returncode, calls), (2, []))
        self.assertIn("unknown phase nosuch; there are setup build test", result.stderr)


if __name__ == "__main__":
    unittest.main()
