#!/usr/bin/env python3
"""Tests bench/targets.py without a build: which targets invented runs meet, and which they cannot judge."""
import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "bench")]
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402
import comparison  # noqa: E402
import hosts  # noqa: E402
import own  # noqa: E402
import planner  # noqa: E402
import tables  # noqa: E402
import targets  # noqa: E402
import training  # noqa: E402

ARENA = "all_reduce, 2 ranks, arena"
PRIVATE = "all_reduce, 2 ranks, private buffers"


def reduced(weft, peers, sizes=comparison.SIZES, work="all_reduce"):
    """Return a run of all sizes: weft and each peer give the microseconds of each round, by size."""
    samples = comparison.Samples()
    for size in sizes:
        for memory in comparison.MEMORIES:
            add(samples, (f"{work}_f32_{memory}", size, "weft"), weft(size))
        for name, times in peers.items():
            add(samples, (work, size, name), times(size))
    return samples


def add(samples, key, rounds):
    for samples.round, us in enumerate(rounds):
        samples.add(key, us, 2 * us)


def judged(samples, **more):
    sizes = tuple(samples.sizes("all_reduce_f32_arena"))
    arguments = argparse.Namespace(**{
        "ranks": 2, "rounds": 3, "memory": {}, "quick": False, "every_peer": ["one", "two", "gloo"],
        "works": [comparison.Work("all_reduce", more.get("ranks", 2), sizes, (0, 1, 2, 3)),
                  comparison.Work("crowded_all_reduce", 4, comparison.CROWDED_SIZES, (0, 1))], **more})
    return {(one["work"], one["target"]): one for one in targets.judge(samples, comparison.compare(samples, arguments), arguments)}


def found(judged_targets, work, words):
    one, = (one for (name, target), one in judged_targets.items() if name == work and words in target)
    return one


def three(us):
    return lambda size: [us(size)] * 3


PEERS = {"one": three(lambda size: 10.0 * size), "two": lambda size: [5.0 * size, 9.0 * size, 6.0 * size],
         "gloo": three(lambda size: 20.0 * size)}


def weft(size):
    return [1.0 * size, 2.0 * size, 3.0 * size]


def test_nothing():
    """every target has an entry, and unmeasured ones are marked as such"""
    nothing = judged(comparison.Samples())
    expect(all(one["met"] is None and one["value"] is None and "not measured" in one["why"] for one in nothing.values()), "not measured", nothing)
    expect(any("needs a GPU" in one["measured"] for one in nothing.values()), "the GPU's", nothing)
    lines = tables.target_table(list(nothing.values()))
    expect_equal(len({line.count("|") for line in lines[2:]}), 1, lines)
    expect(lines[-1].endswith("| not measured |"), lines[-1])


def test_worst():
    """the worst size decides, by the median of the rounds' ratios, which is reported with its spread"""
    all_of_them = judged(reduced(weft, PEERS))
    one = found(all_of_them, ARENA, "from 4 MiB: >= 4 times the best peer")
    # The ratios of "two" are 5, 4.5 and 2; the ratio of the medians would be 3.
    expect_equal((one["value"], one["least"], one["most"], one["met"]), (4.5, 2.0, 5.0, True))
    expect(", two)" in one["measured"] and one["why"] is None, one)
    one = found(all_of_them, ARENA, "8 B-4 KiB")
    expect_equal((round(one["value"], 4), one["least"], one["most"], one["met"]), (0.2222, 0.2, 0.5, True))
    expect("| 4.5 (4 MiB, two) | 2 to 5 | yes |" in "\n".join(tables.target_table(list(all_of_them.values()))), "in the table")
    slow = reduced(lambda size: [1.0 * size * (3 if size == 16 << 20 else 1)] * 3, {**PEERS, "two": three(lambda size: 4.5 * size)})
    one = found(judged(slow), PRIVATE, "1.7 times the best peer, asked of writing into peers' memory")
    expect_equal((one["value"], one["met"], one["measured"]), (1.5, None, "1.5 (16 MiB, two)"))
    expect("Weft has no such path" in one["why"], one)
    one = found(judged(slow), PRIVATE, "from 4 MiB: >= 1.4")
    expect_equal((one["value"], one["met"]), (1.5, True))
    one = found(judged(comparison.Samples(), memory={"beyond": 0.0125}), "memory beyond the gradients, ResNet-50, view mode", "2 %")
    expect_equal((one["value"], one["met"], one["measured"]), (1.25, True, "1.25 %"))


