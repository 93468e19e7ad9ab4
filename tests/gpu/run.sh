#!/bin/sh
# Everything that wants a GPU, in one go: run.sh BUILD. Prints what machine this is, the tests' results (with
# compute-sanitizer where it is installed), and what the kernels reach: the text for docs/gpu-results.md. Where
# there is no GPU it says so and ends with 77.
build=${1:-build}
root=$(cd "$(dirname "$0")/../.." && pwd)
targets="tests/gpu/gpu_runtime tests/gpu/gpu_kernels tests/gpu/gpu_buffers tests/gpu/gpu_reducer tests/gpu/gpu_hooks tests/gpu/gpu_bench"
graph=$(ninja -C "$build" -t targets all 2>/dev/null | sed -n 's|^\(tests/gpu/gpu_graph\): .*|\1 libweft-nccl.so|p')
ninja -C "$build" -j "${JOBS:-2}" libweft-cuda.so $targets $graph >"$build/gpu-build.txt" 2>&1 || {
  tail -n 30 "$build/gpu-build.txt"
  exit 1
}
"$build/tests/gpu/gpu_bench" --devices || exit $?

echo "date: $(date -u +%Y-%m-%d)"
echo "commit: $(git -C "$root" describe --always --dirty 2>/dev/null)"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null
nvcc --version | tail -n 2 | head -n 1
failed=0
for program in gpu_runtime gpu_kernels gpu_buffers gpu_reducer gpu_hooks ${graph:+gpu_graph}; do
  "$build/tests/gpu/$program" || failed=1
done
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    echo "compute-sanitizer --tool $tool gpu_kernels"
    compute-sanitizer --tool $tool --error-exitcode 9 "$build/tests/gpu/gpu_kernels" \
      >"$build/gpu-$tool.txt" 2>&1 || failed=1
    tail -n 3 "$build/gpu-$tool.txt"
  done
else
  echo "compute-sanitizer is not installed"
fi
"$build/tests/gpu/gpu_bench" "$root/bench/manifests/resnet50.json" "$root/bench/manifests/gpt2.json" || failed=1
exit $failed
