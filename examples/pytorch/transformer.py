"""Trains a small transformer on text, one process for each rank. Its text is the source code of Python's argparse.

    torchrun --nproc-per-node 2 examples/pytorch/transformer.py [--backend ddp-gloo|weft|weftsync-copy|weftsync-view] [--steps N]
"""
import argparse
import inspect

import torch
import torch.distributed as dist
import systems
from progress import Progress
from torch import nn

HEADS, LENGTH, BATCH = 4, 64, 4  # BATCH sequences a rank


class Model(nn.Module):
    """Predicts the next byte."""

    def __init__(self, width, layers):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, HEADS, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)

    def forward(self, text):
        places = torch.arange(text.shape[1])
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        return self.head(self.layers(self.bytes(text) + self.places(places), mask, is_causal=True))


def loss_of(module, sequences):
    return nn.functional.cross_entropy(module(sequences[:, :-1]).flatten(0, 1), sequences[:, 1:].flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    systems.add_arguments(parser)
    parser.add_argument("--width", type=int, default=256, help="of the layers; a multiple of 4")
    parser.add_argument("--layers", type=int, default=4, help="512 and 7 make 22 million parameters")
    arguments = parser.parse_args()
    systems.start(arguments.backend)
    torch.manual_seed(1)
    text = torch.tensor(list(inspect.getsource(argparse).encode()))
    model = systems.wrap(Model(arguments.width, arguments.layers), arguments.backend)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())  # every rank reads other parts of the text
    progress = Progress(arguments.steps)
    for _ in progress:
        begins = torch.randint(len(text) - LENGTH - 1, (BATCH,), generator=generator)
        sequences = torch.stack([text[begin:begin + LENGTH + 1] for begin in begins])
        loss = loss_of(model, sequences)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.loss = loss.item()

    def run(module):
        optimizer.zero_grad()
        loss_of(module, sequences).backward()

    systems.report(progress, model, *systems.pass_ms(lambda: run(model), lambda: run(model.module)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
