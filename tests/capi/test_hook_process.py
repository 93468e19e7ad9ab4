#!/usr/bin/env python3
"""Tests hooks that one process saves and another loads. Usage: test_hook_process.py CAPI_HOOK_PROCESS"""
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

PROGRAM = sys.argv[1]
HOOKS = [("powersgd", "start=2 rank=2"), ("powersgd", "start=2 rank=2 alternate=1"), ("powersgd", "start=5 feedback=ddp"),
         ("batched_powersgd", "start=5 rank=1"), ("int8", "rounding=stochastic"), ("fp8", "format=e5m2"), ("topk", "ratio=0.05"),
         ("onebit", ""), ("bf16", ""),
         ("post_local_sgd", "start=15 local=none")]


def part(folder, hook, options, first, end):
    result = cases.run([PROGRAM, folder, hook, options, first, end], timeout=60)
    expect_equal(result.returncode, 0, hook, options, result.stderr)
    return result.stdout, [(Path(folder) / f"rank{rank}").read_bytes() for rank in range(2)]


def test_two_processes():
    """every hook gives the same bits in twenty steps as in ten steps, a restart and ten more"""
    for hook, options in HOOKS:
        with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as parts:
            expected = part(whole, hook, options, 0, 20)
            part(parts, hook, options, 0, 10)
            expect_equal(part(parts, hook, options, 10, 20), expected, hook, options)
            expect(len(expected[0].splitlines()) == 33 * 40, "gradients are printed", hook)


def test_damaged_file():
    """a truncated file is refused by name"""
    with tempfile.TemporaryDirectory() as folder:
        _, blobs = part(folder, "powersgd", "start=2", 0, 3)
        for rank in range(2):
            (Path(folder) / f"rank{rank}").write_bytes(blobs[rank][:-5])
        result = cases.run([PROGRAM, folder, "powersgd", "", 3, 4], timeout=60)
        expect(result.returncode == 1 and "is truncated" in result.stderr, "it says what is wrong", result.stderr)


cases.main(globals())
