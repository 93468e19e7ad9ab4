#!/usr/bin/env python3
"""Tests bench/predict.py and bench/simulate.py: the document's table, and a replay of a schedule in SimGrid.

usage: test_scaling.py SOURCE_FOLDER BUILD_FOLDER
"""
import shutil
import sys
import tempfile
from pathlib import Path

SOURCE, BUILD = Path(sys.argv[1]), Path(sys.argv[2])
sys.path[:0] = [str(SOURCE / "tests" / "support")]
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

SIMULATE = [sys.executable, SOURCE / "bench" / "simulate.py", BUILD]


def test_table():
    """the table in docs/explanation/scaling.md is what the model predicts"""
    document = SOURCE / "docs" / "explanation" / "scaling.md"
    result = cases.run([sys.executable, SOURCE / "bench" / "predict.py", BUILD, "--check", document], timeout=500)
    expect_equal(result.returncode, 0, result.stderr)


def test_refused():
    """an unknown topology and an unknown algorithm are refused with the choices"""
    result = cases.run([*SIMULATE, "--topologies", "torus"])
    expect(result.returncode == 2 and "fat_tree, dragonfly" in result.stderr, "topology", result.stderr)
    result = cases.run([BUILD / "bench" / "weft-schedules", "trace", "all_reduce", "circle", "--ranks", "2"])
    expect(result.returncode == 1 and "all_reduce halving_doubling" in result.stderr, "algorithm", result.stderr)


def test_replay():
    """SimGrid replays a barrier of 1,024 ranks, within a third of the model's time"""
    if shutil.which("smpirun") is None:
        cases.skip("smpirun is missing (apt-get install libsimgrid-dev)")
    with tempfile.TemporaryDirectory() as folder:
        result = cases.run([*SIMULATE, "--topologies", "fat_tree", "--operations", "barrier:dissemination:0", "--out", folder], timeout=300)
        expect_equal(result.returncode, 0, result.stderr)
        row = (Path(folder) / "simgrid.csv").read_text().splitlines()[1].split(",")
    simulated, model = map(float, row[-2:])
    expect(0.67 < model / simulated < 1.5, "model and SimGrid", row)


if __name__ == "__main__":
    cases.main(globals())
