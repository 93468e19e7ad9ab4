#!/usr/bin/env python3
"""Output of a configuration: modules that cannot be built, and parts that are left out. Usage:
test_configure.py SOURCE"""
import json
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

SOURCE = sys.argv[1]


# Programs that meson finds at other places than by default.
NO_NVCC = {"nvcc": "there-is-no-nvcc"}


def configure(*options, programs=None, source=SOURCE, look=lambda build: None):
    """Run meson setup. Return its exit code and output, and look's result for the build folder, if there is
    one."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "programs.ini"
        lines = [f"{name} = '{path}'" for name, path in (programs or {}).items()]
        file.write_text("\n".join(["[binaries]"] + lines) + "\n")
        result = cases.run(["meson", "setup", f"{folder}/build", source, "--native-file", file, *options], timeout=100)
        seen = look(Path(folder) / "build") if result.returncode == 0 else None
    return (result.returncode, result.stdout + result.stderr) + ((seen,) if seen is not None else ())


def tests_of(build):
    listing = cases.run(["meson", "introspect", "--tests", build])
    return {entry["suite"][0].split(":")[-1] + "/" + entry["name"] for entry in json.loads(listing.stdout)}


def test_module_that_cannot_be_built():
    """a module whose requirements are missing cannot be enabled"""
    code, output = configure("-Dtests=false", "-Dnccl=enabled", "-Dcuda=disabled")
    expect(code != 0 and "-Dnccl=enabled needs the cuda module" in output, "no error", code, output)


def test_summary():
    """the end of the configuration lists what is built and what is not"""
    code, output = configure("-Dtests=false", "-Dtools=false", "-Dbench=false", "-Dexamples=false", "-Dnccl=disabled")
    expect_equal(code, 0, output)
    summary = output[output.rindex("Built"):]
    for line in ("backends: loopback, shm", "nccl : -Dnccl=disabled", "tests: -Dtests=false",
                 "tools: -Dtools=false"):
        expect(line.replace(" ", "") in summary.replace(" ", ""), f"the summary lacks: {line}", output)


def test_modules_enabled():
    """with nvcc and nccl.h the cuda and nccl modules can be enabled"""
    if shutil.which("nvcc") is None:
        cases.skip("nvcc is not here")
    code, output = configure("-Dtests=false", "-Dcuda=enabled", "-Dnccl=enabled")
    if code != 0 and "-Dnccl=enabled needs" in output:
        cases.skip("nccl.h is not here")
    expect_equal(code, 0, output)
    lines = [line.split() for line in output[output.rindex("Built"):].splitlines()]
    expect(any(words[:1] == ["backends"] and words[-1] == "nccl" for words in lines), "no backend nccl", output)
    expect(["devices", ":", "cuda"] in lines, "no devices", output)


def test_without_nvcc():
    """without nvcc enabling cuda or nccl fails, and the error names what is needed"""
    code, output = configure("-Dtests=false", "-Dcuda=enabled", programs=NO_NVCC)
    expect(code != 0 and "-Dcuda=enabled needs nvcc of CUDA 12 or later" in output, "no error", code, output)
    code, output = configure("-Dtests=false", "-Dnccl=enabled", programs=NO_NVCC)
    expect(code != 0 and "-Dnccl=enabled needs the cuda module and nccl.h" in output, "no error", code, output)


def test_without_nccl_header():
    """without nccl.h enabling nccl fails, and the error names its source"""
    if shutil.which("nvcc") is None:
        cases.skip("nvcc is not here")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        source.mkdir()
        for entry in Path(SOURCE).iterdir():  # all but what tools/setup.sh has fetched
            if not entry.name.startswith((".", "build")):
                (source / entry.name).symlink_to(entry)
        python = Path(folder) / "python3"
        python.write_text(f"#!/bin/sh\ncase $* in *nvidia*) exit 1 ;; esac\nexec {sys.executable} \"$@\"\n")
        python.chmod(0o755)
        code, output = configure("-Dtests=false", "-Dnccl=enabled", programs={"python3": python}, source=source)
    if code == 0:
        cases.skip("nccl.h is installed here")
    expect("nccl.h of NCCL 2.14 or later (tools/setup.sh fetches it" in output, "another error", output)


def test_left_out():
    """tests of parts that are not built are skipped by name, each with the reason"""
    def look(build):
        listing = cases.run([sys.executable, Path(SOURCE) / "tests" / "run.py", build, "--suite", "cuda,nccl,gpu,ucx,mpi"])
        return tests_of(build), listing.stdout

    code, output, (names, run) = configure("-Ducx=disabled", "-Dmpi=disabled", programs=NO_NVCC, look=look)
    expect_equal(code, 0, output)
    for line in ("capi/capi_nccl: not built: nccl: it needs the cuda module",
                 "unit/unit_device_cuda: not built: cuda: nvcc of CUDA 12 or later is not here",
                 "gpu/gpu_kernels: not built: gpu: it needs the cuda module",
                 "modules/ucx_wheel: not built: ucx: -Ducx=disabled",
                 "conformance/conformance_mpi: not built: mpi: -Dmpi=disabled",
                 "abi/mpi_header_mpich: not built: mpi with MPICH: -Dmpi=disabled"):
        expect(line in run, f"not skipped: {line}", run)
    expect(" 0 failed" in run, "more than skips", run)
    expect_equal(names ^ configure(look=tests_of)[2], set(), "programs that are not told of")


def test_without_eigen():
    """without Eigen the demo's tests are skipped by name, and the tests of hosts run without it"""
    def look(build):
        listing = cases.run([sys.executable, Path(SOURCE) / "tests" / "run.py", build, "--suite", "examples"])
        return tests_of(build), listing.stdout

    with tempfile.TemporaryDirectory() as folder:
        finder = Path(folder) / "pkg-config"
        finder.write_text(f"#!/bin/sh\ncase $* in *eigen3*) exit 1 ;; esac\nexec {shutil.which('pkg-config')} \"$@\"\n")
        finder.chmod(0o755)
        code, output, (names, run) = configure(programs={"pkgconfig": finder, "cmake": "there-is-no-cmake"}, look=look)
    expect_equal(code, 0, output)
    for name in ("idx", "model", "demo"):
        expect(f"examples/{name}: not built: train_fashion" in run and "needs Eigen and zlib" in run, f"not skipped: {name}", run)
    expect({"launchers/hosts", "launchers/across"} <= names, "tests that need no Eigen", names)
    expect_equal(names ^ configure(look=tests_of)[2], set(), "programs that are not told of")


if __name__ == "__main__":
    cases.main(globals())
