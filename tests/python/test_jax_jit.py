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


def test_killed():
    """a rank that is killed inside a compiled program makes the other's program fail, naming it"""
    processes = start("killed")
    for process in processes:  # the lines come once the collective has been compiled
        timer = threading.Timer(WAIT_S, process.kill)
        timer.start()
        expect_equal(process.stdout.readline(), "running\n", "a rank has not started")
        timer.cancel()
    time.sleep(1)
    processes[1].send_signal(signal.SIGKILL)
    (text, _), _ = finish(processes, [0])
    expect(re.match(r"failed after ([\d.]+) s", text) and float(text.split()[2]) < 20, "in time", text)


def test_forked():
    """a child made by fork gets the documented error"""
    finish(start("forked"))


def refused(**environment):
    """Return the error of a program that needs the module."""
    code = "import jax, weftsync.jax as wj\njax.jit(lambda x: wj.all_reduce(x, wj.create_token())[0])(1.0)"
    result = cases.run([sys.executable, "-c", code], environment={
        "PYTHONPATH": str(ROOT / "python"), "WEFT_RANK": "0", "WEFT_SIZE": "1", "JAX_PLATFORMS": "cpu", **environment})
    expect(result.returncode != 0, "it succeeded", result.stdout)
    return result.stderr


def test_without_module():
    """without the module, or with one for another version of XLA's interface, the error says so"""
    text = refused(WEFT_JAX_LIBRARY="/there/is/no/libweft-jax.so")
    expect("ImportError: collectives inside jit need the module libweft-jax.so" in text and "-Djax=enabled" in text,
           "missing", text)
    other = jax_module.prepare(BUILD, jax.ffi.include_dir(), "jax-module-other", "-DWEFT_JAX_TEST_MINOR=900")
    text = refused(WEFT_JAX_LIBRARY=str(other))
    expect(re.search(rf"ImportError: JAX {re.escape(jax.__version__)} does not accept the module libweft-jax.so, which "
                     r"was built for version 0\.900", text), "another version", text)


if __name__ == "__main__":
    cases.main(globals())
