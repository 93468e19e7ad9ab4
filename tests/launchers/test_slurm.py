#!/usr/bin/env python3
"""Real srun, with a Slurm of one machine with two nodes. Usage: test_slurm.py WEFT HELLO_ALLREDUCE"""
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import cases  # noqa: E402
import slurm  # noqa: E402
from cases import expect, expect_equal, skip  # noqa: E402

WEFT, HELLO = (Path(program).resolve() for program in sys.argv[1:3])  # srun starts them in other folders


def expect_met(result, size):
    expect_equal(result.returncode, 0, result)
    total = size * (size - 1) // 2
    expect_equal(sorted(result.stdout.splitlines()), [f"rank {rank} of {size}: the ranks' numbers sum to {total}, counted "
                                                      f"{size} ranks" for rank in range(size)], result)


def test_one_node():
    """srun's tasks of one node connect without further settings"""
    with slurm.cluster() as environment:
        expect_met(cases.run(["srun", "-N1", "-n3", HELLO], environment=environment), 3)


def test_two_nodes():
    """srun's tasks of two nodes connect at WEFT_STORE, with a secret in a file"""
    with slurm.cluster() as environment, tempfile.TemporaryDirectory() as folder:
        port, = cases.free_ports()
        secret = Path(folder) / "secret"
        secret.write_text("a secret of many characters\n")
        secret.chmod(0o600)
        environment = {**environment, "WEFT_SECRET_FILE": str(secret), "WEFT_STORE": f"tcp://127.0.0.1:{port}"}
        expect_met(cases.run(["srun", "-N2", "-n4", "--ntasks-per-node=2", HELLO], environment=environment), 4)


def test_two_nodes_without_a_variable():
    """srun's tasks of two nodes need no variable: a file in the job's folder has address and key, and is removed"""
    with slurm.cluster() as environment, tempfile.TemporaryDirectory() as folder:
        expect_met(cases.run(["srun", "-N2", "-n4", "--ntasks-per-node=2", HELLO], environment=environment, cwd=folder), 4)
        expect_equal(os.listdir(folder), [])
        none = cases.run(["srun", "-N2", "-n2", "env", "SLURM_SUBMIT_DIR=/none", HELLO], environment=environment, cwd=folder)
        expect(none.returncode != 0 and "/none, which does not exist on this host" in none.stderr, "no folder", none)


def test_two_nodes_by_munge():
    """where munge runs, it encrypts the file with the key for the job's user"""
    if os.getuid() != 0:
        skip("only root can put munge's socket at its usual place")
    with slurm.cluster() as environment, tempfile.TemporaryDirectory() as folder:
        socket = Path(environment["SLURM_CONF"]).parent / "munge.socket"
        # Rank 1 keeps a copy of the file before it reads it.
        script = (f"mount -t tmpfs tmpfs /run && mkdir /run/munge && touch /run/munge/munge.socket.2 && "
                  f"mount --bind {socket} /run/munge/munge.socket.2 || exit 9; "
                  f"[ $SLURM_PROCID = 0 ] || for i in $(seq 200); do cp weft-* copy 2>/dev/null && break; sleep 0.1; done; "
                  f"exec {HELLO}")
        words = ["srun", "-N2", "-n2", "unshare", "--mount", "sh", "-c", script]
        expect_met(cases.run(words, environment=environment, cwd=folder), 2)
        expect((Path(folder) / "copy").read_bytes().startswith(b"MUNGE:"), "it is encrypted", (Path(folder) / "copy").read_bytes())
        expect_equal(os.listdir(folder), ["copy"])


def test_two_nodes_find_each_other():
    """srun's tasks of two nodes need only the secret: they meet at the step's first node"""
    if os.getuid() != 0:
        skip("only root can give the simulated nodes' names an address")
    with slurm.cluster() as environment, tempfile.TemporaryDirectory() as folder:
        secret, hosts = Path(folder) / "secret", Path(folder) / "hosts"
        secret.write_text("a secret of many characters\n")
        secret.chmod(0o600)
        hosts.write_text("127.0.0.1 localhost node0 node1\n")
        named = f'mount --bind {hosts} /etc/hosts && exec {HELLO}'
        expect_met(cases.run(["srun", "-N2", "-n4", "--ntasks-per-node=2", "unshare", "--mount", "sh", "-c", named],
                             environment={**environment, "WEFT_SECRET_FILE": str(secret)}), 4)


if slurm.why_not():
    print(slurm.why_not())
    sys.exit(77)
for name in [name for name in os.environ if name.startswith(("SLURM_", "WEFT_")) and name != "WEFT_TEST_REPORT"]:
    del os.environ[name]
cases.main(globals())
