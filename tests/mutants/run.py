#!/usr/bin/env python3
"""Breaks the library on purpose, one mutant of mutants.py after the other: the expected test must fail.

The source tree stays unchanged. The objects of a build folder that include the mutated file are compiled
again and linked in a separate folder under BUILD/mutants. A mutant is killed if its test fails, crashes or
hangs, in a case that passes without the mutant. So each costs the compilation of a file, a link and a part of
one test program: seconds. Exits with 1 if a mutant survives or its substitution no longer applies. `make
test-mutants` runs all, `.ci/run` a part of them in turn.

The library's sources are in lib, backends and hooks. A module that the library loads at run time is not
linked again, so its own sources have no mutants (backends/cuda, mpi, nccl, ucx).
"""
import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mutants import MUTANTS

ROOT = Path(__file__).resolve().parent.parent.parent
LIBRARY = "libweft.so.0.9.0"
SOURCES = ("lib", "backends", "hooks")  # the folders that include directives are relative to


def number_up_to(most):
    """Return a function for argparse that parses a number from 1 to most."""
    def parse(text):
        if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to {most}")
        return int(text)
    return parse


def part_of_list(text):
    """Return the numbers of the mutants of a part, such as 2/17."""
    part, _, parts = text.partition("/")
    parts = number_up_to(len(MUTANTS))(parts)
    part = number_up_to(parts)(part)
    return range(len(MUTANTS) * (part - 1) // parts + 1, len(MUTANTS) * part // parts + 1)


def parse_arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, nargs="?", default=ROOT / "build-mutants",
                        help="build folder, configured with -Dgrouped=false; default build-mutants")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--only", type=number_up_to(len(MUTANTS)), action="append",
                        help=f"number of a mutant, from 1 to {len(MUTANTS)}; may be repeated")
    chosen.add_argument("--part", type=part_of_list, metavar="N/PARTS", help="part N of the list, divided into PARTS equal parts")
    parser.add_argument("--list", action="store_true", help="print the mutants and end")
    parser.add_argument("--check", action="store_true", help="only check that every mutant can be applied to the sources")
    parser.add_argument("--ask-others", action="store_true", help="for each survivor, find another test that detects it")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time; default 2")
    parser.add_argument("--timeout-multiplier", type=float, default=1.0,
                        help="factor for the time limit of a test case, which meson.build gives its program")
    return parser.parse_args(words)


def text_of(mutant, root):
    """Return the file and its mutated text; raise ValueError if the substitution does not apply."""
    path = root / mutant.file
    text = path.read_text()
    found = text.count(mutant.old)
    if found != 1:
        raise ValueError(f"{mutant.file} has {mutant.old.strip()!r} {found} times, expected once: adapt tests/mutants/mutants.py")
    return path, text.replace(mutant.old, mutant.new)


def output_of(command, folder):
    """Return "" if the command succeeded, else the end of its output."""
    result = subprocess.run([str(word) for word in command], cwd=folder, text=True, errors="replace",
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=3600)
    return "" if result.returncode == 0 else result.stdout[-2000:] or f"{command[0]}: exit code {result.returncode}"


def failed_case(program, selection, report, patience, environment=None):
    """Return the failure of a test program: the case, and how it ended; None if all selected cases pass. The program
    counts as hanging if no case begins or ends for `patience` seconds. It reports its cases as to
    tests/run.py (tests/support/main.cpp). `selection` is Catch2's: a list of words.
    """
    report.unlink(missing_ok=True)
    words = [str(program), "--abort", *selection]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          start_new_session=True,
                          env={**os.environ, **(environment or {}), "WEFT_TEST_REPORT": str(report)}) as process:
        told, since = -1, time.monotonic()
        while process.poll() is None:
            size = report.stat().st_size if report.exists() else 0
            if size != told:
                told, since = size, time.monotonic()
            if time.monotonic() - since > patience:
                break
            time.sleep(0.02)
        hangs = process.poll() is None
        try:
            os.killpg(process.pid, signal.SIGKILL)  # also the processes that it left behind
        except ProcessLookupError:
            pass
        code = process.wait()
    running = ""
    for line in report.read_text(errors="replace").splitlines() if report.exists() else []:
        event, name = line.split("\t")[:2]
        if event == "fail":
            return name, "fails"
        if event in ("start", "pass", "skip"):
            running = name if event == "start" else ""
    if hangs:
        return running, "hangs"
    return (running, f"ends with exit code {code}") if code != 0 else None


