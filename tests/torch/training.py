"""Real training over the backend weft: each case compares with the same training in one process, without a group.

rank.py runs the cases on all ranks. Every case trains on one global batch a step, of which each rank has a part.
"""
import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from behaviours import expect
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

INPUTS, CLASSES, STEPS = 16, 4, 20
PARTS = 2 * int(os.environ.get("WORLD_SIZE", 1))  # each rank's part of a batch is halved again
BATCH, WIDTH = (-(-least // PARTS) * PARTS for least in (32, 24))  # all ranks have equal parts of them
ADAM = {"lr": 0.01, "eps": 1e-4}  # a gradient that is mere rounding, far below eps, moves no parameter


def batches(steps=STEPS):
    """Return the global batches: points of clusters, and the clusters' numbers."""
    generator = torch.Generator().manual_seed(11)
    centres = torch.randn(CLASSES, INPUTS, generator=generator)
    made = []
    for _ in range(steps):
        labels = torch.randint(CLASSES, (BATCH,), generator=generator)
        made.append((centres[labels] + torch.randn(BATCH, INPUTS, generator=generator) / 2, labels))
    return made


def mine(batch):
    """Return this rank's part of a batch."""
    return [one.chunk(dist.get_world_size())[dist.get_rank()] for one in batch]


class Block(nn.Module):
    """One layer of a transformer. Its attention has no biases: the gradient of the keys' one is mere rounding."""

    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, bias=False, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        y = self.first(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(torch.relu(self.up(self.second(x))))


class Transformer(nn.Module):
    """A classifier: the inputs of a sample are its sequence."""

    def __init__(self, width=12, layers=2):
        super().__init__()
        self.embed = nn.Linear(1, width)
        self.place = nn.Parameter(torch.randn(INPUTS, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        x = self.embed(x.unsqueeze(-1)) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def perceptron():
    return nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))


def seeded(make):
    torch.manual_seed(5)
    return make()


def adam(model):
    return torch.optim.Adam(model.parameters(), **ADAM)


def step(model, optimizer, batch):
    """Train one step. Returns the loss."""
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    return loss.item()


def reference(make, steps=STEPS):
    """Train in one process. Returns the model."""
    model = seeded(make)
    optimizer = adam(model)
    losses = [step(model, optimizer, batch) for batch in batches(steps)]
    expect(losses[-1] < 0.7 * losses[0], "the reference learns", losses)
    return model


def whole(value):
    return value.full_tensor() if isinstance(value, DTensor) else value


def expect_equal(model, other, what):
    """Expect the parameters to be those of other, up to the order of sums."""
    for (name, value), (_, wanted) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        value, wanted = whole(value.detach()), whole(wanted.detach())
        expect(torch.allclose(value, wanted, rtol=1e-3, atol=2e-4), f"{what}: parameter {name}",
               (value - wanted).abs().max())


def weft_train_ddp():
    """DistributedDataParallel with accumulated gradients trains as one process does"""
    model = nn.parallel.DistributedDataParallel(seeded(Transformer), bucket_cap_mb=0.005)
    optimizer = adam(model)
    for batch in batches():
        halves = list(zip(*(one.chunk(2) for one in mine(batch))))
        optimizer.zero_grad()
        with model.no_sync():
            (nn.functional.cross_entropy(model(halves[0][0]), halves[0][1]) / 2).backward()
        (nn.functional.cross_entropy(model(halves[1][0]), halves[1][1]) / 2).backward()
        optimizer.step()
    expect_equal(model.module, reference(Transformer), "DDP")


def sharded(mesh):
    """Return a transformer whose layers fully_shard has divided among the ranks."""
    model = seeded(Transformer)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def weft_train_fsdp2():
    """fully_shard trains as one process does, and clips gradients"""
    model = sharded(init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = adam(model)
    for batch in batches():
        step(model, optimizer, mine(batch))
    expect(all(isinstance(one, DTensor) for one in model.parameters()), "parameters are sharded")
    single = reference(Transformer)
    expect_equal(model, single, "fully_shard")
    batch = batches(STEPS + 1)[-1]
    for one, part in ((model, mine(batch)), (single, batch)):
        one.zero_grad()
        nn.functional.cross_entropy(one(part[0]), part[1]).backward()
    norms = [float(whole(nn.utils.clip_grad_norm_(one.parameters(), 0.1))) for one in (model, single)]
    expect(abs(norms[0] - norms[1]) < 0.02 * norms[1], "norm of the gradients", norms)


def weft_train_fsdp2_mixed():
    """fully_shard with 16-bit parameters and gradients learns"""
    from torch.distributed.fsdp import MixedPrecisionPolicy
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    model = fully_shard(seeded(perceptron), mesh=init_device_mesh("cpu", (dist.get_world_size(),)), mp_policy=policy)
    optimizer = adam(model)
    losses = [step(model, optimizer, mine(batch)) for batch in batches()]
    expect(losses[-1] < 0.7 * losses[0], "the loss falls", losses)


def weft_train_dtensor():
    """tensor parallelism with DTensor trains as one process does"""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = parallelize_module(seeded(perceptron), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = adam(model)
    for batch in batches():
        step(model, optimizer, batch)  # every rank has the whole batch and a part of each layer
    expect_equal(model, reference(perceptron), "tensor parallelism")
    rows = distribute_tensor(torch.arange(24.0).view(8, 3), mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    expect(torch.equal(columns.full_tensor(), torch.arange(24.0).view(8, 3)), "redistributed", columns)


def weft_train_functional():
    """a sharded optimizer written with functional collectives trains as one process does"""
    size, group = dist.get_world_size(), dist.group.WORLD
    model = seeded(perceptron)
    parameters = list(model.parameters())
    total = sum(one.numel() for one in parameters)
    padding = -total % size
    flat = torch.cat([one.detach().flatten() for one in parameters] + [torch.zeros(padding)])
    own = nn.Parameter(flat.chunk(size)[dist.get_rank()].clone())
    optimizer = torch.optim.Adam([own], **ADAM)
    for batch in batches():
        part = mine(batch)
        model.zero_grad()
        nn.functional.cross_entropy(model(part[0]), part[1]).backward()
        gradient = torch.cat([one.grad.flatten() for one in parameters] + [torch.zeros(padding)])
        own.grad = functional.reduce_scatter_tensor(gradient, "avg", 0, group).wait()
        optimizer.step()
        values = functional.all_gather_tensor(own.detach(), 0, group).wait()[:total]
        with torch.no_grad():
            for one, value in zip(parameters, values.split([one.numel() for one in parameters])):
                one.copy_(value.view_as(one))
    expect_equal(model, reference(perceptron), "functional collectives")


def weft_train_checkpoint():
    """training continues from torch.distributed.checkpoint, saved at once and in the background, with the same bits"""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    path = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(path)
    model = sharded(mesh)
    optimizer = adam(model)
    middle = STEPS // 2
    for batch in batches()[:middle]:
        step(model, optimizer, mine(batch))
    names = [os.path.join(path[0], name) for name in ("first", "second")]
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    checkpoint.save(state, checkpoint_id=names[0])
    background = checkpoint.async_save(state, checkpoint_id=names[1])
    background.result()
    for batch in batches()[middle:]:
        step(model, optimizer, mine(batch))
    for name in names:
        loaded = sharded(mesh)
        again = adam(loaded)
        state = dict(zip(("model", "optimizer"), get_state_dict(loaded, again)))
        checkpoint.load(state, checkpoint_id=name)
        set_state_dict(loaded, again, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        for batch in batches()[middle:]:
            step(loaded, again, mine(batch))
        for value, wanted in zip(loaded.parameters(), model.parameters(), strict=True):
            expect(torch.equal(value.to_local(), wanted.to_local()), f"bits after {name}", value, wanted)


CASES = {name: value for name, value in list(globals().items()) if name.startswith("weft_")}
