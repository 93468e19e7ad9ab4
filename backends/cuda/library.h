// The CUDA runtime and driver, found and loaded at first use. A runtime that the process has already loaded
// comes before an installed one. Uses only functions of CUDA 12.0 that later versions have kept.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

#include "base/status.h"

namespace weft::cuda {

// The runtime functions in use, none of which leaves an error behind. Other runtime calls store a failure,
// even "this event is not done yet", as the thread's last error. There they would overwrite an error of the
// program that it has not read yet (cudaGetLastError). The driver stores no such error. Runtime and driver
// share streams and events.
#define WEFT_CUDA_RUNTIME(X) \
  X(cudaRuntimeGetVersion)   \
  X(cudaDriverGetVersion)

// The headers' macros map these names to versioned functions.
#define WEFT_CUDA_DRIVER(X)            \
  X(cuInit)                            \
  X(cuDeviceGetCount)                  \
  X(cuDevicePrimaryCtxRetain)          \
  X(cuDevicePrimaryCtxRelease)         \
  X(cuCtxPushCurrent)                  \
  X(cuCtxPopCurrent)                   \
  X(cuCtxGetDevice)                    \
  X(cuCtxGetStreamPriorityRange)       \
  X(cuGetErrorName)                    \
  X(cuGetErrorString)                  \
  X(cuPointerGetAttributes)            \
  X(cuThreadExchangeStreamCaptureMode) \
  X(cuStreamIsCapturing)               \
  X(cuStreamCreateWithPriority)        \
  X(cuStreamDestroy)                   \
  X(cuStreamWaitEvent)                 \
  X(cuStreamWaitValue32)               \
  X(cuEventCreate)                     \
  X(cuEventDestroy)                    \
  X(cuEventRecord)                     \
  X(cuEventQuery)                      \
  X(cuMemAlloc)                        \
  X(cuMemFree)                         \
  X(cuMemHostAlloc)                    \
  X(cuMemFreeHost)                     \
  X(cuMemHostRegister)                 \
  X(cuMemHostUnregister)               \
  X(cuMemcpyAsync)                     \
  X(cuModuleGetLoadingMode)            \
  X(cuLibraryLoadData)                 \
  X(cuLibraryGetKernel)                \
  X(cuLibraryUnload)                   \
  X(cuKernelGetFunction)               \
  X(cuLaunchKernel)

struct Functions {
  // NOLINTBEGIN(bugprone-macro-parentheses,readability-identifier-naming): names are CUDA's
#define WEFT_CUDA_MEMBER(name) decltype(&::name) name = nullptr;
  WEFT_CUDA_RUNTIME(WEFT_CUDA_MEMBER)
  WEFT_CUDA_DRIVER(WEFT_CUDA_MEMBER)
#undef WEFT_CUDA_MEMBER
  // NOLINTEND(bugprone-macro-parentheses,readability-identifier-naming)
  CUresult (*function_load)(CUfunction function) = nullptr;                    // CUDA 12.4; null before
  CUresult (*stream_get_device)(CUstream stream, CUdevice* device) = nullptr;  // CUDA 12.8; null before
};

struct Library {
  Functions call;
  std::string file;  // the file that the runtime was loaded from
  int runtime = 0;   // 12080: 12.8
  int driver = 0;
  int devices = 0;
  bool lazy = false;  // kernels are loaded at their first launch (CUDA_MODULE_LOADING)
};

inline constexpr int kMinVersion = 12'000;

// Loads the libraries. file: a runtime to use in place of the installed one. Returns kUnavailable and the
// reason on failure.
Status load(const std::string& file, Library* library);

// Converts the result of the driver's function `call` to a status: kNoMemory, kArg, kState for what a capture
// currently forbids, or kSystem.
Status check(const Library& library, const char* call, CUresult result);

// Returns "12.8" for 12080.
std::string version_text(int version);

}  // namespace weft::cuda