class Build:
    """A build folder of this tree. Threads: any."""

    def __init__(self, folder, timeout_multiplier):
        self.folder = folder.resolve()
        listing = subprocess.run(["meson", "introspect", "--tests", str(folder)], check=True, stdout=subprocess.PIPE)
        # By the names that mutants.py uses: the program, the selection of its cases, and the time limit of a case.
        self.tests = {self.name_of(entry): (os.path.relpath(entry["cmd"][0], self.folder), entry["cmd"][1:],
                                            entry["timeout"] * timeout_multiplier)
                      for entry in json.loads(listing.stdout)}
        self.overlays = self.folder / "mutants"
        self.lock = threading.Lock()
        self.made, self.commands, self.taken, self.sound = set(), {}, {}, {}
        commands = json.loads((self.folder / "compile_commands.json").read_text())
        self.compiles = {entry["output"]: entry["command"] for entry in commands}
        if any("-unity" in output for output in self.compiles):
            raise SystemExit(f"{folder} compiles sources in groups: configure it with -Dgrouped=false")

    @staticmethod
    def name_of(entry):
        name, suite = entry["name"], entry["suite"][0].split(":")[-1]
        return name if f"{name}_".startswith((f"{suite}_", "property_")) else f"{suite}_{name}"

    def program(self, test):
        return self.tests[test][0]

    def make(self, test):
        """Build a test without mutants; return the error, if any."""
        with self.lock:
            if test not in self.made:
                complaint = output_of(["ninja", "-C", self.folder, self.program(test)], self.folder)
                if complaint:
                    return complaint
                self.made.add(test)
        return ""

    def link_command(self, target):
        with self.lock:
            if target not in self.commands:
                lines = subprocess.run(["ninja", "-C", self.folder, "-t", "commands", "-s", target], check=True,
                                       capture_output=True, text=True).stdout.strip().splitlines()
                self.commands[target] = shlex.split(lines[-1])
            return self.commands[target]

    def loads_library(self, test):
        """Return whether a test's program is linked to the shared library, not to the objects in it."""
        return any(Path(word).name.startswith("libweft.so") for word in self.link_command(self.program(test)))

    def objects_of(self, target):
        """Return the objects that the linker uses for a target; of an archive only those it needs."""
        words = self.link_command(target)
        with self.lock:
            if target not in self.taken:
                self.overlays.mkdir(exist_ok=True)
                made, told = self.overlays / "linked", self.overlays / "linked.map"
                place = words.index("-o") + 1
                complaint = output_of([*words[:place], made, *words[place + 1:], f"-Wl,-Map={told}"], self.folder)
                if complaint:
                    raise ValueError(f"{target} does not link: {complaint}")
                self.taken[target] = set(told.read_text().split()) & set(self.compiles)
                made.unlink()
            return self.taken[target]

    def fails_without(self, test, case, environment):
        """Return how this case fails without a mutant; None if it passes."""
        with self.lock:
            key = test, case, *sorted(environment.items())
            if key not in self.sound:
                target, _, patience = self.tests[test]
                self.sound[key] = failed_case(self.folder / target, [case.replace(",", "\\,").replace("[", "\\[")],
                                              self.overlays / "sound.report", patience, environment)
            return self.sound[key]


