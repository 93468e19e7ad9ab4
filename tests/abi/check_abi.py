#!/usr/bin/env python3
"""Checks the library as a program outside the tree sees it.

Usage: check_abi.py symbols LIBRARY | layout COMPILER... | library LIBRARY | tool PROGRAM | initializers COMPILER...

symbols   libweft.so exports what the headers declare and what symbols.txt lists. To accept a new symbol:
          nm -D --defined-only build/libweft.so.0.9 | awk '{print $3}' | grep weft_ |
          sed 's/@@.*//' > tests/abi/symbols.txt
layout    sizes and offsets of the public structs are those of layout-lp64.txt. Lines may be added, but not changed
          within a minor version.
initializers  every struct that a program creates has a WEFT_X_INIT, which initialises it in C99 and C++ without a
          warning, also about 0 for a pointer.
tool      the weft command, which is linked with internals as well, takes the functions of the C ABI from libweft.so.
library   libweft.so needs no UCX, MPI, NCCL or CUDA, is never unloaded, and registers no destructors.
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ABI = Path(__file__).resolve().parent
ROOT = ABI.parent.parent
HEADERS = "#include <weft/weft.h>\n#include <weft/weft_transport.h>\n"
# Hooks and transports receive these from the library.
MADE_BY_THE_LIBRARY = {"BUCKET_PARAM", "BUCKET_ENTRIES", "BUCKET", "HOOK_PLAN", "STAGE", "TRANSPORT_EVENTS",
                       "TRANSPORT_LIMITS"}


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


def public_headers():
    return "".join(header.read_text() for header in sorted((ROOT / "include/weft").glob("*.h"))
                   if header.name != "weft_mpi.h")


def fields(body):
    """Yields the names of a struct's fields."""
    for declaration in filter(str.strip, body.split(";")):
        if function := re.search(r"\(\*(\w+)\)", declaration):
            yield function.group(1)
        else:
            yield from (re.search(r"(\w+)(\[\w+\])?$", part.strip()).group(1) for part in declaration.split(","))


def layout(*compiler):
    if sys.maxsize < 2**32:
        print("layout-lp64.txt is for 64-bit machines")
        sys.exit(77)
    text = re.sub(r"/\*.*?\*/", "", public_headers(), flags=re.S)
    lines = []
    for struct, body in re.findall(r"^(?:typedef )?struct (\w+) \{(.*?)^\}", text, re.M | re.S):
        lines.append(f'printf("{struct} size %zu\\n", sizeof({struct}));')
        lines += [f'printf("{struct}.{field} at %zu, %zu bytes\\n", offsetof({struct}, {field}), sizeof((({struct}*)0)->{field}));'
                  for field in fields(body)]
    source = "#include <stddef.h>\n#include <stdio.h>\n" + HEADERS + "int main(void) {\n" + "\n".join(lines) + "\n}\n"
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "layout"
        subprocess.run([*compiler, "-x", "c", "-", f"-I{ROOT / 'include'}", "-o", program], input=source, text=True,
                       timeout=60, check=True)
        found = set(output(program).splitlines())
    expect_equal("layout", found, set((ABI / "layout-lp64.txt").read_text().splitlines()))


def initializers(*compiler):
    text = public_headers()
    macros = re.findall(r"^#define WEFT_(\w+)_INIT\b", text, re.M)
    structs = {name.upper() for name in re.findall(r"struct weft_(\w+) \{\s*size_t struct_size;", text)}
    expect_equal("initialisers", set(macros), structs - MADE_BY_THE_LIBRARY)
    source = HEADERS + "".join(
        f"extern const weft_{name.lower()} {name.lower()};\nconst weft_{name.lower()} {name.lower()} = WEFT_{name}_INIT;\n"
        for name in macros)
    for language in (["-std=c++17", "-x", "c++", "-Wzero-as-null-pointer-constant"], ["-std=c99", "-x", "c"]):
        subprocess.run([*compiler, *language, "-", "-fsyntax-only", "-Wall", "-Wextra", "-pedantic", "-Werror",
                        f"-I{ROOT / 'include'}"], input=source, text=True, timeout=60, check=True)


def library(path):
    dynamic = output("readelf", "-dW", path)
    for needed in re.findall(r"NEEDED.*\[(.*)\]", dynamic):
        if re.match(r"lib(ucp|ucs|uct|mpi|nccl|cuda|cudart|cublas)", needed):
            sys.exit(f"{path} is linked with {needed}, which only a module may need: load it at run time")
    if "NODELETE" not in dynamic:
        sys.exit(f"{path} lacks the flag NODELETE, so dlclose could unload it while its threads run")
    if "libweft.so.0.9]" not in dynamic:
        sys.exit(f"{path} does not have the SONAME libweft.so.0.9")
    if "__cxa_atexit" in output("nm", "-D", "--undefined-only", path):
        sys.exit(f"{path} registers destructors of static objects (__cxa_atexit), which run at exit while threads may use them")


def tool(path):
    defined = re.findall(r" [TW] (weft_\w+)$", output("nm", "--defined-only", path), re.M)
    if own := sorted(set(defined) & set((ABI / "symbols.txt").read_text().split())):
        sys.exit(f"{path} contains {len(own)} functions of the C ABI, such as {own[0]}: it must take them from libweft.so")


if __name__ == "__main__":
    modes = {"tool": tool, "symbols": symbols, "layout": layout, "library": library, "initializers": initializers}
    if len(sys.argv) < 3 or sys.argv[1] not in modes:
        sys.exit(__doc__)
    modes[sys.argv[1]](*sys.argv[2:])
