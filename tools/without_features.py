#!/usr/bin/env python3
"""Copies the project without some features of the reducer: their folders, and their lines in lib/reducer/meson.build.

The rest must compile and pass its tests. `.ci/run without` tries it. Test cases of a feature alone, such as those that
count the copies which it saves, have the tag [of_FEATURE], and are hidden.
"""
import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def copy_tracked(target):
    names = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], stdout=subprocess.PIPE, check=True).stdout
    shutil.rmtree(target, ignore_errors=True)
    for name in filter(None, names.decode().split("\0")):
        if not (ROOT / name).exists():
            continue  # deleted, and not committed
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name, follow_symlinks=False)


def hide_cases(target, feature):
    """Hide the test cases of a feature: Catch2 runs no case whose tag begins with a dot, unless it is named."""
    found = 0
    for path in (target / "tests" / "unit").rglob("*.cpp"):
        text = path.read_text()
        if (tag := f"[of_{feature}]") in text:
            found += 1
            path.write_text(text.replace(tag, f"[.of_{feature}]"))
    if not found:
        raise SystemExit(f"no test case has the tag [of_{feature}]")


def delete(target, feature):
    """Deletes a feature's folder and the line that names it."""
    reducer = target / "lib" / "reducer"
    shutil.rmtree(reducer / "feature" / feature)
    build = reducer / "meson.build"
    text, found = re.subn(rf"^  \['{feature}', .*\n", "", build.read_text(), flags=re.M)
    if found != 1:
        raise SystemExit(f"lib/reducer/meson.build lists {feature} {found} times, expected once")
    build.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path, help="folder of the copy; replaced if it exists")
    parser.add_argument("features", nargs="+", help="names of folders in lib/reducer/feature")
    arguments = parser.parse_args()
    copy_tracked(arguments.target)
    for feature in arguments.features:
        delete(arguments.target, feature)
        hide_cases(arguments.target, feature)
    return 0


if __name__ == "__main__":
    sys.exit(main())
