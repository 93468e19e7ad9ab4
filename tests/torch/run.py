#!/usr/bin/env python3
"""Runs torch's own distributed suite with the backend weft, compared with gloo. `make test-torch` calls it.

The suite is torch/testing/_internal/distributed/distributed_test.py of the installed PyTorch. Each world size runs all
of its tests with gloo and then with weft, in processes that serve many tests. The only exceptions for weft are tests
that gloo skips or fails in the same run. The last line counts tests of weft; a skip of a test that gloo passes is a
failure.
"""
import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tools")]
import package_venv  # noqa: E402
import torch_venv  # noqa: E402
from job import Job  # noqa: E402


EXPECTTEST = "expecttest==0.3.0"  # the suite imports it


def prepare(build):
    """Return the interpreter that has PyTorch, and the folders of modules for it."""
    def say(text):
        print("torch:", text, flush=True)

    python = torch_venv.prepare(build, say)
    extra = package_venv.prepare(build, "torch-suite", [EXPECTTEST], say)
    return python, [str(ROOT / "python"), *map(str, extra.glob("lib/python*/site-packages"))]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, nargs="?", default=ROOT / "build")
    parser.add_argument("--ranks", default="2,4", help="world sizes")
    parser.add_argument("--filter", default="", help="run only tests whose name contains this text")
    parser.add_argument("--backends", default="gloo,weft", help="one of them alone compares nothing")
    parser.add_argument("--timeout", type=float, default=90, help="seconds for a test")
    parser.add_argument("--verbose", action="store_true", help="print every test's outcome, and all of a failure")
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    return arguments


def run_backend(python, arguments, backend, size):
    """Run the suite. Returns outcome and detail by test."""
    folder = arguments.build / "test-logs"
    folder.mkdir(exist_ok=True)
    results, begin = {}, time.monotonic()
    with open(folder / f"torch-{backend}-{size}.log", "w") as log:
        job = Job(python, backend, size, {"PYTHONPATH": ":".join(arguments.folders),
                                          "WEFT_LIBRARY": str(arguments.build / "libweft.so.0.9")},
                  arguments.timeout, log)
        try:
            job.start()
            for test in [name for name in job.names if arguments.filter in name]:
                since = time.monotonic()
                results[test] = job.run(test)
                if arguments.verbose:
                    print(f"{results[test][0]:4} {backend} {size} {test} {time.monotonic() - since:.2f} s "
                          f"{results[test][1]}", flush=True)
        finally:
            job.stop()
    outcomes = [outcome for outcome, _ in results.values()]
    print(f"torch: {backend}, {size} ranks: {outcomes.count('pass')} passed, {outcomes.count('fail')} failed, "
          f"{outcomes.count('skip')} skipped in {time.monotonic() - begin:.0f} s", flush=True)
    return results


def compare(size, gloo, weft, counts):
    """Count weft's results, and print what differs from gloo's."""
    for test, (outcome, detail) in weft.items():
        expected = gloo[test][0] if test in gloo else "pass"  # a case of behaviours.py
        if outcome == "pass":
            counts["pass"] += 1
            if expected != "pass":
                print(f"more {size} ranks: {test}: passes with weft, {expected} with gloo")
        elif expected == "pass":
            counts["fail"] += 1
            last = detail.strip().splitlines()[-1] if detail.strip() else ""
            print(f"FAIL {size} ranks: {test}: {outcome} with weft, passes with gloo: {last}")
        else:
            counts["skip"] += 1


def main():
    arguments = parse_arguments()
    try:
        python, arguments.folders = prepare(arguments.build)
    except RuntimeError as error:
        sys.exit(f"torch: {error}")
    counts = {"pass": 0, "fail": 0, "skip": 0}
    for size in map(int, arguments.ranks.split(",")):
        results = {backend: run_backend(python, arguments, backend, size) for backend in arguments.backends.split(",")}
        if len(results) > 1:
            compare(size, results["gloo"], results["weft"], counts)
    print(f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped")
    return 0 if counts["pass"] and not counts["fail"] else 1


if __name__ == "__main__":
    sys.exit(main())
