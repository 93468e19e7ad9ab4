#!/usr/bin/env python3
"""weft bench: it runs, counts and checks. Its times are not tested. Usage: test_bench.py WEFT [FAKE_CUDA]"""
import contextlib
import json
import os
import pty
import re
import statistics
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

WEFT = sys.argv[1]
FAKE_CUDA = next((word for word in sys.argv[2:] if word.endswith(".so")), "")
MANIFESTS = Path(__file__).resolve().parent.parent.parent / "bench" / "manifests"
COLLECTIVES = ["all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all",
               "send_recv", "barrier"]


def bench(*words, ranks=2, iterations=3, environment=None):
    """Return the JSON of a run that must succeed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.json"
        result = cases.run([WEFT, "bench", *words, "--ranks", ranks, "--iterations", iterations, "--no-pin", "--json", path],
                           timeout=120, environment=environment)
        expect_equal(result.returncode, 0, result.stdout, result.stderr)
        return json.loads(path.read_text())


def test_collectives():
    """every collective is measured and correct, with arena and private buffers"""
    for memory in ("arena", "private"):
        for ranks in (1, 2, 3):
            results = bench(*COLLECTIVES, "--memory", memory, "--sizes", "24,100K", ranks=ranks)["results"]
            expect_equal(len(results), 2 * len(COLLECTIVES) - 1, results)
            for row in results:
                expect(row["correct"] and row["iterations"] == 3 and row["ranks"] == ranks, "a right result", row)


def test_sizes():
    """sizes are those requested, in bytes of the larger buffer"""
    results = bench("all_reduce", "all_gather", "--sizes", "8,4K,1M")["results"]
    expect_equal([row["bytes"] for row in results], [8, 4096, 1 << 20] * 2)
    expect_equal([row["count"] for row in results], [2, 1024, 1 << 18, 1, 512, 1 << 17])


def test_types():
    """every type and reduction is checked"""
    floats = ["f16", "bf16", "f32", "f64"]
    integers = ["u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"]
    for dtypes, ops in ((floats, ["avg", "premul_sum"]), (integers, ["band", "bor", "bxor"]),
                        (["i8", "f16"], ["sum", "prod", "min", "max"])):
        for op in ops:
            for dtype in dtypes[::2] if op != "avg" else dtypes:
                rows = bench("all_reduce", "--dtype", dtype, "--op", op, "--sizes", "2K", ranks=3)["results"]
                expect(rows[0]["correct"], f"{op} of {dtype}", rows)


def test_step():
    """a gradient step of a manifest is measured and correct, in every mode, with other buckets, over several steps"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.json"
        params = [{"name": f"p{i}", "shape": shape} for i, shape in enumerate([[300, 1000], [1000], [7, 3, 5], [1]])]
        path.write_text(json.dumps({"name": "small", "params": params}))
        for mode in ("copy", "view"):
            row = bench("step", "--manifest", path, "--mode", mode, "--backend", "shm")["results"][0]
            expect(row["correct"], f"mode {mode}", row)
            expect_equal((row["work"], row["count"]), ("step small", 301106))
            memory = row["memory"]
            expect(memory["gradient_bytes"] == 4 * 301106 <= memory["bucket_bytes"] and memory["other_bytes"] > 0, "memory", memory)
        for mode, more, details in (("copy", ["--bucket-limits", "0"], "4 buckets"),
                                    ("view", ["--bucket-limits", "8,16M", "--replan", "model"], "buckets"),
                                    ("copy", ["--reduce-dtype", "bf16"], "travelling as bf16"),
                                    ("copy", ["--accumulate", 3], "3 steps"), ("view", ["--accumulate", 2], "2 steps")):
            row = bench("step", "--manifest", path, "--mode", mode, "--backend", "shm", *more)["results"][0]
            expect(row["correct"] and details in row["details"], mode, more, row)


