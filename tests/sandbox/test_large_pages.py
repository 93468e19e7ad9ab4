#!/usr/bin/env python3
"""Programs on pages of 64 KiB, as kernels for ARM64 may have. Usage: test_large_pages.py PRELOADED BUILD PART

PRELOADED: large_pages.cpp. PART: of programs.py.
"""
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
import programs  # noqa: E402

PRELOADED, BUILD, PART = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
ALL = bool(os.environ.pop("WEFT_TEST_ALL", ""))
SAMPLES = ["unit tests of shared memory", "conformance over shm", "killed processes", "hello_allreduce"]
del sys.argv[1:4]  # what follows selects cases


def add_case(title, program):
    def case():
        programs.expect_passes(program, environment={"LD_PRELOAD": str(PRELOADED)})
    case.__doc__ = f"{title}: pages of 64 KiB"
    globals()[f"test_{title}"] = case


for name, one in programs.of(BUILD, PART, ALL).items():
    if ALL or name in SAMPLES:
        add_case(name, one)

cases.main(globals())
