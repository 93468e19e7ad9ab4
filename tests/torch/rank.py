"""One rank of run.py's jobs: runs tests of torch's own suite one after the other, in this process.

Reads lines from standard input, each a JSON object {test, folder}, and answers each with a line {outcome, detail} on
the descriptor that the first argument names. Environment: BACKEND, RANK, WORLD_SIZE.
"""
import importlib.util
import inspect
import json
import os
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


def load_suite(backend):
    """Import the suite. For weft, its constant BACKEND is an AlsoGloo."""
    import torch.distributed as dist
    from torch.testing._internal import common_distributed
    if backend != "weft":
        return importlib.import_module(SUITE)
    import weftsync.torch  # noqa: F401
    common_distributed.DistTestCases.backend_feature["plugin"].add("weft")
    spec = importlib.util.find_spec(SUITE)
    source = spec.loader.get_source(SUITE)
    guard = 'BACKEND = os.environ["BACKEND"]'
    assert source.count(guard) == 1, "the suite reads its backend in another way than run.py expects"
    module = importlib.util.module_from_spec(spec)
    sys.modules[SUITE] = module
    module._ALSO_GLOO = AlsoGloo("weft")
    exec(compile(source.replace(guard, "BACKEND = _ALSO_GLOO"), spec.origin, "exec"), module.__dict__)
    assert dist.Backend("weft") == "weft"
    return module


class GlooGuard:
    """Makes the constructor of ProcessGroupGloo raise unless the test's own source names gloo."""

    def __init__(self):
        from torch.distributed import distributed_c10d as c10d
        original, guard = c10d.ProcessGroupGloo, self
        self.allowed = True

        class ProcessGroupGloo(original):
            def __init__(self, *arguments, **named):
                if not guard.allowed:
                    raise AssertionError("the test made a ProcessGroupGloo, expected weft")
                super().__init__(*arguments, **named)

        c10d.ProcessGroupGloo = ProcessGroupGloo


class Counter:
    """Compares the library's count of operations with the collectives that c10d called, when a group ends."""

    def __init__(self):
        from weftsync.torch import _operations
        original, counter = _operations.Operations.shutdown, self
        self.problems = []

        def shutdown(group):
            info = group.comm.query()
            if not info.failed and info.operations != group.operations_called:
                counter.problems.append(f"the library counts {info.operations} operations, c10d called "
                                        f"{group.operations_called}")
            original(group)

        _operations.Operations.shutdown = shutdown


class Rank:
    def __init__(self, backend):
        self.backend, self.rank = backend, int(os.environ["RANK"])
        self.module = load_suite(backend)
        self.guard = GlooGuard() if backend == "weft" else None
        self.counter = Counter() if backend == "weft" else None
        module, self.own = self.module, {}
        if backend == "weft":
            import behaviours
            self.own = behaviours.CASES

        class TestDistBackendWithSpawn(module.TestDistBackend, module.DistributedTest._DistTestBase):
            pass

        self.case = TestDistBackendWithSpawn

    def names(self):
        """The names of all tests: torch's in order of the name, then those of behaviours.py."""
        own = list(self.own)
        return [name for name in unittest.TestLoader().getTestCaseNames(self.case) if name.startswith("test_")] + own

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
        if self.guard is not None:
            function = inspect.unwrap(self.own.get(test) or getattr(self.case, test))
            self.guard.allowed = "gloo" in inspect.getsource(function).lower()
        if self.counter is not None:
            self.counter.problems.clear()
        try:
            seconds = self.module.CUSTOM_PG_TIMEOUT.get(test, self.module.default_pg_timeout)
            dist.init_process_group(init_method=f"file://{folder}/store", backend=str(self.backend),
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
            if self.counter is not None and self.counter.problems:
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
                if self.backend == "weft" and dist.is_initialized():
                    dist.destroy_process_group()
            except BaseException:
                detail += traceback.format_exc()
            return "fail", detail


def main():
    answers = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    rank = Rank(os.environ["BACKEND"])
    answers.write(json.dumps(rank.names()) + "\n")
    for line in sys.stdin:
        order = json.loads(line)
        outcome, detail = rank.run(order["test"], order["folder"])
        answers.write(json.dumps({"outcome": outcome, "detail": detail}) + "\n")
    os._exit(0)


if __name__ == "__main__":
    main()
