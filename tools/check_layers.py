#!/usr/bin/env python3
"""Checks includes between layers, and calls that the library may not make. `make lint` and `make test` run it.

The rules are in docs/dev/design.md. A layer includes only the layers below it, never its neighbours. The library does not
print or exit. Only the files listed here read the environment, use spdlog, catch exceptions, read the clock or wait.
Texts for users mention no lanes, slots or hashes.
"""
import re
import sys
from pathlib import Path

# Folder of the including file -> prefixes of the headers that it may include in quotes. lib/*.cpp may include all of lib.
INTERFACES = ["base/", "device/", "transport/"]
ABOVE_COMM = INTERFACES + ["engine/", "hook/", "control/", "comm/", "metrics/"]
LAYERS = {
    "lib/base": ["base/"],
    "lib/environment": ["base/", "environment/"],
    "lib/metrics": ["base/", "metrics/"],
    "lib/device": ["base/", "device/"],
    "lib/transport": INTERFACES,
    "lib/engine": INTERFACES + ["engine/"],
    "lib/hook": ["base/", "device/", "engine/", "hook/"],
    "lib/control": ["base/", "transport/", "engine/", "control/"],
    "lib/comm": ABOVE_COMM,
    "lib/rendezvous": INTERFACES + ["environment/", "rendezvous/"],
    "lib/status": INTERFACES + ["rendezvous/", "status/"],
    "lib/framed": INTERFACES + ["framed/"],
    "lib/kernels": INTERFACES + ["hook/", "kernels/"],
    "lib/coll": INTERFACES + ["engine/", "coll/"],
    "lib/tagged": ABOVE_COMM + ["tagged/"],
    "lib/trace": ABOVE_COMM + ["trace/"],
    "lib/reducer": ABOVE_COMM + ["rendezvous/", "kernels/", "coll/", "trace/", "reducer/"],
}
# The rooms of lib/reducer that name no feature.
CORE_OF_REDUCER = ["bucket", "manifest", "plan", "recover", "step", "values"]
LIB_FOLDERS = [folder.split("/")[1] + "/" for folder in LAYERS]
LAYERS["lib/capi"] = LIB_FOLDERS + ["capi/", "bootstrap.h", "registry.h"]
HOOK_SEES = ["base/", "hook/hook.h", "device/device.h", "hook/select_scratch.h", "common/"]  # hooks/common

# (description, pattern in code without comments and strings, files where it is allowed).
STATEMENT = r"(?:^|[;{}):?]|\belse\b|\breturn\b)\s*(?:std::|::)?"
FORBIDDEN = [
    ("reads the environment", r"\b(?:secure_)?getenv\s*\(|\benviron\b", ["lib/environment/variables.cpp"]),
    # guarded() catches at the library's edges. std::thread reports a failed start only by an exception.
    ("catches exceptions", r"\bcatch\s*\(", ["lib/base/guard.h", "lib/base/thread.cpp", "lib/base/unwinding.h", "lib/hook/hook_guard.h"]),
    ("prints", r"\b(?:printf|fprintf|vprintf|vfprintf|puts|fputs|putchar|perror|dprintf)\s*\("
               r"|\bstd::(?:cout|cerr|clog|print|println)\b", []),
    ("ends the process", STATEMENT + r"(?:(?:exit|_exit|_Exit|quick_exit)\s*\(|(?:abort|terminate)\s*\(\s*\))"
                         r"|\bstd::(?:abort|exit|_Exit|quick_exit|terminate)\s*\(", []),
    ("sets signal handlers", r"\bsigaction\s*\(|" + STATEMENT + r"signal\s*\(", ["lib/base/dl.cpp"]),
    ("looks at the time or sleeps beside base/clock",
     r"\bclock_gettime\s*\(|\bgettimeofday\s*\(|_clock::now\s*\(|\b(?:u|nano)sleep\s*\(|\bsleep_(?:for|until)\s*\("
     r"|\bclock_nanosleep\s*\(", ["lib/base/clock.cpp"]),
    # Weft also has functions poll, called on an object or without arguments, and select.
    ("waits for descriptors", r"(?<!void )(?<!Poll )(?<![\w>.:])(?:(?:::)?p?poll|::p?select)\s*\(\s*[^)\s]|\bepoll_p?wait2?\s*\(",
     ["lib/rendezvous/", "lib/status/"]),
    ("waits for a condition", r"\bstd::(?:condition_variable|future|promise|latch|barrier|(?:counting|binary)_semaphore)"
                              r"|\b(?:pthread_cond|sem)_\w*wait\w*\s*\(", ["lib/engine/callbacks.", "backends/nccl/communicator.h", "lib/metrics/file.cpp"]),
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
# Internal terms, and the files whose texts may contain them: traces, flight records, UCX's output.
INSIDE = re.compile(r"\b(?:lanes?|slots?|hash(?:es)?|digests?)\b", re.I)
SHOWS_INSIDE = ("lib/trace/", "backends/ucx/library.cpp")
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<][^">]+[">])', re.M)


TOKEN = r'R"\((?:.|\n)*?\)"|//[^\n]*|/\*(?:.|\n)*?\*/|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])*\''


def strip(text):
    """Returns the code without comments and contents of strings, with unchanged line numbers."""
    def blank(match):
        token = match.group(0)
        if token.startswith(('"', "'")):
            return token[0] + token[0]
        return "\n" * token.count("\n")
    return re.sub(TOKEN, blank, text)


def texts(text):
    """Yields (line, string) of each string except the names of included files."""
    text = INCLUDE.sub(lambda match: "\n" * match.group(0).count("\n"), text)
    for match in re.finditer(TOKEN, text):
        if match.group(0).startswith('"'):
            yield text.count("\n", 0, match.start()) + 1, match.group(0)


def allowed_prefixes(path):
    """Returns the prefixes of the headers that a file may include in quotes; an empty prefix allows everything."""
    parts = path.split("/")
    if parts[0] == "lib":
        return LIB_FOLDERS + [""] if len(parts) == 2 else LAYERS.get("/".join(parts[:2]), [])
    own = "/".join(parts[:2]) + "/"
    names = [own, parts[1] + "/"]
    return names + (INTERFACES + ["environment/", "framed/"] if parts[0] == "backends" else HOOK_SEES)


def names_a_feature(path, included):
    """Returns true for a file of the reducer's core that includes a feature's header."""
    room = path.split("/")[2] if path.startswith("lib/reducer/") else ""
    return room in CORE_OF_REDUCER and included.startswith("reducer/feature/")


def may_include(path, included, root):
    if names_a_feature(path, included):
        return False
    prefixes = allowed_prefixes(path)
    if any(prefix and included.startswith(prefix) for prefix in prefixes):
        # "shm/ring.h" in backends/shm refers to the own folder, unless lib has a folder of that name.
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
        problems += [f"{path}:{line}: a text that users see has an internal term (lane, slot, hash or digest): {string}" for line, string in texts(text)
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
    """Returns all problems in lib, backends and hooks under root, sorted."""
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
