#!/usr/bin/env python3
"""How ranks find each other under common launchers. Usage: test_launchers.py HELLO_ALLREDUCE BUILD

mpirun and torchrun are real if installed (torchrun also if `make bench-peers` put it into BUILD). The others
are simulated: processes get the launcher's variables.
"""
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

HELLO = sys.argv[1]
PEERS = Path(sys.argv[2]) / "peers" / "venv" / "bin"
FOREIGN = ("WEFT_", "OMPI_", "PMI", "SLURM_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "TORCHELASTIC_", "MPI_", "MV2_",
           "JSM_", "FLUX_", "PALS_", "ALPS_", "HOROVOD_")


def clean():
    """Return this process's environment without variables that a launcher of the tests has set."""
    return {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}


def ranks(environments, timeout=60):
    """Run one process for each environment; return (exit code, output, errors) of each."""
    processes = [subprocess.Popen([HELLO], env={**clean(), **environment}, text=True, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE) for environment in environments]
    try:
        said = [process.communicate(timeout=timeout) for process in processes]
        return [(process.returncode, errors, output) for process, (output, errors) in zip(processes, said)]
    finally:
        for process in processes:
            process.kill()


def expect_met(results, size):
    total = size * (size - 1) // 2
    for rank, result in enumerate(results):
        expect_equal(result[0], 0, result)
        expect(f"rank {rank} of {size}" in result[2] and f"sum to {total}," in result[2], "wrong result", result)


def test_mpirun():
    """ranks that mpirun starts on one host connect without further settings"""
    mpirun = shutil.which("mpirun")
    if not mpirun:
        cases.skip("there is no mpirun")
    allow = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
             "OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    result = subprocess.run([mpirun, "-n", "3", HELLO], env={**clean(), **allow}, text=True, timeout=60,
                            stdin=subprocess.DEVNULL, capture_output=True, check=False)
    expect_equal(result.returncode, 0, result)
    expect_equal(result.stdout.count("of 3: the ranks' numbers sum to 3,"), 3, result)


