#!/usr/bin/env python3
"""Every hook trains the demo with its default options. Usage: test_hook_defaults.py WEFT FOLDER_OF_EXAMPLES
"""
import os
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

WEFT = sys.argv[1]
EXAMPLES = Path(sys.argv[2])
DATA = Path("/usr/share/datasets/fashion-mnist")
LEAST_ACCURACY = 0.86

# For each hook: sufficient epochs, and by which factor a rank sends less than under allreduce. int8 and fp8
# take one byte a gradient and four for every 256. The demo starts powersgd, batched_powersgd and
# post_local_sgd after a tenth of the steps.
HOOKS = {"fp16": (2, 2), "bf16": (2, 2), "int8": (2, 3.93), "fp8": (2, 3.93), "quantize": (2, 4), "post_local_sgd": (2, 4),
         "onebit": (4, 4), "topk": (4, 4), "powersgd": (4, 4), "batched_powersgd": (4, 4)}

SAMPLE = ("int8", "batched_powersgd")  # `make test-all` trains all


def test_every_hook():
    """this file lists every hook that compresses"""
    unknown = cases.run([WEFT, "run", "-n", 1, "--", EXAMPLES / "train_fashion", "--hook", "nothing"]).stderr
    every = set(re.search(r"known: (.+)", unknown).group(1).rstrip(".").split(", "))
    expect_equal(every - {"noop", "allreduce"}, set(HOOKS), unknown)


def case(name, epochs, ratio):
    def run():
        if not DATA.is_dir():
            cases.skip(f"no {DATA} (apt-get install dataset-fashion-mnist)")
        result = cases.run([WEFT, "run", "-n", 2, "--prefix", "others", "--", EXAMPLES / "train_fashion", "--no-check",
                            "--epochs", epochs, "--hook", name], timeout=550)
        expect_equal(result.returncode, 0, result.stdout, result.stderr)
        ends = re.search(r"accuracy=(\S+) replicas=(\S+)", result.stdout)
        sent = re.search(rf"hook {name} sent (\S+) times less", result.stdout)
        expect(ends and sent, "the demo's last lines", result.stdout)
        expect_equal(ends.group(2), "identical", name)
        expect(float(ends.group(1)) >= LEAST_ACCURACY, f"{name} ends at {ends.group(1)}", result.stdout)
        expect(float(sent.group(1)) >= ratio, f"{name} sends {sent.group(1)} times less", result.stdout)
    run.__doc__ = f"{name} trains to {LEAST_ACCURACY:.0%} with its defaults, sending {ratio} times less"
    return run


for hook, (epochs_, ratio_) in HOOKS.items():
    if "WEFT_TEST_ALL" in os.environ or hook in SAMPLE:
        globals()[f"test_{hook}"] = case(hook, epochs_, ratio_)
cases.main(globals())
