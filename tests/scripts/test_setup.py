#!/usr/bin/env python3
"""What `make` does before it compiles: on other systems than Debian, and when all is there. Usage: test_setup.py SOURCE BUILD"""
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

SOURCE, BUILD = Path(sys.argv[1]), Path(sys.argv[2])
TOOLS = ("sh", "cat", "dirname", "echo", "env", "grep", "id", "mkdir", "sed", "touch")


def machine(folder, *programs):
    """A folder for PATH with the usual small tools and programs that do nothing."""
    for tool in TOOLS:
        (folder / tool).symlink_to(shutil.which(tool))
    for program in programs:
        (folder / program).write_text("#!/bin/sh\nexit 0\n")
        (folder / program).chmod(0o755)
    return {"PATH": str(folder), "CONDA_PREFIX": ""}


def setup_on(*programs, **environment):
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "source"
        (copy / "tools").mkdir(parents=True)
        shutil.copy(SOURCE / "tools/setup.sh", copy / "tools")
        path = Path(folder) / "bin"
        path.mkdir()
        result = cases.run(["/bin/sh", copy / "tools/setup.sh", "build"],
                           environment={**machine(path, *programs), **environment})
    return result.returncode, result.stdout


def test_other_package_managers():
    """without apt the exact command of the machine's package manager is printed"""
    for program, command in (("dnf", "sudo dnf install -y gcc-c++ meson"), ("pacman", "sudo pacman -S --needed"),
                             ("mamba", "conda install -y -c conda-forge cxx-compiler")):
        code, output = setup_on(program)
        expect(code == 1 and command in output, f"no command for {program}", code, output)
    code, output = setup_on("dnf", CONDA_PREFIX="/opt/conda")
    expect(code == 1 and "conda install" in output, "an active conda environment comes first", code, output)


def test_no_package_manager():
    """without any package manager the needed packages are named"""
    code, output = setup_on()
    expect(code == 1 and "libsodium-dev" in output, "no names", code, output)


def test_second_run():
    """where all is built, make build calls no compiler, no configuration and no package manager"""
    if not (SOURCE / ".setup/build").exists():
        cases.skip("this tree was not set up by make")
    clean = {name: "" for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    build = ["make", "-C", SOURCE, "--no-print-directory", "build", f"BUILD={BUILD}"]
    first = cases.run(build, timeout=100, environment=clean)
    expect_equal(first.returncode, 0, first.stdout, first.stderr)
    with tempfile.TemporaryDirectory() as folder:
        for program in ("cc", "gcc", "c++", "g++", "clang", "clang++", "ccache", "meson", "apt-get", "dpkg-query", "sudo"):
            shim = Path(folder) / program
            shim.write_text(f"#!/bin/sh\necho called: {program} \"$@\"\nexit 1\n")
            shim.chmod(0o755)
        result = cases.run(build, timeout=100, environment={**clean, "PATH": f"{folder}:{os.environ['PATH']}"})
    expect_equal(result.returncode, 0, result.stdout, result.stderr)
    expect("called:" not in result.stdout + result.stderr and "no work to do" in result.stdout, "something was called",
           result.stdout, result.stderr)


if __name__ == "__main__":
    cases.main(globals())
