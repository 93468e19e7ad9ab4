#!/usr/bin/env python3
"""The Debian packages as their users have them. `make test-deb` runs it. Usage: test_deb.py BUILD DIST JOBS [--twice] [PATTERN]

mmdebstrap makes a root folder of this system's release, without documents and recommended packages, and apt installs the
packages there: it is in namespaces of its own, and this system is not changed. The time limits end what hangs.
"""
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tools")]
import cases  # noqa: E402
import source_archive  # noqa: E402
from cases import expect, expect_equal, skip  # noqa: E402

BUILD, DIST, JOBS = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3]
WORK = BUILD / "deb-test"
VERSION = source_archive.version_of(ROOT)
SONAME = "libweft.so.0.9"
LIBRARY = "libweft0.9"
PACKAGES = [LIBRARY, "libweft-dev", "weft-tools", "python3-weftsync"]
ROOT_S, BUILD_S = 1800, 3 * 3600
# Commands in the root folder, in this order, each with its result. Every step has what the steps before it have installed.
STEPS = {
    "library": "install libweft0.9 weft-tools && weft info",
    "ranks": "weft run -n 2 -- weft --version && weft bench all_reduce --ranks 2 --sizes 1K --iterations 20 --no-pin",
    "ucx": "apt-get install -qy --no-install-recommends libucx0 && weft info",
    "compile": "install libweft-dev && apt-get install -qy --no-install-recommends gcc libc6-dev cmake make pkg-config && "
               "cd /source && sh packaging/debian/tests/compile",
    "python": "install python3-weftsync && sh /source/packaging/debian/tests/python",
    "checks": "dpkg --verify libweft0.9 libweft-dev weft-tools python3-weftsync && dpkg --audit",
    "purge": "apt-get purge -qy libweft0.9 libweft-dev weft-tools python3-weftsync && "
             "find / -xdev -name '*weft*' -not -path '/proc/*' -not -path '/source*' -not -path '/results*'",
}
SCRIPT = """
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
install() {
  files=
  for package in "$@"; do files="$files $(echo /source/debs/"$package"_*.deb)"; done
  # shellcheck disable=SC2086
  apt-get install -qy --no-install-recommends $files
}
step() {
  (eval "$2") >"/results/$1.out" 2>"/results/$1.err" && code=0 || code=$?
  echo "$code" >"/results/$1.code"
}
"""


def call(*command, timeout=600, **more):
    result = cases.run(command, timeout=timeout, **more)
    expect_equal(result.returncode, 0, command, result.stdout[-4000:], result.stderr[-4000:])
    return result.stdout


def deb(package):
    found = list(DIST.glob(f"{package}_{VERSION}-*.deb"))
    expect_equal(len(found), 1, f"packages {package} in {DIST}", found)
    return found[0]


def field(package, name):
    return call("dpkg-deb", "--field", deb(package), name).strip()


def unpacked(package):
    folder = WORK / "unpacked" / package
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        call("dpkg-deb", "--extract", deb(package), folder)
    return folder


def files_of(package):
    folder = unpacked(package)
    return {"/" + str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()}


def programs_of(package):
    return [path for path in unpacked(package).rglob("*")
            if path.is_file() and not path.is_symlink() and path.open("rb").read(4) == b"\x7fELF"]


def in_root(step):
    """Return the output and the errors of a step in the root folder; fail the case if the step failed."""
    results = WORK / "results"
    if not results.exists():
        for command in ("mmdebstrap", "unshare"):
            if not shutil.which(command):
                skip(f"{command} is not here")
        source = WORK / "source"
        (source / "debs").mkdir(parents=True)
        for package in PACKAGES:
            shutil.copy(deb(package), source / "debs")
        shutil.copytree(ROOT / "packaging/debian/tests", source / "packaging/debian/tests")
        (source / "examples").mkdir()
        shutil.copy(ROOT / "examples/hello_allreduce.c", source / "examples")
        (source / "steps.sh").write_text(SCRIPT + "".join(f"step {name} '{text.replace(chr(39), chr(34))}'\n"
                                                          for name, text in STEPS.items()))
        suite = re.search(r"^VERSION_CODENAME=(\w+)$", Path("/etc/os-release").read_text(), re.M).group(1)
        call("mmdebstrap", "--variant=apt", "--quiet", "--mode=unshare",
             "--customize-hook=mkdir $1/source $1/results && chmod 777 $1/results",
             f"--customize-hook=sync-in {source} /source", "--customize-hook=chroot $1 sh /source/steps.sh",
             f"--customize-hook=copy-out /results {WORK}", suite, "/dev/null", timeout=ROOT_S)
    code, out, errors = ((results / f"{step}.{kind}").read_text() for kind in ("code", "out", "err"))
    expect_equal(code.strip(), "0", STEPS[step], out[-4000:], errors[-4000:])
    return out


