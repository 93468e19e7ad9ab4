"""Installs PyTorch into a virtual environment of a build folder, for comparisons in bench/peers.py and tests/parity."""
import package_venv

TORCH = "torch==2.13.0"
PACKAGES = [TORCH, "numpy"]


def prepare(build, say=print):
    """Returns the interpreter that has PyTorch. Raises RuntimeError if it cannot be installed."""
    return package_venv.prepare(build, "torch", PACKAGES, say) / "bin" / "python"