def test_unjudged():
    """a run without a required peer or size, with other ranks, or a quick run, measures but does not judge"""
    without = dict(list(PEERS.items())[:2])
    for samples, more, why in ((reduced(weft, without), {}, "without gloo"), (reduced(weft, PEERS), {"quick": True}, "a quick run"),
                               (reduced(weft, PEERS, comparison.SIZES[:-1]), {}, "without 100 MiB"),
                               (reduced(weft, PEERS), {"ranks": 3}, "the run has 3 ranks")):
        one = found(judged(samples, **more), ARENA, "from 4 MiB: >= 4 times the best peer")
        expect_equal((one["value"], one["met"], one["why"]), (4.5, None, f"not judged: {why}"))
        expect(tables.target_table([one])[-1].endswith(f"| not judged: {why} |"), "in the table")
    # Other targets of the same run stay judged.
    one = found(judged(reduced(weft, without)), ARENA, "1-100 MiB: >= 8 times PyTorch's Gloo")
    expect_equal((one["value"], one["met"]), (None, None))
    one = found(judged(reduced(weft, PEERS, comparison.SIZES[:-1])), ARENA, "1 MiB: >= 1.6")
    expect_equal(one["met"], True)
    crowded = reduced(weft, PEERS, comparison.CROWDED_SIZES, "crowded_all_reduce")
    expect_equal(found(judged(crowded, ranks=3), "all_reduce, 4 ranks on 2 cores, arena", "8 B-4 KiB")["met"], True)


def test_step():
    """a step is compared with the other system's step of the same round"""
    samples = comparison.Samples()
    add(samples, ("step_resnet50", 64, "weft"), [10.0, 20.0, 10.0])
    add(samples, ("step_resnet50", 64, "ddp-gloo"), [50.0, 90.0, 30.0])
    one = found(judged(samples), "gradient step of ResNet-50, copy mode, 2 ranks", ">= 4 times")
    expect_equal((one["value"], one["least"], one["most"], one["met"]), (4.5, 3.0, 5.0, True))


def test_bound():
    """the share of the bound refers to the machine's least time"""
    samples = reduced(weft, PEERS)
    for size in comparison.SIZES:
        add(samples, ("limit_arena", size, "machine"), [1.5 * size, 9.0 * size, 2.0 * size])
    samples.add(("limit_flag", 8, "machine"), 0.1, 0.1)
    one = found(judged(samples), ARENA, "0.65 of the bound")
    expect_equal((round(one["value"], 3), round(one["least"], 3), round(one["most"], 3), one["met"]), (0.75, 0.5, 1.5, True))


def test_threshold_targets():
    """measured thresholds are compared with the fastest single path at each size, by the median ratio of interleaved processes"""
    samples = comparison.Samples()
    for size in own.Thresholds.SIZES:
        measured = (2.8, 1.0, 9.0) if size == 8192 else (1.0, 1.0, 9.0)
        for name, times in (("measured", measured), ("one-shot", (1.0, 4.0, 9.0)), ("two-shot", (2.0, 0.1, 7.0))):
            add(samples, ("thresholds", size, name), times)
    samples.note("thresholds", {"found": "one-shot up to 2 KiB"})
    work = "all_reduce, private buffers, thresholds as measured"
    one = found(judged(samples), work, "1.1")
    expect_equal((round(one["value"], 5), one["met"], one["why"]), (1.4, False, None))
    expect("8 KiB, beside two-shot alone" in one["measured"], one)
    text = "\n".join(tables.threshold_table(samples))
    expect("| 8192 | 2.80 | 4.00 | 2.00 |" in text and "one-shot up to 2 KiB: 1." in text, text)
    del samples.medians["thresholds", 4096, "measured"]
    expect_equal(found(judged(samples), work, "1.1")["why"], "not judged: without 4 KiB")


