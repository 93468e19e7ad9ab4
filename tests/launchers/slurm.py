"""Runs a Slurm of one machine for the time of a test: munged, slurmctld and the slurmd of two nodes in the
foreground. All their files lie in a temporary folder, and their ports are free ones. Used by test_slurm.py.
"""
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cases  # the importing test has put tests/support into the path

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
CONFIG = """\
ClusterName=weft
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
NodeName=node[0-1] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports[1]}-{ports[2]}] CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not():
    """Return why Slurm cannot run here, or None."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    missing = [program for program in PROGRAMS if not shutil.which(program, path=search_path())]
    return f"there is no {', '.join(missing)} (Debian: apt-get install slurm-wlm munge)" if missing else None


def search_path():
    return os.environ["PATH"] + ":/usr/sbin:/sbin"


@contextlib.contextmanager
def cluster():
    """Yield the environment with which srun finds the cluster. The daemons end with this process, however it
    ends."""
    with tempfile.TemporaryDirectory(prefix="weft-slurm-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "state").mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        config = folder / "slurm.conf"
        config.write_text(CONFIG.format(host=socket.gethostname().split(".")[0], ports=cases.free_ports(3), folder=folder))
        environment = {"PATH": search_path(), "SLURM_CONF": str(config)}

        def daemon(program, *words):
            log = stack.enter_context(open(folder / f"{program}{len(words)}.out", "wb"))
            process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", program, *words], stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=log, env={**os.environ, **environment})
            stack.callback(process.wait)
            stack.callback(process.kill)

        daemon("munged", "--foreground", "--force", "--key-file", key, "--socket", folder / "munge.socket", "--pid-file",
               folder / "munge.pid", "--log-file", folder / "munge.log", "--seed-file", folder / "munge.seed")
        wait_for(folder, (folder / "munge.socket").exists)
        daemon("slurmctld", "-D")
        daemon("slurmd", "-D", "-N", "node0")
        daemon("slurmd", "-D", "-N", "node1", "-v")

        def idle():
            nodes = subprocess.run(["sinfo", "--noheader", "--Node", "--format", "%T"], env={**os.environ, **environment},
                                   capture_output=True, text=True, check=False, timeout=30).stdout
            return nodes.split() == ["idle", "idle"]
        wait_for(folder, idle)
        yield environment


def wait_for(folder, condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            logs = "\n".join(f"{path.name}: {path.read_text(errors='replace')[-1000:]}" for path in folder.glob("*.out"))
            raise AssertionError(f"Slurm does not come up within {seconds} s\n{logs}")
        time.sleep(0.05)
