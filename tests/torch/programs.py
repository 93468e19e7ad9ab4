"""Whole programs over the backend weft, each started by torchrun: run.py calls `start`, torchrun runs this file.

They do not import weftsync.torch: torch finds the backend by the package's entry points.
"""
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PROJECT = ROOT / "pyproject.toml"


def program_lightning():
    """Lightning's DDPStrategy(process_group_backend="weft") trains as one process does"""
    import pytorch_lightning as lightning
    import torch
    import torch.distributed as dist
    import training
    from pytorch_lightning.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.losses = training.seeded(training.perceptron), []

        def training_step(self, batch, _):
            assert dist.get_backend() == "weft", dist.get_backend()
            loss = torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])
            self.log("loss", loss, sync_dist=True)
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return training.adam(self)

    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    parts = [[one.chunk(size)[rank] for one in batch] for batch in training.batches()]
    module = Module()
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu", devices=size, strategy=DDPStrategy(process_group_backend="weft"), max_epochs=1,
            default_root_dir=folder, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, use_distributed_sampler=False)
        trainer.fit(module, torch.utils.data.DataLoader(parts, batch_size=None))
    assert len(module.losses) == training.STEPS, module.losses
    training.expect_equal(module.model, training.reference(training.perceptron), "Lightning")


def program_notebook():
    """a process creates and destroys the group again and again, also after Ctrl-C in a collective"""
    import torch
    import torch.distributed as dist
    size = int(os.environ["WORLD_SIZE"])
    for use in range(3):
        dist.init_process_group("weft")
        value = torch.full((3,), float(dist.get_rank() + use))
        dist.all_reduce(value)
        assert value.tolist() == [sum(range(size)) + use * size] * 3, value
        if use == 1:
            if dist.get_rank() == 0:
                threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
                try:
                    dist.all_reduce(value)
                except KeyboardInterrupt:
                    value = None
                assert value is None, "expected KeyboardInterrupt"
            else:
                time.sleep(1)
        dist.destroy_process_group()


def program_exit():
    """the interpreter ends in seconds while operations are outstanding, without destroy_process_group"""
    import torch
    import torch.distributed as dist
    from weftsync.torch import DistributedDataParallel
    dist.init_process_group("weft")

    class Two(torch.nn.ModuleList):
        def forward(self, x):
            return [part(x) for part in self]

    models = [DistributedDataParallel(Two(torch.nn.Linear(3, 3) for _ in range(2)), gradient_as_bucket_view=view)
              for view in (True, False)]
    dist.barrier()
    if dist.get_rank() == 0:
        for model in models:
            model(torch.ones(2, 3))[0].sum().backward()  # the step stays open
        works = [dist.all_reduce(torch.ones(100000), async_op=True) for _ in range(3)]
        works.append(dist.irecv(torch.ones(4), 1))
        works.append(dist.all_reduce(torch.ones(4, 5).t(), async_op=True))
        works[0].get_future().then(lambda _: None)
        assert not works[0].is_completed()
        sys.unraisablehook = sys.excepthook = lambda *error: os._exit(9)
    else:
        time.sleep(1)
    Path(os.environ["WEFT_PROGRAM_ENDS"], os.environ["RANK"]).write_text(str(time.time()))


def program_late_rank():
    """ranks that wait for a late one in the creation of a group and in monitored_barrier print nothing, and do not lag behind"""
    import torch.distributed as dist
    dist.init_process_group("weft")
    for wait in (lambda: dist.new_group(backend="weft"), dist.monitored_barrier):
        dist.barrier()
        begin = time.monotonic()
        if dist.get_rank() == 1:
            time.sleep(2.5)
        with tempfile.TemporaryFile("w+") as output:
            before = os.dup(2)
            os.dup2(output.fileno(), 2)
            try:
                wait()
            finally:
                os.dup2(before, 2)
                os.close(before)
            output.seek(0)
            text = output.read()
        assert not text, text
        assert time.monotonic() - begin < 8, time.monotonic() - begin
    dist.destroy_process_group()


