#!/usr/bin/env python3
"""Tests tools/package_venv.py without installing anything."""
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tools")]
import cases  # noqa: E402
import package_venv  # noqa: E402
from cases import expect, expect_equal  # noqa: E402


def installed(folder, packages, bare=(), fails=""):
    """Return the words of the commands that prepare runs. A command with the text `fails` fails."""
    commands = []

    def run(command, **_):
        if fails and fails in command:
            raise subprocess.SubprocessError("no index")
        commands.append(command)
        if "venv" in command:
            for path in Path(folder, "one").glob("*"):
                path.unlink()
            Path(folder, "one").mkdir(exist_ok=True)

    package_venv.subprocess = type("Stub", (), {**vars(subprocess), "run": staticmethod(run)})
    try:
        expect_equal(package_venv.prepare(folder, "one", packages, lambda _: None, bare), Path(folder, "one"))
    except RuntimeError as error:
        expect(fails, "prepare fails", error)
    finally:
        package_venv.subprocess = subprocess
    return [word for command in commands for word in command]


def test_marker():
    """an environment is installed once, and anew if any package of its list changes or its installation failed"""
    with tempfile.TemporaryDirectory() as folder:
        expect("b==1" in installed(folder, ["a==1", "b==1"]), "the first time")
        expect_equal(installed(folder, ["a==1", "b==1"]), [])
        for packages, bare in ((["a==1", "b==2"], []), (["a==1"], []), (["a==1"], ["c==1"]), (["a==1"], ["c==2"])):
            words = installed(folder, packages, bare)
            expect(all(word in words for word in packages + bare), f"installs {packages + bare}", words)
            expect_equal(installed(folder, packages, bare), [])
        installed(folder, ["a==2"], fails="a==2")
        expect("a==2" in installed(folder, ["a==2"]), "after a failure")


if __name__ == "__main__":
    cases.main(globals())
