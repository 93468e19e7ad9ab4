#!/usr/bin/env python3
"""Breaks lib/sync on purpose, one mutant of mutants.py after the other, and tells which test noticed.

The tree stays as it is: of a build folder, what includes the mutated file is compiled once more from BUILD/mutants and
linked beside the rest. A mutant is killed by a reducer test that fails, crashes or hangs. Exit 1 if one survives or can
no longer be made. All take half an hour on two cores; `make test-mutants` runs them, `.ci/run` a few.
"""
import argparse
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mutants import MUTANTS

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = {"unit": "tests/unit", "property": "tests/property", "capi": "tests/capi"}
# Who is asked, the quick ones first.
TESTS = ["unit_plan", "unit_readiness", "unit_schedule", "unit_values", "unit_prelude", "unit_reducer_uneven",
         "unit_reducer_uses", "unit_reducer_commit", "unit_reducer_leftovers", "unit_reducer_norms",
         "unit_reducer_sharded", "unit_reducer_sparse", "unit_reducer_sparse_errors", "unit_reducer_types",
         "unit_reducer_relayout", "unit_reducer_model", "unit_reducer_report", "unit_reducer", "unit_reducer_errors",
         "unit_reducer_hooks", "unit_hooks_moved", "unit_trace", "capi_local_sgd", "property_reducer"]
ARCHIVE, LIBRARY = "libweft_internal.a", "libweft.so.1.0.0"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, nargs="?", default=ROOT / "build", help="build folder; default build")
    parser.add_argument("--only", type=int, action="append", help="number of a mutant, from 1; may be repeated")
    parser.add_argument("--sample", type=int, help="so many mutants, drawn by --seed")
    parser.add_argument("--seed", default="", help="any text")
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


def run(command, timeout, folder=None, environment=None):
    """Output and exit status; None for one that did not end."""
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", start_new_session=True, cwd=folder, env=environment) as process:
        try:
            output = process.communicate(timeout=timeout)[0]
            return output, process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.communicate()[0], None


class Build:
    """A build folder of this tree, and how what it made would be made with a mutant."""

    def __init__(self, folder, jobs):
        self.folder, self.jobs = folder.resolve(), jobs
        self.overlay = self.folder / "mutants"
        self.programs = {test: f"{FOLDERS[test.split('_')[0]]}/{test}" for test in TESTS}
        self.sound = set()  # tests that were built, and pass without mutants
        commands = json.loads((self.folder / "compile_commands.json").read_text())
        self.compiles = {entry["output"]: entry["command"] for entry in commands}

    def make(self, test):
        """Build a test without mutants; what is said against it."""
        targets = [self.programs[test], *[LIBRARY] * test.startswith("capi_")]
        output, status = run(["ninja", "-C", self.folder, "-j", self.jobs, *targets], 3600)
        return "" if status == 0 else output[-2000:]

    def mutate(self, path, text):
        """What must be compiled again with this text, and where its copies are: {output: copy}."""
        shutil.rmtree(self.overlay, ignore_errors=True)
        copy = self.overlay / path.relative_to(ROOT / "lib")
        copy.parent.mkdir(parents=True)
        copy.write_text(text)
        self.source, self.copy = os.path.relpath(path, self.folder), copy
        if path.suffix == ".cpp":
            includers = [output for output, command in self.compiles.items() if command.endswith(f" {self.source}")]
        else:
            deps = subprocess.run(["ninja", "-C", self.folder, "-t", "deps"], check=True, capture_output=True, text=True)
            blocks = [block.splitlines() for block in deps.stdout.split("\n\n") if block]
            includers = [block[0].split(":")[0] for block in blocks if f"    {self.source}" in block[1:]]
        self.changed = {output: self.overlay / output for output in includers if output in self.compiles}

    def compile(self, outputs):
        """Compile these of the changed; what the compiler says against it."""
        def one(output):
            self.changed[output].parent.mkdir(parents=True, exist_ok=True)
            words = shlex.split(self.compiles[output])
            words = [str(self.changed[output]) + word[len(output):] if word.startswith(output) else word for word in words]
            words = [str(self.copy) if word == self.source else word for word in words if word != "-Werror"]
            return run([*words[:2], f"-I{self.overlay}", *words[2:], "-O0"], 600, self.folder)
        with ThreadPoolExecutor(self.jobs) as pool:
            results = list(pool.map(one, [output for output in outputs if not self.changed[output].exists()]))
        return "".join(output for output, status in results if status != 0)

    def link(self, test):
        """The program of a test with the mutant, and its environment; or what is said against it."""
        program, kept = self.programs[test], self.overlay / self.programs[test]
        ours = [output for output in self.changed if output.startswith((f"{ARCHIVE}.p/", f"{program}.p/", "tests/support/"))]
        if complaint := self.compile(ours):
            return None, None, complaint
        kept.parent.mkdir(parents=True, exist_ok=True)
        if test.startswith("capi_"):
            library = self.overlay / "libweft.so.1"
            complaint = self.relink(LIBRARY, library, [])
            return self.folder / program, {**os.environ, "LD_PRELOAD": str(library)}, complaint
        return kept, os.environ, self.relink(program, kept, ours)

    def relink(self, target, made, outputs):
        """Link a target to `made`, with these of the changed in front of the archives that have the rest."""
        if made.exists():
            return ""
        commands = subprocess.run(["ninja", "-C", self.folder, "-t", "commands", "-s", target], check=True, capture_output=True,
                                  text=True).stdout.strip().splitlines()
        words = [str(made) if word == target else word for word in shlex.split(commands[-1])]
        words = [str(self.changed.get(word, word)) for word in words]
        extra = [str(self.changed[output]) for output in outputs if str(self.changed[output]) not in words]
        place = next(i for i, word in enumerate(words) if word == "-o") + 2
        output, status = run([*words[:place], *extra, *words[place:]], 600, self.folder)
        return "" if status == 0 else output


