#!/usr/bin/env python3
"""tests/sandbox/programs.py: a program passes if cases ran, all of them passed, and none was skipped without need."""
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "sandbox"))
import programs  # noqa: E402

SHELL = 'say() { printf "%s\\t%s\\t%s\\n" "$@" >>"$WEFT_TEST_REPORT"; }; '
NEEDY, CALL = next(iter(programs.NEED_CALLS.items()))


def problem(script, refused="", has_cases=True, environment=None):
    """Return why a shell script that is run as a program does not pass; "" if it passes."""
    before = ["sh", "-c", 'shift; exec "$@"', "sh", refused] if refused else []  # a launcher, such as tests/sandbox/refuse
    try:
        programs.expect_passes(programs.Program(["sh", "-c", SHELL + script], {"ONE": "1"}, has_cases), before, environment)
    except AssertionError as error:
        return str(error)
    return ""


class ProgramsTest(unittest.TestCase):
    def test_cases_that_pass(self):
        self.assertEqual(problem('[ "$ONE$TWO" = 12 ] && say program catch2 "" && say start a "" && say pass a ""',
                                 environment={"TWO": "2"}), "")

    def test_exit_code(self):
        self.assertIn("got 3 instead of 0", problem('say start a ""; say pass a ""; exit 3'))

    def test_no_case(self):
        self.assertIn("no case ran", problem('say program catch2 ""; echo No tests ran'))
        self.assertIn("no case ran", problem(f'say program catch2 ""; say skip "{NEEDY}" "the kernel refuses {CALL}"', f"{CALL}=EPERM"))
        self.assertEqual(problem("true", has_cases=False), "")

    def test_skipped_cases(self):
        """Only a case that needs a call may be skipped, where that call is refused and for this reason."""
        for name, reason, refused, allowed in (
                (NEEDY, f"the kernel refuses {CALL}", f"other=EPERM,{CALL}=EPERM", True),
                (NEEDY, f"the kernel refuses {CALL}", "other=EPERM", False), (NEEDY, f"the kernel refuses {CALL}", "", False),
                (NEEDY, "too few cores", f"{CALL}=EPERM", False), ("b", f"the kernel refuses {CALL}", f"{CALL}=EPERM", False)):
            found = problem(f'say program catch2 ""; say pass a ""; say skip "{name}" "{reason}"', refused)
            self.assertEqual(found == "", allowed, found)
            self.assertEqual(f"[('{name}', '{reason}')] instead of []" in found, not allowed, found)


if __name__ == "__main__":
    unittest.main()
