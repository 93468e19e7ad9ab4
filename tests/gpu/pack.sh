#!/bin/sh
# Copies what run.sh needs into a folder, for a machine with a GPU that cannot build: pack.sh BUILD FOLDER.
# There, with the CUDA runtime and the NCCL of that machine: tests/gpu/run.sh FOLDER
set -eu
build=$1
folder=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
mkdir -p "$folder/packed" "$folder/weft-0.9" "$folder/tests/gpu" "$folder/tools" "$folder/examples"
cd "$build"
for program in tests/gpu/gpu_* tools/weft examples/train_cuda libweft.so.*.*.*; do
  if [ -f "$program" ]; then strip -o "$folder/$program" "$program"; fi
done
for module in libweft-*.so; do
  strip -o "$folder/weft-0.9/$module" "$module" # as installed
done
for link in libweft.so libweft.so.*; do
  if [ -L "$link" ]; then cp -P "$link" "$folder/"; fi
done
# Other libraries travel with them, but not those of C, C++, CUDA and NCCL, which are that machine's.
for program in tests/gpu/gpu_kernels tools/weft; do ldd "$program"; done | awk '$3 ~ /^\// { print $3 }' | sort -u |
  grep -vE '/(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s)\.so|/libweft|/libcu' | xargs -I '{}' cp -L '{}' "$folder/packed/"
git -C "$root" describe --always --dirty >"$folder/packed/commit"
