"""Trains the network of cnn.py with Hugging Face accelerate, one process for each rank.

    torchrun --nproc-per-node 2 examples/pytorch/accelerate_train.py [--ddp weft|torch] [--steps N]
"""
import argparse

import cnn
import torch
import torch.distributed as dist
import weftsync.torch  # registers the backend "weft"
from accelerate import Accelerator
from torch import nn


def data(batches):
    """Draw pictures. All ranks draw the same ones, and accelerate gives every rank some of the batches."""
    generator = torch.Generator().manual_seed(2)
    images, shapes = zip(*[cnn.pictures(generator) for _ in range(batches)])
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.cat(images), torch.cat(shapes)), cnn.BATCH)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60, help="at least 1")
    parser.add_argument("--ddp", choices=("weft", "torch"), default="weft", help="whose DistributedDataParallel")
    arguments = parser.parse_args()
    dist.init_process_group("weft")  # accelerate uses this group, but cannot make it: on the CPU it knows gloo and mpi
    accelerator = Accelerator(cpu=True)
    if arguments.ddp == "weft":
        torch.nn.parallel.DistributedDataParallel = weftsync.torch.DistributedDataParallel  # which accelerate creates
    model = accelerator.prepare(cnn.network())
    optimizer, batches = accelerator.prepare(torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
                                             data(arguments.steps * dist.get_world_size()))
    for images, shapes in batches:
        loss = nn.functional.cross_entropy(model(images), shapes)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
    accelerator.print(f"loss={accelerator.reduce(loss.detach(), 'mean'):.6f}", flush=True)
    accelerator.end_training()  # also destroys the process group


if __name__ == "__main__":
    main()
