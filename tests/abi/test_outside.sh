#!/bin/sh
# Builds a program outside of the tree against an installed Weft, with pkg-config alone and with CMake alone, and
# runs the installed tool. Usage: test_outside.sh BUILD SOURCE LIBRARY. Compiles again only if the library, a header,
# the program or a package file changed.
set -eu
build=$1 source=$2 library=$3
outside=$build/tests/abi/outside
root=$(cd "$(dirname "$0")/../.." && pwd)
stamp=$(cat "$library" "$source" "$root"/include/weft/*.h "$root"/lib/package/* "$0" | cksum)
if [ "$(cat "$outside/stamp" 2>/dev/null)" != "$stamp" ]; then
  command -v pkg-config >/dev/null || { echo "no pkg-config here"; exit 77; }
  rm -rf "$outside"
  mkdir -p "$outside"
  meson install -C "$build" --no-rebuild --quiet --tags devel,runtime --destdir "$outside/root"
  pc=$(find "$outside/root" -name weft.pc)
  export PKG_CONFIG_PATH="$(dirname "$pc")" PKG_CONFIG_SYSROOT_DIR="$outside/root"
  cp "$source" "$outside/program.c"
  cd "$outside"
  # shellcheck disable=SC2046
  ${CC:-cc} -std=c99 -pedantic -Wall -Wextra -Werror program.c -o program $(pkg-config --cflags --libs weft)
  dirname "$(find "$outside/root" -name libweft.so.0.9)" >library_path
  tool=$(find "$outside/root" -path '*/bin/weft')
  if [ -n "$tool" ]; then
    env -u LD_LIBRARY_PATH "$tool" --version >/dev/null # finds the library beside which it is installed
  fi
  if command -v cmake >/dev/null; then
    prefix=$(dirname "$(dirname "$(find "$outside/root" -path '*/include/weft')")")
    mkdir found
    for version in 0.8 0.9.1 0.10 1.0 0.9.0 0.9; do
      sed "s/weft 0.9 /weft $version /" "$root/tests/abi/cmake/CMakeLists.txt" >found/CMakeLists.txt
      cmake -S found -B "found-$version" -DCMAKE_PREFIX_PATH="$prefix" >cmake.out 2>&1 && result=yes || result=no
      case $version in 0.9 | 0.9.0) wanted=yes ;; *) wanted=no ;; esac
      [ "$result" = "$wanted" ] || { cat cmake.out; echo "find_package(weft $version): $result"; exit 1; }
    done
    cmake --build found-0.9 >cmake.out 2>&1 || { cat cmake.out; exit 1; }
    found-0.9/program
  fi
  echo "$stamp" >stamp
fi
LD_LIBRARY_PATH=$(cat "$outside/library_path") "$outside/program"
