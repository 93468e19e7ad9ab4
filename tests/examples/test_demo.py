#!/usr/bin/env python3
"""Short runs of the examples. Usage: test_demo.py WEFT FOLDER_OF_EXAMPLES"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

WEFT = sys.argv[1]
EXAMPLES = Path(sys.argv[2])
DATA = Path("/usr/share/datasets/fashion-mnist")
LAST_LINE = re.compile(r"weft demo: ranks=(\d+) backend=(\S+) epochs=(\d+) accuracy=(0\.\d{3}|1\.000) "
                       r"replicas=(identical|differ|separate) curve=(matches|differs|not-exact|unchecked) step_ms=(\d+) exposed_ms=(\d+) "
                       r"seconds=(\d+)")


def need_data():
    if not DATA.is_dir():
        cases.skip(f"no {DATA} (apt-get install dataset-fashion-mnist)")


def demo(ranks, *words, images=4000, environment=None, before=()):
    """Run the demo. Return its exit code, the fields of the last line, and the whole output. before: a
    command that is put in front of the example's."""
    need_data()
    result = cases.run([WEFT, "run", "-n", ranks, "--prefix", "others", "--timeout", 100, "--", *before, EXAMPLES / "train_fashion",
                        "--epochs", 1, "--limit", images, *words], timeout=120, environment=environment)
    lines = result.stdout.strip().splitlines()
    match = LAST_LINE.fullmatch(lines[-1]) if lines else None
    return result.returncode, match.groups() if match else None, result


def test_hello():
    """hello_allreduce sums over its ranks"""
    result = cases.run([WEFT, "run", "-n", 3, "--timeout", 60, "--", EXAMPLES / "hello_allreduce"])
    expect_equal(result.returncode, 0, result)
    expect_equal(sorted(result.stdout.splitlines()),
                 [f"[{r}] rank {r} of 3: the ranks' numbers sum to 3, counted 3 ranks" for r in range(3)])


def test_own_network():
    """own_network sums over its own transport"""
    result = cases.run([WEFT, "run", "-n", 3, "--timeout", 60, "--", EXAMPLES / "own_network"])
    expect_equal(result.returncode, 0, result.stderr)
    expect_equal(sorted(result.stdout.splitlines()), [f"[{r}] rank {r}: the ranks' numbers sum to 3" for r in range(3)])


def test_custom_hook():
    """custom_hook sends signs and the mean magnitude, in less than 120 lines"""
    source = Path(__file__).resolve().parents[2] / "examples" / "custom_hook.c"
    expect(len(source.read_text().splitlines()) < 120, "it is short")
    result = cases.run([WEFT, "run", "-n", 2, "--timeout", 60, "--", EXAMPLES / "custom_hook"])
    expect_equal(result.returncode, 0, result)
    expect_equal(sorted(result.stdout.splitlines()), [f"[{r}] rank {r}: 2 -2 2 0" for r in range(2)])


def test_overlapped_step():
    """overlapped_step updates each layer after its bucket, and its weights equal those of updating after finish"""
    result = cases.run([WEFT, "run", "-n", 2, "--timeout", 60, "--", EXAMPLES / "overlapped_step"])
    expect_equal(result.returncode, 0, result)
    expect_equal(sorted(result.stdout.splitlines()),
                 [f"[{r}] weights are equal to those of updating after finish" for r in range(2)])


def test_flat_gradients():
    """flat_gradients trains in its own gradient array, and a resumed run ends with the weights of an uninterrupted one"""
    with tempfile.TemporaryDirectory() as folder:
        def train(file, steps):
            result = cases.run([WEFT, "run", "-n", 2, "--timeout", 60, "--", EXAMPLES / "flat_gradients", Path(folder) / file, steps])
            expect_equal(result.returncode, 0, result)
            found = dict(re.findall(r"rank (\d): (step \d+, loss [\d.]+, parameters [0-9a-f]{8})", result.stdout))
            expect_equal(sorted(found), ["0", "1"], result)
            return [found[rank].split(", ") for rank in ("0", "1")]
        first = train("resumed", 30)
        resumed, whole = train("resumed", 30), train("whole", 60)
    expect_equal(first[0][0], "step 30")
    expect_equal(resumed, whole)
    for ranks in (first, resumed):
        expect_equal(ranks[0][2], ranks[1][2])
    expect(float(resumed[0][1].split()[1]) < float(first[0][1].split()[1]), (first, resumed))
    source = (Path(__file__).resolve().parent.parent.parent / "examples" / "flat_gradients.c").read_text()
    expect(sum("weft" in line.lower() for line in source.splitlines()) <= 60, "docs/reference/reducer.md promises 60 lines")


def test_framework_glue():
    """framework_glue trains a layer that is used twice and a branch that some ranks skip, and replicas agree"""
    for ranks in (1, 2, 3):
        result = cases.run([WEFT, "run", "-n", ranks, "--timeout", 60, "--", EXAMPLES / "framework_glue"])
        expect_equal(result.returncode, 0, result)
        lines = sorted(result.stdout.splitlines())
        expect_equal(len(lines), ranks)
        for rank, line in enumerate(lines):
            form = rf"\[{rank}\] rank {rank} of {ranks}: loss \d\.\d{{3}}, then \d\.\d{{3}}; replicas agree"
            expect(re.fullmatch(form, line), "its last line", result)


