"""Jobs that keep running while a test asks about them."""
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from cases import expect

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def started(weft, folder, program, ranks=4, **environment):
    """Start a Python program as ranks, and wait until each has printed "ready". It ends with the block."""
    path = Path(folder) / "program.py"
    path.write_text(program)
    job = subprocess.Popen([weft, "run", "-n", str(ranks), "--", sys.executable, str(path)], text=True,
                           stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": f"{ROOT}/python", **environment})
    try:
        for _ in range(ranks):
            expect("ready" in job.stdout.readline(), "a rank has started")
        yield job
    finally:
        for _ in range(2):  # the second one kills at once
            job.send_signal(signal.SIGTERM)
            time.sleep(0.2)
        job.wait(timeout=20)
