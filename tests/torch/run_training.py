#!/usr/bin/env python3
"""The row `training` of bench/peers.py, once and quickly; its times are not tested. `make test-torch` calls it.
Usage: run_training.py BUILD
"""
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "bench")]
import cases  # noqa: E402
import training  # noqa: E402
from cases import expect, expect_equal  # noqa: E402


def test_training():
    """every program is measured in each way, all ways have one loss, and the targets have their entries"""
    with tempfile.TemporaryDirectory() as folder:
        result = cases.run([sys.executable, ROOT / "bench" / "peers.py", sys.argv[1], "--quick", "--systems", "", "--rows", "training",
                            "--out", folder], timeout=900)
        expect_equal(result.returncode, 0, result.stdout, result.stderr)
        found, text = json.loads(Path(folder, "peers.json").read_text()), Path(folder, "peers.md").read_text()
    expect_equal({(row["work"], row["system"], row["ranks"]) for row in found["rows"]},
                 {(training.work_of(model), way, 2) for model in training.MODELS for way in training.WAYS})
    for model in training.MODELS:
        expect_equal(len({one["loss"] for one in found["training"] if one["model"] == model}), 1, "losses", found["training"])
    expect("| transformer | 89 | DDP on Gloo | " in text, "in the table", text)
    targets = [one["target"] for one in found["targets"] if one["work"].startswith("training step of PyTorch")]
    expect_equal(targets, [f"exposed <= {goal} of DDP's on Gloo" for goal in (0.5, 0.3, 0.1)])


cases.main(globals())
