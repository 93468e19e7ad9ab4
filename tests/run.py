#!/usr/bin/env python3
"""Run the tests of a build folder and count test cases. `make test` calls it.

Takes the programs from `meson introspect --tests`. A Catch2 program reports its test cases through the file
that WEFT_TEST_REPORT names (tests/support/main.cpp). Any other program is one case: exit code 0 passes, 77
skips with its last line of output as the reason, anything else fails. Every program runs in a session of its
own with a time limit; processes that it leaves running are killed. The last line is `N passed, N failed, N
skipped`.

With --again, a program whose own checks failed runs once more at the end, with no other program beside it: on
a busy machine a test may wait too short a time. The run names each such program. Crashes, hangs and sanitizer
reports stay failures.

Programs that draw at random draw from --seed. With another seed than 1, the run names it first and in each failure.
"""
import argparse
import concurrent.futures
import functools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import namedtuple
from pathlib import Path

Case = namedtuple("Case", "name outcome detail")  # outcome: pass, fail or skip
SKIP_CODE = 77
MOST_SEED = 2**32 - 1  # of Catch2
QUICK = {"unit", "capi", "conformance", "abi", "sandbox"}  # the suites of `make test`
running_processes = set()  # killed when the user interrupts the run


class Test:
    """One test program and its Meson entry."""

    def __init__(self, entry, arguments):
        self.name = entry["name"]
        self.suites = [suite.split(":", 1)[-1] for suite in entry["suite"]]
        self.label = "/".join(self.suites[:1] + [self.name])
        self.command = entry["cmd"]
        self.environment = entry["env"]
        self.workdir = entry["workdir"] or arguments.build
        self.timeout = (entry["timeout"] or 30) * arguments.timeout_multiplier
        self.parallel = entry["is_parallel"]
        self.all_cases = arguments.all_cases
        self.seed = arguments.seed
        if self.all_cases and "sampled" in self.suites:
            self.timeout *= 4
        self.needs = entry.get("depends", [])  # Meson target names
        stem = self.label.replace("/", "-").replace(" ", "_")
        self.log = arguments.logs / (stem + ".log")
        self.report = arguments.logs / (stem + ".report")

    def reported(self):
        """Return True if the program, which has run, reported its cases."""
        return self.report.exists()

    def selects_cases(self):
        """Return True if the program takes names of cases: it has the listener of support/main.cpp, or uses
        support/cases.py."""
        program, *words = self.command
        if Path(program).name.startswith("python") and words:
            program = words[0]
        code = contents(program)
        if code.startswith(b"\x7fELF"):
            return b"WEFT_TEST_REPORT" in code
        return re.search(rb"^\s*cases\.main\(", code, re.MULTILINE) is not None


@functools.cache
def contents(path):
    return Path(path).read_bytes() if Path(path).is_file() else b""


def describe_exit(code):
    if code < 0:
        try:
            return "killed by " + signal.Signals(-code).name
        except ValueError:
            return f"killed by signal {-code}"
    return f"exit code {code}"


def last_line(path):
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "no reason given"


def read_report(path):
    """Return the cases that ended, and the name of the case that did not."""
    cases, running = [], None
    for line in path.read_text(errors="replace").splitlines():
        event, name, detail = (line.split("\t") + ["", ""])[:3]
        if event == "start":
            running = name
        elif event in ("pass", "fail", "skip"):
            cases.append(Case(name, event, detail))
            running = None
    return cases, running


def judge(test, code, timed_out, filtered):
    """Return the test cases of a program that has ended."""
    problem = f"no end within {test.timeout:.0f} s" if timed_out else describe_exit(code)
    if not test.reported():
        if code == SKIP_CODE and not timed_out:
            return [Case("", "skip", last_line(test.log))]
        return [Case("", "pass", "")] if code == 0 and not timed_out else [Case("", "fail", problem)]
    cases, running = read_report(test.report)
    if running is not None:
        cases.append(Case(running, "fail", problem))
    if (code != 0 or timed_out) and not any(case.outcome == "fail" for case in cases) and not (filtered and not cases):
        cases.append(Case("(outside of its test cases)", "fail", problem))
    if not cases and not filtered:
        cases.append(Case("", "fail", "ran no test case"))
    return cases