def test_hook_results():
    """results of hooks that round are checked within their rounding; those of topk and powersgd stay unchecked"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.json"
        path.write_text(json.dumps({"name": "small", "params": [{"name": "p", "shape": [300, 1000]}]}))
        for hook, correct in (("fp16", True), ("bf16", True), ("int8", True), ("fp8", True), ("topk", None), ("powersgd", None)):
            row = bench("step", "--manifest", path, "--hook", hook, "--backend", "shm")["results"][0]
            expect(row["correct"] is correct, hook, row)
            expect_equal("results unchecked" in row["remarks"], correct is None, hook, row)
            expect_equal(row["calls"], 3 + 3 + 3, "to warm up, timed and counted", row)


def test_replay():
    """a recorded backward pass is replayed, the time after it is reported, and a re-plan makes buckets follow its order"""
    with tempfile.TemporaryDirectory() as folder:
        path, recorded = Path(folder) / "small.json", Path(folder) / "small.backward.json"
        names = [f"p{i}" for i in range(30)]
        path.write_text(json.dumps({"name": "small", "params": [{"name": n, "shape": [100000]} for n in names]}))
        recorded.write_text(json.dumps({"ready_ms": {n: 40.0 - i for i, n in enumerate(names)}}))
        row = bench("step", "--manifest", path, "--replay", 0.5)["results"][0]
        expect(row["correct"] and row["median_us"] >= 20000 and row["exposed_us"] >= 0, "replayed", row)
        row = bench("step", "--manifest", path, "--replay", 0.5, "--compute")["results"][0]
        expect(row["correct"] and "computed" in row["details"] and row["exposed_us"] >= 0, "computed", row)
        result = cases.run([WEFT, "bench", "step", "--manifest", path, "--compute"])
        expect(result.returncode != 0 and "--replay" in result.stderr, "it says what is missing", result)
        # The order is the reverse of the one without a re-plan. How many buckets the model prefers depends on
        # the present cost of collectives.
        recorded.write_text(json.dumps({"ready_ms": {n: 1.0 + i for i, n in enumerate(names)}}))
        for mode, planner in (("copy", "limits"), ("copy", "model"), ("view", "model")):
            row = bench("step", "--manifest", path, "--mode", mode, "--replay", 1, "--replan", planner)["results"][0]
            expect(row["correct"] and f"re-planned by {planner}" in row["details"], "buckets in another order", row)
        recorded.write_text(json.dumps({"ready_ms": {"p0": 1}}))
        result = cases.run([WEFT, "bench", "step", "--manifest", path, "--replay", 1])
        expect(result.returncode != 0 and str(recorded) in result.stderr, "it names the file", result)


def test_ready():
    """the cost of calling ready, once and for many tiny gradients, is measured"""
    rows = bench("ready")["results"]
    expect_equal([(row["work"], row["count"]) for row in rows], [("atomic_decrement", 1000), ("ready", 1000)] + [
        (work, count) for work in ("create", "step_tiny") for count in (1000, 10000, 100000)])
    expect(all(row["correct"] and row["median_us"] > 0 for row in rows), "times", rows)


def test_form():
    """jobs form, beside processes that only load libweft, and each row is printed and written"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "form.json"
        result = cases.run([WEFT, "bench", "form", "--ranks", "1,2,5", "--repeat", 1, "--json", path], timeout=120)
        expect_equal(result.returncode, 0, result.stdout, result.stderr)
        expect_equal([line.split()[0] for line in result.stdout.splitlines()], ["ranks", "1", "2", "5"])
        rows = json.loads(path.read_text())["form"]
        expect_equal([row["ranks"] for row in rows], [1, 2, 5])
        for row in rows:
            expect(0 < row["started_s"] < row["created_s"] < row["reduced_s"] and row["bare_s"] > 0, "times in order", row)


def test_form_fails():
    """a job that cannot form ends the benchmark with its reason"""
    result = cases.run([WEFT, "bench", "form", "--ranks", 2, "--backend", "nonsense"], timeout=60)
    expect_equal(result.returncode, 1, result.stdout)
    expect("unknown backend" in result.stderr and "a job of 2 ranks ended with exit code 1" in result.stderr, "both reasons",
           result.stderr)