def program_fork():
    """children that fork with a DistributedDataParallel get errors, end in seconds by any exit, and do not disturb the parent"""
    import multiprocessing
    import torch
    import torch.distributed as dist
    from weftsync.torch import DistributedDataParallel
    dist.init_process_group("weft")
    x, text = torch.ones(2, 3), "a forked child cannot use its parent's process groups"
    models = [kind(torch.nn.Linear(3, 2)) for kind in (torch.nn.parallel.DistributedDataParallel, DistributedDataParallel)]

    def train():
        for model in models:
            model(x).sum().backward()

    def refused(call):
        try:
            call()
        except RuntimeError as error:
            assert text in str(error), error
        else:
            raise AssertionError("no error in the child")

    def child(ends, outputs):
        for output in outputs:  # of forward passes in the parent
            refused(output.sum().backward)
        models[1].module(x).sum().backward()
        refused(lambda: models[1](x).sum().backward())
        refused(lambda: dist.all_reduce(torch.ones(2)))
        refused(lambda: DistributedDataParallel(models[0].module))
        if ends:
            models.clear()
            dist.destroy_process_group()
            dist.init_process_group("weft", store=dist.HashStore(), rank=0, world_size=1)
            DistributedDataParallel(torch.nn.Linear(3, 2))(x).sum().backward()

    def forked(ends, outputs):
        """Fork as a program does without multiprocessing. The child ends as an interpreter does, with all its atexit functions."""
        number = os.fork()
        if number == 0:
            child(ends, outputs)
            sys.exit(7)
        return number

    train()
    for ends in (False, True):
        outputs = [model(x) for model in models]
        work = dist.all_reduce(torch.ones(3), async_op=True) if dist.get_rank() == 0 else None
        begin = time.monotonic()
        number = forked(ends, outputs)
        process = multiprocessing.get_context("fork").Process(target=child, args=(ends, outputs))
        process.start()
        process.join(60)
        assert process.exitcode == 0, process.exitcode
        code = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
        assert code == 7 and time.monotonic() - begin < 40, (code, time.monotonic() - begin)
        if work is None:
            dist.all_reduce(torch.ones(3))
        else:
            work.wait()
        for output in outputs:
            output.sum().backward()
        train()
    dist.destroy_process_group()


def program_gloo_world():
    """a group of weft inside a program whose default group is gloo, and both with forked loaders of data"""
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    group = dist.new_group(backend="weft")
    size = dist.get_world_size()
    loader = torch.utils.data.DataLoader(range(20), batch_size=5, num_workers=2, multiprocessing_context="fork")
    for number, batch in enumerate(loader):
        one, other = batch.float(), batch.float()
        works = [dist.all_reduce(one, async_op=True), dist.all_reduce(other, group=group, async_op=True)]
        for work in works:
            work.wait()
        wanted = [float(size * (5 * number + n)) for n in range(5)]
        assert one.tolist() == wanted and other.tolist() == wanted, (one, other)
    assert dist.get_backend() == "gloo" and dist.get_backend(group) == "weft"
    dist.destroy_process_group(group)
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


IMPORTS = ("import torch, weftsync", "import weftsync, torch", "import torch", "import weftsync.torch")


