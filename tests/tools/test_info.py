#!/usr/bin/env python3
"""weft info, and the command's general options. Usage: test_info.py WEFT"""
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

WEFT = sys.argv[1]


def test_json():
    """weft info --json can be parsed and describes every backend"""
    result = cases.run([WEFT, "info", "--json"])
    expect_equal(result.returncode, 0, result)
    info = json.loads(result.stdout)
    backends = {backend["name"]: backend for backend in info["backends"]}
    expect("shm" in backends and "loopback" in backends, "the built-in backends are listed", sorted(backends))
    for backend in backends.values():
        expect(backend["available"] or backend["reason"], "what is not available says why", backend)
    host = backends["shm"]["collectives"]["host"]
    expect("f8_e4m3" in host["all_gather_v"] and "f8_e4m3" not in host["all_reduce"]["sum"], "floats of a byte travel",
           host)
    expect("f32" not in host["all_reduce"]["bxor"] and "u8" in host["reduce_scatter_v"]["bxor"], "ops", host)
    expect(set(host["sparse_all_reduce"]) == {"sum", "avg"}, "sparse sums", host["sparse_all_reduce"])
    expect(info["cores"] >= 1 and info["memory_bytes"] > 0, "the machine", info)
    topology = info["topology"]
    expect(1 <= topology["packages"] <= topology["cores"] <= topology["threads"], "processors", topology)
    expect(topology["numa_nodes"] >= 1 and {"l2", "l3"} <= set(topology), "memory", topology)
    expect("cross_memory_attach" in info["shm"] and "memlock_bytes" in info["shm"], "what shm may use", info["shm"])


def test_text():
    """weft info prints the same as text"""
    result = cases.run([WEFT, "info"])
    expect_equal(result.returncode, 0, result)
    for word in ("cpu features", "topology", "backends", "shm", "cross_memory_attach"):
        expect(word in result.stdout, f"it says {word}", result.stdout)


def test_private_buffers():
    """weft info reports how private buffers are moved, and with --ranks the autotuned thresholds"""
    def found(*words, setting=""):
        result = cases.run([WEFT, "info", "--json", *words], environment={"WEFT_SHM_THRESHOLDS": setting})
        expect_equal(result.returncode, 0, words, result)
        return json.loads(result.stdout)["shm"]
    expect("weft info --ranks 2" in found()["private_buffers"], "it is measured, and how to see it", found())
    expect_equal(found(setting="off")["private_buffers"], "WEFT_SHM_THRESHOLDS=off")
    for ranks in (2, 3):
        shm = found("--ranks", str(ranks))
        expect("one-shot up to" in shm["private_buffers"], "the sizes", shm)
        expect_equal(shm["private_buffers_ranks"], ranks)
    given = found("--ranks", "2", setting="one-shot=16K,pull=2M")
    expect("one-shot up to 16 KiB" in given["private_buffers"] and "given" in given["private_buffers"], "what is given",
           given)
    text = cases.run([WEFT, "info", "-n", "2"])
    expect_equal(text.returncode, 0, text)
    expect("one-shot up to" in text.stdout and "backends" in text.stdout, "all of it, as text", text.stdout)
    failed = cases.run([WEFT, "info", "-n", "2"], environment={"WEFT_SHM_THRESHOLDS": "sometimes"})
    expect_equal(failed.returncode, 1, failed)
    expect("sometimes" in failed.stderr, "it names what is wrong", failed.stderr)


def test_help():
    """every command has --help, and there is --version"""
    for words in ([], ["run"], ["info"], ["bench"], ["store"]):
        result = cases.run([WEFT, *words, "--help"])
        expect_equal(result.returncode, 0, words, result)
        expect("Usage" in result.stdout, "it shows the usage", result.stdout)
    expect(cases.run([WEFT, "--version"]).stdout.startswith("weft 0.9."), "the version")


def test_unknown():
    """unknown words exit with code 2 and point to the help"""
    for words in ([], ["weave"], ["info", "--yaml"], ["info", "--ranks", "1"]):
        result = cases.run([WEFT, *words])
        expect_equal(result.returncode, 2, words, result)
        expect("--help" in result.stderr, "it points to --help", result.stderr)


cases.main(globals())