def test_bad_manifest():
    """an invalid manifest is refused by name"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bad.json"
        for text in ("", "[]", '{"name": "x", "params": []}', '{"name": "x", "params": [{"name": "a", "shape": [0]}]}',
                     '{"name": "x", "params": [{"name": "a", "shape": [4000000000, 4000000000, 4000000000]}]}'):
            path.write_text(text)
            result = cases.run([WEFT, "bench", "step", "--manifest", path, "--ranks", 1])
            expect(result.returncode != 0 and str(path) in result.stderr, "it names the file", text, result)


def test_bad_words():
    """unknown benchmarks, types and sizes are refused before any rank starts"""
    for words in (["all_reduse"], ["all_reduce", "--dtype", "f8"], ["all_reduce", "--op", "mean"],
                  ["all_reduce", "--sizes", "8x"], ["step"], ["all_reduce", "--memory", "gpu"],
                  ["all_reduce", "--bucket-limits", "1x"], ["step", "--mode", "reduced"],
                  ["all_reduce", "--repeat", 0], ["all_reduce", "--repeat", 101], ["all_reduce", "--repeat", "some"]):
        result = cases.run([WEFT, "bench", *words])
        expect(result.returncode in (1, 2) and result.stderr, "it says what is wrong", words, result)
    for words in (["all_reduce", "--iterations", -5], ["all_reduce", "--iterations", 99999999999999], ["all_reduce", "--tolerance", "nan"],
                  ["step", "--replay", "nan"], ["faults", "--runs", -1]):
        result = cases.run([WEFT, "bench", *words], timeout=20)
        expect(result.returncode == 2 and "not in range" in result.stderr, "the range", words, result)
    for option in ("--json", "--plot", "--trace"):
        result = cases.run([WEFT, "bench", "all_reduce", "--ranks", 1, "--sizes", "8,16", "--iterations", 3, option, "/nowhere/x"])
        expect(result.returncode == 1 and "cannot write /nowhere/x" in result.stderr, "the file", option, result)
        expect("No such file" in result.stderr and not result.stdout, "before any time is measured", option, result)
    result = cases.run([WEFT, "bench", "faults", "--backends", "foo"])
    expect(result.returncode == 1 and "'foo'" in result.stderr and "shm" in result.stderr, "the backends", result)


def test_help_of_each():
    """the help of a benchmark has the options that apply to it, and a misspelt word is answered with the one meant"""
    for name, has, lacks in (("all_reduce", ["--op", "--sizes", "--ranks"], ["--manifest", "--hook"]),
                             ("broadcast", ["--dtype", "--memory"], ["--op", "--replay"]),
                             ("barrier", ["--iterations", "--json"], ["--sizes", "--op", "--memory", "--manifest"]),
                             ("step", ["--manifest", "--hook", "--repeat"], ["--sizes", "--dtype"])):
        shown = cases.run([WEFT, "bench", name, "--help"])
        expect_equal(shown.returncode, 0, shown)
        options = re.findall(r"^ +(?:-\w,)?(--[\w-]+)", shown.stdout, re.M)
        expect(set(has) <= set(options) and not set(lacks) & set(options), name, options)
    listed = cases.run([WEFT, "bench", "--help"]).stdout
    expect("send_recv" in listed and "faults" in listed and "--manifest" not in listed, "the benchmarks", listed)
    for words, said in ((["all_reduse"], "weft bench: there is no command all_reduse; did you mean all_reduce?"),
                        (["all_reduce", "--sizs", "8"], "weft bench all_reduce: there is no option --sizs; did you mean --sizes?"),
                        (["all_reduce", "faults"], "weft bench faults: it runs alone"),
                        ([], "name a benchmark")):
        result = cases.run([WEFT, "bench", *words])
        expect(result.returncode == 2 and said in result.stderr, said, result)


def test_plot():
    """--plot draws the times of several collectives with axes, a title and a description of all values"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.svg"
        words = ["--ranks", 2, "--iterations", 10, "--no-pin"]
        result = cases.run([WEFT, "bench", "all_reduce", "broadcast", "barrier", "--sizes", "8,4K,1M", "--plot", path, *words])
        expect_equal(result.returncode, 0, result)
        names = {"svg": "http://www.w3.org/2000/svg"}
        picture = xml.etree.ElementTree.parse(path).getroot()
        expect_equal(picture.attrib["aria-labelledby"], "title description")
        expect("2 ranks" in picture.find("svg:title", names).text, "the title")
        about = picture.find("svg:desc", names).text
        expect(re.search(r"all_reduce sum f32 arena: 8 bytes [\d.]+ \u00b5s, 4K bytes .*1M bytes .*broadcast f32 arena: ", about),
               "the description", about)
        lines = picture.findall("svg:polyline", names)
        expect_equal([len(line.attrib["points"].split()) for line in lines], [3, 3])
        for line in lines:
            points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
            expect(points == sorted(points) and all(0 < x < 760 and 0 < y < 460 for x, y in points), "inside", points)
        texts = [text.text for text in picture.findall("svg:text", names)]
        expect({"bytes of the larger buffer", "median time in \u00b5s", "broadcast f32 arena"} <= set(texts), "labels", texts)
        for words, said in ((["barrier"], "at least two --sizes"), (["all_reduce", "--sizes", "8"], "at least two --sizes"),
                            (["all_reduce", "reduce", "broadcast", "gather", "scatter", "all_gather"], "at most 5 collectives, given 6")):
            result = cases.run([WEFT, "bench", *words, "--plot", path])
            expect(result.returncode == 1 and said in result.stderr, said, result)


