#!/usr/bin/env python3
"""Tests what `make` does before it compiles: on systems other than Debian, and if everything is installed.
Usage: test_setup.py SOURCE BUILD"""
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

SOURCE, BUILD = Path(sys.argv[1]), Path(sys.argv[2])
TOOLS = ("sh", "cat", "dirname", "echo", "env", "grep", "id", "mkdir", "rm", "sed", "timeout", "touch")
PRESENT = ("c++", "meson", "ninja", "pkg-config", "nvcc")
# A Python without the wheel, whose pip either fails or brings one.
PYTHON = """#!/bin/sh
case "$*" in
  *nvidia.nccl*) exit 1 ;;
  "-m pip download"*) exec {python} -c '{download}' "$@" ;;
esac
exec {python} "$@"
"""
DOWNLOAD = """import sys, zipfile
assert sys.argv[-1].startswith("nvidia-nccl-cu13=="), sys.argv
folder = sys.argv[sys.argv.index("--dest") + 1]
with zipfile.ZipFile(folder + "/nvidia_nccl_cu13.whl", "w") as wheel:
    wheel.writestr("nvidia/nccl/include/nccl.h", "the header")
    wheel.writestr("nvidia/nccl/lib/libnccl.so.2", "the library")
"""


def machine(folder, *programs):
    """Create a folder for PATH with the usual small tools, and with programs that do nothing."""
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


def header_with(pip):
    """Run setup.sh where nvcc exists and pip does this. Return its output, and the files that it leaves in
    .setup."""
    if Path("/usr/include/nccl.h").exists():
        cases.skip("NCCL is installed here")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "source"
        (copy / "tools").mkdir(parents=True)
        shutil.copy(SOURCE / "tools/setup.sh", copy / "tools")
        path = Path(folder) / "bin"
        path.mkdir()
        environment = machine(path, "dnf", *PRESENT)
        (path / "python3").write_text(PYTHON.format(python=sys.executable, download=pip))
        (path / "python3").chmod(0o755)
        result = cases.run(["/bin/sh", copy / "tools/setup.sh", "build"], environment=environment)
        expect_equal(result.returncode, 0, result.stdout, result.stderr)
        expect("fetching nccl.h" in result.stdout, "no header was fetched", result.stdout, result.stderr)
        left = {str(file.relative_to(copy / ".setup")): file.read_text()
                for file in (copy / ".setup").rglob("*") if file.is_file()}
    return result.stdout, left


def test_header():
    """if nvcc exists, nccl.h is taken out of its wheel, and nothing else is kept"""
    output, left = header_with(DOWNLOAD)
    expect_equal(left, {"build": "", "nccl/include/nccl.h": "the header"}, output)


def test_header_that_cannot_be_had():
    """without a network the set-up continues, and reports what is not built"""
    output, left = header_with("raise SystemExit(1)")
    expect("could not be fetched, so the backend nccl is not built" in output, "nothing is said", output)
    expect_equal(left, {"build": ""}, output)


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
    """if all is built, make build calls no compiler, no configuration and no package manager"""
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
