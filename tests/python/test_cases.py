#!/usr/bin/env python3
"""Checks tests/parity/cases.md: each of the hundred cases has a row, and the tests that a row names exist."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

ROWS = re.findall(r"^\| (\d+) \| .* \| (.*) \|$", (ROOT / "tests/parity/cases.md").read_text(), re.M)


def words_of_parity():
    """Return the names of models, modes and behaviours that run.py runs."""
    text = (ROOT / "tests/parity/run.py").read_text()
    return set(re.findall(r"[\w-]+", " ".join(re.findall(r'^(?:MODELS|MODES|BEHAVIOURS) = \(?(".*?")\)?\n(?=\n|[A-Z])', text,
                                                      re.M | re.S))))


def test_rows():
    """each case from 1 to 100 has exactly one row"""
    expect_equal([int(number) for number, _ in ROWS], list(range(1, 101)))


def test_names():
    """every file, test and parity mode that a row names exists"""
    known, problems = words_of_parity(), []
    for number, answer in ROWS:
        if answer.startswith("no meaning: "):
            continue
        named = 0
        for path, names in re.findall(r"(tests/\S+|recorded) ((?:\"[^\"]*\"(?:, )?)+)", answer):
            path = ROOT / (path if path != "recorded" else "tests/python/test_recorded.py")
            text = re.sub(r'"\s*\n\s*"', "", path.read_text()) if path.exists() else ""
            for name in re.findall(r'"([^"]*)"', names):
                named += 1
                if name not in text:
                    problems.append(f"case {number}: {path.name} has no test {name!r}")
        for words in re.findall(r"parity ([\w -]+)", answer):
            wrong = set(words.split(" has ")[0].split()) - known
            named += 1
            problems += [f"case {number}: parity tests have no {word}" for word in sorted(wrong)]
        if not named and not answer.startswith("open: "):
            problems.append(f"case {number}: the row has neither a test nor a reason")
    expect(not problems, "\n".join(problems))


if __name__ == "__main__":
    cases.main(globals())
