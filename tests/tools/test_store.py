#!/usr/bin/env python3
"""weft store: ranks of several jobs bootstrap in it. Usage: test_store.py WEFT HELLO_ALLREDUCE"""
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

WEFT, HELLO = sys.argv[1:3]
SECRET = "a secret of many characters"


class Store:
    """Runs `weft store` for a block; SIGTERM must end it cleanly."""

    def __init__(self, listen, **environment):
        self.process = subprocess.Popen([WEFT, "store", "--listen", listen], env={**os.environ, **environment}, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def __enter__(self):
        line = self.process.stdout.readline()
        found = re.fullmatch(r"weft store: listening on (\S+)\n", line)
        expect(found is not None, "the store says where it listens", line)
        return found.group(1)

    def __exit__(self, kind, *_):
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=30)
        if kind is None:
            expect_equal(self.process.returncode, 0, errors)


def ranks(store, job, size, **more):
    """Start the processes of one job that bootstraps in the store."""
    common = {"WEFT_SIZE": str(size), "WEFT_STORE": store, "WEFT_STORE_EXTERNAL": "1", "WEFT_JOB": job, **more}
    return [subprocess.Popen([HELLO], env={**os.environ, **common, "WEFT_RANK": str(rank)}, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(size)]


def expect_met(processes):
    size = len(processes)
    for rank, process in enumerate(processes):
        output, errors = process.communicate(timeout=60)
        expect_equal(process.returncode, 0, output, errors)
        expect(f"rank {rank} of {size}" in output, "it met the others", output, errors)


def test_no_rank():
    """a store is no rank: it ignores a launcher's rank variables, complete or not"""
    with Store(f"unix:@weft-store-rank-{os.getpid()}", PMIX_RANK="3", WORLD_SIZE="8") as address:
        expect_met(ranks(address, "job", 2))


def test_jobs():
    """two jobs at once, and one after the other, bootstrap in one store"""
    with Store(f"unix:@weft-store-{os.getpid()}") as address:
        first, second = ranks(address, "first", 2), ranks(address, "second", 3)
        expect_met(first)
        expect_met(second)
        expect_met(ranks(address, "third", 2))


def test_secret():
    """a store with a secret accepts clients that have it, over TCP at a port that it chose"""
    with Store("tcp://127.0.0.1:0", WEFT_SECRET=SECRET) as address:
        expect(not address.endswith(":0"), "the port that it got", address)
        expect_met(ranks(address, "job", 2, WEFT_SECRET=SECRET))
        for stranger in ranks(address, "job", 2, WEFT_SECRET="not the secret of this job"):
            _, errors = stranger.communicate(timeout=60)
            expect(stranger.returncode != 0 and "another secret" in errors, "no refusal", errors)


def test_wrong_address():
    """an unusable address is an error that names it"""
    for address, word in (("nowhere", "nowhere"), ("tcp://192.0.2.1:7000", "192.0.2.1")):
        result = cases.run([WEFT, "store", "--listen", address])
        expect(result.returncode not in (0, None) and word in result.stderr, "no error", result)


if __name__ == "__main__":
    cases.main(globals())