def test_two_ranks():
    """two ranks train, stay identical, and have the loss curve of one process"""
    code, fields, result = demo(2)
    expect_equal(code, 0, result.stdout, result.stderr)
    expect(fields is not None, "the last line has its form", result.stdout)
    expect_equal(fields[:3] + fields[4:6], ("2", "shm", "1", "identical", "matches"), result.stdout)
    expect(float(fields[3]) > 0.5, "it learned something", fields)
    buckets = re.search(r"(\d+) buckets a step", result.stdout)
    expect(buckets and int(buckets.group(1)) >= 3, "the model fills several buckets", result.stdout)
    overlapped = re.search(r"ready in (\d+) of (\d+) steps", result.stdout)
    expect(int(overlapped.group(1)) > 0, "communication starts before backward ends", result.stdout)


def test_four_ranks():
    """four ranks with gradients in Weft's memory give the same bits"""
    code, fields, result = demo(4, "--mode", "view")
    expect_equal(code, 0, result.stdout, result.stderr)
    expect_equal(fields[:3] + fields[4:6], ("4", "shm", "1", "identical", "matches"), result.stdout)


def test_ucx():
    """four ranks over ucx give the same bits, and every rank counts what it sent"""
    info = cases.run([WEFT, "info"]).stdout
    line = next((line for line in info.splitlines() if line.split()[:1] == ["ucx"]), "")
    if " available: " not in line or "not available" in line:
        cases.skip(line.strip() or "no ucx")
    code, fields, result = demo(4, "--backend", "ucx")
    expect_equal(code, 0, result.stdout, result.stderr)
    expect_equal(fields[:3] + fields[4:6], ("4", "ucx", "1", "identical", "matches"), result.stdout)


def test_hosts():
    """sums over simulated hosts, with ranks in any order, have the reference's bits"""
    if "shm+ucx" not in cases.run([WEFT, "info"]).stdout:
        cases.skip("no ucx")
    for hosts in ("0,0,1,1", "0,1,0,1", "0,1,1,0"):
        code, fields, result = demo(4, environment={"WEFT_HOSTS": hosts})
        expect_equal(code, 0, hosts, result.stdout, result.stderr)
        expect_equal(fields[1:3] + fields[4:6], ("shm+ucx", "1", "identical", "matches"), hosts, result.stdout)


def test_three_ranks():
    """three ranks: a mean over a number that is no power of two has the reference's bits"""
    code, fields, result = demo(3)
    expect_equal(code, 0, result.stdout, result.stderr)
    expect_equal(fields[4:6], ("identical", "matches"), result.stdout)


def test_loss_curve():
    """the loss curve of two ranks equals, bit by bit, that of a separate process"""
    need_data()
    with tempfile.TemporaryDirectory() as folder:
        ranks, reference = Path(folder) / "ranks", Path(folder) / "reference"
        demo(2, "--no-check", "--losses", ranks)
        result = cases.run([EXAMPLES / "train_fashion", "--reference", 2, "--epochs", 1, "--limit", 4000, "--losses",
                            reference], timeout=120)
        expect_equal(result.returncode, 0, result)
        mine = ranks.read_text().split()
        expect(len(mine) > 20, "a loss a step", mine)
        expect_equal(mine, reference.read_text().split()[::2])


HOOKS = {  # options, the least ratio, the least accuracy after a short run
    "allreduce": ("", 1, 0.5), "fp16": ("", 1.9, 0.5), "bf16": ("", 1.9, 0.5), "int8": ("", 3.5, 0.5), "fp8": ("", 3.5, 0.5),
    "topk": ("ratio=0.05", 5, 0.3), "onebit": ("", 15, 0.3),
    "powersgd": ("rank=2", 2, 0.5), "batched_powersgd": ("rank=2", 2, 0.3),
    "quantize": ("", 3.5, 0.5), "post_local_sgd": ("", 2, 0.5)}


def test_hooks():
    """every hook trains, keeps replicas identical, and reports its compression ratio"""
    unknown = demo(2, "--hook", "nothing", images=1000)[2].stderr
    every = set(re.search(r"known: (.+)", unknown).group(1).rstrip(".").split(", "))
    expect_equal(every - {"noop"}, set(HOOKS), "a run for every name", unknown)
    for name, (options, least_ratio, least_accuracy) in HOOKS.items():
        code, fields, result = demo(2, "--no-check", "--hook", f"{name} {options}".strip())
        expect_equal(code, 0, name, result.stdout, result.stderr)
        expect_equal(fields[4:6], ("identical", "unchecked" if name == "allreduce" else "not-exact"), name, result.stdout)
        ratio = re.search(rf"hook {name} sent (\d+\.\d+) times less", result.stdout)
        expect(ratio and float(ratio.group(1)) >= least_ratio, f"{name} sends less", result.stdout)
        expect(float(fields[3]) >= least_accuracy, f"{name} learns", fields)


