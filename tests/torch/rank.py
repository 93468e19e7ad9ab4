"""One rank of run.py's jobs: runs tests of torch's own suite one after the other, in this process.

Reads lines from standard input, each a JSON object {test, folder}, and answers each with a line {outcome, detail} on
the descriptor that the first argument names. Environment: BACKEND=weft, RANK, WORLD_SIZE.
"""
import functools
import importlib.util
import inspect
import json
import os
import re
import sys
import traceback
import unittest
from datetime import timedelta

SUITE = "torch.testing._internal.distributed.distributed_test"


class AlsoGloo(str):
    """The backend's name for the suite's guards: equal to "weft" and to "gloo", so that tests for Gloo alone run."""

    def __hash__(self):
        return hash("gloo")  # sets of names that have "gloo" contain it

    def __eq__(self, other):
        return str.__eq__(self, other) or other == "gloo"

    def __ne__(self, other):
        return not self == other


# The suite's tests of DistributedDataParallel are mostly for GPUs. These replacements let them run on the CPU.
ON_CPU = ((r"\.cuda\((?:[^()]|\([^()]*\))*\)", ".cpu()"),
          (r"\.to\((?:self\.rank|rank|rank_id|device_id|dev)\)", '.to("cpu")'),
          (r"device=(?:self\.rank|rank_id|rank|device_id|dev|torch\.device\(rank\))(?=[,)\s])", 'device="cpu"'),
          (r"device_ids=(?:\[[^\]]*\]|gpus|device_ids)", "device_ids=None"),
          (r"output_device=[\w.]+(?:\([^()]*\))?", "output_device=None"),
          (r"torch\.cuda\.current_device\(\)|(?<=device=)\"cuda\"|(?<=device = )self\.rank", '"cpu"'),
          (r"torch\.cuda\.(?:set_device|synchronize|manual_seed|empty_cache)\((?:[^()]|\([^()]*\))*\)", "None"),
          (r"torch\.cuda\.device_count\(\)", "dist.get_world_size()"),
          (r"(?m)^ *@(?:skip_if_no_gpu|skip_if_lt_x_gpu\(.*\)|require_n_gpus_for_nccl_backend\([^)]*\)|skip_if_no_torchvision|"
           r"require_exact_world_size\(.*\)|unittest\.skip\(.*\))$", ""),
          (r"(?ms)^ *@require_n_gpus_for_nccl_backend\($.*?^ *\)$", ""))


def on_cpu(source):
    """Return the source of the suite for the CPU."""
    for pattern, text in ON_CPU:
        source = re.sub(pattern, text, source)
    return source


def load_suite(cpu=False):
    """Import the suite. Its constant BACKEND is an AlsoGloo. cpu: its tests for GPUs run on the CPU."""
    import torch.distributed as dist
    from torch.testing._internal import common_distributed
    import weftsync.torch  # noqa: F401
    common_distributed.DistTestCases.backend_feature["plugin"].add("weft")
    spec = importlib.util.find_spec(SUITE)
    source = spec.loader.get_source(SUITE)
    guard = 'BACKEND = os.environ["BACKEND"]'
    assert source.count(guard) == 1, "the suite reads its backend in another way than run.py expects"
    if cpu:
        source = on_cpu(source)
    module = importlib.util.module_from_spec(spec)
    sys.modules[SUITE] = module
    module._ALSO_GLOO = AlsoGloo("weft")
    exec(compile(source.replace(guard, "BACKEND = _ALSO_GLOO"), spec.origin, "exec"), module.__dict__)
    assert dist.Backend("weft") == "weft"
    return module


def replace_ddp(module):
    """Put Weft's DistributedDataParallel in the place of torch's, in the suite's module and in torch.nn.parallel."""
    import torch
    from weftsync.torch import DistributedDataParallel
    torch.nn.parallel.DistributedDataParallel = DistributedDataParallel
    if hasattr(module, "DistributedDataParallel"):
        module.DistributedDataParallel = DistributedDataParallel


