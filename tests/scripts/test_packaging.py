#!/usr/bin/env python3
"""Tests what packages are made with, without building one: tools/source_archive.py, deb.py, release.py, and packaging/."""
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tools")]
import cases  # noqa: E402
import deb  # noqa: E402
import release  # noqa: E402
import source_archive  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

DEBIAN = ROOT / "packaging/debian"
CONTROL = (DEBIAN / "control").read_text()
VERSION = source_archive.version_of(ROOT)
PERSON = {"GIT_AUTHOR_NAME": "N", "GIT_AUTHOR_EMAIL": "n@x.invalid", "GIT_COMMITTER_NAME": "N",
          "GIT_COMMITTER_EMAIL": "n@x.invalid", "GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_COMMITTER_DATE": "1700000000 +0000"}


def repository(folder, **files):
    """Make a git repository with what the tools read, and return its path. `files` replaces texts, by name without ending."""
    texts = {name: (ROOT / name).read_text() for name in ("meson.build", "CHANGELOG.md", "include/weft/core.h",
                                                          "python/weftsync/constants.py", "packaging/debian/control",
                                                          "packaging/debian/changelog.in")}
    texts.update({name: files[Path(name).stem] for name in texts if Path(name).stem in files})
    source = Path(folder) / "source"
    for name, text in texts.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "one"]):
        subprocess.run(["git", "-C", source, *words], check=True, env={**os.environ, **PERSON})
    return source


def exit_of(function, *arguments):
    try:
        function(*arguments)
    except SystemExit as error:
        return str(error)
    raise AssertionError("it did not exit")


def test_source_archive():
    """the archive has the last commit's files in a folder with the version, and the same bytes each time"""
    with tempfile.TemporaryDirectory() as folder:
        source = repository(folder)
        (source / "not-committed").write_text("x")
        first = source_archive.write(source, Path(folder) / "a")
        expect_equal(first.name, f"weft-{VERSION}.tar.gz")
        os.utime(source / "meson.build", (1, 1))
        second = source_archive.write(source, Path(folder) / "b")
        expect(first.read_bytes() == second.read_bytes(), "the bytes differ")
        names = tarfile.open(fileobj=io.BytesIO(first.read_bytes())).getnames()
        expect(f"weft-{VERSION}/meson.build" in names and not [name for name in names if "not-committed" in name], "files", names)


def test_no_repository():
    """without a git repository the error says what is missing"""
    with tempfile.TemporaryDirectory() as folder:
        expect("is no git repository" in exit_of(source_archive.write, Path(folder), Path(folder)), "the error")


def test_debian_source():
    """the Debian source has the archive as its origin, and a change log with the version, the commit's time and the packager"""
    with tempfile.TemporaryDirectory() as folder:
        source, work = repository(folder, meson="  version: '3.14.1',\n"), Path(folder) / "work"
        tree = deb.prepare(source, work)
        expect_equal(sorted(path.name for path in work.iterdir()), ["weft-3.14.1", "weft_3.14.1.orig.tar.gz"])
        text = (tree / "debian/changelog").read_text()
        maintainer = re.search("^Maintainer: (.*)$", CONTROL, re.M).group(1)
        expect(text.startswith("weft (3.14.1-0weft1) "), "its version", text)
        expect(text.endswith(f"\n -- {maintainer}  Tue, 14 Nov 2023 22:13:20 -0000\n"), "its last line", text)
        expect("@" not in text.replace(maintainer, "") and not (tree / "debian/changelog.in").exists(), "the template", text)
        os.environ.update(DEBFULLNAME="A Packager", DEBEMAIL="p@x.invalid")
        try:
            text = (deb.prepare(source, work) / "debian/changelog").read_text()
        finally:
            del os.environ["DEBFULLNAME"], os.environ["DEBEMAIL"]
        expect("\n -- A Packager <p@x.invalid>  " in text, "the packager", text)