def test_hook_noop():
    """noop sends nothing, and invalid options of a hook are refused by name"""
    code, fields, result = demo(2, "--hook", "noop", images=1000)
    expect_equal(code, 0, result.stdout, result.stderr)
    expect_equal(fields[4:6], ("separate", "not-exact"), result.stdout)
    expect("hook noop sent nothing" in result.stdout, "it says so", result.stdout)
    code, _, result = demo(2, "--hook", "powersgd rank=0", images=1000)
    expect(code == 1 and "option rank is '0'" in result.stderr, "it says what is wrong", result.stderr)


def test_flipped_bit():
    """one flipped bit of a parameter is detected"""
    code, fields, result = demo(2, "--flip-bit", 1)
    expect(code not in (0, 124) and code < 128, "the exit code tells", code, result)
    expect(fields is not None and fields[4] == "differ", "the last line tells", result.stdout, result.stderr)
    expect("rank 1" in result.stdout, "it names the rank", result.stdout)


def test_trace():
    """the trace shows that buckets are launched before the last gradient is ready"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        code, _, result = demo(2, "--no-check", "--trace", path, images=1000)
        expect_equal(code, 0, result.stdout, result.stderr)
        events = json.loads(path.read_text())["traceEvents"]
    kinds = {kind: [event for event in events if event.get("cat") == kind] for kind in ("step", "ready", "launch")}
    expect(all(kinds.values()), "there are steps, gradients and launches", events[:20])

    def overlaps(step):
        times = {kind: [event["ts"] for event in kinds[kind] if event["pid"] == step["pid"]
                        and step["ts"] <= event["ts"] <= step["ts"] + step["dur"]] for kind in ("ready", "launch")}
        return bool(times["launch"]) and min(times["launch"]) < max(times["ready"])
    expect(any(map(overlaps, kinds["step"])), "no step launched a bucket before its last gradient", events[:20])


def test_overlapping_stages():
    """a hook encodes one bucket while another one is communicated"""
    # Rank 1 is late for each collective, so that rank 0's collectives take as long as its next bucket needs.
    late = ["sh", "-c", 'test $WEFT_RANK = 0 || export WEFT_FAILPOINTS=operation=delay:20; exec "$@"', "late"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        code, _, result = demo(2, "--no-check", "--trace", path, "--hook", "int8", images=1000, before=late)
        expect_equal(code, 0, result.stdout, result.stderr)
        events = json.loads(path.read_text())["traceEvents"]
    lanes = {event["tid"] for event in events if event["ph"] == "M" and event["args"].get("name", "").startswith("lane ")}
    stages = [event for event in events if event.get("cat") == "stage"]
    collectives = [event for event in events if event.get("cat") == "collective" and event["tid"] in lanes]

    def travels_meanwhile(stage):  # never the stage's own bucket: its collective waits for the stage
        return any(travel["ts"] <= stage["ts"] and stage["ts"] + stage["dur"] <= travel["ts"] + travel["dur"]
                   for travel in collectives)
    expect(any(map(travels_meanwhile, stages)), "no stage ran while a collective did", len(stages), len(collectives))


def test_no_data():
    """a folder without data is refused with the name of the package"""
    with tempfile.TemporaryDirectory() as folder:
        result = cases.run([EXAMPLES / "train_fashion", "--reference", 2, "--data", folder])
        expect(result.returncode == 1 and "dataset-fashion-mnist" in result.stderr, "it says what to do", result)


def rank_pids(launcher):
    """Return the process ids of the launcher's ranks, by rank."""
    pids = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == launcher:
                variables = dict(v.split("=", 1) for v in (entry / "environ").read_text().split("\0") if "=" in v)
                pids[int(variables["WEFT_RANK"])] = int(entry.name)
        except (FileNotFoundError, ProcessLookupError, PermissionError, KeyError):
            continue
    return pids


def kill_one(victim):
    need_data()
    process = subprocess.Popen([WEFT, "run", "-n", "3", "--grace", "10", "--timeout", "100", "--", EXAMPLES / "train_fashion",
                                "--epochs", "1000", "--no-check", "--log-every", "10"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        expect("images/s" in process.stdout.readline(), "it trains")
        os.kill(rank_pids(process.pid)[victim], signal.SIGKILL)
        killed_at = time.monotonic()
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    expect(time.monotonic() - killed_at < 30, "the others end within 30 s", errors)
    expect_equal(process.returncode, 137, errors)
    for rank in {0, 1, 2} - {victim}:
        said = [line for line in errors.splitlines() if line.startswith(f"[{rank}] ")]
        expect(any(f"rank {victim}" in line for line in said), f"rank {rank} names rank {victim}", errors)


def test_killed_rank():
    """kill -9 of a rank ends the other ranks, which name it"""
    kill_one(2)


def test_killed_rank_0():
    """kill -9 of rank 0 ends the other ranks, which name it"""
    kill_one(0)


cases.main(globals())