class GlooGuard:
    """Makes the constructor of ProcessGroupGloo raise unless the test's own code asks for gloo by name."""

    def __init__(self, files):
        """files: the sources of tests."""
        from torch.distributed import distributed_c10d as c10d
        self._files, self._c10d = files, c10d.__file__
        original, guard = c10d.ProcessGroupGloo.__init__, self

        def guarded(group, *arguments, **named):
            if not guard.asked(sys._getframe(1)):
                raise AssertionError("a ProcessGroupGloo was made, expected weft: no test asked for gloo by name")
            original(group, *arguments, **named)

        c10d.ProcessGroupGloo.__init__ = guarded  # of the class itself: every name for it is guarded

    def asked(self, frame):
        """Return True if the function of torch.distributed that the test calls was given the backend gloo."""
        backend = None
        while frame is not None and frame.f_code.co_filename not in self._files:
            if frame.f_code.co_filename == self._c10d and "backend" in frame.f_locals:
                backend = frame.f_locals["backend"]
            frame = frame.f_back
        return frame is not None and backend is not None and "gloo" in str(backend)


class Counter:
    """Compares the library's count of operations with the calls of collectives and messages, when a group ends."""

    PARTS = ("allgather_coalesced",)  # one operation for each tensor; other coalesced forms call single ones
    WHOLE = ("allreduce", "allreduce_coalesced", "reduce", "reduce_scatter", "_reduce_scatter_base", "broadcast",
             "allgather", "_allgather_base", "gather", "scatter", "alltoall_base", "alltoall", "barrier")
    ALIASES = ("reduce_scatter_single", "all_gather_single", "all_to_all_single")
    MESSAGES = ("send", "recv", "recv_anysource")  # those that succeed count

    def __init__(self):
        from weftsync.torch import _group
        self.problems, self.compared = [], 0  # texts, and how many calls were compared
        kind = _group.ProcessGroupWeft
        for name in (*self.WHOLE, *self.PARTS, *self.ALIASES):
            setattr(kind, name, self._counted(getattr(kind, name), name in self.PARTS))
        for name in self.MESSAGES:
            setattr(kind, name, self._listed(getattr(kind, name)))
        opened, shutdown, counter = kind._open, kind.shutdown, self

        def open_counted(group, *arguments):
            opened(group, *arguments)
            group.calls_before, group.calls, group.messages = group.comm.query().operations, 0, []

        def shutdown_counted(group):
            if group.comm.closed:
                shutdown(group)
                return
            group.calls += sum(counter._succeeded(request) for request in group.messages)
            info = group.comm.query()
            if not info.failed:
                counter.compared += group.calls
                if info.operations - group.calls_before != group.calls:
                    counter.problems.append(f"the library ran {info.operations - group.calls_before} operations, "
                                            f"expected {group.calls}, the calls of collectives and messages")
            shutdown(group)

        kind._open, kind.shutdown = open_counted, shutdown_counted

    @staticmethod
    def _counted(function, parts):
        @functools.wraps(function)
        def counted(group, *arguments, **named):
            work = function(group, *arguments, **named)
            group.calls += len(arguments[1]) if parts else 1
            return work

        return counted

    @staticmethod
    def _listed(function):
        @functools.wraps(function)
        def listed(group, *arguments, **named):
            work = function(group, *arguments, **named)
            group.messages.append(work._request)  # unlike the Work, it does not keep the tensor after completion
            return work

        return listed

    @staticmethod
    def _succeeded(request):
        try:
            request.wait(1)
        except Exception:
            return False
        return True


