#!/usr/bin/env python3
"""Check who includes whom, and what the library may not do. `make lint` and `make test` run it.

The rules are those of docs/design.md: a layer sees the ones below it and never its neighbours, and what STYLE
promises (no printing, no exit, one reader of the environment, one user of spdlog, few places that catch, one
place that looks at the time, few that wait) is kept in the files that may. Texts that a program's user meets
name no lanes, slots or hashes.
"""
import re
import sys
from pathlib import Path

# Folder of the including file -> prefixes of what it may include in quotes. lib/*.cpp may include all of lib.
ABOVE_CORE = ["base/", "core/"]
LAYERS = {
    "lib/base": ["base/"],
    "lib/core": ABOVE_CORE,
    "lib/rendezvous": ABOVE_CORE + ["rendezvous/"],
    "lib/frames": ABOVE_CORE + ["frames/"],
    "lib/kernels": ABOVE_CORE + ["kernels/"],
    "lib/coll": ABOVE_CORE + ["coll/"],
    "lib/trace": ABOVE_CORE + ["trace/"],
    "lib/sync": ABOVE_CORE + ["rendezvous/", "kernels/", "coll/", "trace/", "sync/"],
}
LIB_FOLDERS = [folder.split("/")[1] + "/" for folder in LAYERS]
LAYERS["lib/capi"] = LIB_FOLDERS + ["capi/", "form.h", "registry.h"]
HOOK_SEES = ["base/", "core/hook.h", "core/device.h", "core/select_scratch.h", "common/"]  # hooks/common

# What: pattern in code without comments and strings, files that may.
STATEMENT = r"(?:^|[;{}):?]|\belse\b|\breturn\b)\s*(?:std::|::)?"
FORBIDDEN = [
    ("reads the environment", r"\b(?:secure_)?getenv\s*\(|\benviron\b", ["lib/base/config.cpp"]),
    # At the library's edges, by guarded. std::thread tells only by throwing that it could not start.
    ("catches exceptions", r"\bcatch\s*\(", ["lib/base/guard.h", "lib/base/thread.cpp", "lib/core/hook_guard.h"]),
    ("prints", r"\b(?:printf|fprintf|vprintf|vfprintf|puts|fputs|putchar|perror|dprintf)\s*\("
               r"|\bstd::(?:cout|cerr|clog|print|println)\b", []),
    ("ends the process", STATEMENT + r"(?:(?:exit|_exit|_Exit|quick_exit)\s*\(|(?:abort|terminate)\s*\(\s*\))"
                         r"|\bstd::(?:abort|exit|_Exit|quick_exit|terminate)\s*\(", []),
    ("sets signal handlers", r"\bsigaction\s*\(|" + STATEMENT + r"signal\s*\(", ["lib/base/dl.cpp"]),
    ("looks at the time or sleeps beside base/clock",
     r"\bclock_gettime\s*\(|\bgettimeofday\s*\(|_clock::now\s*\(|\b(?:u|nano)sleep\s*\(|\bsleep_(?:for|until)\s*\("
     r"|\bclock_nanosleep\s*\(", ["lib/base/clock.cpp"]),
    # Functions of ours are called poll, and have an object or no arguments, and select.
    ("waits for descriptors", r"(?<!void )(?<!Poll )(?<![\w>.:])(?:(?:::)?p?poll|::p?select)\s*\(\s*[^)\s]|\bepoll_p?wait2?\s*\(",
     ["lib/rendezvous/"]),
    ("waits for a condition", r"\bstd::(?:condition_variable|future|promise|latch|barrier|(?:counting|binary)_semaphore)"
                              r"|\b(?:pthread_cond|sem)_\w*wait\w*\s*\(", ["lib/core/callbacks.", "backends/nccl/communicator.h"]),
    ("waits or yields beside base/clock", r"\b(?:SYS|__NR)_futex\b|\bsched_yield\s*\(|\bthis_thread::yield\s*\(",
     ["lib/base/clock.cpp"]),
]
FORBIDDEN_INCLUDES = [
    ("spdlog", r"<spdlog/|<fmt/", ["lib/base/log.cpp"]),
    ("streams", r"<iostream>", []),
    ("CUDA and NCCL", r"<(?:cuda|cuda_runtime|nccl)[a-z_]*\.h>", ["backends/nccl/", "backends/cuda/",
                                                                 "lib/kernels/cuda/"]),
    ("UCX", r"<uc[pst]/", ["backends/ucx/"]),
    ("MPI", r"<mpi\.h>", ["backends/mpi/"]),
]
# Parts of the inside, in texts of files that may show them: traces, flight records, what UCX prints.
INSIDE = re.compile(r"\b(?:lanes?|slots?|hash(?:es)?|digests?)\b", re.I)
SHOWS_INSIDE = ("lib/trace/", "backends/ucx/library.cpp")
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<][^">]+[">])', re.M)


