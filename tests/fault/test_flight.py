#!/usr/bin/env python3
"""Ranks fail in every possible way; `weft trace explain` names the rank at fault from the records that they
leave. Usage: test_flight.py WEFT FLIGHT_RANK
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

WEFT, FLIGHT_RANK = sys.argv[1], sys.argv[2]
RANKS = 3
BOUND = 20  # seconds; the deadlines of the ranks are 1 and 1.5


def backends():
    listed = json.loads(cases.run([WEFT, "info", "--json"]).stdout)["backends"]
    return [one["name"] for one in listed if one["name"] in ("shm", "ucx") and one["available"]]


def fly(folder, scenario, victim, backend):
    """Run the ranks to their ends; kill a stopped rank when the others have ended."""
    started = []
    for rank in range(RANKS):
        environment = {**os.environ, "WEFT_RANK": str(rank), "WEFT_SIZE": str(RANKS), "WEFT_BACKEND": backend,
                       "WEFT_STORE": f"unix:@weft-flight-{os.getpid()}-{Path(folder).name}", "WEFT_FLIGHT": folder}
        started.append(subprocess.Popen([FLIGHT_RANK, scenario, str(victim)], env=environment, text=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    end = time.monotonic() + BOUND
    said = []
    try:
        for rank in sorted(range(RANKS), key=lambda rank: rank == victim):
            if rank == victim and scenario == "stop":
                started[rank].send_signal(signal.SIGKILL)
            said.append((rank, started[rank].communicate(timeout=max(end - time.monotonic(), 0.1))[0]))
            if rank != victim:
                expect_equal(started[rank].returncode, 0, rank, said)
    finally:
        for process in started:
            process.kill()
            process.wait()
    return said


def explain(folder):
    result = cases.run([WEFT, "trace", "explain", folder, "--json"])
    return result.returncode, json.loads(result.stdout)


def expect_named(scenario, cause, records, call=None, backend=None):
    for name in [backend] if backend else backends():
        for victim in (0, 1):
            with tempfile.TemporaryDirectory(prefix="weft-flight-") as folder:
                said = fly(folder, scenario, victim, name)
                code, found = explain(folder)
                expect_equal(len(found["communicators"]), 1, found, said)
                one = found["communicators"][0]
                evidence = (name, victim, one, said, found["unread"])
                if cause == "mismatch":  # if two ranks differ, both are named unless the third had made the call too
                    expect(victim in one["ranks"] and "x 19999" in one["text"], "the victim is named", *evidence)
                else:
                    expect_equal(one["ranks"], [victim], *evidence)
                expect_equal(code, 0, *evidence)
                expect_equal(one["cause"], cause, *evidence)
                expect_equal(len(one["records"]), records, *evidence)
                expect(f"ank {victim}" in one["text"], "the paragraph says so", *evidence)
                # The others may detect a death before they make the call in which the rank is missing.
                if call and (cause != "died" or "operation" in one):
                    expect_equal(one["operation"]["call"].split(" scaled")[0], call, *evidence)
                text = cases.run([WEFT, "trace", "explain", folder])
                expect(one["text"] in text.stdout, "people read the same", text)
                expect_equal(os.listdir(folder).__len__(), records, os.listdir(folder))


def test_killed():
    """a rank that was killed is named by the records of the others"""
    expect_named("kill", "died", RANKS - 1, "all_reduce max f32 x 20000")


def test_stopped():
    """a rank that was stopped is named"""
    expect_named("stop", "silent", RANKS - 1, "all_reduce max f32 x 20000")


def test_absent():
    """a rank that does not make a call in time is named, with the call"""
    expect_named("absent", "absent", RANKS, "all_reduce max f32 x 20000")


def test_mismatch():
    """the rank that makes another call than the others is named"""
    expect_named("mismatch", "mismatch", RANKS)


def test_hook():
    """a rank whose hook fails is named"""
    expect_named("hook", "failed", RANKS)


def test_backward():
    """a rank that does not call ready for a gradient is named, and the record names the gradient"""
    expect_named(
        "backward",
        "absent",
        RANKS,
        "all_reduce sum f32 x 20000 of a reducer's step 7 with micro_batches 1",
    )


def test_abort():
    """a rank that aborts is named"""
    expect_named("abort", "failed", RANKS, backend="shm")


def test_nobody():
    """without a record, or with foreign or broken records, no rank is named, and each file is reported"""
    with tempfile.TemporaryDirectory(prefix="weft-flight-") as folder:
        code, found = explain(folder)
        expect_equal((code, found), (1, {"communicators": [], "unread": []}))
        path = Path(folder)
        (path / "weft-cut-rank0.json").write_text('{"weft_flight":1,"comm":"00')
        (path / "weft-other-rank0.json").write_text('{"hello": [1, 2]}')
        (path / "weft-deep-rank0.json").write_text("[" * 100000)
        (path / "weft-new-rank0.json").write_text('{"weft_flight": 2}')
        (path / "weft-link-rank0.json").symlink_to("/etc/passwd")
        os.mkfifo(path / "weft-pipe-rank0.json")
        (path / "notes.json").write_text("not ours")
        with open(path / "weft-long-rank0.json", "wb") as file:
            file.truncate(1 << 32)
        code, found = explain(folder)
        expect_equal(code, 1, found)
        expect_equal(len(found["unread"]), 7, found)
        text = cases.run([WEFT, "trace", "explain", folder])
        expect("no flight records" in text.stdout and "cut off" in text.stdout, "it says so", text)
    missing = cases.run([WEFT, "trace", "explain", folder])
    expect_equal(missing.returncode, 1, missing)
    expect(folder in missing.stderr, "it names the folder", missing)


def test_unwritable():
    """an unwritable folder changes nothing else"""
    with tempfile.NamedTemporaryFile(prefix="weft-flight-") as file:
        said = fly(file.name, "kill", 1, "shm")
        expect(all(": 9: " in text for rank, text in said if rank != 1), "the same error", said)


cases.main(globals())
