#!/usr/bin/env python3
"""Compares Weft's gradients with those of DistributedDataParallel. `make test-parity` calls it.

Installs PyTorch into the build folder, which is the argument, starts one job for each number of ranks, and
prints each case's outcome. The last line counts them. cases.md lists what is compared, and what is left out
and why.
"""
import argparse
import collections
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "support")]
import cases  # noqa: E402
import torch_venv  # noqa: E402

RANK = Path(__file__).resolve().parent / "rank.py"
MODELS = "mlp,resnet,transformer,mixed,branches,sparse,complex"
MODES = ("copy,view,accumulate,accumulate-program,accumulate-view,accumulate-local,one-bucket,retained,replan,replan-view,"
         "static,static-view,buffers,absent,absent-view,join,join-view,join-active,join-replan,join-accumulate,join-fp16,"
         "join-active-fp16,fp16,bf16,fp16-wrapper,bf16-wrapper,accumulate-fp16,accumulate-program-fp16,accumulate-local-fp16,"
         "reduce-bf16,reduce-f32,reduce-bf16-view,reduce-f32-view")

BEHAVIOURS = ("several_backwards,create_graph,two_forwards,new_instance,resume,checkpointing,declared_uses,"
              "checkpointing_unused,static_changes,static_ranks_differ,logging_data,uneven_inputs,stop_when_exhausted,two_joined,"
              "state_broadcast,coalesced_broadcast,ignored_differ,buffers_by_hook,optimiser_in_step,optimisers_by_bucket,"
              "exact_hooks,powersgd_beside,quantized_beside,clip_grad_norm,zero_redundancy,tensors")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, nargs="?", default=ROOT / "build")
    parser.add_argument("--ranks", default="2,3,4")
    parser.add_argument("--backends", default="shm,ucx")
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--modes", default=MODES)
    parser.add_argument("--behaviours", default=BEHAVIOURS)
    parser.add_argument("--timeout", type=float, default=300, help="seconds for a job")
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    return arguments


def start(python, arguments, size):
    """Start the processes of a job."""
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(cases.free_ports()[0]), "WORLD_SIZE": str(size),
              "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "python"),
              "WEFT_LIBRARY": str(arguments.build / "libweft.so.0.9")}
    words = [arguments.backends, arguments.models, arguments.modes, arguments.behaviours,
             f"unix:@weft-parity-{os.getpid()}-{size}"]
    return [subprocess.Popen([str(python), "-W", "ignore", str(RANK), *words], env={**common, "RANK": str(rank)},
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             start_new_session=True) for rank in range(size)]


def run_job(python, arguments, size):
    """Return the lines that rank 0 printed; a job that fails or hangs is one failed case."""
    processes = start(python, arguments, size)
    deadline = time.monotonic() + arguments.timeout
    try:
        # The first rank that fails ends the job, because the others would wait for it.
        while time.monotonic() < deadline and any(process.poll() is None for process in processes):
            if any(process.poll() for process in processes):
                break
            time.sleep(0.05)
        codes = [process.poll() for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    outputs = [process.communicate() for process in processes]
    lines = [line.split("\t") for line in outputs[0][0].splitlines() if line.count("\t") == 2]
    if any(code != 0 for code in codes):
        problem = next((f"rank {rank}: exit code {code}\n{outputs[rank][1][-3000:]}" for rank, code in enumerate(codes)
                        if code), f"no end within {arguments.timeout:.0f} s")
        lines.append(["fail", f"job of {size} ranks", problem])
    return lines


def main():
    arguments = parse_arguments()
    try:
        python = torch_venv.prepare(arguments.build, lambda text: print("parity:", text, flush=True))
    except RuntimeError as error:
        sys.exit(f"parity: {error}")
    counts, reasons = {"pass": 0, "fail": 0, "out": 0}, collections.Counter()
    begin = time.monotonic()
    for size in map(int, arguments.ranks.split(",")):
        for outcome, name, detail in run_job(python, arguments, size):
            counts[outcome] += 1
            if outcome == "out":
                reasons[detail] += 1
                continue
            print(f"{outcome:4} {name}" + f": {detail}" * bool(detail), flush=True)
    for reason, count in reasons.items():
        print(f"parity: {count} left out: {reason}")
    print(f"parity: {counts['pass']} passed, {counts['fail']} failed, {counts['out']} left out in "
          f"{time.monotonic() - begin:.0f} s")
    return 0 if counts["pass"] and not counts["fail"] else 1


if __name__ == "__main__":
    sys.exit(main())
