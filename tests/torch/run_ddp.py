#!/usr/bin/env python3
"""Runs the DistributedDataParallel tests of torch's own suite with Weft's class in the place of torch's.

The suite is that of run.py. Most of these tests are for GPUs: rank.py changes their source so that they run on the CPU.
Each world size runs them with torch's class and then with Weft's, both over the backend weft. A test that passes with
torch's class has to pass with Weft's, except the tests of ddp_differs.txt, which has the reasons.
"""
import argparse
import sys
import time
from pathlib import Path

import run
from job import Job

FOLDER = Path(__file__).resolve().parent
DIFFERS = FOLDER / "ddp_differs.txt"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, nargs="?", default=run.ROOT / "build")
    parser.add_argument("--ranks", default="2,4", help="world sizes")
    parser.add_argument("--filter", default="", help="run only tests whose name contains this text")
    parser.add_argument("--timeout", type=float, default=60, help="seconds for a test")
    parser.add_argument("--only-weft", action="store_true", help="do not run torch's class")
    parser.add_argument("--verbose", action="store_true", help="print every test's outcome, and all of a failure")
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    return arguments


def run_class(python, arguments, ddp, size):
    """Run the tests with one of the classes. Returns outcome and detail by test."""
    folder, results = arguments.build / "test-logs", {}
    folder.mkdir(exist_ok=True)
    begin = time.monotonic()
    with open(folder / f"torch-ddp-{ddp}-{size}.log", "w") as log:
        job = Job(python, size, {**run.environment(arguments), "TEST_DDP": ddp}, arguments.timeout, log)
        try:
            job.start()
            for test in [name for name in job.names if arguments.filter in name]:
                since = time.monotonic()
                results[test] = job.run(test)
                run.report(arguments, ddp, size, test, results[test], time.monotonic() - since)
        finally:
            job.stop()
    print(f"ddp: {ddp}'s class, {size} ranks: {run.text(run.count(results))} in {time.monotonic() - begin:.0f} s", flush=True)
    return results


def differs():
    """Read ddp_differs.txt: reasons by test."""
    lines = [line.split(maxsplit=1) for line in DIFFERS.read_text().splitlines() if line and not line.startswith("#")]
    return dict(lines)


def main():
    arguments = parse_arguments()
    try:
        python, arguments.folders = run.prepare(arguments.build)
    except RuntimeError as error:
        sys.exit(f"ddp: {error}")
    total, reasons = {"pass": 0, "fail": 0, "skip": 0}, differs()
    for size in map(int, arguments.ranks.split(",")):
        theirs = {} if arguments.only_weft else run_class(python, arguments, "torch", size)
        for test, (outcome, detail) in run_class(python, arguments, "weft", size).items():
            expected = theirs.get(test, ("pass", ""))[0]
            if outcome == "pass":
                total["pass"] += 1
                if test in reasons:
                    print(f"more {size} ranks: {test} passes, although {DIFFERS.name} lists it")
                elif expected == "fail":
                    print(f"more {size} ranks: {test} passes, but not with torch's class on the CPU")
            elif test in reasons or expected != "pass":
                total["skip"] += 1
            else:
                total["fail"] += 1
                print(f"FAIL {size} ranks: {test}: {outcome}, passes with torch's class: {run.last_line(detail)}")
    print(run.text(total))
    return 0 if total["pass"] and not total["fail"] else 1


if __name__ == "__main__":
    sys.exit(main())
