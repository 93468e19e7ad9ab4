#!/usr/bin/env python3
"""Breaks lib/sync on purpose, one mutant of mutants.py after the other, and tells which test noticed.

Works on a copy of the tree in BUILD/mutants, which stays for the next time. A mutant is killed by a reducer test that
fails, crashes or hangs. Exit 1 if one survives or can no longer be made. Takes twenty minutes on two cores.
`make test-mutants` calls it.
"""
import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from mutants import MUTANTS

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = {"unit": "tests/unit", "property": "tests/property", "capi": "tests/capi"}
# Who is asked, the quick ones first.
TESTS = ["unit_plan", "unit_readiness", "unit_schedule", "unit_values", "unit_prelude", "unit_reducer_uneven",
         "unit_reducer_uses", "unit_reducer_commit", "unit_reducer_leftovers", "unit_reducer_norms",
         "unit_reducer_sharded", "unit_reducer_sparse", "unit_reducer_sparse_errors", "unit_reducer_types",
         "unit_reducer_relayout", "unit_reducer_model", "unit_reducer_report", "unit_reducer",
         "unit_reducer_errors", "unit_reducer_hooks", "capi_local_sgd", "property_reducer"]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, nargs="?", default=ROOT / "build", help="build folder; default build")
    parser.add_argument("--only", type=int, action="append", help="number of a mutant, from 1; may be repeated")
    parser.add_argument("--list", action="store_true", help="print the mutants and end")
    parser.add_argument("--check", action="store_true", help="only look whether every mutant can be made")
    parser.add_argument("--jobs", type=int, default=2, help="of the compiler; default 2")
    parser.add_argument("--timeout", type=float, default=400, help="seconds for a test program, which then hangs")
    return parser.parse_args()


def text_of(mutant, root):
    """The file and its mutated text; ValueError if the mutant cannot be made."""
    path = root / "lib" / "sync" / mutant.file
    text = path.read_text()
    found = text.count(mutant.old)
    if found != 1:
        raise ValueError(f"{mutant.file} has {mutant.old.strip()!r} {found} times, not once")
    return path, text.replace(mutant.old, mutant.new)


def copy_tree(target):
    """The files of the working tree, where they differ, so that little is compiled again."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True,
                            text=True).stdout.splitlines()
    files = {name for name in listed if (ROOT / name).is_file()}
    kept = target / ".files"
    for name in set(kept.read_text().splitlines() if kept.exists() else []) - files:
        (target / name).unlink(missing_ok=True)
    for name in files:
        source, copy = ROOT / name, target / name
        if not copy.exists() or copy.read_bytes() != source.read_bytes():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
    kept.write_text("\n".join(sorted(files)))


def configure(tree):
    if not (tree / "build" / "build.ninja").exists():
        run(["meson", "setup", tree / "build", tree, "-Doptimization=0", "-Ddebug=false", "-Dwerror=false"], 600)


def run(command, timeout):
    """Output and exit status; None for one that did not end."""
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          start_new_session=True) as process:
        try:
            output = process.communicate(timeout=timeout)[0]
            return output, process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.communicate()[0], None


def failed_case(output):
    """The name of the test case that failed, from Catch2's output."""
    lines = output.splitlines()
    rulers = [i for i, line in enumerate(lines) if re.fullmatch("-{20,}", line)]
    return " ".join(line.strip() for line in lines[rulers[0] + 1:rulers[1]]) if len(rulers) > 1 else "it crashed"


def noticed(tree, test, arguments):
    """How the program noticed that something is wrong; nothing if it did not."""
    program = f"{FOLDERS[test.split('_')[0]]}/{test}"
    output, status = run(["ninja", "-C", tree / "build", "-j", arguments.jobs, program], 1800)
    if status != 0:
        return "it does not compile:\n" + output[-2000:]
    output, status = run([tree / "build" / program, "--abort"], arguments.timeout)
    if status is None:
        return "it hangs"
    return f'"{failed_case(output)}"' if status else ""


def judge(mutant, tree, arguments):
    """Outcome and, if it was killed, by whom."""
    path, text = text_of(mutant, tree)
    original = path.read_text()
    path.write_text(text)
    try:
        for test in [mutant.test, *(name for name in TESTS if name != mutant.test)]:
            complaint = noticed(tree, test, arguments)
            if complaint.startswith("it does not compile"):
                return "broken", complaint
            if complaint:
                return "killed", f"{test} {complaint}"
    finally:
        path.write_text(original)
    return "survived", ""


def main():
    arguments = parse_arguments()
    sys.stdout.reconfigure(line_buffering=True)
    chosen = [(number, mutant) for number, mutant in enumerate(MUTANTS, 1)
              if not arguments.only or number in arguments.only]
    outcomes = []
    if arguments.list or arguments.check:
        for number, mutant in chosen:
            try:
                text_of(mutant, ROOT)
                outcomes.append("")
            except ValueError as error:
                outcomes.append(f": cannot be made: {error}")
            print(f"{number:3} {mutant.file}: {mutant.name}{outcomes[-1]}")
        return 1 if any(outcomes) else 0
    tree = arguments.build.resolve() / "mutants"
    tree.mkdir(parents=True, exist_ok=True)
    copy_tree(tree)
    configure(tree)
    failing = [test for test in TESTS if noticed(tree, test, arguments)]
    if failing:
        print(f"mutants: {', '.join(failing)} fails without any")
        return 1
    for number, mutant in chosen:
        began = time.monotonic()
        try:
            outcome, who = judge(mutant, tree, arguments)
        except ValueError as error:
            outcome, who = "broken", str(error)
        outcomes.append(outcome)
        print(f"{number:3} {outcome:8} {mutant.name} ({time.monotonic() - began:.0f} s)" + (f"\n      {who}" if who else ""))
    killed = outcomes.count("killed")
    print(f"mutants: {killed} of {len(outcomes)} killed, {outcomes.count('survived')} survived, "
          f"{outcomes.count('broken')} cannot be made")
    return 0 if killed == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
