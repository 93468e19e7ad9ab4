#!/usr/bin/env python3
"""The check `sizes` of tools/lint.py finds long files and full folders, and none in a tree that keeps the limits."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import lint  # noqa: E402


def problems(files):
    """Return what the check says about a repository of these files: their numbers of lines by path."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "init", "-q", folder], check=True)
        for name, lines in files.items():
            file = Path(folder) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("\n" * lines)
        with mock.patch.object(lint, "ROOT", Path(folder)):
            return lint.check_sizes(None)


def full(folder, count):
    return {f"{folder}/{number}.py": 1 for number in range(count)}


class Sizes(unittest.TestCase):
    def test_what_keeps_the_limits_is_accepted(self):
        self.assertEqual(problems({"lib/core/a.cpp": lint.LONG, "tests/b.cpp": lint.TOO_LONG + 1}), [])
        self.assertEqual(problems(full("tools/a", lint.FULL) | full("tools/a/b", lint.FULL)), [])

    def test_a_long_file_fails(self):
        [problem] = problems({"lib/core/a.cpp": lint.TOO_LONG + 1})
        self.assertIn("lib/core/a.cpp", problem)

    def test_a_full_folder_fails(self):
        [problem] = problems(full("tests/unit", lint.FULL + 1) | full("tests", 3))
        self.assertIn(f"tests/unit: {lint.FULL + 1} files", problem)

    def test_folders_of_data_may_be_full(self):
        self.assertEqual(problems(full("tests/fuzz/corpus/hook", lint.FULL + 1)), [])


if __name__ == "__main__":
    unittest.main()
