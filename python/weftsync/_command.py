"""The command `weftsync`: the tool `weft` of the wheel, which starts ranks and describes the machine.

The script that pip writes for the entry point calls it.
"""
from __future__ import annotations

import os
import sys
from pathlib import Path

TOOL = Path(__file__).resolve().parent / "bin" / "weft"


def main() -> None:
    """Replace this process by the tool, with the same arguments."""
    if not TOOL.exists():
        sys.exit(f"weftsync: {TOOL} does not exist, so this is not the package of a wheel: use the command weft of the "
                 "library's installation (make install)")
    os.execv(TOOL, ["weftsync", *sys.argv[1:]])
