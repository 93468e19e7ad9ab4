#!/usr/bin/env python3
"""An installed Weft as programs outside of the tree find it: with pkg-config alone, and with CMake alone.
Usage: test_outside.py BUILD PROGRAM.c CC..."""
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal, skip  # noqa: E402

BUILD, PROGRAM, CC = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3:]
WORK = BUILD / "tests/abi/outside"
ROOT = WORK / "root"
FLAGS = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]


def call(*command, **environment):
    result = cases.run(command, timeout=100, environment=environment)
    expect_equal(result.returncode, 0, command, result.stdout, result.stderr)
    return result.stdout


def installed(name):
    """Return the path of an installed file or folder. The first call installs into WORK/root."""
    if not WORK.exists():
        call("meson", "install", "-C", BUILD, "--no-rebuild", "--quiet", "--tags", "devel,runtime", "--destdir", ROOT)
    return next(ROOT.rglob(name))


def prefix():
    return installed("include/weft").parent.parent


def pkg_config(*words):
    if not shutil.which("pkg-config"):
        skip("pkg-config is not here")
    # No other package file is visible: weft.pc needs none.
    return cases.run(["pkg-config", *words], environment={
        "PKG_CONFIG_LIBDIR": str(installed("weft.pc").parent), "PKG_CONFIG_SYSROOT_DIR": str(ROOT), "PKG_CONFIG_PATH": ""})


def expect_runs(program):
    call(program, LD_LIBRARY_PATH=str(installed("libweft.so.0.9").parent))


def configure(name, package, prefix_path, languages="C"):
    """Configure a project that calls find_package(weft `package`) in a folder of its own. Without a language CMake does not
    know folders such as lib/x86_64-linux-gnu, and gets the package's folder."""
    if not shutil.which("cmake"):
        skip("cmake is not here")
    folder = WORK / name
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.16)\nproject(outside {languages})\nfind_package(weft {package} REQUIRED)\n" +
        (f"add_executable(program {PROGRAM})\ntarget_link_libraries(program PRIVATE weft::weft)\n" if languages == "C" else ""))
    where = f"-DCMAKE_PREFIX_PATH={prefix_path}" if languages == "C" else f"-Dweft_DIR={installed('cmake/weft')}"
    return folder / "build", cases.run(["cmake", "-S", folder, "-B", folder / "build", where], environment={"CC": CC[-1]})


def expect_builds(name, prefix_path):
    folder, result = configure(name, "0.9", prefix_path)
    expect_equal(result.returncode, 0, result.stdout, result.stderr)
    call("cmake", "--build", folder)
    expect_runs(folder / "program")


def test_pkg_config():
    """a C99 program builds and runs against an installed library with the flags of pkg-config alone"""
    flags = pkg_config("--cflags", "--libs", "weft")
    expect_equal(flags.returncode, 0, flags.stderr)
    call(*CC, *FLAGS, PROGRAM, "-o", WORK / "program", *flags.stdout.split())
    expect_runs(WORK / "program")


def test_pkg_config_version():
    """pkg-config accepts a version that is there, and refuses a later one with both numbers"""
    for wanted in ("weft", "weft >= 0.9", "weft = 0.9.0"):
        expect_equal(pkg_config("--exists", wanted).returncode, 0, wanted)
    for wanted in ("weft >= 0.10", "weft >= 1", "weft < 0.9"):
        refused = pkg_config("--cflags", "--libs", wanted)
        expect(refused.returncode != 0, wanted, refused.stdout)
        expect(wanted in refused.stderr and "0.9.0" in refused.stderr, "the reason", refused.stderr)


def test_cmake():
    """a program builds and runs with find_package(weft) and the target weft::weft alone"""
    expect_builds("cmake", prefix())


def test_cmake_through_a_link():
    """the package is found through a link to its folder, as /lib is one to /usr/lib"""
    linked = WORK / "linked"
    linked.mkdir()
    (linked / "lib").symlink_to(installed("lib"))
    expect_builds("through-a-link", linked)


def test_cmake_version():
    """find_package accepts versions that docs call compatible, and refuses others with both numbers"""
    accepted, refused = ("", "0.9", "0.9.0", "0.9.0 EXACT"), ("0.8", "0.9.1", "0.10", "1.0", "0.9.1 EXACT")
    for i, version in enumerate(accepted + refused):
        result = configure(f"version-{i}", version, prefix(), "NONE")[1]
        expect_equal(result.returncode == 0, version in accepted, f"find_package(weft {version})", result.stderr)
        if version in refused:
            expect(f'"{version.split()[0]}"' in result.stderr and "version: 0.9.0" in result.stderr, version, result.stderr)


def test_tool():
    """an installed tool finds the library beside which it is installed"""
    if not (BUILD / "tools/weft").exists():
        skip("the tool is not built")
    expect("0.9.0" in call(installed("bin/weft"), "--version", LD_LIBRARY_PATH=""), "its version")


if __name__ == "__main__":
    shutil.rmtree(WORK, ignore_errors=True)
    cases.main(globals())
