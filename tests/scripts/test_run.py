#!/usr/bin/env python3
"""tests/run.py counts what crashes, hangs, skips and does nothing."""
import sys
import tempfile
import unittest
from argparse import Namespace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import run  # noqa: E402


def outcomes(script, timeout=20, filter_text=""):
    """Run a shell script as a test program; [(name, outcome, detail)]."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = Namespace(build=Path(folder), logs=Path(folder), timeout_multiplier=1)
        entry = {"name": "t", "suite": ["weft:unit"], "cmd": ["sh", "-c", script], "env": {}, "workdir": None,
                 "timeout": timeout, "is_parallel": True}
        cases, _ = run.run(run.Test(entry, arguments), filter_text)
        return [tuple(case) for case in cases]


CATCH = 'say() { printf "%s\\t%s\\t%s\\n" "$@" >>"$WEFT_TEST_REPORT"; }; say program catch2 ""; '


class RunTest(unittest.TestCase):
    def test_plain_programs_are_one_case(self):
        self.assertEqual(outcomes("true"), [("", "pass", "")])
        self.assertEqual(outcomes("exit 3"), [("", "fail", "exit code 3")])
        self.assertEqual(outcomes("kill -SEGV $$"), [("", "fail", "killed by SIGSEGV")])
        self.assertEqual(outcomes("echo working; echo no GPU here; exit 77"), [("", "skip", "no GPU here")])

    def test_a_program_that_is_missing_failed(self):
        with tempfile.TemporaryDirectory() as folder:
            arguments = Namespace(build=Path(folder), logs=Path(folder), timeout_multiplier=1)
            entry = {"name": "t", "suite": ["weft:unit"], "cmd": ["/nowhere/t"], "env": {}, "workdir": None,
                     "timeout": 20, "is_parallel": True}
            cases, _ = run.run(run.Test(entry, arguments), "")
        self.assertEqual([case.outcome for case in cases], ["fail"])

    def test_a_hang_is_a_failure_and_so_is_what_it_started(self):
        self.assertEqual(outcomes("sleep 1000 & sleep 1000", timeout=0.2), [("", "fail", "no end within 0 s")])

    def test_catch_programs_count_their_cases(self):
        cases = outcomes(CATCH + 'say start a ""; say pass a ""; say start b ""; say skip b "too small"')
        self.assertEqual(cases, [("a", "pass", ""), ("b", "skip", "too small")])

    def test_a_crash_fails_the_case_that_ran(self):
        cases = outcomes(CATCH + 'say start a ""; say pass a ""; say start b ""; kill -ABRT $$')
        self.assertEqual(cases, [("a", "pass", ""), ("b", "fail", "killed by SIGABRT")])

    def test_a_hang_fails_the_case_that_ran(self):
        cases = outcomes(CATCH + 'say start a ""; sleep 1000', timeout=1)
        self.assertEqual(cases, [("a", "fail", "no end within 1 s")])

    def test_a_failure_between_the_cases_counts(self):
        cases = outcomes(CATCH + 'say start a ""; say pass a ""; exit 1')
        self.assertEqual(cases[1], ("(outside of its test cases)", "fail", "exit code 1"))

    def test_a_program_that_ran_nothing_failed_unless_filtered(self):
        self.assertEqual(outcomes(CATCH), [("", "fail", "ran no test case")])
        self.assertEqual(outcomes(CATCH, filter_text="x"), [])


if __name__ == "__main__":
    unittest.main()
