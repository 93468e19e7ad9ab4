#!/usr/bin/env python3
"""Tests bench/*.py without a build: the comparisons, the handling of wrong and missing results, and the
pictures."""
import argparse
import re
import sys
import tempfile
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "bench")]
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402
import chart  # noqa: E402
import comparison  # noqa: E402
import hosts  # noqa: E402
import peers  # noqa: E402
import planner  # noqa: E402
import systems  # noqa: E402
import tables  # noqa: E402


def raises(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def sampled():
    """Return samples of two sizes over three rounds, with three peers: one without a tuned variant, one
    without a large size."""
    samples = comparison.Samples()
    for number, at in enumerate((0, 1, 10)):
        samples.round = number
        for size, scale in ((8, 1), (1024, 10)):
            samples.add(("all_reduce_f32_arena", size, "weft"), 1.0 * scale + at, 9)
            samples.add(("all_reduce_f32_private", size, "weft"), 2.0 * scale + at, 9)
            samples.add(("all_reduce", size, "one"), 6.0 * scale + at, 9)
            samples.add(("all_reduce", size, "one-tuned"), 3.0 * scale + at, 9)
            samples.add(("all_reduce", size, "two"), 4.0 * scale + at, 9)
        samples.add(("all_reduce", 8, "three"), 5.0 + at, 9)
        for work, hidden in (("step_resnet50", 100.0), ("whole step_resnet50", 400.0)):
            samples.add((work, 64, "ddp-gloo"), hidden + at, 9)
        samples.add(("step_resnet50", 64, "weft"), 50.0 + at, 9)
    return samples


WORK = comparison.Work("all_reduce", 2, (8, 1024), (0, 1))
ARGUMENTS = argparse.Namespace(sizes=[8, 1024], ranks=2, rounds=3, works=[WORK], memory={}, quick=False, every_peer=["one", "two"])


def test_compare():
    """ratios are the median of the rounds' ratios, with their spread, and the best peer is found at each size, tuned or not"""
    rows = {(row["work"], row["bytes"], row["system"]): row for row in comparison.compare(sampled(), ARGUMENTS)}
    best = rows["all_reduce_f32_arena", 8, "best"]
    expect_equal((best["which"], best["median_us"], best["weft_ratio"]), ("two", 5.0, 2.5))
    expect_equal((best["least_us"], best["most_us"], best["weft_least_us"], best["weft_most_us"]), (4.0, 14.0, 1.0, 11.0))
    tuned = rows["all_reduce_f32_private", 1024, "best-tuned"]
    expect_equal((tuned["which"], tuned["median_us"], tuned["weft_median_us"]), ("one-tuned", 31.0, 21.0))
    expect(("all_reduce_f32_arena", 1024, "three") not in rows, "what was not measured has no row")
    expect_equal(rows["step_resnet50", 64, "ddp-gloo"]["weft_ratio"], round(101 / 51, 4))
    mine = rows["all_reduce_f32_private", 8, "weft"]
    expect_equal((mine["median_us"], mine["weft_ratio"], mine["ranks"]), (3.0, 1.0, 2))
    expect("bound_us" not in mine, "no limit was measured", mine)
    lines = tables.all_reduce_table(sampled(), list(rows.values()), WORK)
    expect_equal((best["weft_ratio_least"], best["weft_ratio_most"]), (1.2727, 4.0))
    expect_equal(len({line.count("|") for line in lines[2:]}), 1, lines)
    expect("two: 5.00 (2.50 / 1.67)" in lines[4], lines[4])
    spreads = tables.spread_table(list(rows.values()), WORK)
    expect_equal(spreads[-2], "| 8 | 1.00 to 11.00 | 2.00 to 12.00 | two: 4.00 to 14.00 (1.27 to 4.00 / 1.17 to 2.00) | "
                 "one-tuned: 3.00 to 13.00 (1.18 to 3.00 / 1.08 to 1.50) |")


def test_ratios():
    """a ratio compares one round; rounds that only one system has do not count"""
    samples = comparison.Samples()
    for number, (mine, theirs) in enumerate(((1.0, 2.0), (10.0, 50.0), (100.0, 300.0), (None, 7.0))):
        samples.round = number
        if mine:
            samples.add(("work", 8, "weft"), mine, 9)
        samples.add(("work", 8, "peer"), theirs, 9)
    expect_equal(samples.ratios(("work", 8, "peer"), ("work", 8, "weft")), [2.0, 5.0, 3.0])
    row = next(row for row in comparison.compare(samples, argparse.Namespace(**{**vars(ARGUMENTS), "works": []})) if row["system"] == "peer")
    expect_equal((row["weft_ratio"], row["weft_ratio_least"], row["weft_ratio_most"], row["median_us"]), (3.0, 2.0, 5.0, 28.5))
    expect_equal([comparison.ranks_of(work, argparse.Namespace(ranks=3)) for work in ("ready", "hosts_1gbit_all_reduce", "planner_gpt2_x1",
                                                                                      "hosts_4x1gbit_all_reduce")], [3, 2, 2, 4])
    samples.forget("peer")
    expect_equal(samples.ratios(("work", 8, "peer"), ("work", 8, "weft")), [])


def test_steps():
    """a step is printed with the spread of the rounds, and drawn with the measured backward pass, which Weft's row lacks"""
    samples = sampled()
    rows = comparison.compare(samples, ARGUMENTS)
    line = tables.step_lines(samples, rows)[0]
    expect("Weft 0.1 ms (0.1 to 0.1)" in line and "(1.98 times, 1.83 to 2.00)" in line, line)
    with tempfile.TemporaryDirectory() as folder:
        tables.pictures(samples, rows, ARGUMENTS, Path(folder))
        root = xml.etree.ElementTree.fromstring((Path(folder) / "step_resnet50.svg").read_text())
    hidden = [float(each.get("width")) for each in root.iter("{http://www.w3.org/2000/svg}rect") if each.get("height") == "22"][::2]
    expect(hidden[0] == 0 and hidden[1] > 0, "Weft's, then the peer's", hidden)


def test_bounds():
    """a bound is the least time for the same bytes without a library, and at least a flag's latency; none if ranks share cores"""
    samples = comparison.Samples()
    for flag, arena, copy in ((0.05, 0.5, 0.7), (0.06, 0.9, 0.6), (0.3, 0.8, 0.8)):
        samples.add(("limit_flag", 8, "machine"), flag, 0)
        samples.add(("limit_arena", 8192, "machine"), arena, 0)
        samples.add(("limit_copy", 8192, "machine"), copy, 0)
    for size in (8, 8192):
        for memory in comparison.MEMORIES:
            samples.add((f"all_reduce_f32_{memory}", size, "weft"), 2.0, 9)
    expect_equal([comparison.bound_us(samples, size) for size in (8, 8192, 16384)], [0.05, 0.5, None])
    samples.add(("limit_copy", 8192, "machine"), 0.4, 0)
    expect_equal(comparison.bound_us(samples, 8192), 0.4)
    samples.medians["limit_copy", 8192, "machine"].remove(0.4)
    work = comparison.Work("all_reduce", 2, (8, 8192), (0, 1))
    rows = list(comparison.all_reduce_rows(samples, work))
    expect_equal([(row["bytes"], row["bound_us"], row["weft_of_bound"]) for row in rows[:2]], [(8, 0.05, 0.025), (8192, 0.5, 0.25)])
    expect("| 8192 | 0.50 | 2.00 (0.25) | 2.00 (0.25) |" in tables.all_reduce_table(samples, rows, work), "in the table")
    crowded = comparison.Work("all_reduce", 2, (8, 8192), (0,))
    expect(all("bound_us" not in row for row in comparison.all_reduce_rows(samples, crowded)), "no bound")
    expect_equal((work.crowded, crowded.crowded), (False, True))


def test_hosts_leave_out():
    """between hosts a peer that fails is left out with all its samples; Weft and the others continue"""
    class Fake:
        def __init__(self, name, fails):
            self.name, self.fails = name, fails

        def measure(self, samples, rate):
            samples.add((f"hosts_{rate}_all_reduce", 8, self.name), 1.0, 1.0)
            if self.fails and rate == "10gbit":
                raise RuntimeError("the cable is cut")

    class Here(hosts.Hosts):
        def weft_bench(self, rate, *words, hosts=2, environment=None):
            self.asked.append((rate, hosts, [str(word) for word in words]))
            if hosts in self.broken:
                raise RuntimeError("too many")
            rows = [{"bytes": 8, "calls": 2 << 20, "median_us": 2.0, "p99_us": 3.0, "correct": True}]
            return {"results": rows}, (f"two-hosts: host 0: {12 << 20} bytes sent, {16 << 20} bytes received\n"
                                       "two-hosts: host 0: 5 segments sent again, 4 of them after a timeout, 3 lost twice; "
                                       "2 reports of segments sent again that had arrived before\n")

        asked, broken = [], []

    with tempfile.TemporaryDirectory() as folder:
        arguments = peers.parse_arguments(["--quick", "--systems", "", "--out", folder])
        here, samples = Here(arguments, []), comparison.Samples()
        here.across = [Fake("good", False), Fake("bad", True)]
        here.measure(samples)
        expect_equal((samples.systems("hosts_4x1gbit_all_reduce"), Here.asked[-1][1]), (["weft"], 4))
        Here.broken.append(4)
        for _ in range(2):
            here.measure(samples)
    expect_equal([peer.name for peer in here.across], ["good"])
    expect("cable is cut" in here.left_out["bad between hosts"], here.left_out)
    expect_equal(samples.systems("hosts_1gbit_all_reduce"), ["weft", "good"])
    expect_equal(samples.systems("hosts_10gbit_step_resnet50"), list(hosts.STEPS))
    expect_equal(samples.systems("hosts_none_all_reduce"), ["weft", "good"])
    expect("too many" in here.left_out[hosts.FOUR] and samples.systems("hosts_4x1gbit_all_reduce") == [], "four", here.left_out)
    expect_equal((len(samples.medians["hosts_1gbit_all_reduce", 8, "weft"]), sum(one[1] == 4 for one in Here.asked)), (2 * 3, 2))
    # Four calls of 4 MiB.
    expect_equal([(one["rate"], one["direction"], one["ratio"]) for one in samples.noted["hosts"][:2]],
                 [("1gbit", "sent", 0.75), ("1gbit", "received", 1.0)])
    expect_equal([one.get("sent_again") for one in samples.noted["hosts"][:2]], [5, None])
    expect(all(one["rate"] in ("1gbit", "10gbit", "none") for one in samples.noted["hosts"]), "of two hosts", samples.noted)


def test_bursts():
    """the burst sizes of a link are the script's, and every large transfer has 20 times as much"""
    script = hosts.TWO_HOSTS.read_text()
    for burst in hosts.BURSTS.values():
        expect(f"burst={burst >> 10}kb " in script, "the script's", burst)
    here = hosts.Hosts(peers.parse_arguments(["--systems", ""]), [])
    for rate in (*hosts.RATES, hosts.UNLIMITED):
        expect(here.calls(rate)[-1][1] == hosts.SIZES, rate)
    expect_equal(hosts.carried("two-hosts: host 0: 12 bytes sent, 34 bytes received\ntwo-hosts: host 1: 5 bytes sent, 6 bytes received\n"),
                 [(12, 34), (5, 6)])


def test_planner():
    """no plan is faster than a link that never waits for a ready gradient; one round measures each case with both planners"""
    gradients = [(100.0, 0), (200.0, 100_000)]
    wire = planner.wire_us(100_000)
    expect(abs(wire - 836.5) < 0.1, "100 kB at 1 Gbit/s, with their headers", wire)
    for more, backward, wanted in (([], 300.0, wire - 100), ([], 3000.0, 0.0), ([(0.0, 100_000)], 300.0, 2 * wire - 300)):
        expect(abs(planner.least_us([*more, *gradients], backward, 1) - wanted) < 1e-6, "least", more, backward)
    ready, backward = planner.recorded("resnet50")
    expect((len(ready), sum(size for _, size in ready)) == (161, 102228128) and ready[-1][0] <= backward, "of the manifest", ready[:3])

    class Here(planner.Planner):
        def weft_bench(self, rate, *words, hosts=2, environment=None):
            return {"results": [{"bytes": 8, "exposed_us": 2.0 if "model" in words else 3.0}]}, []

    samples = comparison.Samples()
    here = Here(peers.parse_arguments(["--systems", "", "--rounds", "2"]))
    for samples.round in range(2):
        here.measure(samples)
    expect_equal([len(values) for values in samples.medians.values()], [1] * 3 * len(planner.CASES))
    expect_equal(samples.ratios(("planner_gpt2_x2", 8, "model"), ("planner_gpt2_x2", 8, "limits")), [2 / 3])
    expect("| bert_base, x2 | 3932.9 | " in "".join(tables.planner_table(samples)), tables.planner_table(samples))


def test_machine():
    """the build's optimisation and UCX's version are reported with the machine"""
    with tempfile.TemporaryDirectory() as folder:
        build, real = Path(folder), tables.run
        (build / "meson-info").mkdir()
        (build / "meson-info" / "intro-buildoptions.json").write_text(
            '[{"name": "b_lto", "value": false}, {"name": "buildtype", "value": "release"}]')
        tables.run = lambda _: '{"backends": [{"name": "ucx", "available": true, "reason": "UCX 1.13.1 over tcp/eth0"}]}'
        try:
            machine = tables.machine_of(argparse.Namespace(build=build))
        finally:
            tables.run = real
    expect_equal((machine["build_type"], tables.ucx_of(machine)), ("release", ["UCX 1.13.1"]))
    expect_equal(tables.ucx_of({"backends": [{"name": "ucx", "available": False, "reason": "there is no UCX 1.2"}]}), [])


def test_arguments():
    """rows and systems are chosen by name, and an unknown name is refused with the list of names"""
    arguments = peers.parse_arguments(["--rows", "crowded,ready", "--systems", "gloo"])
    expect_equal((arguments.rows, [peer.name for peer in arguments.peers]), (["crowded", "ready"], ["gloo"]))
    for work, ranks in zip(arguments.works, (4, 8), strict=True):
        expect((work.ranks, len(work.cores) <= 2, work.crowded) == (ranks, True, True), "ranks on two cores", work)
    expect_equal([part.name for part in peers.parts(arguments, [])], ["ready"])
    result = cases.run([sys.executable, ROOT / "bench" / "peers.py", "--rows", "nothing"])
    expect(result.returncode == 2 and "thresholds" in result.stderr, "it says what there is", result)


def test_left_out():
    """the table reports who was left out and why, in a line each"""
    expect_equal(tables.left_out_lines({}), [])
    lines = tables.left_out_lines({"one": "exit code 1\n  no such file\n", "two": "x" * 5000})
    expect_equal(lines[1], "- one: exit code 1 no such file")
    expect(len(lines) == 4 and len(lines[2]) < 350, "short", lines)


def test_forget():
    """a peer that fails in a later round is left out with all its samples; a failure of Weft fails the run"""
    class Failing:
        name, rounds = "two", 0

        def measure(self, samples):
            samples.add(("all_reduce", 8, "two"), 4.0, 9)
            samples.add(("all_reduce", 8, "two-tuned"), 4.0, 9)
            Failing.rounds += 1
            if Failing.rounds == 2:
                raise RuntimeError("it has crashed")

    samples, running = sampled(), [Failing()]
    failed = peers.measure(ARGUMENTS, running, samples)
    expect("it has crashed" in failed["two"], "why", failed)
    expect_equal((running, Failing.rounds), ([], 2))
    expect_equal(samples.systems("all_reduce"), ["one", "one-tuned", "three"])
    Failing.rounds, Failing.name = 1, "weft"
    expect("crashed" in raises(RuntimeError, lambda: peers.measure(ARGUMENTS, [Failing()], comparison.Samples())), "weft's")


def test_forget_part():
    """a part of the run that fails later loses all its samples, of every system"""
    samples = comparison.Samples()
    for work, system in (("limit_copy", "machine"), ("hosts_1gbit_all_reduce", "weft"), ("ready", "weft"), ("all_reduce", "one")):
        samples.add((work, 8, system), 4.0, 9)
    samples.forget("limits")
    samples.forget("hosts")
    expect_equal(sorted(key[0] for key in samples.medians), ["all_reduce", "ready"])


def test_wrong_results():
    """a wrong result is no measurement, nor are fewer results than requested"""
    line = '{"bytes": 8, "median_us": 1, "p99_us": 2, "correct": %s}\n'
    expect_equal(systems.json_lines("noise\n" + line % "true", 1)[0]["bytes"], 8)
    raises(systems.WrongResult, lambda: systems.json_lines(line % "true" + line % "false"))
    raises(RuntimeError, lambda: systems.json_lines(line % "true", 2))
    raises(RuntimeError, lambda: systems.json_lines("nothing"))
    # The program also exits with an error code, which must not be taken for a crash.
    code = "import sys; print('" + (line % "false").strip() + "'); sys.exit(1)"
    raises(systems.WrongResult, lambda: systems.json_lines(systems.run([sys.executable, "-c", code])))
    expect("exit code 3" in raises(RuntimeError, lambda: systems.run([sys.executable, "-c", "exit(3)"])), "a crash")
    expect("no-such-program" in raises(RuntimeError, lambda: systems.run(["no-such-program"])), "a missing program")
    expect("timed out" in raises(RuntimeError, lambda: systems.run(["sleep", "9"], timeout=0.1)), "a program that hangs")


def test_variants():
    """the tuned system is the best variant at each size; a variant that fails twice is left out, but the first one is required"""
    class Peer(systems.MpiPeer):
        name, variants, crowded_variants = "peer", [([], {}), (["fast"], {}), (["broken"], {})], [(["yields"], {})]

        def launcher(self, work):
            return ["mpirun", "-n", work.ranks]

    def fake(command, environment=None, cwd=None, timeout=0):
        fake.calls.append(command)
        if fake.hangs:
            fake.hangs -= 1
            raise RuntimeError("still there")
        if "broken" in command:
            raise RuntimeError("unknown switch")
        times = {8: 1.0, 1024: 50.0} if "fast" in command else {8: 2.0, 1024: 20.0}
        return "".join(f'{{"bytes": {size}, "median_us": {us}, "p99_us": 99, "correct": true}}\n' for size, us in times.items())

    fake.calls, fake.hangs, real = [], 0, systems.run
    systems.run = fake
    try:
        arguments = argparse.Namespace(build=Path("."), works=[WORK], rows=[])
        peer = Peer(arguments)
        samples = comparison.Samples()
        for _ in range(2):
            peer.measure(samples)
        expect_equal(samples.medians, {("all_reduce", 8, "peer"): [2.0] * 2, ("all_reduce", 1024, "peer"): [20.0] * 2,
                                       ("all_reduce", 8, "peer-tuned"): [1.0] * 2, ("all_reduce", 1024, "peer-tuned"): [20.0] * 2})
        expect_equal(sum("broken" in command for command in fake.calls), 2)
        expect_equal(list(peer.left_out), ["peer, all_reduce, variant 2"])
        expect("unknown switch" in peer.left_out["peer, all_reduce, variant 2"], peer.left_out)
        arguments.works = [comparison.Work("crowded", 4, (8, 1024), (5, 7), ("--iterations", 9), 0.5)]
        peer.measure(samples)
        expect_equal([str(word) for word in fake.calls[-1]],
                     ["taskset", "-c", "5,7", "mpirun", "-n", "4", "yields", "peers/peer-all_reduce", "--iterations", "9",
                      "--seconds", "0.5", "8", "1024"])
        fake.hangs, before = 1, len(fake.calls)
        peer.measure(samples)  # starts it again
        expect_equal((len(fake.calls) - before, len(samples.medians["crowded", 8, "peer"])), (2, 2))
        fake.hangs = 2
        expect("still there" in raises(RuntimeError, lambda: peer.measure(samples)), "not for ever")
        peer.crowded_variants = [(["broken"], {})]
        raises(RuntimeError, lambda: peer.measure(samples))
    finally:
        systems.run = real


def numbers(path):
    return [float(number) for number in re.findall(r"-?\d+\.?\d*", path)]


def test_lines():
    """a picture is well-formed XML, its curves follow the numbers, and values without a logarithm are left out"""
    text = chart.lines({"a <b>": [(1, 10), (100, 1000)], "c": [(10, 100), (0, 5)]}, "across & along", "up")
    root = xml.etree.ElementTree.fromstring(text)
    curves = [each.get("d") for each in root.iter("{http://www.w3.org/2000/svg}path") if each.get("fill") == "none"]
    expect_equal(len(curves), 2)
    (x0, y0, x1, y1), (x, y) = numbers(curves[0]), numbers(curves[1])
    expect(x0 < x1 and y0 > y1, "to the right and up", curves)
    expect(abs(x - (x0 + x1) / 2) < 0.2 and abs(y - (y0 + y1) / 2) < 0.2, "the middle of both, by logarithm", curves)
    words = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    expect({"a <b>", "c", "across & along", "up", "1", "100", "1000"} <= set(words), "words", words)
    flat = numbers(re.findall(r'<path d="([^"]*)" fill="none"', chart.lines({"a": [(0, 5), (10, 5), (40, 0)]}, "x", "y",
                                                                            (False, False)))[0])
    expect(abs((flat[2] - flat[0]) * 3 - (flat[4] - flat[2])) < 0.5 and flat[1] == flat[3] < flat[5], "linear", flat)
    raises(ValueError, lambda: chart.lines({"a": [(0, 0)]}, "x", "y"))
    chart.lines({"a": [(8, 3)]}, "x", "y")  # a single point


def test_bars():
    """a bar's length is its value, and the exposed part follows the hidden one"""
    root = xml.etree.ElementTree.fromstring(chart.bars([("one", 30, 10), ("two & three", 0, 20)], "ms", ("hidden", "exposed")))
    bars = [[float(each.get(name)) for name in ("x", "width")] for each in root.iter("{http://www.w3.org/2000/svg}rect")
            if each.get("height") == "22"]
    expect_equal(len(bars), 4)
    expect(abs(bars[0][1] - 3 * bars[1][1]) < 0.5 and abs(bars[1][0] - bars[0][0] - bars[0][1]) < 0.2, "parts", bars)
    expect(bars[2][1] == 0 and abs(bars[3][1] - 2 * bars[1][1]) < 0.5, "the other one", bars)


if __name__ == "__main__":
    cases.main(globals())
