#!/bin/sh
# Installs what building Weft needs. `make setup` and the first call of any other make target run it.
#
#   tools/setup.sh [build]   compiler, Meson, libraries, the demo's data set, iproute2 for tools/two-hosts.sh; if nvcc is
#                            installed, nccl.h for the backend nccl
#   tools/setup.sh parity    also the packages for virtual environments, for make test-parity
#   tools/setup.sh arm64     also the cross-compiler for aarch64 and its emulator, for make test-arm64
#   tools/setup.sh simulate  also SimGrid, for make simulate
#   tools/setup.sh deb       also debhelper, lintian and mmdebstrap, for make deb and make test-deb
#   tools/setup.sh lint      also clang, lld and doxygen, and clang-format, clang-tidy and mypy (pinned) in .venv
#
# With apt, missing packages are installed (as root, or through sudo); apt is not called if nothing is missing. With dnf,
# pacman or conda the exact command is printed. The folder .setup records completed steps.
set -eu
cd "$(dirname "$0")/.."
what=${1:-build}
clang_format=19.1.7
clang_tidy=23.1.4
mypy=2.4.1
nccl=2.30.7

debian="g++ meson ninja-build pkg-config python3 python3-numpy libspdlog-dev libsodium-dev libhwy-dev zlib1g-dev nlohmann-json3-dev
  catch2 libcli11-dev cmake libeigen3-dev dataset-fashion-mnist libucx-dev libopenmpi-dev openmpi-bin libmpich-dev mpich iproute2"
fedora="gcc-c++ meson ninja-build pkgconf-pkg-config python3 python3-numpy spdlog-devel libsodium-devel highway-devel zlib-devel
  json-devel catch-devel cli11-devel eigen3-devel ucx-devel"
arch="gcc meson ninja pkgconf python python-numpy spdlog libsodium highway zlib nlohmann-json catch2 cli11 eigen openucx"
conda="cxx-compiler meson ninja pkg-config python numpy spdlog libsodium libhwy nlohmann_json catch2 cli11 eigen ucx"
if [ "$what" = lint ]; then
  debian="$debian clang libclang-rt-dev lld doxygen python3-venv"
  fedora="$fedora clang compiler-rt lld doxygen"
  arch="$arch clang compiler-rt lld doxygen"
  conda="$conda clangxx lld doxygen"
elif [ "$what" = parity ]; then
  debian="$debian python3-venv"
elif [ "$what" = arm64 ]; then
  debian="$debian g++-aarch64-linux-gnu qemu-user-static"
elif [ "$what" = simulate ]; then
  debian="$debian libsimgrid-dev"
elif [ "$what" = deb ]; then
  debian="$debian debhelper dh-python lintian mmdebstrap"
fi

say() { echo "setup: $*"; }
has() { command -v "$1" >/dev/null 2>&1; }

# True if everything that the build needs is installed, from any source.
tools_present() {
  { has c++ || has g++ || has clang++; } && has meson && has ninja && has pkg-config && has python3 && python3 -c 'import numpy' &&
    pkg-config --exists spdlog libsodium libhwy zlib nlohmann_json eigen3 CLI11 &&
    { pkg-config --exists catch2 || pkg-config --exists catch2-with-main; } &&
    { [ "$what" != lint ] || { has clang && has doxygen; }; } && { [ "$what" != parity ] || python3 -c 'import ensurepip, venv'; } &&
    { [ "$what" != arm64 ] || { has aarch64-linux-gnu-g++ && has qemu-aarch64-static; }; } &&
    { [ "$what" != simulate ] || has smpirun; } &&
    { [ "$what" != deb ] || { has dpkg-buildpackage && has dh && has dh_python3 && has lintian && has mmdebstrap; }; }
}

with_apt() {
  # One query; a package counts only when it is fully installed.
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' $debian 2>/dev/null | sed -n 's/^installed //p')
  missing=
  for package in $debian; do
    echo "$installed" | grep -qxF "$package" || missing="$missing $package"
  done
  [ -n "$missing" ] || return 0
  command="apt-get install -y --no-install-recommends$missing"
  if [ "$(id -u)" = 0 ]; then
    as_root=
  elif has sudo && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
    as_root=sudo
  else
    tools_present && return 0
    say "missing packages:$missing"
    say "run this as root, then try again:  $command"
    exit 1
  fi
  say "installing$missing"
  $as_root apt-get update -q
  # shellcheck disable=SC2086
  $as_root env DEBIAN_FRONTEND=noninteractive $command
}

without_apt() {
  tools_present && return 0
  if [ -n "${CONDA_PREFIX:-}" ]; then
    command="conda install -y -c conda-forge $(echo $conda)"
  elif has dnf; then
    command="sudo dnf install -y $(echo $fedora)"
  elif has pacman; then
    command="sudo pacman -S --needed --noconfirm $(echo $arch)"
  elif has conda || has mamba; then
    command="conda install -y -c conda-forge $(echo $conda)"
  else
    say "found no apt, dnf, pacman or conda. Install what Debian calls: $(echo $debian)"
    exit 1
  fi
  say "a package that Weft needs is missing. Run this, then try again:"
  echo "  $command"
  if [ "$what" = build ]; then
    say "the demo's data set is Debian's package dataset-fashion-mnist; elsewhere give \`make demo DATA=folder\`"
  fi
  exit 1
}

lint_tools() {
  wanted="clang-format==$clang_format clang-tidy==$clang_tidy mypy==$mypy"
  if [ "$(cat .venv/weft-lint 2>/dev/null)" != "$wanted" ]; then
    say "installing $wanted in .venv"
    [ -x .venv/bin/python ] || python3 -m venv .venv
    # shellcheck disable=SC2086
    .venv/bin/python -m pip install --quiet --disable-pip-version-check $wanted
    echo "$wanted" >.venv/weft-lint
  fi
}

# NVIDIA distributes the header in a 213 MB wheel of the library. Without it everything but that backend is built.
nccl_header() {
  { has nvcc && [ ! -e .setup/nccl/include/nccl.h ] && [ ! -e /usr/include/nccl.h ]; } || return 0
  ! python3 -c 'import nvidia.nccl' 2>/dev/null || return 0
  say "fetching nccl.h, which is in the wheel nvidia-nccl-cu13==$nccl (213 MB; the rest of it is not kept)"
  wheel=.setup/wheel
  mkdir -p "$wheel"
  if timeout 180 python3 -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps --only-binary :all: \
    --retries 1 --timeout 15 --dest "$wheel" "nvidia-nccl-cu13==$nccl" &&
    mkdir -p .setup/nccl/include && python3 - "$wheel" .setup/nccl/include/nccl.h <<'EOF'; then
import pathlib, sys, zipfile
wheel = next(pathlib.Path(sys.argv[1]).glob("*.whl"))
pathlib.Path(sys.argv[2]).write_bytes(zipfile.ZipFile(wheel).read("nvidia/nccl/include/nccl.h"))
EOF
    say "nccl.h is in .setup/nccl/include"
  else
    say "nccl.h could not be fetched, so the backend nccl is not built: install nccl.h, or let pip reach PyPI"
  fi
  rm -rf "$wheel"
}

if has apt-get && has dpkg-query; then with_apt; else without_apt; fi
[ "$what" != lint ] || lint_tools
mkdir -p .setup
[ "$what" != build ] || nccl_header
touch ".setup/$what"
say "ready to $what"
