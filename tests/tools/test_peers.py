#!/usr/bin/env python3
"""bench/peers.py with Weft alone: every row is measured once, quickly, and every target has its entry. Its
times are not tested. Usage: test_peers.py BUILD
"""
import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

BUILD = Path(sys.argv[1])
LIMITS = BUILD / "bench" / "machine_limits"


def peers(*words):
    """Return peers.json, peers.md and the output of a quick run without peers."""
    with tempfile.TemporaryDirectory() as folder:
        result = cases.run([sys.executable, ROOT / "bench" / "peers.py", BUILD, "--quick", "--systems", "", "--out", folder, *words],
                           timeout=250)
        expect_equal(result.returncode, 0, result.stdout, result.stderr)
        written = Path(folder)
        return json.loads((written / "peers.json").read_text()), (written / "peers.md").read_text(), result


def two_cores():
    if len(os.sched_getaffinity(0)) < 2:
        cases.skip("needs two cores")


def test_rows():
    """every row that needs no second host is measured, each missing peer is reported, and all targets have entries"""
    two_cores()
    found, text, result = peers("--rows", "all_reduce,crowded,steps,thresholds,ready,memory,limits")
    works = {}
    for row in found["rows"]:
        works.setdefault(row["work"], set()).add((row["system"], row["ranks"]))
        expect(row["median_us"] > 0 and row["least_us"] <= row["median_us"] <= row["most_us"], "times", row)
    expect_equal(works, {
        **{f"all_reduce_f32_{memory}": {("weft", 2)} for memory in ("arena", "private")},
        **{f"crowded_all_reduce_f32_{memory}": {("weft", 4)} for memory in ("arena", "private")},
        **{f"crowded_8_all_reduce_f32_{memory}": {("weft", 8)} for memory in ("arena", "private")},
        **{step: {("weft", 2)} for step in ("step_resnet50", "step_tiny", "step_resnet50_powersgd")},
        "thresholds": {(path, 2) for path in ("measured", "one-shot", "two-shot", "pulled")}, "ready": {("weft", 2)},
        **{f"limit_{kind}": {("machine", 2)} for kind in ("copy", "arena", "flag")}})
    bounds = [row for row in found["rows"] if row["work"] == "all_reduce_f32_arena"]
    expect(all(row["bound_us"] > 0 and row["weft_of_bound"] > 0 for row in bounds), "bounds", bounds)
    expect(all("bound_us" not in row for row in found["rows"] if row["work"].startswith("crowded")), "no bounds of shared cores")
    expect(0 <= found["memory"]["beyond"] < 0.1, "memory", found["memory"])
    expect({"openmpi4", "gloo"} <= set(found["left_out"]), "left out", found["left_out"])
    judged = {(one["work"], one["target"]): one for one in found["targets"]}
    expect_equal(len(judged), len(found["targets"]), "no target twice", found["targets"])
    expect(all(one["met"] is None and "a quick run" in one["why"] for (work, _), one in judged.items() if "GPU" not in work), "not judged", judged)
    values = {work: one["value"] for (work, _), one in judged.items()}
    expect(values["ready(i) without its copy"] > 0 and values["all_reduce, private buffers, thresholds as measured"] > 0, "measured", judged)
    expect(values["all_reduce, two hosts, 1gbit"] is None and values["GPU flatten or unflatten with scale"] is None, "not measured", judged)
    expect(all(f"| {work} | {target} |" in text for work, target in judged), "in the table", text)
    expect(len(found["thresholds"]) == 1 and found["thresholds"][0]["found"], "what a process found", found["thresholds"])
    expect(f"buildtype={found['machine']['build_type']}" in text and (found["commit"] or "no commit") in text, "the build", text)
    expect("round 1 of 1: thresholds" in result.stderr, "progress", result.stderr)


def need(row, found, text):
    if row in found["left_out"]:
        expect(f"- {row}: " in text, "the reason", text)
        cases.skip(found["left_out"][row].strip().splitlines()[-1])


