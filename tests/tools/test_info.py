#!/usr/bin/env python3
"""weft info, and the command's general options. Usage: test_info.py WEFT"""
import json
import re
import resource
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

WEFT = sys.argv[1]
ROOT = Path(__file__).resolve().parents[2]


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


def test_quick():
    """weft info --json takes less than two seconds of processor time, however many combinations it lists"""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    cases.run([WEFT, "info", "--json"])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    expect(took < 2, "it is quick", took)


def test_text():
    """weft info prints the same as text"""
    result = cases.run([WEFT, "info"])
    expect_equal(result.returncode, 0, result)
    for word in ("cpu features", "topology", "backends", "shm", "cross_memory_attach"):
        expect(word in result.stdout, f"it says {word}", result.stdout)


def environment_of(**variables):
    """Return what weft info --env --json says, and its exit code. Unset: variables of the launcher of the tests."""
    result = cases.run([WEFT, "info", "--env", "--json"], environment=variables)
    told = json.loads(result.stdout)
    told["by_name"] = {each["name"]: each for each in told["variables"]}
    return told, result.returncode


def test_environment():
    """weft info --env shows each variable's value in effect, where it comes from, and what nobody reads"""
    told, code = environment_of(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2", TORCHELASTIC_RUN_ID="x",
                                WEFT_HEARTBEAT_MS="900", WEFT_BACKND="shm", WEFT_SECRET="0123456789abcdef")
    expect_equal(code, 0, told)
    names = told["by_name"]
    expect_equal([names["WEFT_RANK"]["value"], names["WEFT_RANK"]["source"]], [1, "torchrun"])
    expect_equal([names["WEFT_LOCAL_RANK"]["value"], names["WEFT_SIZE"]["value"]], [1, 2])
    expect_equal([names["WEFT_HEARTBEAT_MS"]["value"], names["WEFT_HEARTBEAT_MS"]["source"]], ["900", "environment"])
    expect(names["WEFT_STORE"]["value"].startswith("unix:@weft-"), "the store's address", names["WEFT_STORE"])
    expect_equal(names["WEFT_BACKEND"]["value"], None)
    expect_equal(told["unknown"], [{"name": "WEFT_BACKND", "similar": "WEFT_BACKEND"}])
    expect("0123456789abcdef" not in json.dumps(told), "the secret is not shown", told)
    for each in told["variables"]:
        expect(each["meaning"] and each["values"] and each["unset"], "it is described", each)
    text = cases.run([WEFT, "info", "--env"], environment={"WEFT_BACKND": "shm", "WEFT_SIZE": "1"})
    expect("did you mean WEFT_BACKEND?" in text.stdout, "the misspelt one", text.stdout)
    expect("not set: 5000" in text.stdout, "the default", text.stdout)


def test_environment_of_python():
    """weft info --env knows each variable that the Python package reads"""
    known = set(environment_of(WEFT_SIZE="1")[0]["by_name"])
    for path in (ROOT / "python/weftsync").rglob("*.py"):
        read = set(re.findall(r'(?:environ\.get\(|module_file\(_FILE, )"(WEFT_\w+)"', path.read_text()))
        expect(read <= known, f"{path.name} reads variables that are not in lib/environment/variables.cpp", read - known)


# Every value is allowed, or another check looks at it (the folders of records and logs).
FREE = {"WEFT_JOB", "WEFT_FLIGHT", "WEFT_LIBRARY", "WEFT_JAX_LIBRARY", "WEFT_LIGHTGBM_LIBRARY", "WEFT_NCCL_LIBRARY", "WEFT_CUDA_RUNTIME",
        "WEFT_SHM_THRESHOLDS"}


def test_each_wrong_variable():
    """weft info --env refuses a wrong value of each variable whose values are not free text"""
    wrong = {"WEFT_LOG_FILE": "/tmp/%x", "WEFT_METRICS": "/nowhere", "WEFT_TRACE": "/nowhere", "WEFT_SECRET_FILE": "/nowhere/secret"}
    for name in environment_of(WEFT_SIZE="1")[0]["by_name"]:
        if name in FREE:
            continue
        value = wrong.get(name, "x?")
        told, code = environment_of(**{name: value})
        expect(code == 1 and told["error"], f"{name}={value} is refused", told["error"])
    for name, value in (("WEFT_HEARTBEAT_MS", "5"), ("WEFT_LOCAL_RANK", "5"), ("WEFT_SIZE", "0"), ("WEFT_METRICS_SECONDS", "0"), ("WEFT_LOG_ROTATE", "1")):
        told, code = environment_of(**{name: value})
        expect(code == 1 and name in told["error"], f"{name}={value} is refused", told["error"])


def test_wrong_environment():
    """weft info --env reports variables with which no communicator could be created, and exits with 1"""
    told, code = environment_of(WEFT_RANK="4", WEFT_SIZE="2", WEFT_STORE="unix:@x")
    expect_equal(code, 1, told)
    expect("WEFT_RANK is 4" in told["error"], "the reason", told["error"])
    told, code = environment_of(WEFT_SECRET_FILE="/nowhere/secret", WEFT_SIZE="1")
    expect_equal(code, 1, told)
    expect("/nowhere/secret" in told["error"], "the reason", told["error"])
    both = cases.run([WEFT, "info", "--env", "--ranks", "2"])
    expect_equal(both.returncode, 2, both)


def test_secret():
    """weft secret new makes a private file once, with another secret each time"""
    with tempfile.TemporaryDirectory() as folder:
        contents = set()
        for name in ("one", "two"):
            path = Path(folder) / name
            made = cases.run([WEFT, "secret", "new", str(path)])
            expect_equal(made.returncode, 0, made)
            expect_equal(path.stat().st_mode & 0o777, 0o600)
            contents.add(path.read_text())
            expect(path.read_text().strip() not in made.stdout, "it is not printed", made.stdout)
            told, code = environment_of(WEFT_SECRET_FILE=str(path), WEFT_SIZE="1")
            expect_equal(code, 0, told)
        expect_equal(len(contents), 2)
        again = cases.run([WEFT, "secret", "new", str(path)])
        expect_equal(again.returncode, 1, again)
        expect(str(path) in again.stderr and "exists" in again.stderr, "it is kept", again.stderr)
        expect_equal(path.read_text() in contents, True)
        nowhere = cases.run([WEFT, "secret", "new", folder + "/missing/secret"])
        expect_equal(nowhere.returncode, 1, nowhere)
    for words in (["secret"], ["secret", "new"], ["secret", "old", "x"], ["secret", "new", "a", "b"]):
        wrong = cases.run([WEFT, *words])
        expect_equal(wrong.returncode, 2, wrong)
    expect("the commands are new" in cases.run([WEFT, "secret", "old", "x"]).stderr, "the choices are listed")


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
