#!/usr/bin/env python3
"""The library as a stranger meets it.

Usage: check_abi.py symbols LIBRARY | layout PROGRAM | library LIBRARY

symbols   what libweft.so exports is what the headers declare and what symbols.txt lists. To accept a new symbol:
          nm -D --defined-only build/libweft.so.0.9 | awk '{print $3}' | grep weft_ | sed 's/@@.*//' > tests/abi/symbols.txt
layout    sizes and offsets of the public structs are those of layout-lp64.txt.
library   libweft.so needs no UCX, MPI, NCCL or CUDA, is never unloaded, and registers no destructors.
"""
import re
import subprocess
import sys
from pathlib import Path

ABI = Path(__file__).resolve().parent
ROOT = ABI.parent.parent


def output(*command, **options):
    return subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True, timeout=120,
                          **options).stdout


def expect_equal(what, found, expected):
    if found != expected:
        sys.exit(f"{what}: unexpected {sorted(found - expected)}, missing {sorted(expected - found)}")


def symbols(library):
    exported = {re.sub("@.*", "", line.split()[-1]) for line in output("nm", "-D", "--defined-only", library).splitlines()}
    exported = {name for name in exported if not re.fullmatch(r"WEFT_\d+\.\d+", name)}
    declared = set(re.findall(r"WEFT_API[^;(]*?\b(weft_\w+)\(", "".join(
        header.read_text() for header in (ROOT / "include/weft").glob("*.h"))))
    expect_equal("exported symbols against include/weft", exported, declared)
    expect_equal("exported symbols against symbols.txt", exported, set((ABI / "symbols.txt").read_text().split()))


def layout(program):
    if sys.maxsize < 2**32:
        print("layout-lp64.txt is for 64-bit machines")
        sys.exit(77)
    expect_equal("layout", set(output(program).splitlines()), set((ABI / "layout-lp64.txt").read_text().splitlines()))


def library(path):
    dynamic = output("readelf", "-dW", path)
    for needed in re.findall(r"NEEDED.*\[(.*)\]", dynamic):
        if re.match(r"lib(ucp|ucs|uct|mpi|nccl|cuda|cudart|cublas)", needed):
            sys.exit(f"{path} needs {needed}")
    if "NODELETE" not in dynamic:
        sys.exit(f"{path} can be unloaded")
    if "libweft.so.0.9]" not in dynamic:
        sys.exit(f"{path} is not libweft.so.0.9")
    if "__cxa_atexit" in output("nm", "-D", "--undefined-only", path):
        sys.exit(f"{path} registers destructors that run at exit")


if __name__ == "__main__":
    modes = {"symbols": symbols, "layout": layout, "library": library}
    if len(sys.argv) < 3 or sys.argv[1] not in modes:
        sys.exit(__doc__)
    modes[sys.argv[1]](*sys.argv[2:])
