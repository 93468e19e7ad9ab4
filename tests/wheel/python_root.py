"""A root folder with one Python interpreter and its libraries, for tests of packages that must need nothing else."""
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from cases import skip

TIMEOUT_S = 600  # ends what hangs


class PythonRoot:
    """Copies this interpreter into the folder `path`, and runs programs there, in namespaces of their own."""

    def __init__(self, path, environment):
        self.path, self.environment = path, {**environment, "HOME": "/"}
        self.namespaces = ["unshare", "--mount", "--pid", "--fork", "--ipc"]
        if os.geteuid() != 0:
            self.namespaces.append("--map-root-user")
        if not shutil.which("unshare") or subprocess.run([*self.namespaces, "true"], check=False).returncode != 0:
            skip("unshare is not permitted here")
        shutil.rmtree(path, ignore_errors=True)
        for folder in ("proc", "dev/shm", "tmp"):
            (path / folder).mkdir(parents=True)
        standard = Path(sysconfig.get_path("stdlib"))
        without = shutil.ignore_patterns("site-packages", "dist-packages", "test", "tests", "__pycache__", "idlelib",
                                         "tkinter", "_tkinter*", "config-3*")
        shutil.copytree(standard, self._inside(standard), ignore=without)
        bundled = Path("/usr/share/python-wheels")  # pip and setuptools of Debian's ensurepip
        if bundled.exists():
            shutil.copytree(bundled, self._inside(bundled))
        self._add_file(Path(sys.executable).resolve())
        if Path(sys.executable).resolve() != Path(sys.executable):
            self._inside(sys.executable).parent.mkdir(parents=True, exist_ok=True)
            self._inside(sys.executable).symlink_to(Path(sys.executable).resolve())
        self.add_libraries("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")  # glibc
        for file in [Path(sys.executable).resolve(), *standard.glob("lib-dynload/*.so")]:
            if self._inside(file).exists():
                self._add_needed(file)

    def _inside(self, file):
        return self.path / str(file).lstrip("/")

    def _add_file(self, file):
        inside = self._inside(file)
        if not inside.exists():
            inside.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, inside)

    def _add_needed(self, file):
        text = subprocess.run(["ldd", file], capture_output=True, text=True, check=False).stdout
        for library in re.findall(r"(/\S+) \(0x", text):
            self._add_file(Path(library))

    def add_libraries(self, *names):
        """Add libraries of this system by their names."""
        for name in names:
            listing = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True,
                                     env={**os.environ, "PATH": f"{os.environ['PATH']}:/sbin:/usr/sbin"}).stdout
            file = re.search(rf"{re.escape(name)} \(libc6,x86-64.*\) => (\S+)", listing)
            if file:
                self._add_file(Path(file.group(1)))

    def run(self, *command):
        """Run a command in the root, with the folders /proc and /dev/null of a Linux system."""
        script = ('mount -t proc proc "$0/proc" && touch "$0/dev/null" && mount --bind /dev/null "$0/dev/null" && '
                  'mount -t tmpfs tmpfs "$0/dev/shm" && exec chroot "$0" "$@"')
        return subprocess.run([*self.namespaces, "sh", "-c", script, self.path, *command], capture_output=True,
                              text=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT_S, check=False, env=self.environment)
