#!/usr/bin/env python3
"""Launchers on two hosts, which tools/two-hosts.sh simulates. Each host runs the commands that
docs/how-to/launch-kubernetes.md gives for a host. Usage: test_across.py WEFT FOLDER_OF_EXAMPLES TWO_HOSTS BUILD
"""
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

WEFT, TWO_HOSTS = sys.argv[1], sys.argv[3]
HELLO = Path(sys.argv[2]) / "hello_allreduce"
PEERS = Path(sys.argv[4]) / "peers" / "venv" / "bin"
DOCUMENT = Path(__file__).resolve().parent.parent.parent / "docs/how-to/launch-kubernetes.md"
AGENT = Path(__file__).resolve().parent / "agent.sh"
# Uses the rank numbers of the tested launcher: two-hosts.sh starts only one process a host here.
HERE = "HOST=$WEFT_RANK; unset WEFT_RANK WEFT_SIZE WEFT_LOCAL_RANK WEFT_LOCAL_SIZE WEFT_STORE WEFT_SECRET_FILE; "


def each_host(script, **environment):
    """Run the shell script on two hosts, with $HOST; $SECRET is a file."""
    if os.geteuid() != 0:
        cases.skip("makes network namespaces, which needs root")
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder) / "secret"
        secret.write_text("a secret of many characters\n")
        secret.chmod(0o600)
        result = cases.run([TWO_HOSTS, "--ranks-per-host", 1, "--counters", "--prefix", "none", "sh", "-c", HERE + script],
                           environment={"WEFT": WEFT, "WEFT_BACKEND": "ucx", "SECRET": str(secret), "HELLO": str(HELLO),
                                        **environment}, timeout=100)
    if result.returncode == 125:
        cases.skip("no hosts here: " + result.stderr.strip())
    return result


def need_ucx():
    line = next((line for line in cases.run([WEFT, "info"]).stdout.splitlines() if line.split()[:1] == ["ucx"]), "no ucx")
    if " available: " not in line or "not available" in line:
        cases.skip(line.strip())


def expect_met(result, size=4):
    total = size * (size - 1) // 2
    expect_equal(result.returncode, 0, result.stdout, result.stderr)
    expect_equal(sorted(line for line in result.stdout.splitlines() if line.startswith("rank ")),
                 [f"rank {r} of {size}: the ranks' numbers sum to {total}, counted {size} ranks" for r in range(size)], result)
    cables = re.findall(r"(\d+) bytes sent, (\d+) bytes received", result.stderr)
    expect(len(cables) == 2 and min(int(count) for pair in cables for count in pair) > 1000, "over the cables", result.stderr)


def test_weft_run():
    """one `weft run` on each of two hosts creates one communicator"""
    need_ucx()
    expect_met(each_host('WEFT_SECRET_FILE=$SECRET exec "$WEFT" run -n 2 --prefix none --first-rank $((HOST * 2)) --size 4 '
                         '--store tcp://host0:7000 -- "$HELLO"'))


def test_torchrun():
    """torchrun on each of two hosts creates one communicator"""
    need_ucx()
    torchrun = shutil.which("torchrun") or shutil.which("torchrun", path=PEERS)
    if not torchrun:
        cases.skip("there is no torchrun (`make bench-peers` brings one)")
    expect_met(each_host('WEFT_SECRET_FILE=$SECRET exec "$TORCHRUN" --nnodes 2 --node-rank $HOST --master-addr host0 '
                         '--master-port 29500 --nproc-per-node 2 --no-python "$HELLO"', TORCHRUN=torchrun))


def test_mpirun():
    """mpirun on one host starts ranks on two hosts"""
    need_ucx()
    mpirun = shutil.which("mpirun")
    if not mpirun or "Open MPI" not in cases.run([mpirun, "--version"]).stdout:
        cases.skip("there is no Open MPI")
    # The second host must stay until mpirun has finished. Its process ends when the first host's has.
    expect_met(each_host('done=$SECRET.done; if [ $HOST = 1 ]; then until [ -e "$done" ]; do sleep 0.05; done; exit 0; fi; '
                         'mpirun --mca plm_rsh_agent "$AGENT" --mca oob_tcp_if_include eth0 --mca btl_tcp_if_include eth0 '
                         '--oversubscribe --host host0:2,host1:2 -n 4 -x WEFT_STORE=tcp://host0:7000 '
                         '-x WEFT_SECRET_FILE=$SECRET -x WEFT_BACKEND "$HELLO"; code=$?; touch "$done"; exit $code',
                         AGENT=str(AGENT), OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1"))


def test_kubernetes():
    """two hosts run the command and environment that the manifest of docs/how-to/launch-kubernetes.md gives a pod"""
    need_ucx()
    manifest = re.search(r"<!-- test: none kubernetes -->\n```yaml\n(.*?)```", DOCUMENT.read_text(), re.S).group(1)
    command = re.search(r"- sh\n +- -c\n +- (exec weft run .*)\n", manifest).group(1)
    variables = dict(re.findall(r"- \{name: (WEFT_\w+), value: ([^}]+)\}", manifest))
    expect_equal(set(variables), {"WEFT_SECRET_FILE", "WEFT_BACKEND"}, manifest)
    expect("mountPath: /run/weft," in manifest and variables["WEFT_SECRET_FILE"] == "/run/weft/secret", "the secret's path")
    name = re.search(r"kind: Job\nmetadata: \{name: (\S+)\}", manifest).group(1)
    domain = re.search(r"subdomain: (\S+)", manifest).group(1)
    expect(f"metadata: {{name: {domain}}}" in manifest and f"job-name: {name}" in manifest, "the service is the pods'", manifest)
    command = command.replace(f"{name}-0.{domain}", "host0").replace("weft run", '"$WEFT" run --prefix none')
    command = command.replace("./train", '"$HELLO"')
    script = f'export JOB_COMPLETION_INDEX=$HOST WEFT_SECRET_FILE=$SECRET WEFT_BACKEND={variables["WEFT_BACKEND"]}; {command}'
    expect_met(each_host(script))


cases.main(globals())
