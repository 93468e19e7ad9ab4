"""Trains a model of embedding tables, one process for each rank. It predicts whether a user likes an item.

    torchrun --nproc-per-node 2 examples/pytorch/recommender.py [--backend ddp-gloo|weft|weftsync-copy|weftsync-view]
        [--steps N] [--sparse]
"""
import argparse

import torch
import torch.distributed as dist
import systems
from progress import Progress
from torch import nn

ROWS, WIDTH, BATCH, HISTORY = 100_000, 64, 64, 16  # of each table; pairs of a rank's batch; items that a user liked


class Recommender(nn.Module):
    """Judges an item by the items that the user liked before. 12.8 million parameters in two tables."""

    def __init__(self, sparse):
        super().__init__()
        self.liked = nn.EmbeddingBag(ROWS, WIDTH, mode="mean", sparse=sparse)
        self.items = nn.Embedding(ROWS, WIDTH, sparse=sparse)
        self.judge = nn.Sequential(nn.Linear(3 * WIDTH, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, history, item):
        user, item = self.liked(history), self.items(item)
        return self.judge(torch.cat([user, item, user * item], 1)).squeeze(1)


def pairs(generator):
    """Draw a batch: users of two tastes, and items. A user likes an item of the own taste: even numbers, or odd ones."""
    taste = torch.randint(2, (BATCH,), generator=generator)
    # To this power, so that few items are popular.
    popular = (torch.rand(BATCH, HISTORY + 1, generator=generator) ** 8 * (ROWS // 2)).long() * 2
    history, item = popular[:, :-1] + taste.unsqueeze(1), popular[:, -1]
    kind = torch.randint(2, (BATCH,), generator=generator)
    return history, item + kind, (kind == taste).float()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    systems.add_arguments(parser)
    parser.add_argument("--sparse", action="store_true", help="gradients of tables have only the rows that were used")
    arguments = parser.parse_args()
    systems.start(arguments.backend)
    torch.manual_seed(1)
    model = systems.wrap(Recommender(arguments.sparse), arguments.backend)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    generator = torch.Generator().manual_seed(dist.get_rank())  # every rank draws other users
    progress = Progress(arguments.steps)
    for _ in progress:
        history, item, likes = pairs(generator)
        loss = nn.functional.binary_cross_entropy_with_logits(model(history, item), likes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.loss = loss.item()

    def run(module):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(module(history, item), likes).backward()

    systems.report(progress, model, *systems.pass_ms(lambda: run(model), lambda: run(model.module)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
