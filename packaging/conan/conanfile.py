"""Conan's recipe. It builds the repository that it lies in: conan create packaging/conan -o weft/*:system_packages=True"""
import re
from pathlib import Path

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.files import copy
from conan.tools.gnu import PkgConfigDeps
from conan.tools.layout import basic_layout
from conan.tools.meson import Meson, MesonToolchain
from conan.tools.system.package_manager import Apt

SOURCES = ("LICENSE", "meson.build", "meson_options.txt", "backends/*", "bench/*.cpp", "bench/meson.build", "hooks/*", "include/*",
           "lib/*", "python/*", "tests/support/*", "tools/*")


class Weft(ConanFile):
    name = "weft"
    description = "Gradient synchronisation and collective communication behind a C interface"
    license = "Apache-2.0"
    topics = ("collectives", "all-reduce", "gradients", "distributed")
    package_type = "shared-library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"system_packages": [True, False], "tools": [True, False], "ucx": [True, False], "mpi": [True, False]}
    # UCX and MPI are always the system's.
    default_options = {"system_packages": False, "tools": True, "ucx": False, "mpi": False}

    @property
    def _root(self):
        return Path(self.recipe_folder).parent.parent

    def set_version(self):
        self.version = re.search(r"^  version: '([\d.]+)',$", (self._root / "meson.build").read_text(), re.M).group(1)

    def export_sources(self):
        for pattern in SOURCES:
            copy(self, pattern, src=str(self._root), dst=self.export_sources_folder, excludes=("*/__pycache__/*",))

    def validate(self):
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("Weft is for Linux")

    def configure(self):
        self.settings.rm_safe("compiler.cppstd")  # the interface is C, and meson.build chooses C++20 for the inside

    def layout(self):
        basic_layout(self)

    def requirements(self):
        if self.options.system_packages:
            return
        for package in ("spdlog/[>=1.8 <2]", "libsodium/[>=1.0.18 <2]", "highway/[>=1.0 <2]", "nlohmann_json/[>=3.10 <4]"):
            self.requires(package)
        if self.options.tools:
            self.requires("cli11/[>=2.1 <3]")

    def build_requirements(self):
        if not self.options.system_packages:
            self.tool_requires("meson/[>=1.0 <2]")
            self.tool_requires("pkgconf/[>=2.0 <3]")

    def system_requirements(self):
        packages = []
        if self.options.system_packages:
            packages += ["meson", "pkg-config", "libspdlog-dev", "libsodium-dev", "libhwy-dev", "nlohmann-json3-dev"]
            packages += ["libcli11-dev"] if self.options.tools else []
        packages += ["libucx-dev"] if self.options.ucx else []
        packages += ["libopenmpi-dev"] if self.options.mpi else []
        Apt(self).install(packages, check=True)

    def generate(self):
        PkgConfigDeps(self).generate()
        toolchain = MesonToolchain(self)
        toolchain.project_options.update({"tests": False, "examples": False, "tools": bool(self.options.tools),
                                          "bench": bool(self.options.tools), "auto_features": "disabled"})
        for module in ("ucx", "mpi"):
            toolchain.project_options[module] = "enabled" if self.options.get_safe(module) else "disabled"
        toolchain.generate()

    def build(self):
        meson = Meson(self)
        meson.configure()
        meson.build()

    def package(self):
        copy(self, "LICENSE", src=self.source_folder, dst=str(Path(self.package_folder) / "licenses"))
        Meson(self).install()

    def package_info(self):
        # The package's own files for CMake and pkg-config are used.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = ["lib/cmake/weft"]
        self.cpp_info.libs = ["weft"]
        self.cpp_info.set_property("pkg_config_name", "weft")
