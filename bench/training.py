"""Measures whole training steps of PyTorch for bench/peers.py: the programs of examples/pytorch, in each of their ways, on one
host and between hosts.
"""
import os
import re
import subprocess
import sys

import hosts
from systems import PEERS, ROOT, WrongResult, say

sys.path.append(str(ROOT / "tools"))
import torch_venv  # noqa: E402

EXAMPLES = ROOT / "examples" / "pytorch"
# The systems of peers.json: what the tables call them, and the option --backend of the programs.
WAYS = {"ddp-gloo": ("DDP on Gloo", "ddp-gloo"), "ddp-weft": ("DDP on backend weft", "weft"),
        "weft-copy": ("Weft's DDP, copy", "weftsync-copy"), "weft-view": ("Weft's DDP, view", "weftsync-view")}
BETWEEN_HOSTS = {way: WAYS[way] for way in ("ddp-gloo", "weft-copy", "weft-view")} | {"weft-bf16": ("Weft's DDP, bf16", "weftsync-bf16")}
MODELS = {"transformer": ("transformer", "--width", 512, "--layers", 7), "cnn": ("cnn",), "embeddings": ("recommender",)}
LAST_LINES = re.compile(r"^alone_ms=(\S+) gradient_bytes=(\d+)\nstep_ms=(\S+) cpu_ms=(\S+) exposed_ms=(\S+) loss=(\S+)$", re.MULTILINE)
BACKWARD = re.compile(r"^backward_ms=(\S+)$", re.MULTILINE)
STEPS, QUICK_STEPS = 60, 3
# Every rank of a host takes the variables of torchrun from those of two-hosts.sh.
AS_TORCHRUN = """
export RANK=$WEFT_RANK WORLD_SIZE=$WEFT_SIZE LOCAL_RANK=$WEFT_LOCAL_RANK LOCAL_WORLD_SIZE=$WEFT_LOCAL_SIZE
export MASTER_ADDR=host0 MASTER_PORT=29500 GLOO_SOCKET_IFNAME=eth0
exec "$@"
"""


def work_of(model, rate=None, count=2):
    """Returns the name of a model's work on one host, or on so many hosts with links of a rate."""
    place = "" if rate is None else f"hosts_{rate}_" if count == 2 else f"hosts_{count}x{rate}_"
    return f"{place}training_{model}"


def environment(build):
    return {"PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore",
            "WEFT_LIBRARY": str(build / "libweft.so.0.9")}


def torchrun(python, build, ranks, *command):
    """Run a program on local ranks, one thread each. Returns its output."""
    try:
        return subprocess.run([str(python), "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
                               *map(str, command)], env={**os.environ, **environment(build), "GLOO_SOCKET_IFNAME": "lo"},
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True, text=True,
                              timeout=600).stdout
    except subprocess.SubprocessError as error:
        raise RuntimeError(f"{command[0]}: {error}: {(error.stderr or '')[-2000:]}") from None


def last_lines(output):
    """Returns the numbers of a program's last lines: alone_ms, gradient_bytes, step_ms, cpu_ms, exposed_ms, loss."""
    found = LAST_LINES.search(output)
    if found is None:
        raise RuntimeError(f"its last lines are not as expected: {output[-500:]}")
    return [float(number) for number in found.groups()]


def install(build):
    """Returns (the interpreter with PyTorch, the reason why there is none)."""
    try:
        return torch_venv.prepare(build), ""
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        return None, f"PyTorch is not installed: {error}"


def in_turn(names, samples):
    """Returns the names in the order of this round: forwards and backwards in turn."""
    return list(names)[::-1 if samples.round % 2 else 1]


class Training:
    """Stores the exposed time of a step under work_of(model) and the way, and the step's under "whole " and that."""
    name, version = "training", ""

    def __init__(self, arguments):
        self.arguments, self.python = arguments, None

    def prepare(self):
        self.python, problem = install(self.arguments.build)
        return problem

    def measure(self, samples):
        for model, (program, *words) in MODELS.items():
            for way in in_turn(WAYS, samples):
                say(f"  training: {model}, {way}")
                output = torchrun(self.python, self.arguments.build, self.arguments.ranks, EXAMPLES / f"{program}.py", "--backend",
                                  WAYS[way][1], "--steps", QUICK_STEPS if self.arguments.quick else STEPS, *words)
                alone, size, step, _, exposed, loss = last_lines(output)
                for name, milliseconds in (("", exposed), ("whole ", step), ("alone ", alone)):
                    samples.add((name + work_of(model), int(size), way), 1e3 * milliseconds, 1e3 * milliseconds)
                samples.note("training", {"model": model, "way": way, "loss": loss})


class TrainingBetweenHosts(hosts.Between):
    """Stores the time of a whole step under work_of(model, rate) and the way. Three more systems are "compute", a step that averages
    nothing, "sockets", one beside plain sockets that carry as many bytes, and "bound", which no program can be faster than.
    """
    name, version = "hosts_training", ""
    PLACES = (("1gbit", 2), ("10gbit", 2), ("1gbit", 4))

    def __init__(self, arguments):
        super().__init__(arguments)
        self.python = None

    def prepare(self):
        self.python, problem = install(self.arguments.build)
        return problem or super().prepare()

    def step(self, rate, count, *command):
        """Runs a program of PyTorch on every host. Returns (gradient_bytes, step_ms, cpu_ms, loss, its output)."""
        words = ("--steps", QUICK_STEPS if self.arguments.quick else STEPS)
        output = hosts.run(self.command(rate, "bash", "-c", AS_TORCHRUN, "-", self.python, "-W", "ignore", *command, *words, hosts=count),
                           environment(self.arguments.build))
        _, size, step, cpu, _, loss = last_lines(output)
        return int(size), step, cpu, loss, output

    def measure(self, samples):
        for rate, count in self.PLACES:
            for model in ("transformer",) if count > 2 else MODELS:
                self.measure_model(samples, rate, count, model)

    def measure_model(self, samples, rate, count, model):
        work, (program, *words) = work_of(model, rate, count), MODELS[model]

        def add(system, size, milliseconds):
            samples.add((work, size, system), 1e3 * milliseconds, 1e3 * milliseconds)

        losses = {}
        for way in in_turn(BETWEEN_HOSTS, samples):
            say(f"  training: {count} hosts, {rate}, {model}, {way}")
            size, step, cpu, loss, _ = self.step(rate, count, EXAMPLES / f"{program}.py", "--backend", BETWEEN_HOSTS[way][1], *words)
            add(way, size, step)
            losses[way] = loss
            samples.note("hosts_training", {"rate": rate, "hosts": count, "model": model, "way": way, "cpu_ms": cpu, "loss": loss})
        if abs(losses["weft-view"] - losses["ddp-gloo"]) > 0.02 * abs(losses["ddp-gloo"]):
            raise WrongResult(f"{model}: the loss is {losses}")
        if count > 2:
            return
        say(f"  training: {count} hosts, {rate}, {model}, without averaging")
        plain = PEERS / "plain_step.py"
        size, alone, _, _, output = self.step(rate, count, plain, "compute", program, *words)
        _, beside, cpu, _, _ = self.step(rate, count, plain, "sockets", program, *words)
        add("compute", size, alone)
        add("sockets", size, beside)
        backward = float(BACKWARD.search(output).group(1))
        add("bound", size, max(alone - backward + hosts.wire_us(size, rate) / 1e3, cpu))