def test_progress():
    """a long run says on a terminal how far it is, and nothing elsewhere"""
    words = [WEFT, "bench", "all_reduce", "--ranks", "2", "--sizes", "4M", "--no-pin", "--iterations"]
    quick = cases.run([*words, "10"])
    expect(" calls" not in quick.stderr, "no terminal, no progress", quick)
    control, terminal = pty.openpty()
    process = subprocess.Popen([*words, "100000"], stdout=subprocess.DEVNULL, stderr=terminal)
    os.close(terminal)
    said = ""
    with contextlib.suppress(OSError):  # the end of a terminal's last user
        while data := os.read(control, 4096):
            said += data.decode()
            if re.search(r"all_reduce of 4M: \d+ of \d+ calls", said):
                process.terminate()
    process.wait(timeout=60)
    expect(re.search(r"weft bench: all_reduce of 4M: \d+ of \d+ calls", said), "how far it is", said)


def test_cuda_memory():
    """--memory cuda measures device buffers with right results, and is refused with the reason where there is no device"""
    refused = cases.run([WEFT, "bench", "all_reduce", "--memory", "cuda"], environment={"WEFT_CUDA_RUNTIME": "/none/libcudart.so"})
    expect(refused.returncode == 1 and "--memory cuda: " in refused.stderr and "/none/libcudart.so" in refused.stderr, "why", refused)
    if not FAKE_CUDA:
        cases.skip("CUDA's headers are not here")
    run = bench(*COLLECTIVES, "--sizes", "8,64K", "--memory", "cuda", environment={"WEFT_CUDA_RUNTIME": FAKE_CUDA})
    expect_equal(run["memory"], "cuda")
    expect(all(row["correct"] for row in run["results"]), "the results", run["results"])
    details = {row["work"]: row["details"] for row in run["results"]}
    expect_equal((details["all_reduce"], details["broadcast"]), ("sum f32 cuda", "f32 cuda"))


def test_counters():
    """the counters show that shared memory moved the data"""
    whole = bench("all_reduce", "--sizes", "1M", "--backend", "shm")
    expect_equal(whole["backend"], "shm")
    expect(whole["bytes_shared"] + whole["bytes_direct"] > 0 and whole["bytes_sent"] == 0, "bytes", whole)


