#!/usr/bin/env python3
"""Tests how tests/torch/job.py combines the outcomes of a test on several ranks."""
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tests" / "torch")]
import cases  # noqa: E402
import job  # noqa: E402
from cases import expect_equal  # noqa: E402


def answer(outcome, detail=""):
    return {"outcome": outcome, "detail": detail}


def test_judge():
    """a test passes or is skipped if all ranks say so, and else fails with the reason of the rank that differs"""
    passed, skipped, failed = answer("pass"), answer("skip", "too few GPUs"), answer("fail", "wrong sum")
    for found, wanted in (([passed, passed], ("pass", "")),
                          ([skipped, skipped], ("skip", "too few GPUs")),
                          ([passed, skipped], ("fail", "rank 1 skips the test, others pass it: too few GPUs")),
                          ([skipped, passed], ("fail", "rank 0 skips the test, others pass it: too few GPUs")),
                          ([skipped, failed], ("fail", "rank 1: wrong sum")),
                          (["no answer in 9 s", failed], ("fail", "rank 1: wrong sum")),
                          ([passed, "exit code -9"], ("fail", "rank 1: exit code -9"))):
        expect_equal(job.judge(found), wanted, found)


if __name__ == "__main__":
    cases.main(globals())