def program_import_orders():
    """every order of imports registers the backend, also `import torch` alone, in fresh processes"""
    ends = """
import torch.distributed as dist
dist.init_process_group("weft", store=dist.HashStore(), rank=0, world_size=1)
value = dist.torch.ones(2)
dist.all_reduce(value)
assert value.tolist() == [1, 1], value
dist.destroy_process_group()
"""
    for imports in IMPORTS if os.environ["RANK"] == "0" else ():
        found = subprocess.run([sys.executable, "-W", "ignore", "-c", imports + ends], check=False, text=True, timeout=100,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert found.returncode == 0, f"{imports}\n{found.stdout}"


STUB = """
import os, warnings
import torch, torch.distributed as dist
torch.__version__ = {version!r}
for name in {lacks}:
    delattr(torch.nn.parallel.DistributedDataParallel, name)

def texts(call):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            call()
        except Exception as error:  # also of a class that torch 2.13 does not support
            found.append(warnings.WarningMessage(error, type(error), "", 0))
        return [one.category.__name__ + " " + str(one.message) for one in found if "weft" in str(one.message)]

def load():
    import weftsync.torch

def load_class():
    from weftsync.torch import DistributedDataParallel

def create():
    dist.init_process_group("weft", store=dist.HashStore(), rank=0, world_size=1)

print(texts(load), texts(load_class), texts(create), sep="\\n")
"""
# A version of torch, methods that its class lacks, and what import, the class's import and the first group say.
VERSIONS = (("2.13.1+cpu", [], "", "", ""),
            ("2.12.1+cpu", [], "RuntimeWarning weftsync.torch supports torch 2.13, and this is torch 2.12.1+cpu",
             "RuntimeWarning weftsync.torch.DistributedDataParallel is written for torch 2.13, and this is torch 2.12.1+cpu",
             "RuntimeError weft group setup: weftsync.torch supports torch 2.13, and this is torch 2.12.1+cpu: install torch 2.13"),
            ("2.13.0a0+git1", ["_pre_forward"], "",
             "ImportError weftsync.torch.DistributedDataParallel is written for torch 2.13, and torch 2.13.0a0+git1 has no _pre_forward",
             ""),
            ("3.0.0", [], "", "RuntimeWarning weftsync.torch.DistributedDataParallel is written for torch 2.13, and this is torch 3.0.0",
             "RuntimeWarning weftsync.torch was tested with torch 2.13 only, and this is torch 3.0.0"))


def program_torch_versions():
    """warnings and errors name a version of torch that is not supported"""
    for version, lacks, *expected in VERSIONS[int(os.environ["RANK"])::SIZE]:
        found = subprocess.run([sys.executable, "-c", STUB.format(version=version, lacks=lacks)], check=True, text=True, timeout=100,
                               env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE)
        for said, wanted in zip(found.stdout.splitlines(), expected, strict=True):
            assert wanted in said if wanted else said == "[]", f"{version}: {said}, expected {wanted!r}"


def trains_alike(name, *options):
    """Run a program of examples/pytorch in each of its ways. Expect equal losses."""
    sys.path[:0] = [str(ROOT / "examples" / "pytorch")]
    import progress
    import systems
    losses = []

    class Progress(progress.Progress):
        def __iter__(self):
            yield from super().__iter__()
            losses.append(self.loss)

    progress.Progress = Progress
    source = (ROOT / "examples" / "pytorch" / f"{name}.py").read_text()
    for backend in systems.BACKENDS:
        sys.argv[1:] = ["--steps", "6", "--backend", backend, *options]
        exec(compile(source, name, "exec"), {"__name__": "__main__", "__doc__": name})
    assert len(losses) == 4 and len(set(losses)) == 1, losses  # equal bits, because a sum of two numbers has one order


def program_example_transformer():
    """examples/pytorch/transformer.py gives the losses that it gives with gloo"""
    trains_alike("transformer")


def program_example_cnn():
    """examples/pytorch/cnn.py gives the losses that it gives with gloo"""
    trains_alike("cnn")


def program_example_recommender():
    """examples/pytorch/recommender.py gives the losses that it gives with gloo"""
    trains_alike("recommender")


def program_example_recommender_sparse():
    """examples/pytorch/recommender.py with sparse gradients gives the losses that it gives with gloo"""
    trains_alike("recommender", "--sparse")


def program_example_accelerate():
    """examples/pytorch/accelerate_train.py gives equal losses with both classes of DistributedDataParallel"""
    sys.path[:0] = [str(ROOT / "examples" / "pytorch")]
    import accelerate
    from accelerate.state import AcceleratorState
    import torch
    import torch.distributed as dist
    import accelerate_train
    losses, models = [], []

    class Accelerator(accelerate.Accelerator):
        def prepare(self, *parts):
            made = super().prepare(*parts)
            if isinstance(made, torch.nn.Module):
                models.append((type(made).__module__.partition(".")[0], type(made.module).__name__, dist.get_backend()))
            return made

        def reduce(self, tensor, reduction):
            made = super().reduce(tensor, reduction)
            losses.append(made.item())
            return made

    accelerate_train.Accelerator = Accelerator
    theirs = torch.nn.parallel.DistributedDataParallel
    for name in ("weft", "torch"):
        sys.argv[1:] = ["--steps", "6", "--ddp", name]
        accelerate_train.main()
        AcceleratorState._reset_state(True)
        torch.nn.parallel.DistributedDataParallel = theirs
    assert models == [("weftsync", "Sequential", "weft"), ("torch", "Sequential", "weft")], models
    assert len(losses) == 2 and losses[0] == losses[1], losses
    try:
        accelerate.Accelerator(cpu=True, kwargs_handlers=[accelerate.InitProcessGroupKwargs(backend="weft")])
    except ValueError as error:  # as docs/how-to/frameworks.md says
        assert "Your assigned backend weft is not available" in str(error), error
    else:
        raise AssertionError("accelerate knows the backend: change docs/how-to/frameworks.md")


CASES = {name: value for name, value in list(globals().items()) if name.startswith("program_")}
SIZE = 2  # their world size
EXIT_SECONDS = 40  # an exit without a group takes 10 s on a busy machine; deadlines are minutes


def entry_points(folder):
    """Write into the folder what an installation of the package would have there: its entry points, for torch."""
    listed = re.findall(r'\[project\.entry-points\."(torch.*?)"\]\nweft = "(.*)"', PROJECT.read_text())
    assert len(listed) == 2, f"{PROJECT} has {len(listed)} entry points for torch, expected 2"
    installed = Path(folder, "weftsync-0.dist-info")
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: weftsync\nVersion: 0\n")
    (installed / "entry_points.txt").write_text("".join(f"[{group}]\nweft = {value}\n" for group, value in listed))


def start(name, python, environment, timeout, log):
    """Run a case on local ranks. Returns its outcome and details."""
    with (tempfile.TemporaryDirectory() as ends, tempfile.TemporaryDirectory() as folder,
          tempfile.TemporaryFile("w+") as output):
        entry_points(folder)
        process = subprocess.Popen(
            [str(python), "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(SIZE),
             __file__, name], env={**environment, "WEFT_PROGRAM_ENDS": ends,
                                  "PYTHONPATH": f"{folder}:{environment['PYTHONPATH']}"},
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        problem = ""
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            problem = f"no end in {timeout:.0f} s"
            process.terminate()  # torchrun ends its ranks
            process.wait()
        output.seek(0)
        text = output.read()
        log.write(text)
        since = [float(path.read_text()) for path in Path(ends).iterdir()]
        if problem or process.returncode != 0:
            return "fail", f"{text}\n{problem}"
        if since and time.time() - max(since) > EXIT_SECONDS:
            return "fail", f"the processes ended {time.time() - max(since):.0f} s after the program"
    return "pass", ""


if __name__ == "__main__":
    CASES[sys.argv[1]]()
