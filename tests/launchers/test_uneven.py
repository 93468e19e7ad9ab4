#!/usr/bin/env python3
"""Uneven links and late ranks, on hosts that tools/two-hosts.sh simulates. A step takes at least as long as
the slowest rank needs, and all ranks name that rank. No test has an upper bound for a time, because the
machine may be busy. Usage: test_uneven.py WEFT LIBRARY TWO_HOSTS
"""
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

WEFT, LIBRARY, TWO_HOSTS = sys.argv[1:4]
RANK = Path(__file__).resolve().parent / "uneven_rank.py"
PYTHON = RANK.parent.parent.parent / "python"
ENVIRONMENT = {"WEFT": WEFT, "WEFT_LIBRARY": LIBRARY, "WEFT_BACKEND": "ucx"}
STEPS = 12  # the first one is ignored, because the kernel's buffers still grow


def hosts(rates, *command):
    """Run the command as one rank on each host and return the output."""
    if os.geteuid() != 0:
        cases.skip("makes network namespaces, which needs root")
    line = next((line for line in cases.run([WEFT, "info"]).stdout.splitlines() if line.split()[:1] == ["ucx"]), "no ucx")
    if " available: " not in line or "not available" in line:
        cases.skip(line.strip())
    result = cases.run([TWO_HOSTS, "--hosts", len(rates), "--ranks-per-host", 1, "--prefix", "none", "--rate", ",".join(rates),
                        "--timeout", 100, *command], environment=ENVIRONMENT, timeout=110)
    if result.returncode == 125:
        cases.skip("no hosts here: " + result.stderr.strip())
    if "No module named 'numpy'" in result.stderr:
        cases.skip("NumPy is not here")
    expect_equal(result.returncode, 0, result.stdout, result.stderr)
    return result.stdout


def steps_of(rates, kib, buckets, late=(-1, 0)):
    """Return what each rank's reducer reports of its steps except the first."""
    output = hosts(rates, sys.executable, RANK, PYTHON, kib, buckets, STEPS, *late)
    told = sorted((json.loads(line) for line in output.splitlines() if line.startswith("{")), key=lambda one: one["rank"])
    expect_equal([one["rank"] for one in told], list(range(len(rates))), output)
    expect(all(step["correct"] for one in told for step in one["steps"]), "right results", told)
    return [one["steps"][1:] for one in told]


def expect_named(told, straggler, ranks=None):
    """Expect that each of the ranks (default: all) names the straggler in more than half of the steps. With
    shared cores another rank may delay a few."""
    for rank in range(len(told)) if ranks is None else ranks:
        named = [step["straggler"] for step in told[rank]]
        expect(2 * named.count(straggler) > len(named), f"rank {rank} names {straggler}", named, told)


def median_s(told, what="step_ns"):
    return statistics.median(step[what] for steps in told for step in steps) / 1e9


def slow_cable(rates, slow, kib):
    told = steps_of(rates, kib, 4)
    ranks = len(rates)
    wire = 2 * (ranks - 1) / ranks * kib * 1024 * 8 / 1e7  # what a rank sends, and receives, at 10 Mbit/s
    expect(median_s(told) >= 0.8 * wire, f"a step takes what the slow cable does, {wire} s", median_s(told), told)
    expect_named(told, slow)
    expect(median_s(told, "straggler_ns") > 0.3 * wire, "waited for it", told)


def test_slow_cable():
    """with one slow link of three, a step takes as long as that link, and every rank names the rank behind it"""
    slow_cable(["100mbit", "100mbit", "10mbit"], 2, 512)


def test_middle_cable_slow():
    """the same if the second link is slow, so that messages to the last rank are served first"""
    slow_cable(["100mbit", "10mbit", "100mbit"], 1, 512)


def test_first_cable_slow():
    """the same with four hosts, of which the first is slow"""
    slow_cable(["10mbit", "100mbit", "100mbit", "100mbit"], 0, 256)


def test_late_rank():
    """if a rank computes longer than the others, the step takes as long, and every rank names it"""
    told = steps_of(["200mbit"] * 3, 256, 4, late=(1, 0.3))
    expect(median_s(told) >= 0.2, "a step takes what the late rank does", median_s(told), told)
    expect_named(told, 1)
    expect(median_s(told, "straggler_ns") >= 0.1, "waited for it", told)


def test_late_rank_of_small_steps():
    """a late rank is named by those that wait for it, also if steps are single messages"""
    told = steps_of(["200mbit"] * 3, 8, 1, late=(1, 0.3))
    expect_named(told, 1, ranks=[0, 2])
    expect(median_s([told[0], told[2]], "straggler_ns") >= 0.1, "waited for it", told)


def test_late_rank_behind_good_cable():
    """if another rank is behind a slow link, the late rank is named if it costs more"""
    told = steps_of(["100mbit", "100mbit", "20mbit"], 64, 4, late=(0, 0.5))
    expect_named(told, 0)


def test_bench_says_it():
    """weft bench step reports the straggler, as text and as JSON"""
    with tempfile.TemporaryDirectory() as folder:
        manifest, path = Path(folder) / "small.json", Path(folder) / "bench.json"
        manifest.write_text(json.dumps({"name": "small", "params": [{"name": f"layer{i}", "shape": [128, 128]} for i in range(4)]}))
        output = hosts(["100mbit", "10mbit", "100mbit"], WEFT, "bench", "--joined", "step", "--manifest", manifest, "--no-pin",
                       "--bucket-limits", "0", "--iterations", 4, "--json", path)
        row = json.loads(path.read_text())["results"][0]
    expect(row["correct"] and row["straggler"]["rank"] == 1, "named", row)
    expect(2 * row["straggler"]["steps"] > row["straggler"]["of_steps"] >= 6, "in most steps", row)
    expect("rank 1 held up " in output, "in words", output)


cases.main(globals())
