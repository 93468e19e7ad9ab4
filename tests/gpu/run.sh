#!/bin/sh
# Runs everything that needs a GPU: run.sh BUILD. Prints the machine, the tests' results (some of them also
# under compute-sanitizer, if installed), skipped tests with their reasons, the result of the training
# example, and the kernels' measurements: the text for docs/dev/gpu-results.md. Without a GPU it reports that and
# exits with 77.
#
# BUILD is a build folder, or a folder that pack.sh made of one, whose programs run as they are.
build=${1:-build}
root=$(cd "$(dirname "$0")/../.." && pwd)
limit=${LIMIT:-600} # seconds that a program may take
data=${DATA:-/usr/share/datasets/fashion-mnist}
wanted="tests/gpu/gpu_runtime tests/gpu/gpu_kernels tests/gpu/gpu_buffers tests/gpu/gpu_reducer tests/gpu/gpu_hooks tests/gpu/gpu_bench
  tests/gpu/gpu_nccl tests/gpu/gpu_nccl_backend tests/gpu/gpu_graph libweft-cuda.so libweft-nccl.so examples/train_cuda tools/weft"
if [ -d "$build/packed" ]; then
  LD_LIBRARY_PATH=$(cd "$build" && pwd)/packed${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export LD_LIBRARY_PATH
  there=$(cd "$build" && find . -type f | sed -e 's,^\./\(.*\)$,\1: packed,' -e 's,^weft/,,') # modules are in weft/
else
  there=$(ninja -C "$build" -t targets all 2>/dev/null)
fi
targets=
for target in $wanted; do
  if printf '%s\n' "$there" | grep -q "^$target: "; then
    targets="$targets $target"
  else
    echo "SKIPPED: $target: this build has none (meson says why at the end of its configuration)"
  fi
done
# shellcheck disable=SC2086 # they are words
[ -d "$build/packed" ] || ninja -C "$build" -j "${JOBS:-2}" $targets >"$build/gpu-build.txt" 2>&1 || {
  tail -n 30 "$build/gpu-build.txt"
  exit 1
}
built() {
  case " $targets " in *" $1 "*) return 0 ;; *) return 1 ;; esac
}
built tests/gpu/gpu_bench || exit 77
"$build/tests/gpu/gpu_bench" --devices || exit $?

echo "date: $(date -u +%Y-%m-%d)"
echo "commit: $(cat "$build/packed/commit" 2>/dev/null || git -C "$root" describe --always --dirty 2>/dev/null)"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null
nvcc --version | tail -n 2 | head -n 1
failed=0
report=$build/gpu-report.txt

# Runs a test program. Prints its skipped cases by name, and all output if it failed.
cases() {
  program=$1
  shift
  built "tests/gpu/$program" || return 0
  rm -f "$report"
  WEFT_TEST_REPORT=$report timeout -k 10 "$limit" "$build/tests/gpu/$program" "$@" >"$build/$program.txt" 2>&1
  ended=$?
  if [ "$ended" -eq 0 ]; then tail -n 2 "$build/$program.txt"; else cat "$build/$program.txt"; fi
  [ "$ended" -eq 0 ] || failed=1
  [ "$ended" -eq 124 ] && echo "$program: no end within $limit s"
  grep -s '^skip' "$report" | while IFS="$(printf '\t')" read -r _ name why; do
    echo "SKIPPED: $program: $name: $why"
  done
}
# The host waits, which is the default; streams that wait are tried at the end.
export WEFT_TEST_HOST_WAITS=1
for program in gpu_runtime gpu_kernels gpu_buffers gpu_reducer gpu_nccl gpu_nccl_backend gpu_graph; do
  echo "== $program"
  cases $program '~[stream_waits]'
done
echo "== gpu_hooks"
cases gpu_hooks '~[host]'
echo "== gpu_nccl, told to take two ranks on one device"
shared=
if built tests/gpu/gpu_nccl; then
  export NCCL_MULTI_RANK_GPU_ENABLE=1
  cases gpu_nccl
  unset NCCL_MULTI_RANK_GPU_ENABLE
  grep -h "two ranks on one device" "$build/gpu_nccl.txt" | grep -v "unless"
  grep -q "takes two ranks on one device" "$build/gpu_nccl.txt" && shared=1