def test_host_targets():
    """shares refer to a link's payload rate; latencies are compared with UCX, hooks with no hook; link bytes are counted"""
    samples = comparison.Samples()
    for size in hosts.SIZES:
        samples.add(("hosts_1gbit_all_reduce", size, "weft"), size * 8 / (1e9 * hosts.PAYLOAD) * 1e6 / 0.96, 9)
    samples.add(("hosts_1gbit_all_reduce", 8, "weft"), 12.0, 9)
    samples.add(("hosts_1gbit_all_reduce", 8, "ucx"), 10.0, 9)
    for system, us in (("weft", 100.0), ("weft-bf16", 50.0), ("weft-reduce-bf16", 60.0), ("weft-int8", 40.0), ("weft-int8-2mib", 20.0)):
        samples.add(("hosts_1gbit_step_resnet50", 64, system), us, 9)
    for rate, direction, ratio in (("1gbit", "sent", 1.004), ("1gbit", "received", 0.98), ("10gbit", "sent", 1.035)):
        samples.note("hosts", {"rate": rate, "host": 0, "direction": direction, "ratio": ratio, "sent_again": 7})
    for ranks in (2, 3):  # the other rows may have any number of ranks
        all_of_them = judged(samples, ranks=ranks)
        for work, words, value, met in (("all_reduce, two hosts, 1gbit", "4-25 MB", 0.96, True),
                                        ("all_reduce, two hosts, 1gbit", "8 bytes", 1.2, True),
                                        ("all_reduce, two hosts, 1gbit, 4-105 MB", "within 3 %", 2.0, True),
                                        ("all_reduce, two hosts, 10gbit, 4-105 MB", "within 3 %", 3.5, False),
                                        ("gradient step of ResNet-50, two hosts, 1gbit", "hook bf16", 2.0, True),
                                        ("gradient step of ResNet-50, two hosts, 1gbit", "reduce_dtype bf16", 1.667, False),
                                        ("gradient step of ResNet-50, two hosts, 1gbit", "hook int8:", 2.5, False),
                                        ("gradient step of ResNet-50, two hosts, 1gbit", "buckets of 2 MiB", 5.0, True)):
            one = found(all_of_them, work, words)
            expect(abs(one["value"] - value) < 1e-3 and one["met"] == met, words, one)
    expect(found(all_of_them, "all_reduce, two hosts, 10gbit", "4-25 MB")["met"] is None, "not measured")
    expect("- 1gbit: 0.9800 to 1.0040" in tables.wire_lines(samples), tables.wire_lines(samples))
    samples.forget("hosts")
    expect_equal(found(judged(samples), "all_reduce, two hosts, 10gbit, 4-105 MB", "within 3 %")["value"], None)


