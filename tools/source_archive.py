#!/usr/bin/env python3
"""Writes the source archive of a version: what the last commit has, as OUT/weft-VERSION.tar.gz.

Usage: source_archive.py [--out FOLDER]

The bytes depend on the commit alone.
"""
import argparse
import gzip
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def version_of(source):
    """Return the project's version, which meson.build has."""
    return re.search(r"^  version: '([\d.]+)',$", (source / "meson.build").read_text(), re.M).group(1)


def git(source, *words, **more):
    return subprocess.run(["git", "-C", source, *words], check=True, capture_output=True, **more).stdout


def date_of(source):
    """Return the seconds since 1970 of the commit."""
    return int(git(source, "log", "-1", "--format=%ct"))


def write(source, out):
    """Write the archive into the folder, and return its path. Exits if the source is no git repository."""
    if not (source / ".git").exists():
        sys.exit(f"source_archive: {source} is no git repository: the archive has the files of a commit")
    version = version_of(source)
    files = git(source, "archive", "--format=tar", f"--prefix=weft-{version}/", "HEAD")
    path = out / f"weft-{version}.tar.gz"
    out.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(files, mtime=0))
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    print("source_archive:", write(ROOT, parser.parse_args().out))


if __name__ == "__main__":
    main()
