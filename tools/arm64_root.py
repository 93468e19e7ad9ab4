#!/usr/bin/env python3
"""Unpacks Debian's packages for arm64 into a folder: what the cross-compiler links with, and what qemu-user runs.

Usage: arm64_root.py BUILD    unpacks them into BUILD/arm64/root and writes Meson's BUILD/arm64/cross.ini, and
                              emulated.ini for a build whose programs run under tools/arm64.sh

Nothing is installed on the system. apt resolves the packages' dependencies as for an empty arm64 system.
"""
import shutil
import subprocess
import sys
from pathlib import Path

TRIPLET = "aarch64-linux-gnu"
COMPILER, EMULATOR = f"{TRIPLET}-g++", "qemu-aarch64-static"
PACKAGES = ["libc6-dev", "libspdlog-dev", "libsodium-dev", "libhwy-dev", "nlohmann-json3-dev", "libcli11-dev",
            "catch2", "libucx-dev", "libopenmpi-dev", "libmpich-dev", "python3", "python3-numpy"]


def run(*command, **more):
    return subprocess.run([str(word) for word in command], check=True, stdin=subprocess.DEVNULL, **more)


def prepare(build, say=print):
    """Returns the folder BUILD/arm64/root, unpacked by the first call."""
    folder = Path(build).resolve() / "arm64"
    root, done = folder / "root", folder / "complete"
    if done.exists() and done.read_text() == " ".join(PACKAGES):
        return root
    say(f"unpacking Debian's arm64 packages into {root} (about 150 MB to fetch)")
    shutil.rmtree(root, ignore_errors=True)
    for name in ("state/lists/partial", "cache/archives/partial", "root/usr/bin", "root/usr/lib", "root/usr/sbin"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "lib", "sbin"):
        (root / name).symlink_to(f"usr/{name}")
    (folder / "status").touch()
    settings = [f"Dir::State={folder / 'state'}", f"Dir::State::status={folder / 'status'}",
                f"Dir::Cache={folder / 'cache'}", "APT::Architecture=arm64", "APT::Architectures=arm64",
                "APT::Sandbox::User="]
    apt = ["apt-get", "-q", *(word for setting in settings for word in ("-o", setting))]
    run(*apt, "update", stdout=subprocess.DEVNULL)
    run(*apt, "install", "--yes", "--no-install-recommends", "--download-only", *PACKAGES, stdout=subprocess.DEVNULL)
    for package in sorted((folder / "cache/archives").glob("*.deb")):
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as files:
            # Absolute links lead into the root, as the linker and qemu need them.
            subprocess.run(["tar", "-x", "--keep-directory-symlink", f"--transform=s,^/,{root}/,RsH", "-C", root],
                           stdin=files.stdout, check=True)
    for name in ("blas", "lapack"):  # NumPy's, which the packages' scripts would link
        (root / f"usr/lib/{TRIPLET}/lib{name}.so.3").symlink_to(f"{name}/lib{name}.so.3")
    (folder / "cross.ini").write_text(cross_file(root))
    (folder / "emulated.ini").write_text(f"[binaries]\npython3 = '{next(root.glob('usr/bin/python3.??'))}'\n"
                                         "[properties]\nneeds_exe_wrapper = false\n")
    done.write_text(" ".join(PACKAGES))
    return root


def version_of(build, package):
    """Return the version of an unpacked package."""
    file = next((Path(build).resolve() / "arm64/cache/archives").glob(f"{package}_*.deb"))
    return run("dpkg-deb", "--field", file, "Version", capture_output=True, text=True).stdout.strip()


def cross_file(root):
    """Return the text of Meson's cross file for programs of this root."""
    flags = [f"--sysroot={root}", f"-ffile-prefix-map={root}="]
    folders = [f"{root}/usr/lib/{TRIPLET}/pkgconfig", f"{root}/usr/share/pkgconfig", f"{root}/usr/lib/pkgconfig"]
    return (f"[binaries]\nc = {[TRIPLET + '-gcc', *flags]}\ncpp = {[COMPILER, *flags]}\nstrip = '{TRIPLET}-strip'\n"
            # Meson before 1.3 calls pkg-config by the other name.
            f"pkg-config = 'pkg-config'\npkgconfig = 'pkg-config'\n"
            f"[properties]\nsys_root = '{root}'\npkg_config_libdir = {folders}\n"
            "[host_machine]\nsystem = 'linux'\ncpu_family = 'aarch64'\ncpu = 'aarch64'\nendian = 'little'\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    prepare(sys.argv[1])