class Rank:
    def __init__(self):
        import behaviours
        import training
        self.rank = int(os.environ["RANK"])
        self.ddp = os.environ.get("TEST_DDP", "")
        self.only_ddp = bool(self.ddp)
        self.module = module = load_suite(self.only_ddp)
        import ddp
        import ddp_misuse
        if self.ddp == "weft":
            replace_ddp(module)
        own = (ddp.CASES, ddp_misuse.CASES) if self.only_ddp else (behaviours.CASES, training.CASES, {"weft_counted": self.counted})
        self.own = {name: case for cases in own for name, case in cases.items()}
        self.guard = GlooGuard({module.__file__, behaviours.__file__, training.__file__, ddp.__file__,
                                ddp_misuse.__file__})
        self.counter = Counter()

        class TestDistBackendWithSpawn(module.TestDistBackend, module.DistributedTest._DistTestBase):
            pass

        self.case = TestDistBackendWithSpawn

    def names(self):
        """The names of all tests: torch's in order of the name, then those of this folder."""
        names = [name for name in unittest.TestLoader().getTestCaseNames(self.case) if name.startswith("test_")]
        if self.only_ddp:
            return [name for name in names if self.uses_ddp(name)] + (list(self.own) if self.ddp == "weft" else [])
        return names + list(self.own)

    def uses_ddp(self, test):
        """Return True if the source of a test of torch names DistributedDataParallel, in any form."""
        function = inspect.unwrap(getattr(self.case, test))
        names = {name.lower() for name in function.__code__.co_names} | {test.lower()}
        return any("ddp" in name or "distributeddataparallel" in name for name in names)

    def counted(self):
        """the calls of a group are compared when it ends, and one that the library did not count is a problem"""
        import torch
        import torch.distributed as dist
        from behaviours import expect
        before, problems = self.counter.compared, self.counter.problems
        for surplus in (0, 1):
            group = dist.new_group()
            dist.all_reduce(torch.ones(2), group=group)
            group.calls += surplus
            dist.destroy_process_group(group)
            expect(len(problems) == surplus, "problems", *problems)
        expect(self.counter.compared == before + 3, "compared", before, self.counter.compared)
        problems.clear()

    def run(self, test, folder):
        """Run one test. Returns its outcome and details."""
        import torch.distributed as dist
        from torch.testing._internal import common_distributed, common_utils
        os.environ.update(TEMP_DIR=folder, INIT_METHOD=f"file://{folder}/init_dir/shared_init_file")
        self.module.INIT_METHOD = os.environ["INIT_METHOD"]
        self.module.Barrier.barrier_id = 0
        case = self.case("test_get_rank" if test in self.own else test)
        case.rank, case.file_name = self.rank, f"{folder}/store"
        if getattr(getattr(case, test, None), "__unittest_skip__", False):  # decorators leave this to unittest's runner
            return "skip", str(getattr(case, test).__unittest_skip_why__)
        self.counter.problems.clear()
        try:
            seconds = self.module.CUSTOM_PG_TIMEOUT.get(test, self.module.default_pg_timeout)
            dist.init_process_group(init_method=f"file://{folder}/store", backend="weft",
                                    world_size=int(os.environ["WORLD_SIZE"]), rank=self.rank,
                                    timeout=timedelta(seconds=seconds))
            case._barrier()
            common_utils.set_rng_seed()
            try:
                self.own[test]() if test in self.own else getattr(case, test)()
            finally:
                case.doCleanups()
            case._barrier()
            if dist.is_initialized():
                dist.destroy_process_group()
            if self.counter.problems and not self.only_ddp:  # a reducer's operations are not those of the group
                return "fail", self.counter.problems[0]
            return "pass", ""
        except unittest.SkipTest as reason:
            dist.destroy_process_group()
            return "skip", str(reason)
        except SystemExit as end:
            skips = {skip.exit_code: skip.message for skip in common_distributed.TEST_SKIPS.values()}
            if end.code in skips:
                dist.destroy_process_group()
                return "skip", skips[end.code]
            return "fail", f"exit code {end.code}"
        except BaseException:
            detail = traceback.format_exc()
            try:  # the processes serve the next test, which makes groups of its own
                if dist.is_initialized():
                    dist.destroy_process_group()
            except BaseException:
                detail += traceback.format_exc()
            return "fail", detail


def main():
    answers = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    rank = Rank()
    answers.write(json.dumps(rank.names()) + "\n")
    for line in sys.stdin:
        order = json.loads(line)
        outcome, detail = rank.run(order["test"], order["folder"])
        answers.write(json.dumps({"outcome": outcome, "detail": detail}) + "\n")
    os._exit(0)


if __name__ == "__main__":
    main()