def test_torchrun():
    """ranks that torchrun starts on one host connect without further settings"""
    torchrun = shutil.which("torchrun") or shutil.which("torchrun", path=PEERS)
    if not torchrun:
        cases.skip("there is no torchrun (`make bench-peers` brings one)")
    result = subprocess.run([torchrun, "--standalone", "--nproc-per-node", "2", "--no-python", HELLO], env=clean(),
                            text=True, timeout=100, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    expect_equal(result.returncode, 0, result)
    expect_equal(result.stdout.count("of 2: the ranks' numbers sum to 1,"), 2, result)


def test_torchrun_variables():
    """with torchrun's variables ranks connect on one host, and with a secret at the port after torchrun's"""
    def environment(rank, local_size, **more):
        return {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": str(local_size), "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": f"test-{os.getpid()}", **more}
    port, _ = cases.free_ports(2)  # torchrun's own store uses the first port
    expect_met(ranks([environment(rank, 2) for rank in range(2)]), 2)
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder) / "secret"
        secret.write_text("a secret of many characters\n")
        secret.chmod(0o600)
        expect_met(ranks([environment(rank, 1, WEFT_SECRET_FILE=str(secret)) for rank in range(2)]), 2)
        secret.chmod(0o644)
        (code, errors, _), = ranks([environment(0, 1, WEFT_SECRET_FILE=str(secret))])
        expect(code != 0 and "open to other users" in errors and "mode 0644" in errors, "a secret that all can read", errors)


def test_ports_and_interfaces():
    """ranks connect at the ports and interfaces that are set; a port in use or an interface that is not there is refused"""
    with tempfile.TemporaryDirectory() as folder:
        def environment(rank, **more):
            return {"WEFT_RANK": str(rank), "WEFT_SIZE": "2", "WEFT_STORE": f"file://{folder}", "WEFT_INTERFACES": "lo", **more}
        first = min(cases.free_ports(8))
        expect_met(ranks([environment(rank, WEFT_PORTS=f"{first}-{first + 7}") for rank in range(2)]), 2)
        (code, errors, _), = ranks([environment(0, WEFT_INTERFACES="none9")])
        expect(code != 0 and "WEFT_INTERFACES names none9: this host has" in errors and "lo" in errors, "no such interface", errors)
        (code, errors, _), = ranks([environment(0, WEFT_PORTS="70000-1")])
        expect(code != 0 and 'WEFT_PORTS is "70000-1", but must be FIRST-LAST' in errors, "no ports", errors)


def test_srun():
    """srun's tasks of one node connect through their step's socket"""
    expect_met(ranks([{"SLURM_PROCID": str(rank), "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "3",
                       "SLURM_STEP_NUM_NODES": "1", "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0"}
                      for rank in range(3)]), 3)


def test_hydra():
    """MPICH's ranks of one host find each other by their common parent process"""
    expect_met(ranks([{"PMI_RANK": str(rank), "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"} for rank in range(2)]), 2)


def test_other_launchers():
    """ranks of one host connect under MVAPICH2's, jsrun's, Flux's and Horovod's variables"""
    def environment(prefix, rank, **more):
        names = {"MV2_COMM_WORLD_": ("RANK", "SIZE", "LOCAL_SIZE"), "JSM_NAMESPACE_": ("RANK", "SIZE", "LOCAL_SIZE"),
                 "FLUX_": ("TASK_RANK", "JOB_SIZE", None), "HOROVOD_": ("RANK", "SIZE", "LOCAL_SIZE")}[prefix]
        values = {prefix + name: str(value) for name, value in zip(names, (rank, 2, 2)) if name}
        return {**values, **more}
    for prefix, more in (("MV2_COMM_WORLD_", {}), ("JSM_NAMESPACE_", {}),
                         ("FLUX_", {"FLUX_JOB_NNODES": "1", "FLUX_JOB_ID": f"f{os.getpid()}"}),
                         ("HOROVOD_", {"HOROVOD_GLOO_RENDEZVOUS_ADDR": f"10.0.0.{os.getpid()}"})):
        expect_met(ranks([environment(prefix, rank, **more) for rank in range(2)]), 2)


def test_half_a_launcher():
    """a launcher that does not give the number of ranks is refused by name, and WEFT_SIZE=1 overrides that"""
    (code, errors, output), (one_code, _, one_output) = ranks([{"PMIX_RANK": "3"}, {"PMIX_RANK": "3", "WEFT_SIZE": "1"}])
    expect(code != 0 and "PMIX_RANK=3" in errors and "WEFT_SIZE=1" in errors, "no refusal", code, errors, output)
    expect(one_code == 0 and "rank 0 of 1" in one_output, "one rank", one_code, one_output)


def test_beyond_loopback():
    """without a secret no ranks connect beyond loopback, and the error names the missing setting"""
    (code, errors, _), = ranks([{"WEFT_RANK": "0", "WEFT_SIZE": "2", "WEFT_STORE": "tcp://192.0.2.1:7000"}])
    expect(code != 0 and "WEFT_SECRET_FILE" in errors, "no refusal", code, errors)


def test_secrets_differ():
    """a rank with a different secret gets an error at once"""
    store = f"unix:@weft-test-{os.getpid()}"
    secrets = ["one secret of the job", "another secret of it"]
    environments = [{"WEFT_RANK": str(rank), "WEFT_SIZE": "2", "WEFT_STORE": store, "WEFT_SECRET": secrets[rank]}
                    for rank in range(2)]
    first = subprocess.Popen([HELLO], env={**clean(), **environments[0]}, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
    try:
        (code, errors, _), = ranks(environments[1:])
        expect(code != 0 and "another secret" in errors, "no refusal", code, errors)
        expect_equal(first.poll(), None)  # rank 0 keeps waiting, undisturbed
    finally:
        first.kill()
        first.wait()


if __name__ == "__main__":
    cases.main(globals())