fi
echo "== gpu_nccl_backend, two ranks on each device"
if [ -n "$shared" ]; then
  # Kernels of two ranks run at once, so no kernel may be loaded while another one waits for its peer.
  export NCCL_MULTI_RANK_GPU_ENABLE=1 CUDA_MODULE_LOADING=EAGER
  cases gpu_nccl_backend
  unset NCCL_MULTI_RANK_GPU_ENABLE CUDA_MODULE_LOADING
else
  echo "SKIPPED: this NCCL takes one rank on a device"
fi

echo "== gpu_bench"
"$build/tests/gpu/gpu_bench" "$root/bench/manifests/resnet50.json" "$root/bench/manifests/gpt2.json" || failed=1

# Runs the training example, whose last lines report whether the ranks' weights are equal. train RANKS BACKEND
train() {
  WEFT_BACKEND=$2 "$build/tools/weft" run -n "$1" --timeout "$limit" -- "$build/examples/train_cuda" "$data" \
    >"$build/gpu-train.txt" 2>&1 || {
    failed=1
    cat "$build/gpu-train.txt"
    return
  }
  tail -n $(($1 + 1)) "$build/gpu-train.txt"
}
if ! built examples/train_cuda || ! built tools/weft; then
  echo "SKIPPED: train_cuda: this build has no $(built tools/weft && echo examples/train_cuda || echo tools/weft)"
elif [ ! -d "$data" ]; then
  echo "SKIPPED: train_cuda: there is no $data (dataset-fashion-mnist, or DATA=folder)"
else
  for ranks in 1 2; do
    echo "== train_cuda, $ranks ranks over shm"
    train "$ranks" shm
  done
  echo "== train_cuda over nccl"
  if ! built libweft-nccl.so; then
    echo "SKIPPED: this build has no libweft-nccl.so"
  else
    train 1 nccl
    if [ "$(nvidia-smi --list-gpus 2>/dev/null | wc -l)" -ge 2 ]; then
      train 2 nccl
    elif [ -n "$shared" ]; then
      export NCCL_MULTI_RANK_GPU_ENABLE=1
      train 2 nccl
      unset NCCL_MULTI_RANK_GPU_ENABLE
    else
      echo "SKIPPED: 2 ranks over nccl: there is one GPU, and NCCL takes one rank on it"
    fi
  fi
fi

# API errors are not reported: Weft asks for the current context where there may be none, and tests make
# invalid calls. sanitized TOOL PROGRAM ARGUMENTS: a program that exceeds the limit here has passed without the tool.
sanitized() {
  tool=$1
  program=$2
  shift 2
  built "tests/gpu/$program" || return 0
  echo "== compute-sanitizer --tool $tool $program"
  timeout -k 10 "$limit" compute-sanitizer --tool "$tool" --report-api-errors no --error-exitcode 9 "$build/tests/gpu/$program" "$@" \
    >"$build/gpu-$tool-$program.txt" 2>&1
  case $? in
    0) ;;
    124) echo "SKIPPED: the rest of $program under $tool: no end within $limit s" ;;
    *) failed=1 ;;
  esac
  tail -n 3 "$build/gpu-$tool-$program.txt"
}
if command -v compute-sanitizer >/dev/null; then
  sanitized memcheck gpu_kernels
  sanitized racecheck gpu_kernels
  sanitized memcheck gpu_hooks '~[host]'
  sanitized memcheck gpu_reducer '~[stream_waits]'
else
  echo "SKIPPED: compute-sanitizer is not installed"
fi
# Ranks are threads of one process here, and a hardware queue that a waiting stream shares with a stream of Weft's
# stops both until the deadline (docs/how-to/cuda.md): failures are reported, and do not count.
echo "== gpu_reducer, streams that wait"
so_far=$failed
unset WEFT_TEST_HOST_WAITS
export CUDA_DEVICE_MAX_CONNECTIONS=32 CUDA_MODULE_LOADING=EAGER
cases gpu_reducer
[ "$failed" -eq "$so_far" ] || echo "streams that wait: failed, which is known to happen (docs/how-to/cuda.md)"
exit "$so_far"
