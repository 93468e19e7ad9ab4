#!/usr/bin/env python3
"""Blocks of Reducer.step that raise an exception. Usage: test_step.py WEFT"""
import array
import sys
import threading
import time

from ranks_of_threads import ROOT, SIZE, cases, expect, expect_equal, expect_raises, np, ranks, weft

PROGRAM = """
import numpy as np, weftsync as weft
comm = weft.Comm(timeout=20)
gradient = np.empty(1000, np.float32)
with weft.Reducer(comm, [weft.Param("w", gradient.shape), weft.Param("b", ())]) as reducer:
    for step in range(4):
        gradient[:] = comm.rank + step
        try:
            with reducer.step():
                if step in (0, 2) and comm.rank == step % 3:
                    raise ValueError(f"bad batch {step}")
                reducer.ready("w", gradient)
                reducer.ready("b", np.zeros((), np.float32))
            print(f"rank {comm.rank} step {step} mean {gradient.mean()}")
        except ValueError as error:
            print(f"rank {comm.rank} step {step} raised {error}")
        except weft.WeftError as error:
            print(f"rank {comm.rank} step {step} {error.code.name} by {error.ranks}: {error.text}")
    print(f"rank {comm.rank} failed", reducer.stats().failed_steps, comm.error())
"""


def test_processes():
    """a block that raises fails the step on all ranks with the exception's type and text, and the next step works"""
    result = cases.run([sys.argv[1], "run", "-n", "3", "--", sys.executable, "-c", PROGRAM],
                       environment={"PYTHONPATH": str(ROOT / "python")})
    expect_equal(result.returncode, 0, result.stdout, result.stderr)
    lines = [line.partition("rank ")[1] + line.partition("rank ")[2] for line in result.stdout.splitlines()]
    for rank in range(3):
        for step in range(4):
            wanted = f"rank {rank} step {step} mean {1.0 + step}"
            if step in (0, 2) and rank == step:
                wanted = f"rank {rank} step {step} raised bad batch {step}"
            elif step in (0, 2):
                wanted = f"rank {rank} step {step} ERR_STEP_FAILED by ({step},): rank {step}: ValueError: bad batch {step}"
            expect(any(line.startswith(wanted) for line in lines), wanted, result.stdout, result.stderr)
        expect(f"rank {rank} failed 2 None" in lines, f"rank {rank}'s counters", result.stdout)


class Broken(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def test_texts():
    """every exception of a block fails the step on the other ranks, and propagates to the caller"""
    errors = [(KeyError("a"), "KeyError: 'a'"), (StopIteration(), "StopIteration"),
              (Broken(), "Broken: (its __str__ raised an exception)"),
              (ValueError("a\0b\udcff\u00e9"), "ValueError: a?b?\u00e9"),
              (ValueError("\u00e9" * 5000), "ValueError: \u00e9\u00e9")]

    def body(comm):
        with weft.Reducer(comm, [weft.Param("w", (2,))], timeout=20) as reducer:
            for index, (error, text) in enumerate(errors):
                gradient, raised = array.array("f", [comm.rank] * 2), None
                try:
                    with reducer.step():
                        reducer.ready("w", gradient)
                        if comm.rank == index % SIZE:
                            raise error
                except Exception as caught:
                    raised = caught
                gradient.append(0)  # the reducer no longer uses it
                if comm.rank == index % SIZE:
                    expect(raised is error, "the exception", raised)
                else:
                    expect_equal((type(raised), raised.code), (weft.WeftError, weft.Status.ERR_STEP_FAILED))
                    expect(raised.text.startswith(f"rank {index % SIZE}: {text}"), text, raised.text)
                gradient = np.full(2, comm.rank, np.float32)
                with reducer.step():
                    reducer.ready("w", gradient)
                expect_equal(gradient.tolist(), [1.0, 1.0])

    ranks(body)


def test_interrupted():
    """Ctrl-C and exit in a block wait for no other rank, and the other ranks' error names the reason"""
    def body(comm):
        reducer = weft.Reducer(comm, [weft.Param("w", (2,))], timeout=20)
        created.wait()
        if comm.rank == 0:
            begin = time.monotonic()
            try:
                with reducer.step():
                    raise error
            except BaseException as caught:
                expect(caught is error, "the exception", caught)
            took.append(time.monotonic() - begin)
            interrupted.set()
            return
        expect(interrupted.wait(20), "rank 0 has left its step")
        caught = expect_raises(weft.WeftError, f"rank 0 aborted the communicator: {text}", comm.barrier)
        expect_equal(caught.code, weft.Status.ERR_ABORTED)

    for error, text in ((KeyboardInterrupt(), "KeyboardInterrupt"), (SystemExit(3), "SystemExit: 3")):
        created, interrupted, took = threading.Barrier(SIZE, timeout=20), threading.Event(), []
        ranks(body)
        expect(took[0] < 10, "seconds until rank 0 has left its step", took)


def test_nothing_to_fail():
    """an exception of a block propagates to the caller even if no step can be failed any more"""
    everybody = threading.Barrier(SIZE, timeout=20)

    def body(comm):
        reducer = weft.Reducer(comm, [weft.Param("w", (2,))], timeout=20)
        expect_raises(weft.WeftError, "ERR_STATE", reducer.fail, "no step")

        def finished():
            with reducer.step():
                reducer.ready("w", np.ones(2, np.float32))
                reducer.finish()
                raise ValueError("after the step")

        def aborted():
            with reducer.step():
                everybody.wait()
                comm.abort("the job ends")
                raise ValueError("after the end")

        expect_raises(ValueError, "after the step", finished)
        expect_raises(ValueError, "after the end", aborted)

    ranks(body)


if __name__ == "__main__":
    cases.main(globals())
