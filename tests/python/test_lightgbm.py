#!/usr/bin/env python3
"""LightGBM over Weft. Ranks are processes (lightgbm_ranks.py). Usage: test_lightgbm.py BUILD

LightGBM is installed once, into BUILD/lightgbm. If that is not possible, the test is skipped.
"""
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tools")]
import cases  # noqa: E402
import package_venv  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

BUILD = Path(sys.argv[1]).resolve()
LIGHTGBM = "lightgbm==4.7.0"
INSTALL_S, WAIT_S = 600, 120
WORDS = ("result", "rank", "failing", "waits", "raised", "twice", "missing")  # that begin a rank's own lines
_stores = itertools.count()


def start(*arguments, size=2, rank=0, store="", program="tests/python/lightgbm_ranks.py"):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "PYTHONHASHSEED": "0", "WEFT_SIZE": str(size),
                   "WEFT_RANK": str(rank), "WEFT_STORE": store}
    return subprocess.Popen([VENV / "bin/python", ROOT / program, *map(str, arguments)],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=environment)


def start_ranks(size, *arguments, **more):
    store = f"unix:@weft-lightgbm-{os.getpid()}-{next(_stores)}"
    return [start(*arguments, size=size, rank=rank, store=store, **more) for rank in range(size)]


def end(processes):
    """Wait for processes; return the lines of each. Kills what hangs."""
    lines, deadline = [], time.monotonic() + WAIT_S
    try:
        for process in processes:
            out, errors = process.communicate(timeout=max(1, deadline - time.monotonic()))
            lines.append([line for line in out.splitlines() if line.startswith(WORDS)])
            expect(process.returncode == 0 or not out.count("result"), "the process succeeds", out, errors)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return lines


def result(lines):
    """Return accuracy, predictions, model and the part of the model that ranks share."""
    expect(len(lines) == 1 and lines[0].startswith("result "), "the process reports its result", lines)
    return eval(lines[0].removeprefix("result "))


def test_training():
    """training over 2 and 3 ranks gives all ranks one model, about as accurate as that of one process"""
    accuracy = result(end([start("alone")])[0])[0]
    expect(accuracy > 0.75, "the accuracy of one process", accuracy)
    for size in (2, 3):
        for learner in ("data", "voting"):
            results = [result(lines) for lines in end(start_ranks(size, "train", learner))]
            expect_equal(len({(predictions, shared) for _, predictions, _, shared in results}), 1, "models", learner, results)
            if learner == "data":
                expect_equal(len({model for _, _, model, _ in results}), 1, "models with all values", results)
            expect(abs(results[0][0] - accuracy) < 0.03, "accuracy", learner, size, results[0][0], accuracy)


def test_sockets():
    """training over 2 ranks gives the bytes of the models that LightGBM's own sockets give"""
    for learner in ("data", "voting"):
        over_weft = [result(lines) for lines in end(start_ranks(2, "train", learner))]
        machines = ",".join(f"127.0.0.1:{port}" for port in cases.free_ports(2))
        over_sockets = [result(lines) for lines in end([start("sockets", learner, machines, rank) for rank in range(2)])]
        expect_equal(over_weft, over_sockets, learner)


def failed(how, timeout=60):
    """Return when rank 1 failed, and when and how rank 0's training ended."""
    processes = start_ranks(2, "failing", how, timeout)
    if how == "stopped":
        os.set_blocking(processes[1].stdout.fileno(), True)
        while not processes[1].stdout.readline().startswith("failing"):
            pass
        begin = time.monotonic()
        lines = end(processes[:1])[0]
        processes[1].send_signal(signal.SIGKILL)
        end(processes[1:])
    else:
        mine, other = end(processes)
        lines, begin = mine, next((float(line.split()[1]) for line in other if line.startswith("failing")), 0.0)
    raised = [line.split(maxsplit=2) for line in lines if line.startswith("raised")]
    expect_equal(len(raised), 1, "rank 0's training ends with an error", how, lines)
    return begin, float(raised[0][1]), raised[0][2]


def test_failures():
    """a rank that dies, freezes, raises, leaves or is late ends the other's training with an error that names it"""
    for how, seconds, timeout, text in (("killed", 5, 60, r"rank 1\b"), ("stopped", 8, 60, r"rank 1\b"),
                                        ("raises", 5, 60, r"rank 1\b.*ValueError: bad rows"), ("leaves", 5, 60, r"rank 1\b"),
                                        ("late", 8, 2, r"rank 1\b")):
        begin, ended, error = failed(how, timeout)
        expect(error.startswith("lightgbm.basic.LightGBMError: Weft: "), "the type of the error", how, error)
        expect(re.search(text, error), f"the error has {text!r}", how, error)
        expect(ended - begin < seconds, "seconds until the error", how, ended - begin)


def test_interrupt():
    """Ctrl-C while an exchange waits for another rank ends the training with KeyboardInterrupt"""
    processes = start_ranks(2, "failing", "interrupted", 60)
    while processes[0].stdout.readline() != "waits\n":
        pass
    time.sleep(0.2)
    processes[0].send_signal(signal.SIGINT)
    mine, other = end(processes)
    expect("builtins.KeyboardInterrupt" in mine[0], "rank 0", mine)
    expect("LightGBMError: Weft: " in other[-1] and "rank 0" in other[-1], "rank 1", other)


def test_example():
    """examples/lightgbm/train.py trains one model on two ranks"""
    lines = end(start_ranks(2, "--rounds", 20, program="examples/lightgbm/train.py"))
    accuracies = [re.fullmatch(rf"rank {rank} of 2: accuracy (.*)", lines[rank][0])[1] for rank in range(2)]
    expect(accuracies[0] == accuracies[1] and float(accuracies[0]) > 0.8, "accuracies", accuracies)


def test_misuse():
    """a second network, a missing module, and a communicator of one rank"""
    twice, alone, missing = end([start("misuse", size=1)])[0]
    expect("this thread is inside another weftsync.lightgbm.Network" in twice, twice)
    expect_equal(result([alone])[1], result(end([start("alone")])[0])[1], "predictions of one rank")
    expect("weftsync.lightgbm needs the module libweft-lightgbm.so" in missing and "-Dlightgbm=enabled" in missing, missing)


if __name__ == "__main__":
    try:
        VENV = package_venv.prepare(BUILD, "lightgbm", [LIGHTGBM, "numpy"], timeout=INSTALL_S)
    except RuntimeError as error:
        print(f"{LIGHTGBM} cannot be installed:", " ".join(str(error).split())[-300:])
        sys.exit(77)
    cases.main(globals())