def test_hosts():
    """hosts are measured at each rate and with each hook, and link bytes are counted, or the reason is reported"""
    found, text, _ = peers("--rows", "hosts")
    need("hosts", found, text)
    works = {(row["work"], row["system"]) for row in found["rows"]}
    for rate in ("1gbit", "10gbit"):
        expect({(f"hosts_{rate}_all_reduce", "weft"), (f"hosts_{rate}_step_resnet50", "weft"),
                (f"hosts_{rate}_step_resnet50", "weft-bf16"), (f"hosts_{rate}_step_resnet50", "weft-int8")} <= works, rate, works)
    expect({"openmpi4-tcp between hosts", "gloo-tcp between hosts"} <= set(found["left_out"]), "left out", found["left_out"])
    expect({("hosts_none_all_reduce", "weft"), ("hosts_4x1gbit_all_reduce", "weft")} <= works, works)
    hooks = [one["value"] for one in found["targets"] if "two hosts" in one["work"] and "hook" in one["target"]]
    expect(len(hooks) == 6 and None not in hooks, "measured", found["targets"])
    expect_equal({(one["rate"], one["host"], one["direction"]) for one in found["wire"]},
                 {(rate, host, way) for rate in ("1gbit", "10gbit", "none") for host in (0, 1) for way in ("sent", "received")})
    expect(all(0.97 <= one["ratio"] <= 1.03 for one in found["wire"]), "all bytes, and few besides", found["wire"])
    for one in found["wire"]:
        expect_equal({"sent_again", "timeouts", "lost_twice", "needless"} <= set(one), one["direction"] == "sent", one)
    expect("Segments that TCP sent again" in text, "in words", text)


def test_planner():
    """a recorded backward pass is measured with the buckets of either planner, or the reason why there are no two hosts is reported"""
    found, text, _ = peers("--rows", "planner")
    need("planner", found, text)
    expect_equal({(row["work"], row["system"], row["ranks"]) for row in found["rows"]},
                 {("planner_resnet50_x1", system, 2) for system in ("limits", "model", "least")})
    expect("| resnet50, x1 | 1300.4 | 855.1 | " in text, "in the table", text)


def test_wrong_results():
    """a wrong result is distinguished from a failure, also by the exit code, and an earlier run's file is no result"""
    sys.path.insert(0, str(ROOT / "bench"))
    import own
    import systems
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weft.json"

        def bench(script):
            try:
                return own.checked_bench(["sh", "-c", script], path)[0]
            except (RuntimeError, systems.WrongResult) as error:
                return type(error)

        def write(correct):
            return f"""echo '{{"results": [{{"correct": {correct}}}]}}' > {path}; """
        expect_equal(bench(write("true")), {"results": [{"correct": True}]})
        expect_equal(bench(write("null")), {"results": [{"correct": None}]})
        expect_equal(bench(write("false") + "exit 1"), systems.WrongResult)
        expect_equal(bench(write("false")), systems.WrongResult)
        path.write_text('{"results": []}')
        expect_equal(bench("exit 1"), RuntimeError)
        path.write_text('{"results": []}')
        expect_equal(bench("true"), RuntimeError)
        expect_equal(bench(f"echo '[' > {path}"), RuntimeError)
        expect_equal(bench(f"echo '[' > {path}; exit 1"), RuntimeError)


def test_limits():
    """the hardware limits are measured for each size, and unknown words are refused by name"""
    two_cores()
    result = cases.run([LIMITS, "4096", "10000"])
    expect_equal(result.returncode, 0, result)
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    expect_equal([(row["limit"], row["bytes"]) for row in rows],
                 [("copy", 4096), ("arena", 4096), ("copy", 10000), ("arena", 10000), ("flag", 8)])
    expect(all(row["median_us"] > 0 for row in rows) and all(row["gb_s"] > 0 for row in rows[:4]), "numbers", rows)
    for words, what in ((["4x"], "'4x' is not a number"), (["--threads", "4096", "8"], "there are "), (["0"], "'0' is not a number")):
        result = cases.run([LIMITS, *words])
        expect(result.returncode == 1 and what in result.stderr, "it says what is wrong", result)


cases.main(globals())
