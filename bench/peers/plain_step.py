"""A training step of examples/pytorch without averaging, on one of two hosts: what a step takes at least there.

usage: plain_step.py compute|sockets PROGRAM [ARGUMENTS...]   PROGRAM: transformer, cnn or recommender; started by
                                                              bench/training.py with torchrun's variables (RANK, MASTER_ADDR)

compute  only computes
sockets  two threads also send as many bytes as the gradients have and receive as many, from the first gradient of a step on,
         and half of the gradients is added once, as in an all-reduce of two ranks. The step waits for them at its end

The last line of rank 0 has the median time from a step's first gradient to its last one.
"""
import importlib
import os
import socket
import statistics
import sys
import threading
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "pytorch"))
import systems  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

MODE = sys.argv[1]
PORT = 7300
CHUNK = 1 << 20
DEADLINE_S = 60

backwards = []  # seconds from the first gradient of a step to the last one


def connect():
    """Return the connection of the two ranks."""
    if dist.get_rank() == 0:
        with socket.create_server(("", PORT)) as server:
            server.settimeout(DEADLINE_S)
            dist.barrier()
            connection, _ = server.accept()
    else:
        dist.barrier()
        connection = socket.create_connection((os.environ["MASTER_ADDR"], PORT), DEADLINE_S)
    connection.settimeout(DEADLINE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class Beside(nn.Module):
    """Runs a module, and lets the threads run from the first gradient of a backward pass to the last."""

    def __init__(self, module):
        super().__init__()
        self.module, self.connection = module, connect() if MODE == "sockets" else None
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.size, self.count, self.done = sum(4 * parameter.numel() for parameter in parameters), len(parameters), 0
        self.outgoing, self.incoming = np.zeros(CHUNK, np.uint8), np.zeros(CHUNK, np.uint8)
        self.sum, self.threads = np.zeros(CHUNK // 4, np.float32), []
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self.completed)

    def forward(self, *inputs):
        return self.module(*inputs)

    def completed(self, _):
        if self.done == 0:
            self.begin = time.perf_counter()
            self.threads = [threading.Thread(target=run) for run in (self.send, self.receive) if self.connection]
            for thread in self.threads:
                thread.start()
        self.done = (self.done + 1) % self.count
        if self.done == 0:
            backwards.append(time.perf_counter() - self.begin)
            for thread in self.threads:
                thread.join()

    def send(self):
        for begin in range(0, self.size, CHUNK):
            self.connection.sendall(self.outgoing[:min(CHUNK, self.size - begin)])

    def receive(self):
        for begin in range(0, self.size, CHUNK):
            view = memoryview(self.incoming)[:min(CHUNK, self.size - begin)]
            while view:
                got = self.connection.recv_into(view)
                if got == 0:
                    raise ConnectionError("the other rank has closed the connection")
                view = view[got:]
            if begin < self.size // 2:
                np.add(self.sum, self.incoming.view(np.float32), out=self.sum)


def main():
    systems.wrap = lambda module, backend: Beside(module)
    systems.pass_ms = lambda averaged, alone: (0.0, 0.0)
    program, *words = sys.argv[2:]
    sys.argv = [program, "--backend", "ddp-gloo", *words]
    os.environ["OMP_NUM_THREADS"] = "1"
    importlib.import_module(program).main()
    if int(os.environ["RANK"]) == 0:
        print(f"backward_ms={1000 * statistics.median(backwards[5:] or backwards):.2f}", flush=True)


main()
