#!/usr/bin/env python3
"""tests/run.py counts crashes, hangs, skips and programs that do nothing."""
import argparse
import shutil
import subprocess
import sys
import tempfile
import unittest
from argparse import Namespace
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import run  # noqa: E402


def outcomes(script, timeout=20, filter_text="", all_cases=False, seed=1):
    """Run a shell script as a test program; return [(name, outcome, detail)]."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = Namespace(build=Path(folder), logs=Path(folder), timeout_multiplier=1, all_cases=all_cases, seed=seed)
        entry = {"name": "t", "suite": ["weft:unit"], "cmd": ["sh", "-c", script], "env": {}, "workdir": None,
                 "timeout": timeout, "is_parallel": True}
        cases, _ = run.run(run.Test(entry, arguments), filter_text)
        return [tuple(case) for case in cases]


CATCH = 'say() { printf "%s\\t%s\\t%s\\n" "$@" >>"$WEFT_TEST_REPORT"; }; say program catch2 ""; '


class RunTest(unittest.TestCase):
    def test_plain_programs_are_one_case(self):
        self.assertEqual(outcomes("true"), [("", "pass", "")])
        self.assertEqual(outcomes("exit 3"), [("", "fail", "exit code 3")])
        self.assertEqual(outcomes("kill -SEGV $$"), [("", "fail", "killed by SIGSEGV")])
        self.assertEqual(outcomes("echo working; echo no GPU here; exit 77"), [("", "skip", "no GPU here")])

    def test_only_the_option_asks_for_all_cases(self):
        with mock.patch.dict("os.environ", {"WEFT_TEST_ALL": "1", "WEFT_RANK": "7"}):
            for all_cases, expected in ((False, "sample"), (True, "all1")):
                script = CATCH + 'name="${WEFT_TEST_ALL:+all}${WEFT_TEST_ALL:-sample}${WEFT_RANK:-}"; say pass "$name" ""'
                self.assertEqual(outcomes(script, all_cases=all_cases), [(expected, "pass", "")])

    def test_a_program_that_is_missing_failed(self):
        with tempfile.TemporaryDirectory() as folder:
            arguments = Namespace(build=Path(folder), logs=Path(folder), timeout_multiplier=1, all_cases=False, seed=1)
            entry = {"name": "t", "suite": ["weft:unit"], "cmd": ["/nowhere/t"], "env": {}, "workdir": None,
                     "timeout": 20, "is_parallel": True}
            cases, _ = run.run(run.Test(entry, arguments), "")
        self.assertEqual([case.outcome for case in cases], ["fail"])

    def test_a_hang_is_a_failure_and_so_is_what_it_started(self):
        self.assertEqual(outcomes("sleep 1000 & sleep 1000", timeout=0.2), [("", "fail", "no end within 0 s")])

    def test_catch_programs_count_their_cases(self):
        cases = outcomes(CATCH + 'say start a ""; say pass a ""; say start b ""; say skip b "too small"')
        self.assertEqual(cases, [("a", "pass", ""), ("b", "skip", "too small")])

    def test_a_crash_fails_the_case_that_ran(self):
        cases = outcomes(CATCH + 'say start a ""; say pass a ""; say start b ""; kill -ABRT $$')
        self.assertEqual(cases, [("a", "pass", ""), ("b", "fail", "killed by SIGABRT")])

    def test_a_hang_fails_the_case_that_ran(self):
        cases = outcomes(CATCH + 'say start a ""; sleep 1000', timeout=5)
        self.assertEqual(cases, [("a", "fail", "no end within 5 s")])

    def test_a_failure_between_the_cases_counts(self):
        cases = outcomes(CATCH + 'say start a ""; say pass a ""; exit 1')
        self.assertEqual(cases[1], ("(outside of its test cases)", "fail", "exit code 1"))

    def test_a_program_that_ran_nothing_failed_unless_filtered(self):
        self.assertEqual(outcomes(CATCH), [("", "fail", "ran no test case")])
        self.assertEqual(outcomes(CATCH, filter_text="x"), [])

    def test_failed_checks_may_run_again(self):
        """A failed check runs again if that is requested; a crash or a sanitizer report never does."""
        scripts = {"late": "test -e seen || { touch seen; exit 1; }",
                   "late in catch": CATCH + """say start a ""; test -e seen2 && say pass a "" || {
                                               touch seen2; say fail a ""; exit 1; }""",
                   "wrong": "exit 1",
                   "race": "test -e seen3 || { touch seen3; echo WARNING: ThreadSanitizer; exit 1; }",
                   "crash": "test -e seen4 || { touch seen4; kill -SEGV $$; }"}
        for again, passed in ((False, set()), (True, {"late", "late in catch"})):
            with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()) as output:
                arguments = Namespace(build=Path(folder), logs=Path(folder), timeout_multiplier=1, all_cases=False, seed=1)
                printer = run.Printer(len(scripts), again)
                for name, script in scripts.items():
                    entry = {"name": name, "suite": ["weft:unit"], "cmd": ["sh", "-c", script], "env": {},
                             "workdir": None, "timeout": 20, "is_parallel": True}
                    test = run.Test(entry, arguments)
                    printer.add(test, *run.run(test, ""))
                printer.repeat("")
                self.assertFalse(printer.finish(""))
            for name in scripts:
                failed = any(line.startswith(f"unit/{name}") for line in printer.failures)
                self.assertEqual(failed, name not in passed, (again, name, output.getvalue()))
            self.assertIn(f"{len(passed)} passed, {len(scripts) - len(passed)} failed, 0 skipped", output.getvalue())

    def test_targets_are_what_the_programs_need(self):
        """ninja builds the programs of a suite and the libraries that they load, by paths in the build folder."""
        tests = [{"name": name, "suite": ["weft:" + suite], "cmd": ["x"], "env": {}, "workdir": None, "timeout": 1,
                  "is_parallel": True, "depends": depends}
                 for name, suite, depends in (("a", "unit", ["a@exe", "m@sha"]), ("b", "unit", ["m@sha"]),
                                              ("c", "capi", ["c@exe"]))]
        with tempfile.TemporaryDirectory() as folder:
            build = Path(folder)
            targets = [{"id": key, "filename": [str(build / name)]}
                       for key, name in (("a@exe", "tests/a"), ("m@sha", "m.so"), ("c@exe", "tests/c"), ("d@exe", "d"))]
            arguments = Namespace(build=build, logs=build, timeout_multiplier=1, suite="unit", filter="",
                                  all_cases=False, seed=1)
            answers = {"--tests": tests, "--targets": targets}
            with mock.patch.object(run, "introspect", lambda what, _: answers[what]):
                self.assertEqual(run.targets_of(run.select(arguments), arguments), ["m.so", "tests/a"])

    def test_a_filter_keeps_programs_that_select_cases(self):
        """Also in a build folder where no test has run."""
        with tempfile.TemporaryDirectory() as folder:
            build = Path(folder)
            (build / "catch").write_bytes(b"\x7fELF WEFT_TEST_REPORT")
            (build / "plain").write_bytes(b"\x7fELF")
            (build / "cases.py").write_text("if True:\n    cases.main(globals())")
            (build / "about.py").write_text("#!/usr/bin/python3\nprint('cases.main(', 'WEFT_TEST_REPORT')")
            tests = [{"name": name, "suite": ["weft:unit"], "cmd": [*before, str(build / name)], "env": {}, "workdir": None,
                      "timeout": 1, "is_parallel": True}
                     for name, before in (("catch", []), ("plain", []), ("cases.py", ["python3"]), ("about.py", ["python3"]), ("about.py", []))]
            arguments = Namespace(build=build, logs=build, timeout_multiplier=1, suite="unit", filter="a case",
                                  all_cases=False, seed=1)
            with mock.patch.object(run, "introspect", lambda *_: tests):
                self.assertEqual([test.name for test in run.select(arguments)], ["catch", "cases.py"])

    def test_an_unknown_suite_is_an_error_that_lists_the_suites(self):
        """Also those that are no program's first suite."""
        tests = [{"name": "a", "suite": suites, "cmd": ["x"], "env": {}, "workdir": None, "timeout": 1, "is_parallel": True}
                 for suites in (["weft:unit", "weft:sampled"], ["weft:age", "weft:long"])]
        arguments = Namespace(build=Path(), logs=Path(), timeout_multiplier=1, suite="unit nosuch", filter="", all_cases=False,
                              seed=1)
        with mock.patch.object(run, "introspect", lambda *_: tests), self.assertRaises(SystemExit) as raised:
            run.select(arguments)
        self.assertEqual(raised.exception.code, "run.py: unknown suite nosuch; there are age, long, sampled, unit")

    def test_a_seed_is_in_range(self):
        self.assertEqual([run.seed_number("1"), run.seed_number("4294967295")], [1, 4294967295])
        for text in ("0", "4294967296", "-1", "x", "", "1.5"):
            with self.assertRaisesRegex(argparse.ArgumentTypeError, f"^{text!r} is no number from 1 to 4294967295$"):
                run.seed_number(text)

    def test_programs_get_the_seed_and_failures_name_it(self):
        script = CATCH + 'say start a ""; say fail a ""; say start "$WEFT_TEST_SEED" ""; say pass "$WEFT_TEST_SEED" ""; exit 1'
        for seed, line in ((1, "unit/t: a"), (77, "unit/t: a (seed 77)")):
            with mock.patch.dict("os.environ", {"WEFT_TEST_SEED": "5"}):
                cases = outcomes(script, seed=seed)
            self.assertEqual(cases[1], (str(seed), "pass", ""))
            with redirect_stdout(StringIO()), tempfile.TemporaryDirectory() as folder:
                printer = run.Printer(1, False)
                log = Path(folder) / "log"
                log.write_text("")
                printer.add(Namespace(label="unit/t", seed=seed, log=log), [run.Case(*case) for case in cases], 0)
            self.assertEqual(printer.failures, [line])

    def test_make_test_compiles_nothing_for_an_unknown_suite_or_seed(self):
        """Neither if the programs need nothing to be compiled."""
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            shutil.copy(ROOT / "Makefile", place)
            shutil.copytree(ROOT / "tests", place / "tests", ignore=lambda name, names: [one for one in names if one != "run.py"])
            for path in (".setup/build", "build/build.ninja", "build/tools/weft"):
                (place / path).parent.mkdir(parents=True, exist_ok=True)
                (place / path).touch()
            tests = """[{"name": "a", "suite": ["weft:scripts"], "cmd": ["true"], "env": {}, "workdir": null, "timeout": 1,
                         "is_parallel": true}]"""
            for name, script in (("ninja", "echo compiles"), ("meson", f"[ $2 = --tests ] && echo '{tests}' || echo '[]'")):
                (place / name).write_text(f"#!/bin/sh\n{script}\n")
                (place / name).chmod(0o755)
            for target, compiled in (("test", False), ("test-all", True)):
                for words, problem in ((["SUITE=scripts"], ""), (["SUITE=nosuch"], "unknown suite nosuch; there are scripts"),
                                       (["SUITE=scripts", "SEED=x"], "'x' is no number from 1 to")):
                    result = subprocess.run(["make", "-o", ".setup/build", "-o", "build/build.ninja", target, *words], cwd=folder, text=True,
                                            capture_output=True, check=False,
                                            env={"PATH": f"{folder}:/usr/local/bin:/usr/bin:/bin"})
                    self.assertIn(problem, result.stderr)
                    self.assertEqual((result.returncode != 0, "compiles" in result.stdout),
                                     (bool(problem), compiled and not problem), (target, words, result))

    def test_what_may_take_longest_begins_first(self):
        tests = [Namespace(name=name, timeout=timeout) for name, timeout in (("a", 60), ("b", 900), ("c", 60), ("d", 240))]
        self.assertEqual([test.name for test in run.longest_first(tests)], ["b", "d", "a", "c"])


if __name__ == "__main__":
    unittest.main()
