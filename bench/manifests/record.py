#!/usr/bin/env python3
"""Records when each gradient of a manifest's model is ready in PyTorch's backward, on this machine's CPU.

usage: record.py [--threads 1] [--batch 0] [--steps 5] [MODEL...]     models: resnet50 bert_base gpt2; needs torch

Writes MODEL.backward.json beside the manifests: per parameter the median over the steps, in ms since backward began.
`weft bench step --replay` waits for these times before it reports each gradient ready. The models have random weights and
random data, because the values do not affect the times.
"""
import argparse
import json
import platform
import statistics
import time
from datetime import date
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

HERE = Path(__file__).resolve().parent
BATCH = {"resnet50": 8, "bert_base": 4, "gpt2": 2}  # of 224 x 224 pixels, 128 tokens, 256 tokens


class Named:
    """Holds the parameters of a manifest, which the functions below find by name."""

    def __init__(self, model):
        params = json.loads((HERE / f"{model}.json").read_text())["params"]
        torch.manual_seed(1)
        self.values = {p["name"]: nn.Parameter(torch.randn(p["shape"]) * 0.02) for p in params}

    def __getitem__(self, name):
        return self.values[name]

    def linear(self, name, x):
        return functional.linear(x, self[name + ".weight"], self[name + ".bias"])

    def conv1d(self, name, x):  # GPT-2 stores its matrices transposed
        return x @ self[name + ".weight"] + self[name + ".bias"]

    def layer_norm(self, name, x):
        return functional.layer_norm(x, x.shape[-1:], self[name + ".weight"], self[name + ".bias"])

    def batch_norm(self, name, x):
        return functional.batch_norm(x, None, None, self[name + ".weight"], self[name + ".bias"], training=True)


def attention(q, k, v, heads, causal):
    def split(x):
        return x.view(*x.shape[:2], heads, -1).transpose(1, 2)
    mixed = functional.scaled_dot_product_attention(split(q), split(k), split(v), is_causal=causal)
    return mixed.transpose(1, 2).reshape(q.shape)


def resnet50(p, batch):
    def conv(name, x, stride=1, padding=0):
        return functional.conv2d(x, p[name + ".weight"], stride=stride, padding=padding)

    x = functional.relu(p.batch_norm("bn1", conv("conv1", torch.randn(batch, 3, 224, 224), 2, 3)))
    x = functional.max_pool2d(x, 3, 2, 1)
    for stage, blocks in enumerate([3, 4, 6, 3]):
        for block in range(blocks):
            name, stride = f"layer{stage + 1}.{block}.", 2 if stage > 0 and block == 0 else 1
            y = functional.relu(p.batch_norm(name + "bn1", conv(name + "conv1", x)))
            y = functional.relu(p.batch_norm(name + "bn2", conv(name + "conv2", y, stride, 1)))
            y = p.batch_norm(name + "bn3", conv(name + "conv3", y))
            if block == 0:
                x = p.batch_norm(name + "downsample.1", conv(name + "downsample.0", x, stride))
            x = functional.relu(x + y)
    return functional.cross_entropy(p.linear("fc", x.mean((2, 3))), torch.randint(1000, (batch,)))


def bert_base(p, batch, tokens=128):
    words = torch.randint(30522, (batch, tokens))
    x = functional.embedding(words, p["embeddings.word_embeddings.weight"])
    x = x + p["embeddings.position_embeddings.weight"][:tokens] + p["embeddings.token_type_embeddings.weight"][0]
    x = p.layer_norm("embeddings.LayerNorm", x)
    for layer in range(12):
        name = f"encoder.layer.{layer}."
        q, k, v = (p.linear(f"{name}attention.self.{part}", x) for part in ("query", "key", "value"))
        y = p.linear(name + "attention.output.dense", attention(q, k, v, 12, False))
        x = p.layer_norm(name + "attention.output.LayerNorm", x + y)
        y = p.linear(name + "output.dense", functional.gelu(p.linear(name + "intermediate.dense", x)))
        x = p.layer_norm(name + "output.LayerNorm", x + y)
    return torch.tanh(p.linear("pooler.dense", x[:, 0])).square().mean() + x.square().mean()


def gpt2(p, batch, tokens=256):
    words = torch.randint(50257, (batch, tokens))
    x = functional.embedding(words, p["wte.weight"]) + p["wpe.weight"][:tokens]
    for layer in range(12):
        name = f"h.{layer}."
        q, k, v = p.conv1d(name + "attn.c_attn", p.layer_norm(name + "ln_1", x)).chunk(3, -1)
        x = x + p.conv1d(name + "attn.c_proj", attention(q.contiguous(), k.contiguous(), v.contiguous(), 12, True))
        y = functional.gelu(p.conv1d(name + "mlp.c_fc", p.layer_norm(name + "ln_2", x)))
        x = x + p.conv1d(name + "mlp.c_proj", y)
    logits = p.layer_norm("ln_f", x) @ p["wte.weight"].T
    return functional.cross_entropy(logits.flatten(0, 1), words.flatten())


def record(model, forward, batch, steps):
    params = Named(model)
    seen = {name: [] for name in params.values}
    began = 0.0

    def note(name):
        return lambda _: seen[name].append((time.perf_counter() - began) * 1e3)

    for name, value in params.values.items():
        value.register_post_accumulate_grad_hook(note(name))
    whole = []
    for _ in range(steps + 1):
        loss = forward(params, batch)
        began = time.perf_counter()
        loss.backward()
        whole.append((time.perf_counter() - began) * 1e3)
        for value in params.values.values():
            value.grad = None
    ready = {name: round(statistics.median(times[1:]), 3) for name, times in seen.items()}  # the first step is the warm-up
    return {"model": model, "batch": batch, "torch": torch.__version__, "threads": torch.get_num_threads(),
            "machine": f"{platform.machine()}, {date.today()}", "backward_ms": round(statistics.median(whole[1:]), 3),
            "ready_ms": ready}


def main():
    models = {function.__name__: function for function in (resnet50, bert_base, gpt2)}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(models), metavar="MODEL", help="models to record (default: all)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=0, help="default: " + str(BATCH))
    parser.add_argument("--steps", type=int, default=5, help="number of steps, whose medians are recorded")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for model in options.models:
        if model not in models:
            parser.error(f"unknown model {model!r}, expected some of: {', '.join(models)}")
        trace = record(model, models[model], options.batch or BATCH[model], options.steps)
        path = HERE / f"{model}.backward.json"
        lines = ",\n".join(f'    "{name}": {ms}' for name, ms in trace.pop("ready_ms").items())
        head = json.dumps(trace, indent=2)[:-2]
        path.write_text(head + ',\n  "ready_ms": {\n' + lines + "\n  }\n}\n")
        print(f"{path}: backward of {model}, batch {trace['batch']}: {trace['backward_ms']:.0f} ms")


if __name__ == "__main__":
    main()