def only_checks_failed(test, cases):
    """Return True if all failures come from the program's own checks and the program exited by itself."""
    failures = [case for case in cases if case.outcome == "fail"]
    expected = "" if test.reported() else "exit code 1"
    return bool(failures) and all(case.detail == expected for case in failures) and (
        "Sanitizer" not in test.log.read_text(errors="replace"))


def kill_session(process):
    """Kill the program and its children, except those that left its session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def run(test, filter_text):
    """Run one program; return its cases and its seconds."""
    test.report.unlink(missing_ok=True)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("WEFT_", "MAKE", "MFLAGS"))}
    environment.update(test.environment, WEFT_TEST_REPORT=str(test.report), WEFT_TEST_SEED=str(test.seed))
    if test.all_cases:
        environment["WEFT_TEST_ALL"] = "1"
    command = list(test.command)
    if filter_text and filter_text not in test.label:
        # A specification of Catch2 without spaces selects what all of its parts match.
        parts = command.pop() if command[-1][:1] in "[~" else ""
        command.append(f"{parts}*{filter_text}*")
    begin = time.monotonic()
    timed_out = False
    with open(test.log, "wb") as log:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=test.workdir,
                                       env=environment, start_new_session=True)
        except OSError as error:
            return [Case("", "fail", f"does not start: {error}")], 0.0
        running_processes.add(process)
        try:
            code = process.wait(test.timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
            kill_session(process)
            code = process.wait()
    kill_session(process)  # kills processes that it left behind
    running_processes.discard(process)
    return judge(test, code, timed_out, bool(filter_text)), time.monotonic() - begin


class Printer:
    """Prints progress lines and collects the summary that is printed at the end."""

    def __init__(self, total, again):
        self.total, self.done = total, 0
        self.again = again
        self.failures, self.skips = [], []
        self.to_repeat = []  # programs that run again; their cases are counted then
        self.repeated = []
        self.counts = {"pass": 0, "fail": 0, "skip": 0}
        self.lock = threading.Lock()

    def add(self, test, cases, seconds):
        with self.lock:
            repeat = self.again and test not in self.repeated and only_checks_failed(test, cases)
            self.done += test not in self.repeated
            for case in cases if not repeat else []:
                self.counts[case.outcome] += 1
                name = f"{test.label}: {case.name}" if case.name else test.label
                line = f"{name}: {case.detail}" if case.detail else name
                if case.outcome == "fail" and test.seed != 1:
                    line += f" (seed {test.seed})"
                {"fail": self.failures, "skip": self.skips, "pass": []}[case.outcome].append(line)
            failed = sum(case.outcome == "fail" for case in cases)
            skipped = sum(case.outcome == "skip" for case in cases)
            word = "FAIL" if failed else "skip" if skipped == len(cases) else "ok"
            rest = f", {failed} failed" * bool(failed) + f", {skipped} skipped" * bool(skipped)
            print(f"[{self.done:{len(str(self.total))}}/{self.total}] {word:4} {test.label}: {len(cases)} "
                  f"case{'s' * (len(cases) != 1)}{rest} ({seconds:.1f} s)", flush=True)
            if repeat:
                self.to_repeat.append(test)
            if failed:
                print(f"----- output of {test.label} " + "-" * 40)
                print(test.log.read_text(errors="replace").rstrip())
                print(f"----- end of {test.label} " + "-" * 40, flush=True)

    def repeat(self, filter_text):
        for test in self.to_repeat:
            self.repeated.append(test)
            self.add(test, *run(test, filter_text))

    def finish(self, summary_prefix):
        repeated = [test.label for test in self.repeated]
        lists = {"Skipped": self.skips, "Failed first, and ran again alone": repeated, "Failed": self.failures}
        for title, lines in lists.items():
            if lines:
                print(f"\n{title}:")
                for line in lines:
                    print("  " + line)
        total = sum(self.counts.values())
        if total == 0:
            print("\nNo test case ran.")
        print()
        passed, failed, skipped = self.counts["pass"], self.counts["fail"], self.counts["skip"]
        if summary_prefix:
            print(f"{summary_prefix}: cases passed {passed}, failed {failed}, skipped {skipped}")
        else:
            print(f"{passed} passed, {failed} failed, {skipped} skipped")
        return failed == 0 and passed > 0


def seed_number(text):
    """Return the number of an argument; raise if it is no seed."""
    if not (text.isdecimal() and text.isascii() and 1 <= int(text) <= MOST_SEED):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to {MOST_SEED}")
    return int(text)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, help="the build folder")
    parser.add_argument("--suite", default="", help="suites to run, separated by commas or spaces; default: all")
    parser.add_argument("--part", choices=["all", "test", "rest"], default="all",
                        help="without --suite: test is what `make test` runs; rest is all else, with --all-cases also the"
                             " programs of which `make test` runs a sample, and those of the suite long")
    parser.add_argument("--all-cases", action="store_true", help="programs of the suite sampled run all of their cases")
    parser.add_argument("--filter", default="", help="only programs, or test cases, whose name contains this")
    parser.add_argument("--seed", type=seed_number, default=1, help=f"seed of random tests, from 1 to {MOST_SEED}; default 1")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="programs at a time")
    parser.add_argument("--timeout-multiplier", type=float, default=1.0)
    parser.add_argument("--again", action="store_true", help="programs whose checks failed run again, alone")
    parser.add_argument("--summary-prefix", default="", help="print the totals in another form, after this word")
    parser.add_argument("--list", action="store_true", help="print the programs and end")
    parser.add_argument("--targets", action="store_true", help="print what ninja must build for them and end")
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    arguments.logs = arguments.build / "test-logs"
    return arguments


def introspect(what, arguments):
    listing = subprocess.run(["meson", "introspect", what, str(arguments.build)], check=True, stdout=subprocess.PIPE)
    return json.loads(listing.stdout)


def targets_of(tests, arguments):
    """Return the ninja targets of these programs."""
    files = {target["id"]: target["filename"] for target in introspect("--targets", arguments)}
    needed = {name for test in tests for need in test.needs for name in files[need]}
    return sorted(os.path.relpath(name, arguments.build) for name in needed)


def longest_first(tests):
    """Sort by time limit, longest first, so that no long program starts last."""
    return sorted(tests, key=lambda test: test.timeout, reverse=True)


def select(arguments):
    """Return the programs to run."""
    tests = [Test(entry, arguments) for entry in introspect("--tests", arguments)]
    wanted = arguments.suite.replace(",", " ").split()
    if wanted:
        known = {suite for test in tests for suite in test.suites}
        unknown = set(wanted) - known
        if unknown:
            sys.exit(f"run.py: unknown suite {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
        tests = [test for test in tests if set(wanted) & set(test.suites)]
    elif arguments.part == "test":
        tests = [test for test in tests if test.suites[0] in QUICK]
    elif arguments.part == "rest":
        tests = [test for test in tests if (arguments.all_cases and "sampled" in test.suites
                                            or test.suites[0] not in QUICK and (arguments.all_cases or "long" not in test.suites))]
    if arguments.filter:
        # Programs of other names filter their own test cases.
        tests = [test for test in tests if arguments.filter in test.label or test.selects_cases()]
    return tests


def main():
    arguments = parse_arguments()
    # A program that a shell runs in the background inherits ignored signals, which tests send to their
    # programs.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    arguments.logs.mkdir(parents=True, exist_ok=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # tests that kill processes leave no core files
    tests = select(arguments)
    if arguments.list:
        print("\n".join(test.label for test in tests))
        return 0
    if arguments.targets:
        print("\n".join(targets_of(tests, arguments)))
        return 0
    if arguments.seed != 1:
        print(f"Random tests draw from the seed {arguments.seed}. `make test SEED={arguments.seed}` and `tests/run.py --seed "
              f"{arguments.seed}` repeat them.", flush=True)
    printer = Printer(len(tests), arguments.again)
    try:
        with concurrent.futures.ThreadPoolExecutor(max(1, arguments.jobs)) as pool:
            for _ in pool.map(lambda test: printer.add(test, *run(test, arguments.filter)),
                              longest_first(test for test in tests if test.parallel)):
                pass
        for test in tests:
            if not test.parallel:
                printer.add(test, *run(test, arguments.filter))
        printer.repeat(arguments.filter)
    except KeyboardInterrupt:
        for process in list(running_processes):
            kill_session(process)
        print("\ninterrupted")
        os._exit(130)
    return 0 if printer.finish(arguments.summary_prefix) else 1


if __name__ == "__main__":
    sys.exit(main())
