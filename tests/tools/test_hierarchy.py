#!/usr/bin/env python3
"""shm inside hosts and ucx between them, on simulated hosts. Usage: test_hierarchy.py WEFT"""
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

WEFT = sys.argv[1]
WORK = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv", "barrier"]


def bench(environment, *words, ranks=4):
    """Return the JSON of a run that must succeed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.json"
        result = cases.run([WEFT, "bench", *words, "--ranks", ranks, "--iterations", 3, "--no-pin", "--json", path],
                           timeout=120, environment=environment)
        expect_equal(result.returncode, 0, result.stdout, result.stderr)
        return json.loads(path.read_text())


def test_both_are_used():
    """with hosts of several ranks shm+ucx is chosen by default, and bytes move over both"""
    for hosts in ("0,0,1,1", "0,1,0,1", "0,0,0,1", "0,0,1,2"):
        whole = bench({"WEFT_HOSTS": hosts}, *WORK, "--sizes", "8,9K,3M")
        expect_equal(whole["backend"], "shm+ucx", hosts)
        expect(whole["bytes_shared"] > 1 << 20 and whole["bytes_sent"] > 1 << 20, "both", hosts, whole)
        expect(all(row["correct"] for row in whole["results"]), "right results", hosts, whole)


def test_by_name():
    """by name it also works where it is of no use: on one host, and with one rank a host"""
    for hosts in ("", "0,1,2"):
        whole = bench({"WEFT_HOSTS": hosts} if hosts else {}, "all_reduce", "--backend", "shm+ucx", "--sizes", "8,3M",
                      ranks=3)
        expect_equal(whole["backend"], "shm+ucx", hosts)
        expect(all(row["correct"] for row in whole["results"]), "right results", hosts, whole)


def test_other_choices():
    """one host uses shm, hosts of one rank use ucx"""
    expect_equal(bench({}, "all_reduce", "--sizes", "8", ranks=2)["backend"], "shm")
    expect_equal(bench({"WEFT_HOSTS": "3,1"}, "all_reduce", "--sizes", "8", ranks=2)["backend"], "ucx")


def test_bad_hosts():
    """WEFT_HOSTS must name a host for each rank"""
    for hosts in ("0,0,1", "0,x", "0,,1", "-1,0", "99999999,0"):
        result = cases.run([WEFT, "bench", "all_reduce", "--ranks", 2, "--sizes", "8"], environment={"WEFT_HOSTS": hosts})
        expect(result.returncode != 0 and "WEFT_HOSTS" in result.stderr, "the variable is named", hosts, result)


cases.main(globals())
