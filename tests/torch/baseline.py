"""Runs torch's suite with gloo as torch does: every test in processes of its own, by MultiProcessTestCase.

Arguments: the name of the method that starts processes ("fork" or "spawn"), the seconds for a test, and a text that the
names of tests contain. Writes one JSON line [test, outcome, detail] for each test to standard output, whose other
output goes to standard error. Environment: BACKEND, WORLD_SIZE.

A forked process has the suite imported already, which takes most of a spawned one's time. This process itself creates
neither threads nor process groups.
"""
import json
import os
import sys
import time
import unittest

import torch
from torch.testing._internal import common_distributed
from torch.testing._internal.distributed import distributed_test

METHOD = os.environ.get("BASELINE_METHOD", "fork")


class TestDistBackendWithSpawn(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        # A spawned process takes this from the environment when it imports the suite.
        distributed_test.INIT_METHOD = os.environ["INIT_METHOD"]
        self._start_processes(torch.multiprocessing.get_context(METHOD).Process)


def outcome(result):
    """Return the outcome of one test and its details."""
    for problems in (result.failures, result.errors):
        if problems:
            return "fail", problems[0][1]
    if result.skipped:
        return "skip", result.skipped[0][1]
    return "pass", ""


def main():
    seconds, text = float(sys.argv[1]), sys.argv[2]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    common_distributed.get_timeout = lambda test: seconds
    names = [name for name in unittest.TestLoader().getTestCaseNames(TestDistBackendWithSpawn)
             if name.startswith("test_") and text in name]
    for name in names:
        result, since = unittest.TestResult(), time.monotonic()
        TestDistBackendWithSpawn(name).run(result)
        answers.write(json.dumps([name, *outcome(result), round(time.monotonic() - since, 2)]) + "\n")


if __name__ == "__main__":
    main()
