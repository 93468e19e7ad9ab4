"""Running programs under the mpirun of each MPI library that is installed and that this build has a module for."""
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import cases

TITLES = {"openmpi": "Open MPI", "mpich": "MPICH"}
FOREIGN = ("WEFT_", "OMPI_", "PMI", "SLURM_", "MPI_")
# Root, more ranks than cores, and waiting ranks that let the others run.
SETTINGS = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_mpi_yield_when_idle": "1"}


def mpirun(flavour):
    """Its command; None where it is not installed."""
    special = shutil.which("mpirun." + flavour)
    if special:
        return special
    general = shutil.which("mpirun")
    if not general:
        return None
    said = subprocess.run([general, "--version"], capture_output=True, text=True, check=False).stdout
    return general if ("Open MPI" in said) == (flavour == "openmpi") else None


def environment(**more):
    """This one, without what a launcher of the tests themselves may have put there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN) or name == "WEFT_TEST_REPORT"}
    return {**kept, **SETTINGS, **more}


def run(flavour, ranks, command, timeout=60, flags=(), **more):
    """`command` as so many ranks; flags: of mpirun; more: variables. What they print goes through a file: mpirun outlives its ranks' pipes."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen([mpirun(flavour), *flags, "-n", str(ranks), *map(str, command)], env=environment(**more),
                                   stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.terminate()  # mpirun ends its ranks
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        output.seek(0)
        return process.wait(), output.read()


def each(build):
    """The flavours that can run here; skips the case, saying why, where there is none."""
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