def test_check():
    """a run is compared with an earlier one: slower or larger rows are named, and the exit code reports them"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "earlier.json"
        words = ["all_reduce", "barrier", "--sizes", "4K", "--iterations", 30, "--no-pin"]
        result = cases.run([WEFT, "bench", *words, "--json", path], timeout=120)
        expect_equal(result.returncode, 0, result.stderr)
        earlier = json.loads(path.read_text())

        def compare(expected, **changes):
            changed = json.loads(json.dumps(earlier))
            for row in changed["results"]:
                row.update({name: change(row[name]) for name, change in changes.items()})
            path.write_text(json.dumps(changed))
            result = cases.run([WEFT, "bench", *words, "--check", path], timeout=120)
            expect_equal(result.returncode, expected, result.stdout, result.stderr)
            return result.stdout

        times = ("median_us", "median_low_us", "median_high_us")
        expect("SLOWER" in compare(1, **{time: lambda us: us / 1e6 for time in times}), "a millionth of the time")
        output = compare(0, **{time: lambda us: us * 1e6 for time in times})
        expect("faster" in output and "SLOWER" not in output, "a million times as long", output)
        long = {time: lambda us: us * 1e6 for time in times}
        expect("ALLOCATIONS" in compare(1, allocations=lambda _: -5, **long), "fewer allocations")
        words[3] = "8K"  # too large for the cache line that carries small data, so bytes count as moved
        result = cases.run([WEFT, "bench", *words, "--json", path], timeout=120)
        earlier = json.loads(path.read_text())
        expect("BYTES MOVED" in compare(1, moved_bytes=lambda moved: moved / 2, **long), "fewer bytes moved")
        expect("SYSTEM CALLS" not in compare(0, system_calls=lambda _: None, **long), "not counted then or now")
        fewer = cases.run([WEFT, "bench", "barrier", *words[2:], "--check", path], timeout=120).stdout
        expect("Not measured now: all_reduce of 8K, 2 ranks" in fewer and "Not in " not in fewer, "works of one run alone", fewer)
        earlier["backend"], earlier["results"] = "another", earlier["results"][1:]
        more = compare(0, **long)
        expect(f"Not in {path}: all_reduce of 8K" in more and "then" in more and "another then" in more, "and of the other", more)
        for text in ("", "{}", '{"results": [{}]}', '{"machine": 1, "results": []}', '{"results": []}'):
            path.write_text(text)
            result = cases.run([WEFT, "bench", *words, "--check", path], timeout=120)
            expect(result.returncode != 0 and str(path) in result.stderr, "it names the file", text, result)


def test_repeat():
    """several processes in sequence make one table of the medians of their results, and each process's median is kept"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.json"
        words = [WEFT, "bench", "all_reduce", "barrier", "--sizes", "4K,64K", "--iterations", 10, "--no-pin", "--json", path]
        for times in (1, 2, 3):
            result = cases.run([*words, "--repeat", times], timeout=120)
            expect_equal(result.returncode, 0, result.stdout, result.stderr)
            expect_equal(result.stdout.count("median us"), 1, result.stdout)
            said = [line for line in result.stderr.splitlines() if "repeat" in line]
            expect_equal(said, [f"weft bench: repeat {i + 1} of {times}" for i in range(times)] if times > 1 else [])
            whole = json.loads(path.read_text())
            expect_equal((whole["processes"], len(whole["results"])), (times, 3))
            for row in whole["results"]:
                medians = row["process_medians_us"]
                expect_equal((len(medians), row["correct"]), (times, True), row)
                expect(abs(row["median_us"] - statistics.median(medians)) < 1e-9, "the median of medians", row)
                expect(row["median_low_us"] <= min(medians) <= max(medians) <= row["median_high_us"], "the intervals", row)
                expect(row["bytes"] == 0 or abs(row["algbw_gb_s"] * row["median_us"] * 1e3 / row["bytes"] - 1) < 1e-6,
                       "the bandwidth is the median's", row)
                expect(f"{row['median_us']:.2f}" in result.stdout, "the table's median", row, result.stdout)


def test_repeat_fails():
    """invalid repeats are refused, and a repeat that fails ends them all, with its number"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.json"
        for words in (["--joined"], ["--trace", Path(folder) / "trace"]):
            for more in (["--repeat", 2], ["--against", WEFT]):
                result = cases.run([WEFT, "bench", "all_reduce", *more, *words])
                expect(result.returncode == 1 and words[0] in result.stderr and more[0] in result.stderr, "refused", words, result)
        result = cases.run([WEFT, "bench", "all_reduce", "--against", WEFT, "--check", WEFT])
        expect(result.returncode == 2 and "--check" in result.stderr, "one or the other", result)
        result = cases.run([WEFT, "bench", "barrier", "--repeat", 2, "--backend", "none_such", "--json", path])
        expect(result.returncode != 0 and "repeat 1 of 2" in result.stderr and "repeat 2" not in result.stderr, "ended", result)
        expect(not result.stdout and not path.exists(), "nothing is reported", result)


def test_check_processes():
    """with five processes in both runs, a work is slower only if nearly all of them are; with fewer, as within one process"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "earlier.json"
        words = ["barrier", "--iterations", 10, "--no-pin"]
        result = cases.run([WEFT, "bench", *words, "--repeat", 5, "--json", path], timeout=120)
        expect_equal(result.returncode, 0, result.stderr)
        earlier = json.loads(path.read_text())

        def compare(expected, said, medians, repeat=5):
            """Replace the earlier processes' medians by multiples of the median of five. They are far apart,
            so that the new measurements do not matter."""
            changed = json.loads(json.dumps(earlier))
            row = changed["results"][0]
            medians = sorted(row["median_us"] * factor for factor in medians)
            row.update(median_us=statistics.median(medians), median_low_us=medians[0], median_high_us=medians[-1])
            row["process_medians_us"] = medians
            path.write_text(json.dumps(changed))
            result = cases.run([WEFT, "bench", *words, "--repeat", repeat, "--check", path], timeout=120)
            expect_equal(result.returncode, expected, result.stdout, result.stderr)
            expect(said in result.stdout, said, result.stdout)
            return result.stdout

        short, long = 1e-5, 1e5
        output = compare(1, "SLOWER", [short] * 5)
        expect("25 of 25" in output and "rank-sum test of 5 processes then and 5 now" in output, "the rule", output)
        expect("SLOWER" not in compare(0, "20 of 25", [short] * 4 + [long]), "one of five was as slow: 2.8 %")
        expect("faster" in compare(0, "0 of 25", [long] * 5), "faster")
        compare(1, "SLOWER", [short] * 9 + [long])  # 45 of 50 pairs: 0.6 %
        # With too few earlier processes, the interval of the one process, or of all of them, decides.
        output = compare(1, "SLOWER", [short])
        expect("1 process then and 5 now are too few for the rank-sum test" in output and "99 %" in output, "the rule", output)
        expect("SLOWER" not in compare(0, "3 processes then and 2 now", [short, short, long], repeat=2), "intervals touch")
        del earlier["processes"], earlier["results"][0]["process_medians_us"]  # as older versions wrote
        path.write_text(json.dumps(earlier))
        result = cases.run([WEFT, "bench", *words, "--repeat", 5, "--check", path, "--tolerance", 9], timeout=120)
        expect(result.returncode == 0 and "1 process then and 5 now" in result.stdout, "an older baseline", result)
        for medians in ([], "none", [1, "two"], [-1], [1] * 101):
            earlier["results"][0]["process_medians_us"] = medians
            path.write_text(json.dumps(earlier))
            result = cases.run([WEFT, "bench", *words, "--check", path])
            expect(result.returncode != 0 and str(path) in result.stderr, "it names the file", medians, result)


