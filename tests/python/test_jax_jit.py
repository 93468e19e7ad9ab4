#!/usr/bin/env python3
"""Collectives of weftsync.jax inside jit. Ranks are processes (jax_ranks.py). Usage: test_jax_jit.py BUILD

jax_environment.py installs JAX.
"""
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax_environment  # noqa: F401
import jax
import jax_module
from ranks_of_threads import ROOT, cases, expect, expect_equal

BUILD = Path(sys.argv[1]).resolve()
WAIT_S = 150  # for programs of ranks; ends what hangs
INTERRUPTED_S = 30  # from Ctrl-C to the end of the process, usually 2; the collective's deadline is 120
MODULE = jax_module.prepare(BUILD, jax.ffi.include_dir())
_stores = itertools.count()


def start(program, size=2, module=MODULE, **more):
    """Start the ranks of a program of jax_ranks.py."""
    common = {**os.environ, "WEFT_SIZE": str(size), "WEFT_JAX_LIBRARY": str(module), "XLA_FLAGS": "",
              "WEFT_STORE": f"unix:@weft-jax-{os.getpid()}-{next(_stores)}", **more}
    return [subprocess.Popen([sys.executable, ROOT / "tests/python/jax_ranks.py", program], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL,
                             env={**common, "WEFT_RANK": str(rank)}) for rank in range(size)]


def finish(processes, ranks=None):
    """Wait for the processes, and expect that those of `ranks` (all) end with exit code 0. Returns their outputs."""
    texts, deadline = [], time.monotonic() + WAIT_S
    try:
        for process in processes:
            texts.append(process.communicate(timeout=max(1, deadline - time.monotonic())))
    finally:
        for process in processes:
            process.kill()
    for rank in range(len(processes)) if ranks is None else ranks:
        expect_equal(processes[rank].returncode, 0, f"rank {rank}", *[text[-3000:] for both in texts for text in both])
    return texts


def test_collectives():
    """every collective and element type inside jit has the bits of the same call outside, and changes no input"""
    finish(start("collectives"))


def test_order():
    """calls run in the order of their tokens, also in programs that differ between the ranks, in loops and branches"""
    finish(start("order"))


def test_gradients():
    """gradients are those of the sum of all ranks' losses, inside and outside jit"""
    finish(start("gradients", size=3))


def test_order_of_gradients():
    """a gradient's collectives run after all of the function's, in one order, though the ranks' programs differ"""
    finish(start("order_of_gradients"))


def test_tie():
    """a gradient's collectives run after a metric's that the loss does not use, if the loss is tied to the token"""
    finish(start("tied"))


def test_without_order():
    """calls without a common chain of tokens, or without a tie, run in other orders on other ranks: an error says so"""
    finish(start("without_order"))


def test_closing():
    """closing a communicator waits for the compiled program that uses it"""
    finish(start("closing"))


def test_refusals():
    """vmap, checkpoint, jvp, wrong arguments and closed communicators are errors with a reason"""
    finish(start("refusals"))


def test_mismatch():
    """ranks that disagree get an error that names both"""
    finish(start("mismatch"))


def test_late():
    """a rank that does not come makes the others' call fail at its deadline, naming it"""
    finish(start("late"))


def start_running(program):
    """Start the ranks of a program, and wait until they have compiled the collective and use it."""
    processes = start(program)
    for process in processes:
        timer = threading.Timer(WAIT_S, process.kill)
        timer.start()
        expect_equal(process.stdout.readline(), "running\n", "a rank has not started")
        timer.cancel()
    time.sleep(1)
    return processes


def test_killed():
    """a rank that is killed inside a compiled program makes the other's program fail, naming it"""
    processes = start_running("killed")
    processes[1].send_signal(signal.SIGKILL)
    (text, _), _ = finish(processes, [0])
    expect(re.match(r"failed after ([\d.]+) s", text) and float(text.split()[2]) < 20, "in time", text)


def interrupt(program, code):
    """Send Ctrl-C to rank 0, and expect that it ends in time with an exit code. Returns the outputs of both ranks."""
    processes = start_running(program)
    processes[0].send_signal(signal.SIGINT)
    sent = time.monotonic()
    try:
        processes[0].wait(WAIT_S)
    finally:
        took = time.monotonic() - sent
        texts = finish(processes, [1])
    expect_equal(processes[0].returncode, code, texts[0][1][-3000:])
    expect(took < INTERRUPTED_S, f"rank 0 ended after {took:.1f} s", texts[0][1][-3000:])
    return texts


def test_interrupted_inside():
    """Ctrl-C ends a collective that the main thread runs: JAX's error says so, and the other rank learns it"""
    (_, mine), (theirs, _) = interrupt("interrupted_inside", 1)
    expect(re.search(r"JaxRuntimeError: CANCELLED: weftsync.jax: all_reduce: .*the program interrupted", mine), mine)
    expect("ERR_INTERRUPTED" in theirs and "rank 0" in theirs, "the other rank's error", theirs)


def test_interrupted_waiting():
    """Ctrl-C while the main thread waits inside JAX ends the collective, which a thread of XLA runs"""
    (_, mine), (theirs, _) = interrupt("interrupted_waiting", -signal.SIGINT)
    expect("\nKeyboardInterrupt\n" in mine and "the program interrupted all_reduce" in mine, "its error", mine)
    expect("ERR_INTERRUPTED" in theirs and "rank 0" in theirs, "the other rank's error", theirs)


