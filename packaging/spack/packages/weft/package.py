"""Spack's recipe: spack repo add packaging/spack; spack dev-build weft@0.9.0 in the repository's folder."""
from spack.package import *


class Weft(MesonPackage):
    """Gradient synchronisation and collective communication behind a C interface."""

    license("Apache-2.0")

    version("0.9.0")

    variant("tools", default=True, description="Build the command weft and its benchmarks")
    variant("ucx", default=True, description="Transport over UCX, for several hosts")
    variant("mpi", default=False, description="Transport over Open MPI or MPICH")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("meson@1.0:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("spdlog@1.8:")
    depends_on("libsodium")
    depends_on("highway")
    depends_on("nlohmann-json")
    depends_on("cli11", when="+tools", type="build")
    depends_on("ucx@1.13:", when="+ucx")
    depends_on("mpi", when="+mpi")

    conflicts("%gcc@:11", msg="Weft needs gcc 12 or later")
    conflicts("%clang@:13", msg="Weft needs clang 14 or later")
    conflicts("platform=darwin", msg="Weft is for Linux")
    conflicts("platform=windows", msg="Weft is for Linux")

    def meson_args(self):
        def enabled(variant):
            return "enabled" if self.spec.satisfies(f"+{variant}") else "disabled"

        tools = str(self.spec.satisfies("+tools")).lower()
        return ["-Dtests=false", "-Dexamples=false", f"-Dtools={tools}", f"-Dbench={tools}", f"-Ducx={enabled('ucx')}",
                f"-Dmpi={enabled('mpi')}", "-Dcuda=disabled", "-Dnccl=disabled", "-Djax=disabled"]