def test_release_refuses():
    """a release is refused if files are not committed, or versions differ, or the change log lacks the version"""
    with tempfile.TemporaryDirectory() as folder:
        source = repository(folder)
        expect_equal(release.problems_of(source), [])
        (source / "meson.build").write_text(f"# changed\n{(source / 'meson.build').read_text()}")
        expect_equal(release.problems_of(source),
                     ["1 files differ from the last commit, such as meson.build: commit them first"])
    with tempfile.TemporaryDirectory() as folder:
        source = repository(folder, meson="  version: '3.14.1',\n", constants="VERSION_MAJOR = 3\nVERSION_MINOR = 14\n"
                            "VERSION_PATCH = 1\n")
        expect_equal(release.problems_of(source), [f"meson.build has the version 3.14.1, and include/weft/core.h has {VERSION}",
                                                   "CHANGELOG.md has no section for the version 3.14.1"])


def test_sums():
    """SHA256SUMS is what sha256sum checks"""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("b.deb", "a.whl")]
        for file in files:
            file.write_text(file.name)
        release.write_sums(Path(folder), files)
        text = (Path(folder) / "SHA256SUMS").read_text()
        expect_equal(text.splitlines()[0], f"{hashlib.sha256(b'a.whl').hexdigest()}  a.whl")
        expect_equal(cases.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder).returncode, 0, text)
        files[0].write_text("damaged")
        expect_equal(cases.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder).returncode, 1, text)


def test_numbers_of_the_library():
    """packages and recipes name the soname of meson.build's version"""
    major, minor, _ = VERSION.split(".")
    number = f"{major}.{minor}" if major == "0" else major
    expect(f"\nPackage: libweft{number}\n" in CONTROL, "debian/control", CONTROL)
    for path in [ROOT / "lib/weft.map", *(ROOT / "packaging").rglob("*"), *(ROOT / "tests").rglob("test_*.py"),
                 *(ROOT / "python/weftsync").rglob("*.py")]:
        if path.is_file() and path != Path(__file__).resolve():
            others = [word for word in re.findall(r"(?:libweft\.so\.|\blibweft|\bweft-(?=[\d.]+/libweft))(\d+(?:\.\d+)*)", path.read_text())
                      if word not in (number, VERSION)]
            expect_equal(others, [], path)


def test_versions_of_recipes():
    """every recipe has the version of meson.build"""
    for file, pattern in (("conda/recipe.yaml", r'^  version: "(.*)"$'), ("vcpkg/weft/vcpkg.json", r'"version-semver": "(.*)"'),
                          ("spack/packages/weft/package.py", r'^    version\("(.*)"\)$')):
        expect_equal(re.findall(pattern, (ROOT / "packaging" / file).read_text(), re.M), [VERSION], file)


def test_overrides():
    """every override of lintian has its reason above it"""
    for file in DEBIAN.rglob("*lintian-overrides"):
        for block in [block for block in re.split(r"(?m)^(?=#)", file.read_text()) if block]:
            expect(re.match(r"(#.{20,}\n)+[\w.-]+: ", block + "\n"), f"an override without a reason in {file.name}", block)


def test_build_dependencies():
    """the Containerfile and tools/setup.sh install what debian/control says that a build needs"""
    listed = re.search(r"^Build-Depends: (.*(?:\n .*)*)", CONTROL, re.M).group(1)
    needed = {re.sub(r" .*", "", one.strip()) for one in listed.split(",")}
    needed = {{"debhelper-compat": "debhelper", "dh-sequence-python3": "dh-python"}.get(one, one) for one in needed}
    for file in ("packaging/Containerfile", "tools/setup.sh"):
        words = set(re.findall(r"[\w.+-]+", (ROOT / file).read_text()))
        expect_equal(needed - words, set(), file)


def test_containerfile():
    """what the Containerfile copies exists, and its runs are of tools of this repository"""
    text = (ROOT / "packaging/Containerfile").read_text()
    copied = re.findall(r"^COPY (?!--from)(\S+) ", text, re.M)
    expect_equal(copied, [".git"])
    tools = re.findall(r"tools/\w+\.\w+", text)
    expect(tools and all((ROOT / tool).exists() for tool in tools), "tools", tools)
    out = re.search(r"^COPY --from=build /weft/(\w+)/", text, re.M).group(1)
    expect(f'default=ROOT / "{out}"' in (ROOT / "tools/deb.py").read_text(), "where tools/deb.py writes", out)


if __name__ == "__main__":
    cases.main(globals())
