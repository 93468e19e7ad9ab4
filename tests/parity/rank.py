"""One rank of a parity job: trains every model in every mode through DistributedDataParallel on Gloo and
through Weft.

run.py starts it with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT. Usage: rank.py BACKENDS MODELS MODES
BEHAVIOURS STORE, where lists have commas. Rank 0 prints a line for each case: outcome, name, detail, divided
by tabs.
"""
import os
import sys
import traceback

import torch
import torch.distributed as dist

import weftsync as weft
from behaviours import BEHAVIOURS
from case import Case
from joined import JoinedCase
from models import MODELS
from modes import MODES

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def main():
    backends, models, modes, behaviours, store = sys.argv[1:6]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    lines = []
    with weft.Context() as context:
        for backend in backends.split(","):
            with weft.Comm(context, rank=RANK, size=SIZE, store=f"{store}-{backend}", backend=backend, timeout=60) as comm:
                # Each model has its own communicator, so that a failure does not affect the other models.
                for model in filter(None, models.split(",")):
                    with comm.split(0) as part:
                        for mode in modes.split(","):
                            lines.append(run_case(model, mode, backend, part))
                        part.barrier()
                with comm.split(0) as part:
                    for name in filter(None, behaviours.split(",")):
                        lines.append(verdict(f"{name}, {SIZE} ranks, {backend}", BEHAVIOURS[name](part)))
                    part.barrier()
                comm.barrier()
    # Every rank has closed its Weft objects and passed its last barrier. os._exit skips the end of PyTorch's
    # threads: sometimes one of them aborts a process that ends them while another rank's connection closes.
    if RANK == 0:
        print("\n".join("\t".join(line) for line in lines), flush=True)
    os._exit(0)


def run_case(model, mode, backend, comm):
    name = f"{model}, {mode}, {SIZE} ranks, {backend}"
    reason = MODES[mode]().excluded(MODELS[model])
    if reason:
        return "out", name, reason
    kind = JoinedCase if MODES[mode].joins else Case
    return verdict(name, kind(model, MODES[mode](), comm).run())


def verdict(name, problems):
    """Return the line of a case, after gathering the problems of all ranks."""
    everything = [None] * SIZE
    dist.all_gather_object(everything, problems)
    texts = [f"rank {rank}: {text}" for rank, problems in enumerate(everything) for text in problems]
    return "fail" if texts else "pass", name, "; ".join(texts[:4])


if __name__ == "__main__":
    try:
        main()
    except BaseException:  # run.py ends the other ranks, which wait for this one
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
