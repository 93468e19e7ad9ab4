#!/usr/bin/env python3
"""Runs all checks that do not run the code. `make lint` calls it with the build folder.

format   clang-format over all tracked C and C++ files
layers   tools/check_layers.py
docs     tools/check_docs.py
prose    tools/check_prose.py: sentences that are hard to read, and words that docs/dev/words.md replaces
sizes    files of lib, backends, hooks and include: more than 400 lines are reported, more than 700 fail. A folder of more
         than 40 files fails too, unless it is a fuzz target's corpus. So do classes with too many data members, or in more
         than one .cpp (tools/check_classes.py)
headers  every header of lib, backends and hooks compiles alone; the public ones as C99, C11 and C++17, by gcc and clang.
         Headers that a source includes first are left to `tidy`.
         Those of a backend that is not built are left out
includes every source of lib, backends and hooks compiles without precompiled headers, with the build folder's compiler and
         with clang: 17 minutes of CPU, so only by name (--only includes) or with --recent, and then without clang, because
         tidy compiles the same files with it
reference  Doxygen over the public headers: every item has a comment. Its HTML is in BUILD/reference
site     the documents as a site (`make docs`): links, anchors, and docstrings of public Python functions
types    mypy over the Python package
tidy     clang-tidy over lib, backends and hooks, with the flags of the build folder, without precompiled headers. It takes
         most of the time

--recent N: includes and tidy leave out files that the last N commits have not changed.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import check_classes
from docs_site import build as docs_build

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".venv" / "bin"
CODE = ("lib/", "backends/", "hooks/")
LONG, TOO_LONG = 400, 700
FULL = 40  # files of a folder
# Folders of inputs, which nobody reads as a list.
DATA = ("tests/fuzz/corpus/",)
# Headers that are mostly documentation.
LONG_BY_DESIGN = {"include/weft/core.h", "include/weft/reducer.h"}


def tracked(*suffixes):
    listing = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                             check=True, stdout=subprocess.PIPE, text=True).stdout
    return sorted({name for name in listing.split("\0") if name.endswith(suffixes) and (ROOT / name).exists()})


def output_of(command, text=None, cwd=ROOT):
    """Returns the output of a failed command; empty if it succeeded."""
    result = subprocess.run(command, cwd=cwd, input=text, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return "" if result.returncode == 0 else result.stdout.strip() or f"{command[0]}: exit code {result.returncode}"


def in_parallel(jobs, function, items):
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return [text for text in pool.map(function, items) if text]


def check_format(arguments):
    files = tracked(".h", ".c", ".cpp", ".cu")
    return in_parallel(arguments.jobs, lambda part: output_of(
        [str(TOOLS / "clang-format"), "--dry-run", "-Werror", *part]), [files[0::2], files[1::2]] if files[1:] else [files])


def check_layers(_):
    return [text for text in [output_of([sys.executable, "tools/check_layers.py"])] if text]


def check_docs(_):
    return [text for text in [output_of([sys.executable, "tools/check_docs.py"])] if text]


def check_reference(arguments):
    try:
        docs_build.reference(arguments.build)
    except RuntimeError as error:
        return [str(error)]
    return []


def check_site(arguments):
    return [text for text in [output_of([sys.executable, "tools/docs_site/build.py", str(arguments.build)])] if text]


def check_prose(_):
    return [text for text in [output_of([sys.executable, "tools/check_prose.py"])] if text]


def check_sizes(_):
    problems = []
    for name in tracked(".h", ".c", ".cpp", ".cu"):
        if not name.startswith(CODE + ("include/",)) or name in LONG_BY_DESIGN:
            continue
        lines = len((ROOT / name).read_text().splitlines())
        if lines > TOO_LONG:
            problems.append(f"{name}: {lines} lines; at most {TOO_LONG} are allowed; split it")
        elif lines > LONG:
            print(f"  note: {name} has {lines} lines")
    folders = collections.Counter(os.path.dirname(name) for name in tracked("") if not name.startswith(DATA))
    problems += [f"{folder}: {files} files; at most {FULL} are allowed; divide it"
                 for folder, files in folders.items() if files > FULL]
    return problems + check_classes.check(ROOT, [name for name in tracked(".h", ".cpp", ".cu")
                                                 if name.startswith(check_classes.FOLDERS)])


def check_names(_):
    """The files of a suite are linked into one program: two classes of one name in the tests' headers, each used by
    other files, would be merged without an error."""
    places = {}
    for name in tracked(".h"):
        if name.startswith(("tests/unit/", "tests/support/", "tests/property/")):
            space = ""
            for line in (ROOT / name).read_text().splitlines():
                space = line.split()[1] if line.startswith("namespace ") else space
                if match := re.match(r"(?:class|struct) (\w+)[^;]*$", line):
                    places.setdefault((space, match[1]), []).append(name)
    return [f"{' and '.join(names)}: a class {space}::{word} in each; rename one"
            for (space, word), names in places.items() if len(names) > 1]


PRECOMPILED = re.compile(r" -(fpch-preprocess|Winvalid-pch|fpch-instantiate-templates)\b| -include(-pch)? \S+")


def compile_database(build):
    """The build folder's commands, without precompiled headers: one for each source, also of those compiled in groups."""
    entries = []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        entry = {**entry, "command": PRECOMPILED.sub("", entry["command"])}
        group = Path(entry["directory"]) / entry["file"]
        if "-unity" not in group.name:
            entries.append(entry)
            continue
        for source in re.findall(r'#include *[<"](.+)[>"]', group.read_text()):
            path = os.path.relpath(Path(entry["directory"]) / source, entry["directory"])
            entries.append({**entry, "file": path, "command": entry["command"].replace(entry["file"], path)})
    return entries


