"""Trains a small convolutional network, one process for each rank. It tells discs, squares and crosses apart.

    torchrun --nproc-per-node 2 examples/pytorch/cnn.py [--backend ddp-gloo|weft|weftsync-copy|weftsync-view] [--steps N]
"""
import argparse

import torch
import torch.distributed as dist
import systems
from progress import Progress
from torch import nn

SIZE, BATCH = 24, 16  # pictures of SIZE x SIZE, BATCH of them a rank


def pictures(generator):
    """Draw a batch: noisy pictures of one shape each, and the shapes' numbers."""
    shapes = torch.randint(3, (BATCH,), generator=generator)
    places = torch.randint(7, SIZE - 7, (BATCH, 2, 1, 1), generator=generator)
    radius = torch.randint(3, 7, (BATCH, 1, 1), generator=generator)
    grid = torch.stack(torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij"))
    x, y = (grid - places).abs().unbind(1)
    inside = (x <= radius) & (y <= radius)
    drawn = torch.stack([x * x + y * y <= radius * radius, inside, inside & ((x < 2) | (y < 2))])
    chosen = drawn[shapes, torch.arange(BATCH)].float()
    return (chosen + 0.3 * torch.randn(BATCH, SIZE, SIZE, generator=generator)).unsqueeze(1), shapes


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))


def network():
    """Make the model, with equal values in every process."""
    torch.manual_seed(1)
    return nn.Sequential(block(1, 32), block(32, 64), block(64, 128), nn.Flatten(), nn.Linear(128 * 9, 512), nn.ReLU(),
                         nn.Linear(512, 3))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    systems.add_arguments(parser)
    arguments = parser.parse_args()
    systems.start(arguments.backend)
    model = systems.wrap(network(), arguments.backend)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(dist.get_rank())  # every rank draws other pictures
    progress = Progress(arguments.steps)
    for _ in progress:
        images, shapes = pictures(generator)
        loss = nn.functional.cross_entropy(model(images), shapes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.loss = loss.item()

    def run(module):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(images), shapes).backward()

    systems.report(progress, model, *systems.pass_ms(lambda: run(model), lambda: run(model.module)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
