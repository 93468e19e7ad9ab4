#!/usr/bin/env python3
"""Writes the manifests: names and shapes of the parameters of three well-known models, in order of definition.

resnet50   torchvision's names; He et al. 2015, table 1: bottlenecks 3, 4, 6, 3, widths 64 to 512, expansion 4
bert_base  Hugging Face's names; Devlin et al. 2018: 12 layers, hidden 768, vocabulary 30522, with pooler
gpt2       Hugging Face's names; Radford et al. 2019: 12 layers, hidden 768, vocabulary 50257, weights tied
"""
import json
from math import prod
from pathlib import Path


def resnet50():
    params = []

    def conv(name, out, into, kernel):
        params.append((name + ".weight", [out, into, kernel, kernel]))

    def pair(name, size):
        params.extend([(name + ".weight", [size]), (name + ".bias", [size])])

    conv("conv1", 64, 3, 7)
    pair("bn1", 64)
    into = 64
    for stage, blocks in enumerate([3, 4, 6, 3]):
        width = 64 << stage
        for block in range(blocks):
            name = f"layer{stage + 1}.{block}."
            for index, (out, from_, kernel) in enumerate([(width, into, 1), (width, width, 3), (4 * width, width, 1)]):
                conv(f"{name}conv{index + 1}", out, from_, kernel)
                pair(f"{name}bn{index + 1}", out)
            if block == 0:
                conv(name + "downsample.0", 4 * width, into, 1)
                pair(name + "downsample.1", 4 * width)
            into = 4 * width
    params.extend([("fc.weight", [1000, 2048]), ("fc.bias", [1000])])
    return params


def linear(name, out, into):
    return [(name + ".weight", [out, into]), (name + ".bias", [out])]


def norm(name, size):
    return [(name + ".weight", [size]), (name + ".bias", [size])]


def bert_base(hidden=768, layers=12, vocabulary=30522, positions=512):
    params = [("embeddings.word_embeddings.weight", [vocabulary, hidden]),
              ("embeddings.position_embeddings.weight", [positions, hidden]),
              ("embeddings.token_type_embeddings.weight", [2, hidden])] + norm("embeddings.LayerNorm", hidden)
    for layer in range(layers):
        name = f"encoder.layer.{layer}."
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            params += linear(f"{name}attention.{part}", hidden, hidden)
        params += norm(name + "attention.output.LayerNorm", hidden)
        params += linear(name + "intermediate.dense", 4 * hidden, hidden)
        params += linear(name + "output.dense", hidden, 4 * hidden)
        params += norm(name + "output.LayerNorm", hidden)
    return params + linear("pooler.dense", hidden, hidden)


def gpt2(hidden=768, layers=12, vocabulary=50257, positions=1024):
    def conv1d(name, into, out):  # stored transposed
        return [(name + ".weight", [into, out]), (name + ".bias", [out])]

    params = [("wte.weight", [vocabulary, hidden]), ("wpe.weight", [positions, hidden])]
    for layer in range(layers):
        name = f"h.{layer}."
        params += norm(name + "ln_1", hidden) + conv1d(name + "attn.c_attn", hidden, 3 * hidden)
        params += conv1d(name + "attn.c_proj", hidden, hidden) + norm(name + "ln_2", hidden)
        params += conv1d(name + "mlp.c_fc", hidden, 4 * hidden) + conv1d(name + "mlp.c_proj", 4 * hidden, hidden)
    return params + norm("ln_f", hidden)


def main():
    expected = {"resnet50": (161, 25_557_032), "bert_base": (199, 109_482_240), "gpt2": (148, 124_439_808)}
    for model in (resnet50, bert_base, gpt2):
        name, params = model.__name__, model()
        assert (len(params), sum(prod(shape) for _, shape in params)) == expected[name], name
        lines = ",\n".join("  " + json.dumps({"name": key, "shape": shape}) for key, shape in params)
        path = Path(__file__).parent / f"{name}.json"
        path.write_text(f'{{"name": "{name}", "params": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
