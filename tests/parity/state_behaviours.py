"""DistributedDataParallel's handling of a model's state, which the reducer leaves to the program: functions
as in behaviours.py."""
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import weftsync as weft
from binding import STATE_TYPES, Synchronised


class Normalised(nn.Module):
    """A layer with running statistics, a second type, and a weight that is not trained."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6)
        self.frozen = nn.Parameter(torch.randn(6, dtype=torch.float64), requires_grad=False)
        self.register_buffer("mask", torch.rand(3, 5).t() > 0.5)
        self.register_buffer("halves", torch.randn(7).half())

    def forward(self, x):
        return (self.norm(self.first(x)) * self.frozen).square().mean()


def different(ours, theirs, what):
    """Return the names of parameters and buffers that are not bitwise equal."""
    theirs = theirs.state_dict()
    return [f"{what}: {name}" for name, tensor in ours.state_dict().items() if not torch.equal(tensor, theirs[name])]


def inputs(comm, step):
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(100 * step + comm.rank))


def state_broadcast(comm):
    """ranks begin with different states, and get rank 0's: parameters, frozen ones and buffers of all types
    (case 86)"""
    torch.manual_seed(comm.rank)
    ours = Normalised()
    ddp = DistributedDataParallel(copy.deepcopy(ours))
    synced, problems = Synchronised(ours, comm, keep_values=True), []
    try:
        synced.reducer.check()
        problems.append("the check finds no difference")
    except weft.WeftError as error:
        if "'first.weight') is the first that differs" not in str(error):
            problems.append(f"the check says: {error}")
    synced.broadcast_state()
    synced.reducer.check()
    problems += different(ours, ddp.module, "after the broadcast")
    synced.close()
    return problems


def coalesced_broadcast(comm):
    """tensors of many types and layouts are broadcast from every rank in small chunks, as in PyTorch's
    coalesced broadcast (case 98)"""
    problems = []
    for root in range(comm.size):
        generator = torch.Generator().manual_seed(10 * root + comm.rank)
        ours = [torch.randn(shape, generator=generator).mul(50).to(kind) for shape in ((), (3,), (4, 5), (41, 7), (0, 2))
                for kind in STATE_TYPES]
        ours.append(torch.randn(6, 4, generator=generator).t())
        theirs = [tensor.clone() for tensor in ours]
        dist._broadcast_coalesced(dist.group.WORLD, theirs, 256, root)
        params = [weft.Param(str(number), tensor.shape, STATE_TYPES[tensor.dtype], tensor.stride(),
                             value=tensor.data_ptr(), flags="state_only") for number, tensor in enumerate(ours)]
        with weft.Reducer(comm, params + [weft.Param("with a gradient", (1,))], keep_values=True) as reducer:
            reducer.broadcast(root, what="state", chunk_bytes=256, in_flight=3)
        problems += [f"root {root}: tensor {number}, {one.dtype}" for number, (one, two) in enumerate(zip(ours, theirs))
                     if not torch.equal(one, two)]
    return problems


class OwnPart(nn.Module):
    """A layer that all ranks share, and a layer of the rank's own, whose shape differs between ranks."""

    def __init__(self, rank):
        super().__init__()
        torch.manual_seed(5)
        self.shared = nn.Linear(4, 3)
        self.own = nn.Linear(3, 2 + rank)
        self.register_buffer("seen", torch.zeros(1 + rank))

    def forward(self, x):
        return self.own(self.shared(x)).square().sum()


def ignored_differ(comm):
    """ignored parameters may differ in shape, and keep their local gradient; the rest is synchronised (case
    87)"""
    names = ["own.weight", "own.bias", "seen"]
    ours = OwnPart(comm.rank)
    theirs, alone = copy.deepcopy(ours), copy.deepcopy(ours)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(theirs, names)
    ddp, synced, problems = DistributedDataParallel(theirs), Synchronised(ours, comm, ignored=names), []
    for step in range(3):
        for module in (ours, theirs, alone):
            module.zero_grad()
        ddp(inputs(comm, step)).backward()
        synced.backward(ours(inputs(comm, step)))
        alone(inputs(comm, step)).backward()
        for (name, one), two, three in zip(ours.named_parameters(), theirs.parameters(), alone.parameters()):
            close = torch.equal(one.grad, two.grad) or (comm.size > 2 and torch.allclose(one.grad, two.grad, rtol=1e-5))
            if not close or (name in names and not torch.equal(one.grad, three.grad)):
                problems.append(f"step {step}: {name}")
    synced.broadcast_state()
    problems += different(ours, theirs, "after the broadcast")
    synced.close()
    return problems


def buffers_by_hook(comm):
    """the program averages buffers before each step, where DDP uses a buffer hook (case 85)"""
    def average(state, buffers):
        return [dist.all_reduce(buffer.div_(comm.size), async_op=True).get_future() for buffer in buffers.values()
                if buffer.is_floating_point()]

    torch.manual_seed(3)
    ours = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
    ddp, problems = DistributedDataParallel(copy.deepcopy(ours)), []
    ddp._register_buffer_comm_hook(None, average, torch.nn.parallel.distributed._BufferCommHookLocation.POST_FORWARD)
    synced = Synchronised(ours, comm)
    for step in range(3):
        ddp(inputs(comm, step)).square().sum().backward()
        with synced.step():
            loss = ours(inputs(comm, step)).square().sum()
            for buffer in ours.buffers():  # the program's own collectives, inside a step
                if buffer.is_floating_point():
                    comm.all_reduce(buffer, op=weft.Op.AVG)
            loss.backward()
        for (name, one), two in zip(ours.named_buffers(), ddp.module.buffers()):
            if not torch.allclose(one, two, rtol=1e-6):
                problems.append(f"step {step}: {name}: {one} {two}")
    synced.close()
    return problems


STATE_BEHAVIOURS = {function.__name__: function for function in (state_broadcast, coalesced_broadcast, ignored_differ,
                                                                 buffers_by_hook)}
