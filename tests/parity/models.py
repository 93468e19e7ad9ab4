"""The models that are trained through both: small, each with a feature that makes gradients difficult.

A model has batch(generator), which returns its input of one rank and one micro-batch, and loss(batch). The
parameters that it uses may depend on `rank` and `step`, which the harness sets.
"""
import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    rank, size, step = 0, 1, 0
    uses_all = True  # every parameter, on every rank, in every step
    sparse = False
    has_complex = False

    def batch(self, generator):
        return torch.randn(4, 12, generator=generator)

    def loss(self, batch):
        return self(batch).float().square().mean()


class Mlp(Model):
    """Dense layers, a scalar parameter, and one of size zero."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 5))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.empty = nn.Parameter(torch.zeros(0, 3))

    def forward(self, x):
        return self.layers(x) * self.scale + self.empty.sum()


class ResNet(Model):
    """Convolutions with batch normalisation, whose buffers change, and channels-last weights."""

    class Block(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.one, self.two = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
            self.norm_one, self.norm_two = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

        def forward(self, x):
            return F.relu(x + self.norm_two(self.two(F.relu(self.norm_one(self.one(x))))))

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, bias=False)
        self.blocks = nn.Sequential(self.Block(8), self.Block(8))
        self.head = nn.Linear(8, 4)
        self.to(memory_format=torch.channels_last)

    def batch(self, generator):
        return torch.randn(2, 3, 8, 8, generator=generator).to(memory_format=torch.channels_last)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Transformer(Model):
    """Two layers; the embedding also is the head's weight, so its gradient is a sum of two."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 30, bias=False)
        self.head.weight = self.embedding.weight

    def batch(self, generator):
        return torch.randint(0, 30, (2, 7), generator=generator)

    def loss(self, batch):
        logits = self.head(self.encoder(self.embedding(batch)))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())


class MixedTypes(Model):
    """Layers of f32, bf16, f16 and f64, so buckets of four types."""

    def __init__(self):
        super().__init__()
        types = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
        self.layers = nn.ModuleList(nn.Linear(12, 12, dtype=dtype) for dtype in types * 2)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x.to(layer.weight.dtype)))
        return x


class Branches(Model):
    """A mixture whose branches are used on some ranks, in some steps, in some micro-batches. Two branches
    share a weight."""

    uses_all = False

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(12, 8)
        self.branches = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
        self.branches[4].weight = self.branches[1].weight
        self.batches = 0

    def forward(self, x):
        self.batches += 1
        x = torch.tanh(self.stem(x))
        x = self.branches[0](x)
        if (self.rank + self.step) % 2 == 0:
            x = x + self.branches[1](x)
        if self.rank == 0:
            x = x * self.branches[2](x)
        if self.step != 1:
            x = x - self.branches[3](x)
        if self.step > 0:
            x = x + self.branches[4](x)
        if self.batches % 3 == 1:
            x = x + self.branches[5](x)
        return x


class ComplexWeights(Model):
    """Layers of complex numbers, one of them transposed in memory, and a real layer."""

    has_complex = True

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.randn(12, 9, dtype=torch.complex64) / 12)
        self.second = nn.Parameter(torch.randn(5, 9, dtype=torch.complex128).t() / 9)
        self.phase = nn.Parameter(torch.tensor(0.6 - 0.8j))
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        x = x.to(torch.complex64) @ self.first * self.phase
        return self.head((x.to(torch.complex128) @ self.second).abs().float())


class SparseEmbedding(Model):
    """An embedding with sparse gradients, and a dense layer."""

    sparse = True

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(40, 6, sparse=True)
        self.head = nn.Linear(6, 3)

    def batch(self, generator):
        return torch.randint(0, 40, (3, 5), generator=generator)

    def forward(self, x):
        return self.head(self.embedding(x).mean(1))


class Loss(nn.Module):
    """DDP synchronises what forward computes, so this module's forward returns the loss."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, batch):
        return self.model.loss(batch)


MODELS = {"mlp": Mlp, "resnet": ResNet, "transformer": Transformer, "mixed": MixedTypes, "branches": Branches,
          "sparse": SparseEmbedding, "complex": ComplexWeights}
