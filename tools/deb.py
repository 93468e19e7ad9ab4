#!/usr/bin/env python3
"""Builds the Debian packages of the last commit into dist/. `make deb` calls it.

Usage: deb.py [--source FOLDER] [--work FOLDER] [--out FOLDER] [--jobs N]

The work folder (build-deb) gets the source archive, which is the .orig.tar.gz, and packaging/debian as the folder debian.
dpkg-buildpackage builds there, and its files are moved into the out folder: packages, their debugging symbols, and the
Debian source. The version comes from meson.build. The packages' bytes depend on the commit and the system, and not on
folders or the time. DEB_BUILD_OPTIONS, DEBFULLNAME and DEBEMAIL have Debian's meaning.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
from email.utils import formatdate
from pathlib import Path

import source_archive

ROOT = Path(__file__).resolve().parent.parent


def say(text):
    print("deb:", text, flush=True)


def changelog(template, control, version, date):
    """Return the text of debian/changelog. Its maintainer is the packager, or else the one of debian/control."""
    maintainer = re.search(r"^Maintainer: (.*)$", control, re.M).group(1)
    if os.environ.get("DEBFULLNAME") and os.environ.get("DEBEMAIL"):
        maintainer = f"{os.environ['DEBFULLNAME']} <{os.environ['DEBEMAIL']}>"
    for word, value in (("VERSION", version), ("MAINTAINER", maintainer), ("DATE", formatdate(date))):
        template = template.replace(f"@{word}@", value)
    return template


def prepare(source, work):
    """Make the Debian source tree in a new work folder, and return its path."""
    shutil.rmtree(work, ignore_errors=True)
    version = source_archive.version_of(source)
    archive = source_archive.write(source, work)
    with tarfile.open(archive) as files:
        files.extractall(work)
    archive.rename(work / f"weft_{version}.orig.tar.gz")
    tree = work / f"weft-{version}"
    debian = tree / "debian"
    shutil.copytree(tree / "packaging/debian", debian)
    template = debian / "changelog.in"
    (debian / "changelog").write_text(changelog(template.read_text(), (debian / "control").read_text(), version,
                                                source_archive.date_of(source)))
    template.unlink()
    return tree


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, default=ROOT, help="another tree than this one")
    parser.add_argument("--work", type=Path, default=ROOT / "build-deb")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--jobs", default="2")
    arguments = parser.parse_args()
    source, work, out = arguments.source.resolve(), arguments.work.resolve(), arguments.out.resolve()
    for command, package in (("dpkg-buildpackage", "dpkg-dev"), ("dh", "debhelper"), ("dh_python3", "dh-python")):
        if shutil.which(command) is None:
            sys.exit(f"deb: {command} is not here ({package}): Debian or Ubuntu is needed, and `tools/setup.sh deb`")
    os.umask(0o022)
    if source_archive.git(source, "status", "--porcelain"):
        say("the packages have the last commit, and not the changes of the working tree")
    tree = prepare(source, work)
    options = os.environ.get("DEB_BUILD_OPTIONS", "")
    environment = {**os.environ, "LC_ALL": "C", "SOURCE_DATE_EPOCH": str(source_archive.date_of(source)),
                   "DEB_BUILD_OPTIONS": f"parallel={arguments.jobs} {options}".strip()}
    # Make's variables would reach debian/rules, which is a makefile itself.
    for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"):
        environment.pop(name, None)
    subprocess.run(["dpkg-buildpackage", "--no-sign"], cwd=tree, check=True, env=environment, stdin=subprocess.DEVNULL)
    out.mkdir(parents=True, exist_ok=True)
    for pattern in ("*.deb", "weft_*"):
        for old in out.glob(pattern):
            old.unlink()
    for file in sorted(path for path in work.iterdir() if path.is_file()):
        shutil.move(file, out / file.name)
        if file.suffix == ".deb":
            say(f"{out / file.name} has {(out / file.name).stat().st_size / 2**10:.0f} KiB")


if __name__ == "__main__":
    main()
