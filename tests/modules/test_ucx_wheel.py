#!/usr/bin/env python3
"""The ucx module with another UCX, from the PyPI wheel libucx-cu13. Usage: test_ucx_wheel.py BUILD CAPI_UCX
CONFORMANCE

The wheel is downloaded once, into BUILD/ucx-wheel. Without a network the cases are skipped.
"""
import re
import subprocess
import sys
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal, skip  # noqa: E402

BUILD = Path(sys.argv[1]).resolve()
CAPI_UCX, CONFORMANCE = (Path(word).resolve() for word in sys.argv[2:4])
WHEEL = "libucx-cu13==1.22.*"
FOLDER = BUILD / "ucx-wheel"
UCX = FOLDER / "libucx"


def fetch():
    """Return the wheel's files under FOLDER; skip the case if they are not available."""
    if (FOLDER / "complete").exists():
        return
    FOLDER.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--retries", "1",
               "--timeout", "10", "--dest", FOLDER, WHEEL]
    try:
        result = cases.run(command, timeout=100)
    except subprocess.TimeoutExpired:
        skip(f"{WHEEL} could not be downloaded in time")
    wheels = list(FOLDER.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        skip(f"{WHEEL} could not be downloaded: " + (result.stderr.strip().splitlines() or ["no reason given"])[-1])
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(FOLDER)
    (FOLDER / "complete").touch()


def build_module():
    """Run the module's own compile commands with the wheel's headers and libraries; return its folder."""
    out = FOLDER / "module"
    out.mkdir(exist_ok=True)
    listing = cases.run(["ninja", "-C", BUILD, "-t", "commands", "libweft-ucx.so"])
    expect_equal(listing.returncode, 0, listing.stderr)
    commands = [line for line in listing.stdout.splitlines() if "libweft-ucx.so.p/" in line and "symbolextractor" not in line]
    for command in commands:
        command = re.sub(r"(?<=\s)libweft-ucx\.so(\.p)?(?=[/\s])", lambda m: str(out / ("" if m[1] else "libweft-ucx.so")), command)
        command = re.sub(r"\S*/libuc([pstm])\.so(?=\s)", lambda m: f"{UCX}/lib/libuc{m[1]}.so", command)
        command += f" -isystem {UCX}/include" if " -c " in command else f" -Wl,-rpath,{UCX}/lib"
        result = cases.run(["sh", "-c", command], timeout=300, cwd=BUILD)
        expect_equal(result.returncode, 0, command, result.stderr)
    return out


def loaded(environment):
    """Return ldd's output for the module that this environment would load."""
    path = Path(environment["WEFT_TEST_MODULES"]) / "libweft-ucx.so"
    return cases.run(["ldd", path], environment=environment).stdout


def expect_works(environment):
    expect(str(UCX) in loaded(environment), "the wheel's library is used", loaded(environment))
    conformance = "every collective*small*,ranks may leave*,a rank that left*,a ring of messages*"
    for command in ([CAPI_UCX], [CONFORMANCE, conformance]):
        # These programs' results are the result of this case, so they write no report of their own.
        result = cases.run(command, timeout=300, environment={**environment, "WEFT_TEST_REPORT": "/dev/null"})
        expect_equal(result.returncode, 0, command, result.stdout[-4000:], result.stderr[-2000:])


def test_built_for_it():
    """the module builds against UCX 1.22 and works with it"""
    fetch()
    expect_works({"WEFT_TEST_MODULES": str(build_module())})


def test_runs_with_it():
    """the module of this build works with UCX 1.22 in place of the UCX of the build"""
    fetch()
    expect_works({"WEFT_TEST_MODULES": str(BUILD), "LD_LIBRARY_PATH": f"{UCX}/lib"})


cases.main(globals())
