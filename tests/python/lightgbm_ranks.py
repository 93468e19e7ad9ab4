"""The ranks of test_lightgbm.py: each command is a function of this file, with its arguments."""
import os
import signal
import sys
import time

import lightgbm
import numpy as np
import weftsync
import weftsync.lightgbm

PARAMS = {"objective": "binary", "verbose": -1, "num_threads": 1}
TRAINED, ROUNDS = 2400, 20


def rows():
    """Return the same problem on every rank: the rows for training, and those for the accuracy."""
    draw = np.random.default_rng(7)
    x = draw.standard_normal((3000, 12))
    noise = 0.5 * draw.standard_normal(3000)
    y = (x @ draw.standard_normal(12) + x[:, 0] * x[:, 1] + noise > 0).astype(int)
    return x[:TRAINED], y[:TRAINED], x[TRAINED:], y[TRAINED:]


def report(booster):
    """Print the accuracy, the bits of the predictions, and the model without what LightGBM itself computes per rank."""
    *_, x, y = rows()
    predicted = booster.predict(x)
    text = booster.model_to_string().split("\nparameters:")[0]
    lines = [line for line in text.splitlines() if not line.startswith(("internal_value=", "tree_sizes="))]
    write("result", repr((float(((predicted > 0.5) == y).mean()), hash(predicted.tobytes()), hash(text), hash("\n".join(lines)))))


def write(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")  # one write, so that lines of ranks are whole
    sys.stdout.flush()


def train(learner):
    x, y, *_ = rows()
    with weftsync.Comm() as comm, weftsync.lightgbm.Network(comm) as network:
        mine = slice(comm.rank, None, comm.size)
        data = lightgbm.Dataset(x[mine], y[mine], params=network.params)
        report(lightgbm.train({**PARAMS, **network.params, "tree_learner": learner}, data, ROUNDS))


def sockets(learner, machines, rank):
    """Train over LightGBM's own sockets."""
    x, y, *_ = rows()
    size, port = machines.count(",") + 1, int(machines.split(",")[int(rank)].split(":")[1])
    mine = slice(int(rank), None, size)
    params = {**PARAMS, "num_machines": size, "pre_partition": True, "machines": machines, "local_listen_port": port,
              "tree_learner": learner}
    report(lightgbm.train(params, lightgbm.Dataset(x[mine], y[mine], params=params), ROUNDS))


def alone():
    x, y, *_ = rows()
    report(lightgbm.train(PARAMS, lightgbm.Dataset(x, y), ROUNDS))


def failing(how, timeout):
    """Train until rank 1 fails in iteration 3: it is killed, stops, raises an exception or gets Ctrl-C."""
    x, y, *_ = rows()

    def fail(environment):
        if comm.rank == 1 and environment.iteration == 3:
            write("failing", time.monotonic())
            if how == "raises":
                raise ValueError("bad rows")
            if how == "leaves":
                network.__exit__(None, None, None)
                comm.close()
            if how in ("killed", "stopped"):
                os.kill(os.getpid(), signal.SIGKILL if how == "killed" else signal.SIGSTOP)
            if how == "late":
                time.sleep(6)
        if how == "interrupted" and environment.iteration == 3:
            if comm.rank == 1:
                time.sleep(6)
            write("waits")

    try:
        with weftsync.Comm(heartbeat_timeout=2) as comm, weftsync.lightgbm.Network(comm, timeout=float(timeout)) as network:
            mine = slice(comm.rank, None, comm.size)
            data = lightgbm.Dataset(x[mine], y[mine], params=network.params)
            lightgbm.train({**PARAMS, **network.params, "tree_learner": "data"}, data, 10**6, callbacks=[fail])
    except BaseException as error:
        write("raised", time.monotonic(), f"{type(error).__module__}.{type(error).__name__}:", *str(error).split())


def misuse():
    """Print the errors of wrong uses."""
    x, y, *_ = rows()
    try:
        with weftsync.Comm() as comm, weftsync.lightgbm.Network(comm):
            with weftsync.lightgbm.Network(comm):
                pass
    except RuntimeError as error:
        write("twice:", error)
    with weftsync.Comm(rank=0, size=1, all_gather=lambda mine: [mine]) as comm, weftsync.lightgbm.Network(comm) as network:
        data = lightgbm.Dataset(x, y, params=network.params)
        report(lightgbm.train({**PARAMS, **network.params, "tree_learner": "data"}, data, ROUNDS))
    os.environ["WEFT_LIGHTGBM_LIBRARY"] = "/there/is/no/libweft-lightgbm.so"
    try:
        weftsync.lightgbm.Network(comm)
    except ImportError as error:
        write("missing:", error)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