def code_entries(build):
    """The commands of lib's, backends' and hooks' sources by path."""
    entries = {}
    for entry in compile_database(build):
        path = (Path(entry["directory"]) / entry["file"]).resolve()
        if path.is_relative_to(ROOT) and str(path.relative_to(ROOT)).startswith(CODE):
            entries[str(path)] = entry
    return entries


def include_flags(build):
    """Returns the include folders and definitions that the library is compiled with."""
    flags = []
    for entry in compile_database(build):
        if "/lib/" in str((Path(entry["directory"]) / entry["file"]).resolve()):
            words = shlex.split(entry["command"])
            flags = [word for word in words if word.startswith(("-I", "-D", "-isystem", "-pthread"))]
            break
    for entry in compile_database(build):  # a backend's library may be in a folder of its own
        if "/backends/" in str((Path(entry["directory"]) / entry["file"]).resolve()):
            flags += [word for word in shlex.split(entry["command"]) if word.startswith("-isystem") and word not in flags]
    absolute = []
    for flag in flags:
        absolute.append("-I" + str((build / flag[2:]).resolve()) if flag.startswith("-I") else flag)
    return absolute


def compiled_first(build):
    """Returns headers that a source of the build folder includes first: compiling the source has checked them."""
    headers = set()
    for entry in compile_database(build):
        source = (Path(entry["directory"]) / entry["file"]).resolve()
        if not source.is_relative_to(ROOT) or not str(source.relative_to(ROOT)).startswith(CODE):
            continue
        first = re.search(r'^#include (.+)$', source.read_text(), re.M)
        if first and first[1].startswith('"'):
            found = [folder / first[1].strip('"') for folder in (source.parent, ROOT / "lib", ROOT / "hooks")]
            headers |= {str(path.relative_to(ROOT)) for path in [path for path in found if path.exists()][:1]}
    return headers


def backends_left_out(build):
    """Returns the folders of backends that the build folder does not compile: their libraries' headers are missing."""
    sources = [(Path(entry["directory"]) / entry["file"]).resolve() for entry in compile_database(build)]
    folders = {f"backends/{path.name}/" for path in (ROOT / "backends").iterdir() if path.is_dir()}
    return tuple(folder for folder in sorted(folders) if not any(str(ROOT / folder) in str(path) for path in sources))


def check_headers(arguments):
    left_out = backends_left_out(arguments.build)
    for folder in left_out:
        print(f"  note: {folder} is not built here")
    flags = include_flags(arguments.build)
    warnings = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only"]

    def compile_alone(job):
        compiler, language, standard, header, extra = job
        text = output_of([compiler, "-x", language, "-std=" + standard, *warnings, *extra, "-"],
                         f'#include "{ROOT / header}"\nextern int weft_header_alone;\n')
        return text and f"{header} alone, by {compiler} as {standard}:\n{text}"

    compiled = compiled_first(arguments.build)
    jobs = []
    for c, cpp in (("gcc", "g++"), ("clang", "clang++")):
        if shutil.which(c):
            for public in tracked(".h"):
                if not public.startswith("include/weft/") or public == "include/weft/weft_mpi.h":
                    continue  # weft_mpi.h needs mpi.h
                jobs += [(c, "c", standard, public, ["-Iinclude"]) for standard in ("c99", "c11")]
                jobs += [(cpp, "c++", "c++17", public, ["-Iinclude"])]
    compiler = "g++" if shutil.which("g++") else "clang++"
    jobs += [(compiler, "c++", "c++20", header, ["-Wno-missing-field-initializers", *flags])
             for header in tracked(".h") if header.startswith(CODE) and header not in compiled and not header.startswith(left_out)]
    return in_parallel(arguments.jobs, compile_alone, jobs)


UNCHECKED_CHANGE = re.compile(r"[+-]\s*(#\s*include\b.*|//.*)?$")  # of an include, a comment or a blank line