def test_interrupted_in_python():
    """Ctrl-C in Python code raises KeyboardInterrupt there, and the exit does not wait for the collective"""
    (_, mine), (theirs, _) = interrupt("interrupted_in_python", -signal.SIGINT)
    expect("\nKeyboardInterrupt\n" in mine and "time.sleep" in mine, "its error", mine)
    expect("ERR_ABORTED" in theirs and "the program was interrupted" in theirs, "the other rank's error", theirs)


def test_interrupted_handled():
    """a handler of the program's own that raises nothing lets the collective continue"""
    processes = start_running("interrupted_handled")
    processes[0].send_signal(signal.SIGINT)
    finish(processes)


def test_exit():
    """the interpreter exits in time while a daemon thread waits in a collective, and the other rank learns it"""
    begin, processes = time.monotonic(), start("exits")
    (_, mine), (theirs, _) = finish(processes, [1])
    expect_equal(processes[0].returncode, 3, mine[-3000:])
    expect(time.monotonic() - begin < 100, "in time")
    expect("ERR_INTERRUPTED" in theirs and "rank 0" in theirs, "the other rank's error", theirs)


def test_forked():
    """a child made by fork gets the documented error"""
    finish(start("forked"))


def refused(before="import jax", **environment):
    """Return the output of a program that uses weftsync.jax outside jit, and fails inside it."""
    code = f"""if True:
        {before}
        import weftsync.jax as wj
        print("average", wj.average_gradients(jax.numpy.ones(2)).tolist())
        jax.jit(lambda x: wj.all_reduce(x, wj.create_token())[0])(1.0)"""
    result = cases.run([sys.executable, "-c", code], environment={
        "PYTHONPATH": str(ROOT / "python"), "WEFT_RANK": "0", "WEFT_SIZE": "1", "JAX_PLATFORMS": "cpu", **environment})
    expect(result.returncode != 0, "it succeeded", result.stdout)
    return result.stdout + result.stderr


def test_without_module():
    """without the module, or with one for another version of XLA's interface, the error says so"""
    text = refused(WEFT_JAX_LIBRARY="/there/is/no/libweft-jax.so")
    expect("ImportError: collectives inside jit need the module libweft-jax.so" in text and "-Djax=enabled" in text
           and "the wheel contains it" in text, "missing", text)
    other = jax_module.prepare(BUILD, jax.ffi.include_dir(), "jax-module-other", "-DWEFT_JAX_TEST_MAJOR=7")
    text = refused(WEFT_JAX_LIBRARY=str(other))
    expect(re.search(rf"ImportError: JAX {re.escape(jax.__version__)} does not accept the module libweft-jax.so, which "
                     r"fits version 7\.1 to 7\.\d+ of XLA's foreign function interface: ", text), "another version", text)


def test_older_jax():
    """a module that was compiled for a newer version of XLA's interface than JAX has works"""
    newer = jax_module.prepare(BUILD, jax.ffi.include_dir(), "jax-module-newer", "-DWEFT_JAX_TEST_MINOR=9")
    finish(start("order", module=newer))


def test_another_jax():
    """with a version of JAX that lacks the internal part, calls inside jit fail and say so, and others work"""
    for missing in ("sys.modules['jax._src.effects'] = None; del jax._src.effects",
                    "del jax._src.effects.control_flow_allowed_effects"):
        text = refused(before=f"import sys, jax.extend; {missing}; jax.__version__ = '9.8.7'")
        expect(re.search(r"ImportError: collectives inside jit use jax._src.effects, .* JAX 9\.8\.7 .* with JAX 0\.10\.2",
                         text), missing, text)
        expect("average [1.0, 1.0]" in text, "outside jit", text)


def example(ranks):
    """Run examples/jax/train.py. Returns its losses, of which the last is in the last line."""
    program = [sys.executable, ROOT / "examples/jax/train.py", "--steps", 40, "--log-every", 5]
    common = {"PYTHONPATH": str(ROOT / "python"), "WEFT_JAX_LIBRARY": str(MODULE), "XLA_FLAGS": ""}
    store = f"unix:@weft-jax-{os.getpid()}-{next(_stores)}"
    processes = [subprocess.Popen([str(word) for word in program], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True, stdin=subprocess.DEVNULL,
                                  env={**os.environ, **common, "WEFT_RANK": str(rank), "WEFT_SIZE": str(ranks),
                                       "WEFT_STORE": store}) for rank in range(ranks)]
    outputs = [text for text, _ in finish(processes)]
    expect_equal(outputs[1:], [""] * (ranks - 1), "rank 0 prints alone")
    *lines, last = outputs[0].splitlines()
    match = re.fullmatch(r"loss=(\d\.\d{6}) step_ms=\d+\.\d\d", last)
    expect(match, "the last line", outputs[0])
    return [float(line.split()[3]) for line in lines] + [float(match.group(1))]


def test_example():
    """examples/jax/train.py learns, and two ranks have the losses of one process with the whole batch"""
    alone, shared = example(1), example(2)
    expect_equal(len(alone), 10, alone)
    expect(alone[0] > 0.3 and alone[-1] < 0.1 * alone[0], "the loss falls", alone)
    expect(all(abs(one - other) <= 1e-5 + 1e-3 * one for one, other in zip(alone, shared)), "equal losses", alone,
           shared)


if __name__ == "__main__":
    cases.main(globals())
