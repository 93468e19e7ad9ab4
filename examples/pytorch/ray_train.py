"""Trains the network of cnn.py with Ray Train, which starts the processes.

    python3 examples/pytorch/ray_train.py [--ddp weft|torch] [--steps N] [--workers N]
"""
import argparse

import ray.train.torch
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def train(arguments):
    """Train on one worker. Its process group has the backend weft."""
    import cnn
    import torch
    import torch.distributed as dist
    import weftsync.torch
    model = cnn.network()
    if arguments["ddp"] == "weft":  # parallel_strategy: Ray does not wrap the model again
        model = ray.train.torch.prepare_model(weftsync.torch.DistributedDataParallel(model), parallel_strategy=None)
    else:
        model = ray.train.torch.prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(dist.get_rank())  # every worker draws other pictures
    for _ in range(arguments["steps"]):
        images, shapes = cnn.pictures(generator)
        loss = torch.nn.functional.cross_entropy(model(images), shapes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    loss = loss.detach()
    dist.all_reduce(loss, dist.ReduceOp.AVG)
    ray.train.report({"loss": loss.item()})
    if dist.get_rank() == 0:
        print(f"backend={dist.get_backend()} ddp={type(model).__module__} loss={loss.item():.6f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60, help="at least 1")
    parser.add_argument("--ddp", choices=("weft", "torch"), default="weft", help="whose DistributedDataParallel")
    parser.add_argument("--workers", type=int, default=2)
    arguments = vars(parser.parse_args())
    TorchTrainer(train, train_loop_config=arguments, torch_config=TorchConfig(backend="weft"),
                 scaling_config=ScalingConfig(num_workers=arguments["workers"])).fit()


if __name__ == "__main__":
    main()
