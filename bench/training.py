"""Measures whole training steps of PyTorch for bench/peers.py: the programs of examples/pytorch, in each of their ways."""
import os
import re
import subprocess
import sys

from systems import ROOT, say

sys.path.append(str(ROOT / "tools"))
import torch_venv  # noqa: E402

EXAMPLES = ROOT / "examples" / "pytorch"
WAYS = {"ddp-gloo": "DDP on Gloo", "weft": "DDP on backend weft", "weftsync-copy": "Weft's DDP, copy", "weftsync-view": "Weft's DDP, view"}
MODELS = {"transformer": ("transformer.py", "--width", 512, "--layers", 7), "cnn": ("cnn.py",), "embeddings": ("recommender.py",)}
LAST_LINES = re.compile(r"^alone_ms=(\S+) gradient_bytes=(\d+)\nstep_ms=(\S+) exposed_ms=(\S+) loss=(\S+)$", re.MULTILINE)


def work_of(model):
    return f"training_{model}"


def torchrun(python, build, ranks, *command):
    """Run a program on local ranks, one thread each. Returns its output."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore",
                   "WEFT_LIBRARY": str(build / "libweft.so.0.9"), "GLOO_SOCKET_IFNAME": "lo"}
    try:
        return subprocess.run([str(python), "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
                               *map(str, command)], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              check=True, text=True, timeout=600).stdout
    except subprocess.SubprocessError as error:
        raise RuntimeError(f"{command[0]}: {error}: {(error.stderr or '')[-2000:]}") from None


class Training:
    """Stores the exposed time of a step under work_of(model) and the way, and the step's under "whole " and that."""
    name, version = "training", ""

    def __init__(self, arguments):
        self.arguments, self.python = arguments, None

    def prepare(self):
        try:
            self.python = torch_venv.prepare(self.arguments.build)
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            return f"PyTorch is not installed: {error}"
        return ""

    def measure(self, samples):
        for model, (program, *words) in MODELS.items():
            for way in list(WAYS)[::-1 if samples.round % 2 else 1]:
                say(f"  training: {model}, {way}")
                output = torchrun(self.python, self.arguments.build, self.arguments.ranks, EXAMPLES / program, "--backend", way,
                                  "--steps", 3 if self.arguments.quick else 60, *words)
                found = LAST_LINES.search(output)
                if found is None:
                    raise RuntimeError(f"{program}: its last lines are not as expected: {output[-500:]}")
                alone, size, step, exposed, loss = found.groups()
                for name, milliseconds in (("", exposed), ("whole ", step), ("alone ", alone)):
                    samples.add((name + work_of(model), int(size), way), 1e3 * float(milliseconds), 1e3 * float(milliseconds))
                samples.note("training", {"model": model, "way": way, "loss": float(loss)})