def test_against():
    """another weft command is measured interleaved with this one, and rows that are slower than its rows are named"""
    with tempfile.TemporaryDirectory() as folder:
        path, other = Path(folder) / "run.json", Path(folder) / "other"
        words = [WEFT, "bench", "barrier", "--iterations", 10, "--no-pin", "--against", other, "--json", path]

        def compare(times, script):
            other.write_text(f"#!/bin/sh\n{script}\n")
            other.chmod(0o755)
            return cases.run([*words, "--repeat", times], timeout=120)

        slow = "export WEFT_PROGRESS=thread WEFT_SHM_THRESHOLDS=off"
        result = compare(3, f'{slow}; exec {WEFT} "$@"')
        expect(result.returncode in (0, 1), "compared", result)
        first, second = [f"weft bench: repeat {i} of 3" for i in (1, 2, 3)], [f"weft bench: repeat {i} of 3, {other}" for i in (1, 2, 3)]
        expect_equal([line for line in result.stderr.splitlines() if "repeat" in line],
                     [second[0], first[0], first[1], second[1], second[2], first[2]], result.stderr)
        expect(f"Compared with {other}" in result.stdout and "3 processes then and 3 now" in result.stdout, "beside", result.stdout)
        expect_equal((json.loads(path.read_text())["processes"], result.stdout.count("median us")), (3, 1))
        # The rows that the other command writes are the baseline.
        edit = """import json, sys; path = sys.argv[1]; run = json.load(open(path)); row = run["results"][0]
row.update({name: value / 1e5 if name.endswith("_us") and isinstance(value, float) else value for name, value in row.items()})
row["process_medians_us"] = [row["median_us"]]; row["correct"] = CORRECT; json.dump(run, open(path, "w"))"""
        (Path(folder) / "edit.py").write_text(edit.replace("CORRECT", "True"))
        swift = f'{WEFT} "$@" || exit; for path; do :; done; [ "$WEFT_RANK" = 1 ] || exec {sys.executable} {folder}/edit.py "$path"'
        result = compare(5, swift)
        expect(result.returncode == 1 and "SLOWER" in result.stdout and "25 of 25" in result.stdout, "slower", result)
        (Path(folder) / "edit.py").write_text(edit.replace("CORRECT", "False"))
        result = compare(1, swift)
        expect(result.returncode == 1 and f"{other}, the command of --against, computed wrong results" in result.stderr, "wrong", result)
        result = compare(2, "exit 9")
        expect(result.returncode == 9 and f"repeat 1 of 2, {other} failed with exit code 9" in result.stderr, "failed", result)
        expect(not result.stdout, "nothing is reported", result)


