"""PyTorch in a virtual environment of a build folder: what bench/peers.py and tests/parity compare with.

Never the system's Python. A marker says that the environment is whole, so that a second run installs nothing.
"""
import subprocess
import sys
from pathlib import Path

TORCH = "torch==2.13.0"
PACKAGES = [TORCH, "numpy"]
TIMEOUT_S = 1800


def prepare(build, say=print):
    """The interpreter that has PyTorch. Raises RuntimeError if it cannot be installed."""
    venv = Path(build) / "torch"
    python, done = venv / "bin" / "python", venv / TORCH
    if not done.exists():
        say(f"installing {TORCH} into {venv}")
        for command in ([sys.executable, "-m", "venv", "--clear", venv],
                        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES]):
            try:
                subprocess.run([str(word) for word in command], check=True, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S)
            except subprocess.SubprocessError as error:
                raise RuntimeError(f"PyTorch could not be installed (python3-venv, a package index): {error}\n"
                                   f"{getattr(error, 'output', '') or ''}") from None
        done.touch()
    return python
