"""A job of ranks for run.py: starts the processes, gives them tests, and ends them where they hang or fail."""
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RANK = Path(__file__).resolve().parent / "rank.py"


class Job:
    """The processes of one world size. They run many tests; all are replaced once one hangs or ends."""

    def __init__(self, python, size, environment, timeout, log):
        self.python, self.size = python, size
        self.environment, self.timeout, self.log = environment, timeout, log
        self.processes, self.answers, self.names = [], [], []

    def start(self):
        """Start the processes and wait until they are ready."""
        common = {**self.environment, "BACKEND": "weft", "WORLD_SIZE": str(self.size)}
        for rank in range(self.size):
            reader, writer = os.pipe()
            self.processes.append(subprocess.Popen(
                [str(self.python), "-W", "ignore", str(RANK), str(writer)], env={**common, "RANK": str(rank)},
                stdin=subprocess.PIPE, stdout=self.log, stderr=self.log, pass_fds=[writer], text=True,
                start_new_session=True))
            os.close(writer)
            self.answers.append(os.fdopen(reader))
        ready = self.collect(time.monotonic() + 300)
        if any(isinstance(one, str) for one in ready):
            raise RuntimeError(f"the ranks do not start: {ready}")
        self.names = ready[0]

    def stop(self):
        """End the processes."""
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdin.close()
        for answer in self.answers:
            answer.close()
        self.processes, self.answers = [], []

    def collect(self, deadline):
        """Read one answer of each rank. A text stands for a rank that gave none."""
        found = {}
        while len(found) < self.size:
            waiting = [rank for rank in range(self.size) if rank not in found]
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self.answers[rank] for rank in waiting], [], [], max(left, 0))
            if not ready:
                return [found.get(rank, f"no answer in {self.timeout:.0f} s") for rank in range(self.size)]
            for rank in waiting:
                if self.answers[rank] in ready:
                    line = self.answers[rank].readline()
                    found[rank] = json.loads(line) if line else f"exit code {self.processes[rank].wait()}"
                    if isinstance(found[rank], dict) and found[rank]["outcome"] == "fail":
                        deadline = min(deadline, time.monotonic() + 20)  # the other ranks may wait for it forever
        return [found[rank] for rank in range(self.size)]

    def run(self, test):
        """Run a test on all ranks. Returns its outcome and the details of the first rank that differs."""
        if not self.processes:
            self.start()
        with tempfile.TemporaryDirectory() as folder:
            for name in ("barrier", "test_dir", "init_dir"):
                os.mkdir(os.path.join(folder, name))
            for process in self.processes:
                try:
                    process.stdin.write(json.dumps({"test": test, "folder": folder}) + "\n")
                    process.stdin.flush()
                except BrokenPipeError:  # collect finds the end of the process
                    pass
            found = self.collect(time.monotonic() + self.timeout)
        if any(isinstance(one, str) for one in found):
            self.stop()
        return judge(found)


def judge(found):
    """Combine the ranks' answers: a test passes or is skipped if it does so on all ranks, and else fails."""
    for kind in ("fail", "mixed"):
        for rank, one in enumerate(found):
            if isinstance(one, dict) and one["outcome"] == "fail" and kind == "fail":
                return "fail", f"rank {rank}: {one['detail']}"
            if isinstance(one, str) and kind == "mixed":
                return "fail", f"rank {rank}: {one}"
    outcomes = {one["outcome"] for one in found}
    if len(outcomes) > 1:  # gloo's run demands equal exit codes of all ranks
        rank, reason = next((rank, one["detail"]) for rank, one in enumerate(found) if one["outcome"] == "skip")
        return "fail", f"rank {rank} skips the test, others pass it: {reason}"
    return outcomes.pop(), found[0]["detail"]


if __name__ == "__main__":
    sys.exit("run.py uses this module")
