#!/usr/bin/env python3
"""Builds what a version is published as, into dist/. `make release` calls it, and RELEASING.md has the other steps.

Usage: release.py BUILD [--out FOLDER] [--jobs N]

The files are the source archive, the wheel and the sdist, and the Debian packages with their source. SHA256SUMS lists them
for `sha256sum -c`. All are built from the last commit: changes of the working tree are refused.
"""
import argparse
import hashlib
import re
import subprocess
import sys
from pathlib import Path

import source_archive

ROOT = Path(__file__).resolve().parent.parent
# Other places of the version than meson.build.
NUMBERS = {"include/weft/core.h": r"^#define WEFT_VERSION_{} (\d+)", "python/weftsync/constants.py": r"^VERSION_{} = (\d+)"}
SUMS = "SHA256SUMS"


def say(text):
    print("release:", text, flush=True)


def problems_of(source):
    """Return the reasons why the sources cannot be released."""
    problems = []
    changed = source_archive.git(source, "status", "--porcelain", text=True).splitlines()
    if changed:
        problems.append(f"{len(changed)} files differ from the last commit, such as {changed[0][3:]}: commit them first")
    version = source_archive.version_of(source)
    for file, pattern in NUMBERS.items():
        text = (source / file).read_text()
        there = ".".join(re.search(pattern.format(part), text, re.M).group(1) for part in ("MAJOR", "MINOR", "PATCH"))
        if there != version:
            problems.append(f"meson.build has the version {version}, and {file} has {there}")
    if not re.search(rf"^## {re.escape(version)}\b", (source / "CHANGELOG.md").read_text(), re.M):
        problems.append(f"CHANGELOG.md has no section for the version {version}")
    return problems


def write_sums(out, files):
    """Write SHA256SUMS with the names and checksums of these files, sorted by name."""
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(files)]
    (out / SUMS).write_text("".join(lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--jobs", default="2")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    if problems := problems_of(ROOT):
        sys.exit("release: " + "\nrelease: ".join(problems))
    version = source_archive.version_of(ROOT)
    if re.search(rf"^## {re.escape(version)} \(unreleased\)", (ROOT / "CHANGELOG.md").read_text(), re.M):
        say(f"CHANGELOG.md says that {version} is unreleased, so these files are for a trial")
    for old in [out / SUMS, *out.glob("weft-*.tar.gz"), *out.glob("weftsync-*"), *out.glob("weft_*"), *out.glob("*.deb")]:
        old.unlink(missing_ok=True)
    source_archive.write(ROOT, out)
    tools = ROOT / "tools"
    for command in ([tools / "wheel.py", arguments.build], [tools / "deb.py"]):
        subprocess.run([sys.executable, *command, "--out", out, "--jobs", arguments.jobs], check=True, stdin=subprocess.DEVNULL)
    files = [path for pattern in ("weft-*.tar.gz", "weftsync-*", "weft_*", "*.deb") for path in out.glob(pattern)]
    write_sums(out, set(files))
    say(f"{out / SUMS} lists {len(set(files))} files of version {version}")


if __name__ == "__main__":
    main()
