#!/usr/bin/env python3
"""A host whose network goes silent: the ranks on both sides of the cut report each other as lost within the
heartbeat budget. Usage: test_link.py WEFT CUT_LINK TWO_HOSTS
"""
import os
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

WEFT, CUT_LINK, TWO_HOSTS = sys.argv[1], sys.argv[2], sys.argv[3]
PEER_FAILED, HEARTBEAT, REPORT = 9, 4, 7  # weft.h
ENVIRONMENT = {"WEFT": WEFT, "WEFT_BACKEND": "ucx"}


def need_hosts():
    if os.geteuid() != 0:
        cases.skip("makes network namespaces, which needs root")
    tried = cases.run([TWO_HOSTS, "--hosts", 1, "--ranks-per-host", 1, "true"], environment=ENVIRONMENT)
    if tried.returncode:
        cases.skip("no hosts here: " + tried.stderr.strip())
    line = next((line for line in cases.run([WEFT, "info"]).stdout.splitlines() if line.split()[:1] == ["ucx"]), "no ucx")
    if " available: " not in line or "not available" in line:
        cases.skip(line.strip())


def test_silent_network():
    """two hosts whose connection goes silent report each other as lost"""
    need_hosts()
    begun = time.monotonic()
    result = cases.run([TWO_HOSTS, "--grace", 10, "--", CUT_LINK, 2], timeout=60, environment=ENVIRONMENT)
    expect(time.monotonic() - begun < 50, "a hard bound", result)
    said = dict(re.findall(r"^\[(\d)\] (status .*)$", result.stdout, re.M))
    expect_equal(sorted(said), ["0", "1", "2", "3"], result)
    for rank, line in said.items():
        status, evidence, text = re.fullmatch(r"status (\d+) evidence (\d+): (.*)", line).groups()
        expect_equal(int(status), PEER_FAILED, result)
        expect(int(evidence) in (HEARTBEAT, REPORT), "the evidence", result)
        missed = re.search(r"nothing was received from rank (\d)", text)
        expect(missed and int(missed[1]) // 2 != int(rank) // 2, f"rank {rank} names one of the other host", result)


cases.main(globals())
