"""Imported before JAX by the tests that need it: installs JAX once, into BUILD/jax, and runs the test with it.

BUILD is the test's first argument. If JAX cannot be installed, the test is skipped. Tests use JAX on the platform cpu.
"""
import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
JAX = "jax==0.10.2"
INSTALL_S = 600

if importlib.util.find_spec("jax") is None:
    sys.path.insert(0, str(ROOT / "tools"))
    import package_venv
    try:
        venv = package_venv.prepare(sys.argv[1], "jax", [JAX, "numpy"], timeout=INSTALL_S)
    except RuntimeError as error:
        print(f"{JAX} cannot be installed:", " ".join(str(error).split())[-300:])
        sys.exit(77)
    os.execv(venv / "bin" / "python", [str(venv / "bin" / "python"), *sys.argv])

os.environ["JAX_PLATFORMS"] = "cpu"
