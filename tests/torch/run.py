#!/usr/bin/env python3
"""Runs torch's own distributed suite with the backend weft, compared with gloo. `make test-torch` calls it.

The suite is torch/testing/_internal/distributed/distributed_test.py of the installed PyTorch. Each world size runs all
of its tests with gloo (baseline.py) and then with weft, in processes that serve many tests (rank.py). Cases of this
folder follow, which pass or fail: behaviours.py and training.py in the same processes, programs.py under torchrun.

The only exceptions for weft are tests that gloo skips or fails in the same run. gloo has to pass at least the tests of
gloo_passes.txt. The last line counts tests of weft; a skip of a test that gloo passes is a failure.
"""
import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
PASSES = FOLDER / "gloo_passes.txt"
sys.path[:0] = [str(ROOT / "tools")]
import package_venv  # noqa: E402
import programs  # noqa: E402
import torch_venv  # noqa: E402
from job import Job  # noqa: E402

SUITE = ["expecttest==0.3.0"]  # the suite imports it
LIGHTNING = ["packaging", "PyYAML", "tqdm"]
ACCELERATE = ["packaging", "PyYAML", "psutil", "huggingface_hub", "safetensors"]
ACCELERATE_BARE = ["accelerate==1.15.0"]
LIGHTNING_BARE = ["pytorch-lightning==2.6.6", "torchmetrics==1.9.0", "lightning-utilities==0.15.3"]


def prepare(build):
    """Return the interpreter that has PyTorch, and the folders of modules for it."""
    def say(text):
        print("torch:", text, flush=True)

    extra = [package_venv.prepare(build, "torch-suite", SUITE, say),
             package_venv.prepare(build, "torch-lightning", LIGHTNING, say, LIGHTNING_BARE),
             package_venv.prepare(build, "torch-accelerate", ACCELERATE, say, ACCELERATE_BARE)]
    modules = [str(folder) for venv in extra for folder in venv.glob("lib/python*/site-packages")]
    return torch_venv.prepare(build, say), [str(ROOT / "python"), str(FOLDER), *modules]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, nargs="?", default=ROOT / "build")
    parser.add_argument("--ranks", default="2,4", help="world sizes")
    parser.add_argument("--filter", default="", help="run only tests whose name contains this text")
    parser.add_argument("--backends", default="gloo,weft", help="one of them alone is counted but not compared")
    parser.add_argument("--baseline", default="fork", choices=["fork", "spawn"],
                        help="how gloo's processes start; spawn takes an hour")
    parser.add_argument("--record", action="store_true", help="write gloo_passes.txt from this run")
    parser.add_argument("--timeout", type=float, default=90, help="seconds for a test")
    parser.add_argument("--verbose", action="store_true", help="print every test's outcome, and all of a failure")
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    return arguments


