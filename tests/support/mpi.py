"""Runs programs under mpirun, for each installed MPI library for which this build has a module."""
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import cases

TITLES = {"openmpi": "Open MPI", "mpich": "MPICH"}
FOREIGN = ("WEFT_", "OMPI_", "PMI", "SLURM_", "MPI_")
# Allow root, oversubscription, and yielding while a rank waits.
SETTINGS = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_mpi_yield_when_idle": "1"}


def mpirun(flavour):
    """Return the flavour's mpirun command; None if it is not installed."""
    special = shutil.which("mpirun." + flavour)
    if special:
        return special
    general = shutil.which("mpirun")
    if not general:
        return None
    said = subprocess.run([general, "--version"], capture_output=True, text=True, check=False).stdout
    return general if ("Open MPI" in said) == (flavour == "openmpi") else None


def environment(**more):
    """Return this process's environment without variables that a launcher of the tests has set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN) or name == "WEFT_TEST_REPORT"}
    return {**kept, **SETTINGS, **more}


def run(flavour, ranks, command, timeout=60, flags=(), **more):
    """Run `command` as `ranks` ranks; flags: mpirun's; more: variables. Output goes through a file, because
    mpirun outlives its ranks' pipes."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen([mpirun(flavour), *flags, "-n", str(ranks), *map(str, command)], env=environment(**more),
                                   stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.terminate()  # mpirun then ends its ranks
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        output.seek(0)
        return process.wait(), output.read()


def each(build):
    """Yield the flavours that can run here; skip the case with the reason if there is none."""
    found, missing = [], []
    for flavour, title in TITLES.items():
        if not (Path(build) / f"libweft-mpi-{flavour}.so").exists():
            missing.append(f"this build has no module for {title}")
        elif not mpirun(flavour):
            missing.append(f"there is no mpirun of {title}")
        else:
            found.append(flavour)
    for why in missing:
        print(f"left out: {why}", flush=True)
    if not found:
        cases.skip("; ".join(missing))
    return found
