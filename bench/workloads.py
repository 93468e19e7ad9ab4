"""The training steps that bench/predict.py predicts: parameters, their ready times, and published times of computing."""
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

MANIFESTS = Path(__file__).resolve().parent / "manifests"
sys.path.insert(0, str(MANIFESTS))
import generate  # noqa: E402

BACKWARD_SHARE = 2 / 3  # of a step's computing: two matrix products for each one of the forward pass


class Step(NamedTuple):
    name: str
    compute_s: float  # forward and backward of a rank
    shapes: list[list[int]]  # of each parameter, in the order of definition
    ready_s: list[float]  # of each parameter, since the step began


def llama_7b(hidden=4096, layers=32, inner=11008, vocabulary=32000):
    """Returns the parameters of LLaMA 7B (Touvron et al. 2023), as generate.py returns them."""
    params = [("tok_embeddings.weight", [vocabulary, hidden])]
    for layer in range(layers):
        name = f"layers.{layer}."
        params += [(f"{name}attention.{part}.weight", [hidden, hidden]) for part in ("wq", "wk", "wv", "wo")]
        params += [(f"{name}feed_forward.{part}.weight", shape)
                   for part, shape in (("w1", [inner, hidden]), ("w2", [hidden, inner]), ("w3", [inner, hidden]))]
        params += [(f"{name}{part}.weight", [hidden]) for part in ("attention_norm", "ffn_norm")]
    return params + [("norm.weight", [hidden]), ("output.weight", [vocabulary, hidden])]


def recorded(name, compute_s):
    """Returns the step of a manifest whose backward pass was recorded. The recorded times are scaled."""
    params = generate.resnet50()
    found = json.loads((MANIFESTS / f"{name}.backward.json").read_text())
    forward = compute_s * (1 - BACKWARD_SHARE)
    scale = (compute_s - forward) / found["backward_ms"]
    return Step(name, compute_s, [shape for _, shape in params],
                [forward + found["ready_ms"][key] * scale for key, _ in params])


def by_size(name, compute_s, params):
    """Returns the step of a model of matrices. The backward pass runs from the last parameter to the first, and takes time
    in proportion to their sizes; the embeddings, which come first, take none."""
    work = [0 if "embedding" in key else math.prod(shape) for key, shape in params]
    forward, done, ready = compute_s * (1 - BACKWARD_SHARE), 0, []
    for size in reversed(work):
        done += size
        ready.append(forward + (compute_s - forward) * done / sum(work))
    return Step(name, compute_s, [shape for _, shape in params], ready[::-1])


def steps():
    """Returns the steps, with the times of one NVIDIA A100 80GB in mixed precision:
    - ResNet-50: 256 images at 2470 a second (NVIDIA DeepLearningExamples, PyTorch resnet50v1.5, 1 GPU)
    - BERT-large: 32 sequences of 512 at 210 a second (the same, PyTorch BERT, pre-training, 1 GPU)
    - LLaMA 7B: 4096 tokens at 10^12 tokens in 82,432 GPU hours (Touvron et al. 2023, section 6 and table 15)
    """
    bert_large = generate.bert_base(hidden=1024, layers=24)
    return [recorded("resnet50", 256 / 2470), by_size("bert_large", 32 / 210, bert_large),
            by_size("llama_7b", 4096 / (1e12 / (82432 * 3600)), llama_7b())]


def buckets(tool, step):
    """Returns the parameters of each bucket of a reducer, in launch order."""
    counts = "\n".join(str(math.prod(shape)) for shape in step.shapes)
    found = subprocess.run([str(tool), "buckets"], input=counts, capture_output=True, text=True)
    if found.returncode != 0:
        raise RuntimeError(found.stderr.strip())
    return [list(map(int, line.split())) for line in found.stdout.splitlines()]