TOKEN = r'R"\((?:.|\n)*?\)"|//[^\n]*|/\*(?:.|\n)*?\*/|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])*\''


def strip(text):
    """Code without comments and the insides of strings, with the same lines."""
    def blank(match):
        token = match.group(0)
        if token.startswith(('"', "'")):
            return token[0] + token[0]
        return "\n" * token.count("\n")
    return re.sub(TOKEN, blank, text)


def texts(text):
    """(line, string) of each string but the names of included files."""
    text = INCLUDE.sub(lambda match: "\n" * match.group(0).count("\n"), text)
    for match in re.finditer(TOKEN, text):
        if match.group(0).startswith('"'):
            yield text.count("\n", 0, match.start()) + 1, match.group(0)


def allowed_prefixes(path):
    """What a file may include in quotes; None where everything is allowed."""
    parts = path.split("/")
    if parts[0] == "lib":
        return LIB_FOLDERS + [""] if len(parts) == 2 else LAYERS.get("/".join(parts[:2]), [])
    own = "/".join(parts[:2]) + "/"
    names = [own, parts[1] + "/"]
    return names + (ABOVE_CORE + ["frames/"] if parts[0] == "backends" else HOOK_SEES)


def may_include(path, included, root):
    prefixes = allowed_prefixes(path)
    if any(prefix and included.startswith(prefix) for prefix in prefixes):
        # "shm/ring.h" in backends/shm: the own folder, unless lib has a folder of that name.
        return True
    # A bare name is a file beside the includer; lib/*.cpp also includes the generated registry_table.h.
    if "/" not in included:
        return (root / path).parent.joinpath(included).exists() or "" in prefixes
    return False


def check_file(root, path):
    text = (root / path).read_text(errors="replace")
    problems = []
    for match in INCLUDE.finditer(text):
        line = text.count("\n", 0, match.start(1)) + 1
        target = match.group(1)
        if target.startswith('"') and not may_include(path, target.strip('"'), root):
            problems.append(f"{path}:{line}: may not include {target}")
        for what, pattern, files in FORBIDDEN_INCLUDES:
            if re.match(pattern, target) and not path.startswith(tuple(files)):
                problems.append(f"{path}:{line}: only {' and '.join(files) or 'nobody'} may include {what}")
    if not path.startswith(SHOWS_INSIDE):
        problems += [f"{path}:{line}: a text shows the inside: {string}" for line, string in texts(text)
                     if INSIDE.search(string)]
    code = strip(text)
    for what, pattern, files in FORBIDDEN:
        if path.startswith(tuple(files)):
            continue
        for match in re.finditer(pattern, code, re.M):
            line = code.count("\n", 0, match.end()) + 1
            problems.append(f"{path}:{line}: {what}; allowed in {' and '.join(files) or 'no file'}")
    return problems


def check(root):
    """All problems in lib, backends and hooks under root, sorted."""
    root = Path(root)
    files = sorted(str(path.relative_to(root)) for folder in ("lib", "backends", "hooks")
                   for path in (root / folder).rglob("*") if path.suffix in (".h", ".cpp", ".c", ".cu"))
    return files, [problem for path in files for problem in check_file(root, path)]


def main():
    files, problems = check(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    print("\n".join(problems) if problems else f"layers: {len(files)} files keep the rules")
    return 1 if problems or not files else 0


if __name__ == "__main__":
    sys.exit(main())