def counted(*options):
    """Yield each work's row, how much of its bytes each of two ranks moves, and its system calls.

    An owner reads two slices of half the bytes, and writes two. With two-shot, half is copied in and half is
    written to the peer. Pulled, half is read from the peer twice, 128 KiB at a time. In copy mode an owner
    reads its own slice in the gradients. If results stay with their owners, each reads half of the peer's.
    Each work runs twenty times, because heartbeats allocate meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "many.json"
        path.write_text(json.dumps({"name": "many", "params": [{"name": f"p{i}", "shape": [5000]} for i in range(300)]}))
        size = ["--sizes", 1 << 20]
        for words, shm, moved, calls in ((["all_reduce", *size], "off", 2, 0),
                                         (["all_reduce", *size, "--memory", "private"], "off", 1, 0),
                                         (["all_reduce", *size, "--memory", "private"], "off,pull=1M", 1, 8),
                                         (["all_reduce", "--sizes", 8], "off", 0, 0), (["barrier"], "off", 0, 0),
                                         (["step", "--manifest", path, "--mode", "copy"], "off", 1.5, 0),
                                         (["step", "--manifest", path, "--mode", "view"], "off", 2, 0)):
            row = bench(*words, "--backend", "shm", "--warmup", 10, *options, iterations=20,
                        environment={"WEFT_SHM_THRESHOLDS": shm})["results"][0]
            yield row, moved, calls


def test_counts():
    """a warm collective or step on shared memory causes no page fault or allocation, and moves only the necessary bytes"""
    for row, moved, _ in counted():
        expect(row["page_faults"] < 1 and row["allocations"] < 1, "counts of a call", row)
        expect(row["moved_bytes"] <= moved * row["bytes"] * 1.02, f"at most {moved} times its bytes moved", row)
        expect(row["moved_bytes"] >= 0.9 * moved * row["bytes"], f"{moved} times its bytes moved", row)


def test_system_calls():
    """collectives on shared memory make no system calls except to read private memory"""
    traced = cases.run([WEFT, "bench", "barrier", "--ranks", 1, "--iterations", 1, "--count-system-calls"])
    if "may not be traced" in traced.stderr:
        cases.skip(traced.stderr.strip().splitlines()[-1])
    for row, _, calls in counted("--count-system-calls"):
        expect(calls <= row["system_calls"] < calls + 1, f"{calls} system calls", row)


def test_thresholds():
    """shm reports the sizes at which it changes its path; an invalid or different setting is an error by name"""
    for shm, said in (("off", "(from the table)"), ("one-shot=32K,pull=2M", "one-shot up to 32 KiB, two-shot, from 2 MiB"),
                      ("", "one-shot up to")):
        whole = bench("all_reduce", "--sizes", "64K", "--memory", "private", "--backend", "shm",
                      environment={"WEFT_SHM_THRESHOLDS": shm})
        expect(said in whole["transports"], "thresholds", shm, whole["transports"])
        if "32K" in shm:
            expect_equal(whole["results"][0]["algorithm"], "two-shot")
    result = cases.run([WEFT, "bench", "all_reduce", "--backend", "shm"], environment={"WEFT_SHM_THRESHOLDS": "pull=many"})
    expect(result.returncode != 0 and "WEFT_SHM_THRESHOLDS" in result.stderr and "pull=many" in result.stderr, "named", result)
    command = f'[ "$WEFT_RANK" = 1 ] && export WEFT_SHM_THRESHOLDS=off; exec {WEFT} bench --joined all_reduce --backend shm'
    result = cases.run([WEFT, "run", "-n", 2, "--", "sh", "-c", command])
    expect(result.returncode != 0 and 'WEFT_SHM_THRESHOLDS is "" on rank 0 and "off" on rank 1' in result.stderr, "named", result)


def test_manifests():
    """the manifests are what their generator writes, and a recorded backward pass has their parameters"""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "generate.py"
        script.write_text((MANIFESTS / "generate.py").read_text())
        subprocess.run([sys.executable, script], check=True, timeout=60)
        for path in Path(folder).glob("*.json"):
            expect_equal((MANIFESTS / path.name).read_text() == path.read_text(), True, path)
            recorded = json.loads((MANIFESTS / f"{path.stem}.backward.json").read_text())
            names = [param["name"] for param in json.loads(path.read_text())["params"]]
            expect_equal(list(recorded["ready_ms"]), names, path)
            expect(0 < max(recorded["ready_ms"].values()) <= recorded["backward_ms"], path)


cases.main(globals())
