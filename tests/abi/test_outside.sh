#!/bin/sh
# Builds a program outside of the tree against an installed Weft, with pkg-config alone, and runs the
# installed tool. Usage: test_outside.sh BUILD SOURCE LIBRARY. Compiles again only if the library, a header or
# the program changed.
set -eu
build=$1 source=$2 library=$3
outside=$build/tests/abi/outside
root=$(cd "$(dirname "$0")/../.." && pwd)
stamp=$(cat "$library" "$source" "$root"/include/weft/*.h "$0" | cksum)
if [ "$(cat "$outside/stamp" 2>/dev/null)" != "$stamp" ]; then
  command -v pkg-config >/dev/null || { echo "no pkg-config here"; exit 77; }
  rm -rf "$outside"
  mkdir -p "$outside"
  meson install -C "$build" --no-rebuild --quiet --destdir "$outside/root"
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
  echo "$stamp" >stamp
fi
LD_LIBRARY_PATH=$(cat "$outside/library_path") "$outside/program"
