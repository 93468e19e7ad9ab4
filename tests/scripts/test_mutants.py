#!/usr/bin/env python3
"""tests/mutants/run.py chooses mutants by number or by part, and refuses numbers that no mutant has."""
import sys
import unittest
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "mutants"))
import run  # noqa: E402

COUNT = len(run.MUTANTS)


def chosen(*words):
    return [number for number, _ in run.choose(run.parse_arguments(words))]


class MutantsTest(unittest.TestCase):
    def test_all_without_options(self):
        self.assertEqual(chosen(), list(range(1, COUNT + 1)))

    def test_only(self):
        self.assertEqual(chosen("--only", "7", "--only", "2"), [2, 7])

    def test_parts_have_all_mutants(self):
        for parts in (1, 7, COUNT):
            found = [chosen("--part", f"{part}/{parts}") for part in range(1, parts + 1)]
            self.assertEqual(sum(found, []), chosen())
            self.assertLessEqual(max(map(len, found)) - min(map(len, found)), 1)

    def test_numbers_without_mutants_are_errors_that_name_the_range(self):
        cases = [("--only", number, number, COUNT) for number in ("0", "-1", str(COUNT + 1), "x", "1.5", "")]
        cases += [("--part", part, wrong, most) for part, wrong, most in (
            ("0/7", "0", 7), ("8/7", "8", 7), ("-1/7", "-1", 7), ("x/7", "x", 7), ("1/0", "0", COUNT), ("1", "", COUNT),
            (f"1/{COUNT + 1}", str(COUNT + 1), COUNT))]
        for option, text, wrong, most in cases:
            with redirect_stderr(StringIO()) as errors, self.assertRaises(SystemExit) as raised:
                chosen(f"{option}={text}")
            self.assertEqual(raised.exception.code, 2)
            self.assertIn(f"{wrong!r} is no number from 1 to {most}", errors.getvalue())

    def test_only_and_part_exclude_each_other(self):
        with redirect_stderr(StringIO()) as errors, self.assertRaises(SystemExit):
            chosen("--only", "1", "--part", "1/2")
        self.assertIn("not allowed with argument --only", errors.getvalue())


if __name__ == "__main__":
    unittest.main()
