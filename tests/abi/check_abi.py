#!/usr/bin/env python3
"""The library as a stranger meets it.

Usage: check_abi.py symbols LIBRARY | layout PROGRAM | library LIBRARY | initializers COMPILER...

symbols   what libweft.so exports is what the headers declare and what symbols.txt lists. To accept a new symbol:
          nm -D --defined-only build/libweft.so.0.9 | awk '{print $3}' | grep weft_ | sed 's/@@.*//' > tests/abi/symbols.txt
layout    sizes and offsets of the public structs are those of layout-lp64.txt.
initializers  every WEFT_X_INIT of the headers initialises a weft_x in C++, without a warning about 0 for a pointer.
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


def initializers(*compiler):
    headers = sorted((ROOT / "include/weft").glob("weft*.h"))
    text = "".join(header.read_text() for header in headers if header.name != "weft_mpi.h")
    macros = re.findall(r"^#define WEFT_(\w+)_INIT\b", text, re.M)
    if len(macros) < 15:
        sys.exit(f"the headers have only {len(macros)} initialisers: {macros}")
    source = "#include <weft/weft.h>\n#include <weft/weft_transport.h>\n" + "".join(
        f"extern const weft_{name.lower()} {name.lower()};\nconst weft_{name.lower()} {name.lower()} = WEFT_{name}_INIT;\n"
        for name in macros)
    result = subprocess.run([*compiler, "-std=c++17", "-x", "c++", "-", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
                             "-Wzero-as-null-pointer-constant", f"-I{ROOT / 'include'}"], input=source, text=True,
                            timeout=60, check=False)
    sys.exit(result.returncode)


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
    modes = {"symbols": symbols, "layout": layout, "library": library, "initializers": initializers}
    if len(sys.argv) < 3 or sys.argv[1] not in modes:
        sys.exit(__doc__)
    modes[sys.argv[1]](*sys.argv[2:])
