"""Installs Python packages into virtual environments of a build folder, one environment for each set of packages.

The system's Python is never changed. The file packages.txt lists what a complete environment has, so that a second run
installs nothing, and a run with another list installs all of it anew.
"""
import subprocess
import sys
from pathlib import Path

TIMEOUT_S = 1800


def prepare(build, name, packages, say=print, bare=(), timeout=TIMEOUT_S):
    """Returns the folder BUILD/name with these packages ("torch==2.13.0"), and those of `bare` without their dependencies.
    Raises RuntimeError if they cannot be installed."""
    venv = Path(build) / name
    wanted = [*packages, *bare]
    done, listed = venv / "packages.txt", "".join(f"{one}\n" for one in wanted)
    if not done.exists() or done.read_text() != listed:
        say(f"installing {', '.join(wanted)} into {venv}")
        pip = [venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for command in ([sys.executable, "-m", "venv", "--clear", venv], [*pip, *packages] if packages else [],
                        [*pip, "--no-deps", *bare] if bare else []):
            if not command:
                continue
            try:
                subprocess.run([str(word) for word in command], check=True, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout)
            except subprocess.SubprocessError as error:
                raise RuntimeError(f"{', '.join(wanted)} could not be installed (python3-venv, a package index): {error}\n"
                                   f"{getattr(error, 'output', '') or ''}") from None
        done.write_text(listed)
    return venv
