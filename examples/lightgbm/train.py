"""Trains LightGBM over Weft, one process for each rank. Each rank has rows of its own, and all get the same model.

    weftsync run -n 2 -- python3 examples/lightgbm/train.py [--learner data|voting] [--rounds N]
"""
import argparse

import lightgbm
import numpy as np
import weftsync
import weftsync.lightgbm

ROWS, COLUMNS = 4000, 20


def rows(rank):
    """Draw rows of a problem with two classes. A rank's rows depend on its number, and rank -1 has those of the test."""
    weights = np.random.default_rng(1).standard_normal(COLUMNS)
    draw = np.random.default_rng(100 + rank)
    x = draw.standard_normal((ROWS, COLUMNS))
    return x, (x @ weights + 2 * x[:, 0] * x[:, 1] + draw.standard_normal(ROWS) > 0).astype(int)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--learner", choices=["data", "voting"], default="data")
    parser.add_argument("--rounds", type=int, default=50)
    arguments = parser.parse_args()
    with weftsync.Comm() as comm, weftsync.lightgbm.Network(comm) as network:
        x, y = rows(comm.rank)
        params = {**network.params, "tree_learner": arguments.learner, "objective": "binary", "verbose": -1}
        booster = lightgbm.train(params, lightgbm.Dataset(x, y, params=params), arguments.rounds)
        x, y = rows(-1)
        accuracy = ((booster.predict(x) > 0.5) == y).mean()
        print(f"rank {comm.rank} of {comm.size}: accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
