"""PyTorch's features around DistributedDataParallel, compared with the reducer's own: clipping by norm,
ZeroRedundancyOptimizer.

Functions as in behaviours.py.
"""
import copy

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from binding import Synchronised


def network():
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(6, 17), nn.Tanh(), nn.Linear(17, 5), nn.Tanh(), nn.Linear(5, 3))


def loss(module, rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return module(torch.randn(8, 6, generator=generator)).square().sum()


def close(ours, theirs):
    return torch.allclose(ours.double(), theirs.double(), rtol=1e-4, atol=1e-6)


def clip_grad_norm(comm):
    """gradients that are clipped during the reduction equal those that clip_grad_norm_ clips afterwards"""
    problems = []
    for limit in (0.1, 1e6):
        ours = network()
        ddp = DistributedDataParallel(copy.deepcopy(ours))
        synced = Synchronised(ours, comm, norms=True, bucket_limits=[256])
        synced.finish_options = {"clip_norm": limit}
        synced.backward(loss(ours, comm.rank, 0))
        loss(ddp, comm.rank, 0).backward()
        each = [parameter.grad.norm() for parameter in ddp.parameters()]
        total = nn.utils.clip_grad_norm_(ddp.parameters(), limit)
        norms = synced.reducer.norms()
        if not close(torch.tensor(norms.total), total):
            problems.append(f"limit {limit}: the norm is {norms.total}, not {total}")
        if not close(torch.tensor(norms.params), torch.stack(each)):
            problems.append(f"limit {limit}: norms of the parameters")
        problems += [f"limit {limit}: {name}" for (name, one), two in zip(ours.named_parameters(), ddp.parameters())
                     if not close(one.grad, two.grad)]
        synced.close()
    return problems


def zero_redundancy(comm):
    """owners that update their parameters, and a gather, give the weights of ZeroRedundancyOptimizer"""
    problems = []
    for own_whole in (False, True):
        ours = network()
        ddp = DistributedDataParallel(copy.deepcopy(ours))
        optimiser = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.05, momentum=0.5)
        synced = Synchronised(ours, comm, sharded=True, own_whole=own_whole, bucket_limits=[256])
        momentum = {}
        for step in range(4):
            ddp.zero_grad()
            loss(ddp, comm.rank, step).backward()
            optimiser.step()
            synced.zero_grad()
            synced.backward(loss(ours, comm.rank, step))
            for number, each in enumerate(synced.reducer.owned()):
                parameter, part = synced.parameters[each.param], slice(each.offset, each.offset + each.count)
                grad = parameter.grad.reshape(-1)[part]
                momentum[number] = momentum[number] * 0.5 + grad if step else grad.clone()
                with torch.no_grad():
                    parameter.view(-1)[part] -= 0.05 * momentum[number]
            synced.reducer.gather_params()
            for index in range(len(synced.parameters)):
                synced.reducer.wait_param(index)
            problems += [f"own_whole {own_whole}, step {step}: {name}" for (name, one), two in
                         zip(ours.named_parameters(), ddp.parameters()) if not close(one, two)]
        synced.close()
    return problems


SHARD_BEHAVIOURS = {function.__name__: function for function in (clip_grad_norm, zero_redundancy)}