def test_names():
    """the packages have the project's version, and the library's package the name that its soname asks for"""
    library = next(path for path in programs_of(LIBRARY) if path.name.startswith("libweft.so"))
    soname = re.search(r"SONAME.*\[(.*)\]", call("readelf", "-dW", library)).group(1)
    expect_equal(soname, SONAME)
    expect_equal(soname.replace(".so.", ""), LIBRARY)
    for package in PACKAGES:
        expect_equal(field(package, "Version").rsplit("-", 1)[0], VERSION)
    machine = call("dpkg", "--print-architecture").strip()
    expect_equal({package: field(package, "Architecture") for package in PACKAGES},
                 {LIBRARY: machine, "libweft-dev": machine, "weft-tools": machine, "python3-weftsync": "all"})


def test_files():
    """each package has its files, in Debian's folders for several architectures"""
    triplet = call("dpkg-architecture", "-qDEB_HOST_MULTIARCH").strip()
    folder = f"/usr/lib/{triplet}"
    modules = {f"{folder}/weft-0.9/libweft-{name}.so" for name in ("ucx", "mpi-openmpi", "mpi-mpich", "lightgbm")}
    headers = {f"/usr/include/weft/{path.name}" for path in (ROOT / "include/weft").glob("*.h")}
    python = "/usr/lib/python3/dist-packages/"
    sources = {f"{python}weftsync/{path.relative_to(ROOT / 'python/weftsync')}"
               for path in (ROOT / "python/weftsync").rglob("*") if path.suffix in (".py", ".typed")}
    wanted = {
        LIBRARY: {f"{folder}/{SONAME}", f"{folder}/libweft.so.{VERSION}", *modules},
        "libweft-dev": {f"{folder}/libweft.so", f"{folder}/pkgconfig/weft.pc", f"{folder}/cmake/weft/weft-config.cmake",
                        f"{folder}/cmake/weft/weft-config-version.cmake", *headers},
        "weft-tools": {"/usr/bin/weft", "/usr/bin/weft-bench", "/usr/share/weft/grafana-dashboard.json",
                       "/usr/share/bash-completion/completions/weft",
                       *(f"/usr/share/man/man1/weft{command}.1.gz" for command in (
                           "", "-bench", "-doctor", "-info", "-report", "-run", "-secret", "-status", "-store", "-top", "-trace"))},
        "python3-weftsync": {*sources, *(f"{python}weftsync-{VERSION}.dist-info/{name}"
                                         for name in ("METADATA", "INSTALLER", "entry_points.txt"))}}
    for package in PACKAGES:
        shared = {path for path in files_of(package) if path.startswith(("/usr/share/doc/", "/usr/share/lintian/"))}
        expect(f"/usr/share/doc/{package}/copyright" in shared, "its copyright", shared)
        expect_equal(files_of(package) - shared, wanted[package], package)


def test_dependencies():
    """libraries of modules are recommended (UCX) or suggested (MPI), and not needed"""
    needed = field(LIBRARY, "Depends")
    expect("libsodium23" in needed and "libc6" in needed, "its dependencies", needed)
    expect(not re.search("libucx|libopenmpi|libmpich", needed), "libraries of modules", needed)
    expect("libucx0 (>= 1.13" in field(LIBRARY, "Recommends"), "UCX", field(LIBRARY, "Recommends"))
    suggested = field(LIBRARY, "Suggests")
    expect("libopenmpi3" in suggested and "libmpich12" in suggested, "both MPI libraries", suggested)
    expect(re.search(rf"libweft0.9 \(= {VERSION}-\S+\)", field("libweft-dev", "Depends")), field("libweft-dev", "Depends"))
    expect(f"{LIBRARY} (>= {VERSION}" in field("weft-tools", "Depends"), field("weft-tools", "Depends"))
    python = field("python3-weftsync", "Depends")
    expect(f"{LIBRARY} (>= {VERSION})" in python and "python3-numpy" in python, python)
    expect_equal([field(package, "Multi-Arch") for package in PACKAGES], ["same", "same", "foreign", "no"])


