"""Writes the folder weftsync-VERSION.dist-info for packages of other systems than pip.

Usage: dist_info.py PYPROJECT VERSION INSTALLER FOLDER

The entry points of torch are in it, and those of commands are not: such a system installs the command weft itself.
"""
import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path(sys.argv[1]).read_text())["project"]
version, installer, packages = sys.argv[2:]
folder = Path(packages) / f"{project['name']}-{version}.dist-info"
folder.mkdir(parents=True, exist_ok=True)
(folder / "METADATA").write_text("\n".join([
    "Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {version}", f"Summary: {project['description']}",
    f"License: {project['license']}", f"Requires-Python: {project['requires-python']}",
    *(f"Requires-Dist: {one}" for one in project["dependencies"]), ""]))
(folder / "INSTALLER").write_text(f"{installer}\n")
(folder / "entry_points.txt").write_text("".join(
    f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
    for group, points in project["entry-points"].items()))
