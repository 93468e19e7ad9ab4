#!/usr/bin/env python3
"""What a configuration says: of a module that cannot be built, and of what was left out. Usage: test_configure.py SOURCE"""
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

SOURCE = sys.argv[1]


def configure(*options):
    with tempfile.TemporaryDirectory() as folder:
        result = cases.run(["meson", "setup", f"{folder}/build", SOURCE, "-Dtests=false", *options], timeout=100)
    return result.returncode, result.stdout + result.stderr


def test_module_that_cannot_be_built():
    """a module whose needs are not there cannot be enabled"""
    code, output = configure("-Dnccl=enabled", "-Dcuda=disabled")
    expect(code != 0 and "-Dnccl=enabled needs the cuda module" in output, "no error", code, output)


def test_summary():
    """the end of the configuration names what is built and what is not"""
    code, output = configure("-Dtools=false", "-Dbench=false", "-Dexamples=false", "-Dnccl=disabled")
    expect_equal(code, 0, output)
    summary = output[output.rindex("Built"):]
    for line in ("backends: loopback, shm", "nccl : -Dnccl=disabled", "tests: -Dtests=false",
                 "tools: -Dtools=false"):
        expect(line.replace(" ", "") in summary.replace(" ", ""), f"the summary lacks: {line}", output)


if __name__ == "__main__":
    cases.main(globals())