def test_hardening():
    """every library and program has Debian's hardening, is stripped, and contains no path of its build"""
    protected = fortified = 0
    for path in [path for package in PACKAGES for path in programs_of(package)]:
        headers = call("readelf", "-hldSW", path)
        expect(re.search(r"Type:\s+DYN", headers), f"{path.name} is no position-independent code")
        expect("GNU_RELRO" in headers and "BIND_NOW" in headers, f"{path.name} has relocations that stay writable", headers)
        expect("RWE" not in headers, f"{path.name} has an executable stack")
        expect(not re.search("RPATH|RUNPATH", headers), f"{path.name} has a search path")
        expect(".symtab" not in headers, f"{path.name} is not stripped")
        expect(b"build-deb" not in path.read_bytes(), f"{path.name} contains the path of its build")
        symbols = call("readelf", "--dyn-syms", "-W", path)
        protected += "__stack_chk_fail" in symbols
        fortified += bool(re.search(r"__\w+_chk\b", symbols.replace("__stack_chk_fail", "")))
    expect(protected >= 5 and fortified >= 3, f"{protected} have stack protectors, {fortified} fortified functions")


def test_lintian():
    """lintian finds neither an error nor a warning"""
    changes = next(DIST.glob(f"weft_{VERSION}-*_{call('dpkg', '--print-architecture').strip()}.changes"))
    result = cases.run(["lintian", "--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0", changes], timeout=600)
    expect_equal((result.returncode, result.stdout.strip()), (0, ""), result.stderr)


def test_library_alone():
    """library and tools install without what Debian only recommends, and name the library that a module lacks"""
    out = in_root("library")
    expect(re.search(r"^ +ucx +not available: not loaded: libucp\.so\.0", out, re.M), "the module ucx", out)
    expect(re.search(r"^ +shm +available", out, re.M), "the backend shm", out)


def test_ranks():
    """the installed command starts ranks and measures"""
    expect_equal(in_root("ranks").count(VERSION), 2)


def test_ucx():
    """once libucx0 is installed, the backend ucx is there"""
    expect(re.search(r"^ +ucx +available: UCX 1", in_root("ucx"), re.M), "the backend ucx", in_root("ucx"))


def test_compile():
    """with libweft-dev a C program is built by pkg-config and by CMake, and two ranks of each reduce"""
    expect(in_root("compile").endswith("compile: passed\n"), "the script", in_root("compile"))


def test_python():
    """with python3-weftsync two ranks of Debian's Python reduce, and the metadata names torch's backend"""
    expect(in_root("python").endswith("python: passed\n"), "the script", in_root("python"))


def test_checks():
    """dpkg finds every installed file unchanged and no package half installed"""
    expect_equal(in_root("checks"), "")


def test_purge():
    """removing the packages leaves nothing"""
    left = [line for line in in_root("purge").splitlines() if line.startswith("/")]
    expect_equal(left, [])


def test_same_bytes():
    """a second build in another folder gives the same packages and the same Debian source"""
    if source_archive.git(ROOT, "status", "--porcelain"):
        skip("the sources differ from the commit that the packages have")
    if "--twice" not in sys.argv:
        skip("a second build takes as long as the first (make test-deb makes it)")
    other = WORK / "another-folder"
    call("git", "clone", "--quiet", ROOT, other / "clone")
    subprocess.run([sys.executable, ROOT / "tools/deb.py", "--source", other / "clone", "--work", other / "work", "--out",
                    other / "dist", "--jobs", JOBS], check=True, timeout=BUILD_S, stdin=subprocess.DEVNULL)
    compared = sorted(path.name for pattern in ("*.deb", "*.dsc", "*.tar.*") for path in (other / "dist").glob(pattern))
    expect(len(compared) > len(PACKAGES) + 2, "packages and sources", compared)
    expect_equal([name for name in compared if (DIST / name).read_bytes() != (other / "dist" / name).read_bytes()], [])


if __name__ == "__main__":
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    os.umask(0o022)
    cases.main(globals())
