#!/usr/bin/env python3
"""Runs the programs of README and of documents as printed there, by `weft run` with 2 ranks. C programs are compiled against weft.h
and libweft.so alone, Python programs run in this interpreter.

Usage: test_readme.py CC BUILD WEFT
"""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
EXPECTED = {"all_reduce.c": "2 4 6", "sync_gradients.c": "", "sync_gradients.py": "1.5", "half_hook.py": "1.5"}
DOCUMENTS = ["README.md", "docs/how-to/write-a-hook.md"]


def compile_c(compiler, build, source):
    """Return the command that runs a C program."""
    program = source.with_suffix("")
    subprocess.run([compiler, "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", str(source), "-o", str(program),
                    f"-I{ROOT / 'include'}", f"-L{build}", "-lweft", f"-Wl,-rpath,{build}"], check=True, timeout=60)
    return [str(program)]


def main():
    compiler, build, weft = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    text = "".join((ROOT / name).read_text() for name in DOCUMENTS)
    programs = dict(re.findall(r"<!-- test: (\S+) -->\n```\w+\n(.*?)```", text, re.S))
    if set(programs) != set(EXPECTED):
        sys.exit(f"{', '.join(DOCUMENTS)} have the programs {sorted(programs)}, expected {sorted(EXPECTED)}")
    with tempfile.TemporaryDirectory() as folder:
        for name, text in programs.items():
            source = Path(folder) / name
            source.write_text(text)
            in_c = source.suffix == ".c"
            command = compile_c(compiler, build, source) if in_c else [sys.executable, str(source)]
            environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "WEFT_LIBRARY": str(build / "libweft.so.0.9")}
            result = subprocess.run([weft, "run", "-n", "2", "--", *command], capture_output=True, text=True,
                                    timeout=60, env=environment)
            print(result.stdout, result.stderr)
            if result.returncode != 0:
                sys.exit(f"{name}: exit code {result.returncode}")
            if EXPECTED[name] and result.stdout.count(EXPECTED[name]) != 2:
                sys.exit(f"{name}: expected {EXPECTED[name]!r} from both ranks")


if __name__ == "__main__":
    main()
