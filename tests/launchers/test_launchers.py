#!/usr/bin/env python3
"""The launchers that people have, as they are: each starts examples/hello_allreduce, whose ranks must find each other.

Usage: test_launchers.py LAUNCHER HELLO   where LAUNCHER is openmpi, torchrun, torchrun-variables or slurm-variables.
Exit 77 with the reason on the last line where the launcher is not installed.
"""
import os
import shutil
import signal
import subprocess
import sys

BOUND_S = 60


def clean_environment():
    """This process's environment without anything that a launcher or Weft would read."""
    prefixes = ("WEFT_", "OMPI_", "PMI", "SLURM_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_")
    return {k: v for k, v in os.environ.items() if not k.startswith(prefixes)}


def start(command, extra):
    return subprocess.Popen(command, env={**clean_environment(), **extra}, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, start_new_session=True)


def finish(processes):
    """Output of all; every process ends with 0 within the bound, or all are killed."""
    output = ""
    codes = []
    try:
        for process in processes:
            text, _ = process.communicate(timeout=BOUND_S)
            output += text
            codes.append(process.returncode)
    except subprocess.TimeoutExpired:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
        sys.exit(f"no end within {BOUND_S} s\n{output}")
    return codes, output


def expect_ranks(processes, size):
    codes, output = finish(processes)
    print(output)
    if any(codes):
        sys.exit(f"exit codes {codes}")
    for rank in range(size):
        if f"rank {rank} of {size}" not in output:
            sys.exit(f"rank {rank} of {size} is missing")


def need(program):
    if shutil.which(program) is None:
        print(f"{program} is not installed")
        sys.exit(77)


def openmpi(hello):
    need("mpirun")
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    expect_ranks([start(["mpirun", "-n", "3", "--oversubscribe", hello], root)], 3)


def torchrun(hello):
    need("torchrun")
    expect_ranks([start(["torchrun", "--standalone", "--nproc-per-node", "2", "--no-python", hello], {})], 2)


def torchrun_variables(hello):
    """What torchrun sets, without torch. The port of its own store is taken, so Weft must use another."""
    import socket
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                  "TORCHELASTIC_RUN_ID": "weft-test"}
        ranks = [start([hello], {**common, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(2)]
        expect_ranks(ranks, 2)


def slurm_variables(hello):
    """What srun sets for a step on one host, without Slurm."""
    common = {"SLURM_NTASKS": "2", "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1",
              "SLURM_NNODES": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_NUM_NODES": "1"}
    ranks = [start([hello], {**common, "SLURM_PROCID": str(r), "SLURM_LOCALID": str(r)}) for r in range(2)]
    expect_ranks(ranks, 2)


if __name__ == "__main__":
    tests = {"openmpi": openmpi, "torchrun": torchrun, "torchrun-variables": torchrun_variables,
             "slurm-variables": slurm_variables}
    if len(sys.argv) != 3 or sys.argv[1] not in tests:
        sys.exit(__doc__)
    tests[sys.argv[1]](sys.argv[2])