class Overlay:
    """The objects and programs that are compiled and linked anew for one mutant, in a folder of their own."""

    def __init__(self, build, number, mutant):
        path, text = text_of(mutant, ROOT)
        self.build, self.mutant, self.folder = build, mutant, build.overlays / str(number)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.copy = self.folder / mutant.file
        self.copy.parent.mkdir(parents=True)
        # An include directive finds a file beside the including one first. So the mutant's neighbours are here too.
        for neighbour in path.parent.iterdir():
            if neighbour.is_file() and neighbour != path:
                (self.copy.parent / neighbour.name).symlink_to(neighbour)
        self.copy.write_text(text)
        self.source = os.path.relpath(path, build.folder)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder, ignore_errors=True)

    def changed(self):
        """Return the objects that include the file. Call it after the build: ninja then knows who includes a
        header."""
        if self.copy.suffix == ".cpp":
            return [output for output, command in self.build.compiles.items() if command.endswith(f" {self.source}")]
        deps = subprocess.run(["ninja", "-C", self.build.folder, "-t", "deps"], check=True, capture_output=True, text=True)
        blocks = [block.splitlines() for block in deps.stdout.split("\n\n") if block]
        outputs = [block[0].split(":")[0] for block in blocks if f"    {self.source}" in block[1:]]
        return [output for output in outputs if output in self.build.compiles and self.needed(output)]

    def needed(self, output):
        """Return whether an object that includes the mutated header is compiled again."""
        source = self.build.compiles[output].split()[-1]
        return not self.mutant.only or f"/{self.mutant.only}/" in source or os.path.basename(source).startswith("test_")

    def compile(self, output):
        """Compile an object again with the mutant; return the compiler's errors."""
        made = self.folder / output
        if made.exists():
            return ""
        made.parent.mkdir(parents=True, exist_ok=True)
        words = [str(made) + word[len(output):] if word.startswith(output) else word
                 for word in shlex.split(self.build.compiles[output])]
        words = [word for word in words if word != "-Werror"]
        if os.path.dirname(words[-1]) == os.path.dirname(self.source):
            words[-1] = str(self.copy.parent / os.path.basename(words[-1]))
        includes = [f"-I{self.folder / root}" for root in SOURCES]
        return output_of([*words[:2], *includes, *words[2:]], self.build.folder)

    def link(self, test, target, made):
        """Link a target to `made`. The changed objects come first and replace the original ones. Of the test files of a
        program only the one of this test is compiled with a mutated header."""
        words = self.build.link_command(target)
        taken = self.build.objects_of(target)
        file = f"test_{test.split('_', 1)[1]}.cpp.o"
        ours = [output for output in self.changed()
                if output in taken and (not output.startswith(f"{target}.p/") or "test_" not in Path(output).name
                                        or output.endswith(file))]
        if not ours:
            return f"nothing in {target} sees {self.source}"
        for output in ours:
            if complaint := self.compile(output):
                return complaint
        place = words.index("-o") + 2
        extra = [str(self.folder / output) for output in ours]
        rest = [word for word in words[place:] if word not in ours]
        return output_of([*words[:place - 1], made, *extra, *rest], self.build.folder)

    def ask(self, test):
        """Return ("killed" or "survived" or "broken", and the details)."""
        if complaint := self.build.make(test):
            return "broken", f"{test} cannot be built:\n{complaint}"
        program, environment = self.folder / test, dict(self.mutant.environment)
        if self.build.loads_library(test):
            library, program = self.folder / "libweft.so.0.9", self.build.folder / self.build.program(test)
            environment["LD_PRELOAD"] = str(library)
            modules = self.folder / "weft"  # the library looks for modules beside itself
            if not modules.exists():
                modules.symlink_to((self.build.folder / "weft").resolve())
            complaint = self.link(test, LIBRARY, library)
        else:
            complaint = self.link(test, self.build.program(test), program)
        if complaint:
            return "broken", f"it does not compile or link:\n{complaint}"
        _, selection, patience = self.build.tests[test]
        wrong = failed_case(program, selection, self.folder / "report", patience, environment)
        if wrong is None:
            return "survived", test
        case, how = wrong
        if self.build.fails_without(test, case, self.mutant.environment):
            return "broken", f'{test} "{case}" fails without it'
        return "killed", f'{test} "{case}" {how}'


def judge(number, mutant, build, ask_others):
    """Return the outcome and its details."""
    with Overlay(build, number, mutant) as overlay:
        outcome, details = overlay.ask(mutant.test)
        if outcome == "survived" and ask_others:
            for test in sorted({other.test for other in MUTANTS} - {mutant.test}):
                noticed, more = overlay.ask(test)
                if noticed == "killed":
                    return outcome, f"{details}; but {more}"
        return outcome, details


def choose(arguments):
    numbered = list(enumerate(MUTANTS, 1))
    wanted = arguments.only or arguments.part
    return [(number, mutant) for number, mutant in numbered if not wanted or number in wanted]


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
    build = Build(arguments.build, arguments.timeout_multiplier)

    def one(choice):
        number, mutant = choice
        began = time.monotonic()
        try:
            outcome, details = judge(number, mutant, build, arguments.ask_others)
        except ValueError as error:
            outcome, details = "broken", str(error)
        print(f"{number:3} {outcome:8} {mutant.name} ({time.monotonic() - began:.0f} s)\n      {details}")
        return outcome

    with ThreadPoolExecutor(max(1, arguments.jobs)) as pool:
        outcomes = list(pool.map(one, chosen))
    killed = outcomes.count("killed")
    print(f"mutants: {killed} of {len(outcomes)} killed, {outcomes.count('survived')} survived, "
          f"{outcomes.count('broken')} cannot be made")
    return 0 if killed == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
