"""Trains a small transformer on text, one process for each rank. Its text is the source code of Python's argparse.

    torchrun --nproc-per-node 2 examples/pytorch/transformer.py [--steps N]
"""
import argparse
import inspect

import torch
import torch.distributed as dist
import weftsync.torch  # noqa: F401  registers the backend
from progress import Progress
from torch import nn

WIDTH, LAYERS, HEADS, LENGTH, BATCH = 256, 4, 4, 64, 4  # BATCH sequences a rank


class Model(nn.Module):
    """Predicts the next byte."""

    def __init__(self):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, text):
        places = torch.arange(text.shape[1])
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        return self.head(self.layers(self.bytes(text) + self.places(places), mask, is_causal=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    dist.init_process_group("weft")
    torch.manual_seed(1)
    text = torch.tensor(list(inspect.getsource(argparse).encode()))
    model = nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())  # every rank reads other parts of the text
    progress = Progress(arguments.steps)
    for _ in progress:
        begins = torch.randint(len(text) - LENGTH - 1, (BATCH,), generator=generator)
        sequences = torch.stack([text[begin:begin + LENGTH + 1] for begin in begins])
        loss = nn.functional.cross_entropy(model(sequences[:, :-1]).flatten(0, 1), sequences[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.loss = loss.item()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