def test_planner_targets():
    """the model's plan is never worse, except for noise; two of three manifests save a tenth, as recorded or slowed down"""
    name = "step behind a recorded backward, two hosts, 1gbit, by model"
    over = {("resnet50", 1): 0.1, ("bert_base", 1): 0.92, ("bert_base", 2): 0.76, ("gpt2", 1): 1.01, ("gpt2", 2): 0.8}
    samples = comparison.Samples()
    for case in planner.CASES:
        samples.add((planner.work_of(*case), 64, "limits"), 1000.0, 9)
        samples.add((planner.work_of(*case), 64, "model"), 1000.0 * over[case], 9)
        samples.add((planner.work_of(*case), 64, "least"), 50.0, 9)
    all_of_them = judged(samples)
    one = found(all_of_them, name, "never")
    expect_equal((one["value"], one["met"], one["measured"]), (1.01, True, "1.01 (gpt2, x1)"))
    one = found(all_of_them, name, "as recorded")
    expect_equal((round(one["value"], 6), one["met"], one["measured"]), (8.0, False, "8 % (bert_base, the second best)"))
    one = found(all_of_them, name, "twice as slow")
    expect_equal((round(one["value"], 6), one["met"]), (24.0, True))
    samples.add((planner.work_of("gpt2", 1), 64, "model"), 1100.0, 9)  # the median is 1055
    expect_equal(found(judged(samples), name, "never")["met"], False)
    del samples.medians[planner.work_of("gpt2", 1), 64, "model"]
    expect_equal(found(judged(samples), name, "never")["why"], "not judged: without gpt2, x1")


def test_training_targets():
    """a way is judged by its worst model, over what DDP on Gloo exposes in the same round; not if that is nothing"""
    samples = comparison.Samples()
    for model, base in (("transformer", 60e3), ("cnn", 10e3), ("embeddings", 20e3)):
        for way, share in (("ddp-gloo", 1), ("ddp-weft", 0.4), ("weft-copy", 0.2), ("weft-view", 0.15 if model == "cnn" else 0.05)):
            add(samples, (training.work_of(model), 8, way), [base * share * noise for noise in (1, 3, 2)])
    work = "training step of PyTorch, 2 ranks, "
    of = {way: found(judged(samples), work + training.WAYS[way][0], "exposed") for way in targets.EXPOSED}
    expect_equal({way: (one["value"], one["met"]) for way, one in of.items()},
                 {"ddp-weft": (0.4, True), "weft-copy": (0.2, True), "weft-view": (0.15, False)})
    expect("(cnn)" in of["weft-view"]["measured"], of)
    add(samples, (training.work_of("cnn"), 8, "ddp-gloo"), [-1.0])
    one = found(judged(samples), work + training.WAYS["ddp-weft"][0], "exposed")
    expect(one["met"] is None and "cnn with DDP on Gloo exposes nothing" in one["why"], one)
    expect_equal(found(judged(samples, ranks=3), work + training.WAYS["ddp-weft"][0], "exposed")["met"], None)


def test_training_between_hosts():
    """the faster mode of each model is compared with the least possible time and with DDP on Gloo, in the same round"""
    samples = comparison.Samples()
    for model in training.MODELS:
        work = training.work_of(model, "10gbit")
        slower = 1.2 if model == "cnn" else 1.0
        for system, share in (("bound", 1), ("weft-copy", 1.04 * slower), ("weft-view", 1.3), ("ddp-gloo", 1.2), ("weft-bf16", 0.9)):
            add(samples, (work, 8, system), [1e5 * share * noise for noise in (1, 2, 3)])
    work = "training step of PyTorch, two hosts, 10gbit"
    of = {text: found(judged(samples), work, text) for text in ("least possible", ">= 1.07", "bf16")}
    expect_equal({text: (round(one["value"], 3), one["met"]) for text, one in of.items()},
                 {"least possible": (1.248, False), ">= 1.07": (0.962, False), "bf16": (1.333, True)})
    expect("(cnn)" in of["least possible"]["measured"], of)
    expect_equal(found(judged(samples), "training step of PyTorch, two hosts, 1gbit", "least possible")["met"], None)
    row = next(row for row in comparison.compare(samples, argparse.Namespace(works=[], ranks=2))
               if row["work"] == training.work_of("cnn", "10gbit") and row["system"] == "ddp-gloo")
    expect_equal(row["weft_ratio"], round(1.2 / 1.248, 5))
    samples.forget("hosts")
    expect_equal(len(samples.medians), 5 * len(training.MODELS))
    samples.forget("hosts_training")
    expect_equal(samples.medians, {})


if __name__ == "__main__":
    cases.main(globals())