def recently_changed(commits):
    """Returns the paths, without their endings, of what the last commits and the working tree have changed.

    A file does not count that was only renamed, or in which only includes and comments have changed. With fewer commits than
    that: of all files.
    """
    base = subprocess.run(["git", "rev-parse", "--quiet", "--verify", f"HEAD~{commits}"], cwd=ROOT, text=True,
                          stdout=subprocess.PIPE).stdout.strip()
    if not base:
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE).stdout
        return {str((ROOT / line).with_suffix("")) for line in listed.splitlines()}
    diff = subprocess.run(["git", "diff", "--unified=0", "--find-renames", "--no-color", base], cwd=ROOT, check=True,
                          text=True, errors="replace", stdout=subprocess.PIPE).stdout
    changed, file = set(), None
    for line in diff.splitlines():
        if line.startswith("+++ "):
            file = line[6:] if line.startswith("+++ b/") else None
        elif line.startswith(("+", "-")) and not line.startswith("--- ") and file and not UNCHECKED_CHANGE.match(line):
            changed.add(str((ROOT / file).with_suffix("")))
    return changed


def only_recent(entries, arguments):
    """Returns the entries of files that the last commits have changed; all of them without --recent."""
    if not arguments.recent:
        return entries
    changed = recently_changed(arguments.recent)  # a header's problems appear for the source of the same name
    return {path: entry for path, entry in entries.items() if str(Path(path).with_suffix("")) in changed}


def check_includes(arguments):
    def compile_without_code(item):
        path, entry, compiler = item
        words = shlex.split(entry["command"])
        at = words.index("-o")
        words = [word for word in words[:at] + words[at + 2:] if word != "ccache"]
        if compiler:
            words[0] = compiler
            words.append("-Wno-unknown-warning-option")
        text = output_of([*words, "-fsyntax-only"], cwd=entry["directory"])
        return text and f"{path} ({words[0]}):\n{text}"

    compilers = [None, shutil.which("clang++")] if shutil.which("clang++") and not arguments.recent else [None]
    entries = only_recent(code_entries(arguments.build), arguments)
    return in_parallel(arguments.jobs, compile_without_code, [(path, entry, compiler) for path, entry in entries.items()
                                                              if not path.endswith(".cu") for compiler in compilers])


def check_types(arguments):
    # NumPy's types come from this interpreter's installation.
    command = [str(TOOLS / "mypy"), "--config-file", "pyproject.toml", "--python-executable", sys.executable,
               "--cache-dir", str(arguments.build / "mypy"), "--no-error-summary", "python/weftsync"]
    return [text for text in [output_of(command)] if text]


def check_tidy(arguments):
    files = only_recent(code_entries(arguments.build), arguments)
    if arguments.files:
        files = {path: entry for path, entry in files.items() if arguments.files in path}
    database = arguments.build / "lint"
    database.mkdir(exist_ok=True)
    (database / "compile_commands.json").write_text(json.dumps(list(files.values())))

    def tidy(path):
        # The database may be gcc's; clang does not know all of its warnings.
        text = output_of([str(TOOLS / "clang-tidy"), "--quiet", "-p", str(database),
                          "--extra-arg=-Wno-unknown-warning-option", path])
        return re.sub(r"^\d+ warnings? (?:treated as errors? )?generated\.\n|^Suppressed .*\n", "", text, flags=re.M)

    # The slowest files come first, so that the last ones end together. A header's problems appear for every file that includes it.
    reports = in_parallel(arguments.jobs, tidy, sorted(files, key=os.path.getsize, reverse=True))
    return list(dict.fromkeys(problem for report in reports
                              for problem in re.split(r"\n(?=\S+:\d+:\d+: (?:error|warning): )", report)))


CHECKS = {"format": check_format, "layers": check_layers, "docs": check_docs, "prose": check_prose, "sizes": check_sizes,
          "names": check_names, "headers": check_headers, "reference": check_reference, "site": check_site, "includes": check_includes,
          "types": check_types, "tidy": check_tidy}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="a configured build folder")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--only", help="checks to run (default: all; includes only with --recent)")
    parser.add_argument("--files", default="", help="for tidy: only files whose path contains this")
    parser.add_argument("--recent", type=int, default=0, metavar="N", help="only what the last N commits changed")
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    failed = []
    names = [name for name in CHECKS if name != "includes" or arguments.recent]
    if arguments.only:
        names = arguments.only.replace(",", " ").split()
    for name in names:
        begin = time.monotonic()
        problems = CHECKS[name](arguments)
        print(f"lint {name:9} {'FAILED' if problems else 'ok'} ({time.monotonic() - begin:.0f} s)", flush=True)
        if problems:
            failed.append(name)
            print("\n".join(problems), flush=True)
    print("lint: failed: " + ", ".join(failed) if failed else "lint: clean")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