def environment(arguments):
    """Return the environment of all processes that import torch."""
    return {**os.environ, "PYTHONPATH": ":".join(arguments.folders), "PYTHONDONTWRITEBYTECODE": "1",
            "WEFT_LIBRARY": str(arguments.build / "libweft.so.0.9"), "MASTER_ADDR": "127.0.0.1",
            "INIT_METHOD": "file://",  # while the suite is imported; each test has a file of its own
            "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def report(arguments, backend, size, test, result, seconds):
    if arguments.verbose:
        print(f"{result[0]:4} {backend} {size} {test} {seconds:.2f} s {result[1]}", flush=True)


def run_gloo(python, arguments, size, log):
    """Run the suite as torch does. Returns outcome and detail by test."""
    results = {}
    process = subprocess.Popen(
        [str(python), "-W", "ignore", str(FOLDER / "baseline.py"), str(arguments.timeout), arguments.filter],
        env={**environment(arguments), "BACKEND": "gloo", "WORLD_SIZE": str(size),
             "BASELINE_METHOD": arguments.baseline}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
        text=True)
    for line in process.stdout:
        test, outcome, detail, seconds = json.loads(line)
        results[test] = outcome, detail
        report(arguments, "gloo", size, test, results[test], seconds)
    if process.wait() != 0:
        sys.exit(f"torch: the baseline of gloo ended with exit code {process.returncode}; see {log.name}")
    return results


def run_weft(python, arguments, size, log):
    """Run the suite and the cases of this folder. Returns outcome and detail by test."""
    results = {}
    job = Job(python, size, environment(arguments), arguments.timeout, log)
    try:
        job.start()
        for test in [name for name in job.names if arguments.filter in name]:
            since = time.monotonic()
            results[test] = job.run(test)
            report(arguments, "weft", size, test, results[test], time.monotonic() - since)
    finally:
        job.stop()
    for name in [name for name in programs.CASES if arguments.filter in name and size == programs.SIZE]:
        since = time.monotonic()
        results[name] = programs.start(name, python, environment(arguments), 2 * arguments.timeout, log)
        report(arguments, "weft", size, name, results[name], time.monotonic() - since)
    return results


RUN = {"gloo": run_gloo, "weft": run_weft}


def run_backend(python, arguments, backend, size):
    folder = arguments.build / "test-logs"
    folder.mkdir(exist_ok=True)
    begin = time.monotonic()
    with open(folder / f"torch-{backend}-{size}.log", "w") as log:
        results = RUN[backend](python, arguments, size, log)
    counts = count(results)
    print(f"torch: {backend}, {size} ranks: {text(counts)} in {time.monotonic() - begin:.0f} s", flush=True)
    return results


def count(results):
    """Count outcomes."""
    outcomes = [outcome for outcome, _ in results.values()]
    return {kind: outcomes.count(kind) for kind in ("pass", "fail", "skip")}


def text(counts):
    return f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped"


def last_line(detail):
    return detail.strip().splitlines()[-1] if detail.strip() else ""


def compare(size, gloo, weft):
    """Count weft's results, and print what differs from gloo's."""
    counts = {"pass": 0, "fail": 0, "skip": 0}
    for test in sorted(gloo.keys() - weft.keys()):
        weft[test] = "fail", "the test did not run with weft"
    for test in sorted(name for name in weft.keys() - gloo.keys() if name.startswith("test_")):
        gloo[test] = "pass", ""  # an incomplete baseline excuses nothing
        weft[test] = "fail", "the test did not run with gloo"
    for test, (outcome, detail) in weft.items():
        expected = gloo[test][0] if test in gloo else "pass"  # a case of this folder
        if outcome == "pass":
            counts["pass"] += 1
            if expected != "pass":
                print(f"more {size} ranks: {test}: passes with weft, {expected} with gloo: {last_line(gloo[test][1])}")
        elif expected == "pass":
            counts["fail"] += 1
            print(f"FAIL {size} ranks: {test}: {outcome} with weft, passes with gloo: {last_line(detail)}")
        else:
            counts["skip"] += 1
            if outcome != expected:
                print(f"other {size} ranks: {test}: {outcome} with weft, {expected} with gloo: {last_line(detail)}")
    return counts


def passes():
    """Read gloo_passes.txt: world sizes by test."""
    lines = [line.split() for line in PASSES.read_text().splitlines() if line and not line.startswith("#")]
    return {test: set(map(int, sizes)) for test, *sizes in lines}


def check_baseline(size, results, filtered):
    """Print the tests that gloo has to pass and does not. Returns their number."""
    missing = [test for test, sizes in passes().items()
               if size in sizes and filtered in test and results.get(test, ("",))[0] != "pass"]
    for test in missing:
        outcome, detail = results.get(test, ("no result", ""))
        print(f"FAIL {size} ranks: {test}: {outcome} with gloo, passes in {PASSES.name}: {last_line(detail)}")
    return len(missing)


def record(results):
    """Write gloo_passes.txt. results: outcomes by test, by world size."""
    lines = ["# Tests of torch's suite that gloo passes, and world sizes: the least that the baseline has to pass.",
             "# `run.py --record` writes this file."]
    for test in sorted({test for found in results.values() for test in found}):
        sizes = [str(size) for size, found in results.items() if found[test][0] == "pass"]
        if sizes:
            lines.append(" ".join([test, *sizes]))
    PASSES.write_text("\n".join(lines) + "\n")


def main():
    arguments = parse_arguments()
    try:
        python, arguments.folders = prepare(arguments.build)
    except RuntimeError as error:
        sys.exit(f"torch: {error}")
    total, recorded, backends = {"pass": 0, "fail": 0, "skip": 0}, {}, arguments.backends.split(",")
    for size in map(int, arguments.ranks.split(",")):
        results = {backend: run_backend(python, arguments, backend, size) for backend in backends}
        if len(results) == 1:
            found = results[backends[0]]
            counts = count(found)
            for test in [name for name in found if found[name][0] == "fail"]:
                print(f"fail {size} ranks: {test}: {last_line(found[test][1])}")
        else:
            counts = compare(size, results["gloo"], results["weft"])
        if "gloo" in results:
            recorded[size] = results["gloo"]
            if not arguments.record:
                counts["fail"] += check_baseline(size, results["gloo"], arguments.filter)
        total = {kind: total[kind] + counts[kind] for kind in total}
    if arguments.record:
        record(recorded)
    print(text(total))
    return 0 if total["pass"] and not total["fail"] else 1


if __name__ == "__main__":
    sys.exit(main())