def failed_case(output):
    """The name of the test case that failed, from Catch2's output."""
    lines = output.splitlines()
    rulers = [i for i, line in enumerate(lines) if re.fullmatch("-{20,}", line)]
    return " ".join(line.strip() for line in lines[rulers[0] + 1:rulers[1]]) if len(rulers) > 1 else "it crashed"


def noticed(program, environment, arguments):
    """How the program noticed that something is wrong; nothing if it did not."""
    output, status = run([program, "--abort"], arguments.timeout, environment=environment)
    if status is None:
        return "it hangs"
    return f'"{failed_case(output)}"' if status else ""


def judge(mutant, build, arguments):
    """Outcome and, if it was killed, by whom."""
    mutated = text_of(mutant, ROOT)
    for test in [mutant.test, *(name for name in TESTS if name != mutant.test)]:
        if test not in build.sound:
            complaint = build.make(test) or noticed(build.folder / build.programs[test], os.environ, arguments)
            if complaint:
                return "broken", f"{test} fails without it: {complaint}"
            build.sound.add(test)
        if test == mutant.test:
            build.mutate(*mutated)
        program, environment, complaint = build.link(test)
        if complaint:
            return "broken", f"it does not compile or link:\n{complaint[-2000:]}"
        complaint = noticed(program, environment, arguments)
        if complaint:
            return "killed", f"{test} {complaint}"
    return "survived", ""


def choose(arguments):
    numbered = list(enumerate(MUTANTS, 1))
    if arguments.sample:
        return sorted(random.Random(arguments.seed).sample(numbered, arguments.sample))
    return [(number, mutant) for number, mutant in numbered if not arguments.only or number in arguments.only]


def list_mutants(chosen):
    bad = 0
    for number, mutant in chosen:
        try:
            text_of(mutant, ROOT)
            problem = ""
        except ValueError as error:
            bad, problem = 1, f": cannot be made: {error}"
        print(f"{number:3} {mutant.file}: {mutant.name}{problem}")
    return bad


def main():
    arguments = parse_arguments()
    sys.stdout.reconfigure(line_buffering=True)
    chosen = choose(arguments)
    if arguments.list or arguments.check:
        return list_mutants(chosen)
    build = Build(arguments.build, arguments.jobs)
    outcomes = []
    for number, mutant in chosen:
        began = time.monotonic()
        try:
            outcome, who = judge(mutant, build, arguments)
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
