#!/usr/bin/env python3
"""tools/check_prose.py finds each kind of problem at its place, and none in plain sentences."""
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import check_prose  # noqa: E402

LONG = " ".join(["word"] * 41)
PLAIN = [
    ("a.md", "The engine polls the lane.\n\n| Of | a table |\n\n```\nOf code\n```\n"),
    ("a.cpp", '// Counts the absent parameters.\nint x;  // Of the code beside it\nlog("short");\n'),
    ("a.py", '"""Says what it is."""\nx = 1  # Of the code beside it\n'),
    ("a.py", f'def f(x, y):\n    """Adds.\n\n    x  {LONG[:150]}\n    y  {LONG[:150]}\n    """\n'),
    ("a.py", f'def f():\n    """Adds.\n\n        {LONG}\n        f()\n\n    More.\n    """\n'),
    ("a.py", 'parser.error(f"--size is {size}, expected 1 or more")\nprint("nobody reads this")\n'),
    ("a.cpp", '#include "core/lineage.h"\n'),
    ("tests/a.cpp", 'log("the cable is cut");\n'),
    ("meson.build", "# Tests of the scripts.\n"),
]
PROBLEMS = [
    ("a.md", "Text.\n\nWhether it holds.\n", "opener", 3),
    ("a.md", "- first\n- Of the second\n", "opener", 2),
    ("a.md", "One " + LONG[:70] + "\n" + LONG[70:140] + "\n" + LONG[140:] + ".\n", "long", 1),
    ("a.md", "The cable is slow.\n", "word", 1),
    ("a.md", "x" * 101 + "\n", "wide", 1),
    ("a.h", "int x;\n/* Who calls it:\n * the engine. */\n", "opener", 2),
    ("a.cpp", "// Short.\n//\n// " + LONG + ".\n", "long", 3),
    ("a.cpp", 'f(\n  "' + LONG[:100] + ' "\n  "' + LONG[100:] + '");\n', "long", 2),
    ("a.py", 'def f():\n    """What it is."""\n', "opener", 2),
    ("a.cpp", 'int x;\nlog("the cable is cut");\n', "text", 2),
    ("a.py", 'x = 1\nraise ValueError(f"{x} is no "\n                 f"number of {y}")\n', "text", 2),
    ("a.py", 'parser.add_argument("x", help="whoever calls")\n', "text", 1),
    ("a.py", f'raise OSError("{LONG}")\n', "long", 1),
    ("a.sh", "#!/bin/sh\n# In which it runs.\n", "opener", 2),
]


class CheckProseTest(unittest.TestCase):
    def test_plain_text_has_no_problem(self):
        for name, text in PLAIN:
            with self.subTest(name=name):
                self.assertEqual(list(check_prose.problems(name, text)), [])

    def test_every_problem_is_found_once_with_its_line(self):
        for name, text, kind, line in PROBLEMS:
            with self.subTest(name=name, text=text[:40]):
                found = [one[:2] for one in check_prose.problems(name, text)]
                self.assertEqual(found, [(kind, line)])


if __name__ == "__main__":
    unittest.main()
