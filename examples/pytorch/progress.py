"""A progress bar with the time of a step, on rank 0."""
import statistics
import sys
import time

import torch.distributed as dist

WIDTH = 30


class Progress:
    """Iterates over the numbers of steps, and measures their times."""

    def __init__(self, steps):
        self.steps, self.loss, self.seconds, self.cpu_seconds = steps, float("nan"), [], []

    def __iter__(self):
        for step in range(self.steps):
            begin, cpu_begin = time.perf_counter(), time.process_time()
            yield step
            self.seconds.append(time.perf_counter() - begin)
            self.cpu_seconds.append(time.process_time() - cpu_begin)
            if dist.get_rank() == 0 and sys.stderr.isatty():
                done = (step + 1) * WIDTH // self.steps
                print(f"\r[{'#' * done:{WIDTH}}] {step + 1}/{self.steps}  loss {self.loss:.3f}  "
                      f"{self.milliseconds():.1f} ms a step", end="", file=sys.stderr, flush=True)
        if dist.get_rank() == 0 and sys.stderr.isatty():
            print(file=sys.stderr)

    def milliseconds(self):
        """Return the median time of a step, without the first ones, which set up connections and memory."""
        return 1000 * statistics.median(self.seconds[5:] or self.seconds)

    def cpu_milliseconds(self):
        """Return the median time that all threads of this process computed in a step, without the first ones."""
        return 1000 * statistics.median(self.cpu_seconds[5:] or self.cpu_seconds)
