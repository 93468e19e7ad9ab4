"""The module libweft-jax.so for tests: that of the build folder, or one that is compiled here.

Meson builds it where it finds jaxlib. The tests install jaxlib in the build folder later, so this file compiles it.
"""
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "python" / "jax_module" / "jax_module.cpp"
COMPILE_S = 120


def prepare(build, headers, name="jax-module", *options):
    """Return the path of the module. headers: jax.ffi.include_dir()."""
    built, made = Path(build) / "libweft-jax.so", Path(build) / name / "libweft-jax.so"
    if built.exists() and not options:
        return built
    made.parent.mkdir(exist_ok=True)
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall",
               "-Wextra", "-Werror", *options, f"-I{ROOT / 'include'}", "-isystem", headers, SOURCE, f"-L{build}",
               "-lweft", "-o", made]
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=COMPILE_S,
                            check=False)
    if result.returncode:
        raise RuntimeError(f"the module cannot be compiled: {result.stdout}{result.stderr}")
    return made
