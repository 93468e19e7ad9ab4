// The CUDA runtime and driver, found and loaded when they are first used: a runtime that the process has
// loaded already before an installed one. Only what CUDA 12.0 has, and what later ones have kept.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

#include "base/status.h"

namespace weft::cuda {

// Of the runtime only what cannot leave an error behind: its calls note what fails, and that an event is not
// done yet, as the thread's last error, where the program's own error may stand that it has yet to read
// (cudaGetLastError). The driver has no such note. Streams and events of the two are the same.
#define WEFT_CUDA_RUNTIME(X) \
  X(cudaRuntimeGetVersion)   \
  X(cudaDriverGetVersion)

// The headers' names stand for the versions that they mean.
#define WEFT_CUDA_DRIVER(X)            \
  X(cuInit)                            \
  X(cuDeviceGetCount)                  \
  X(cuDevicePrimaryCtxRetain)          \
  X(cuDevicePrimaryCtxRelease)         \
  X(cuCtxPushCurrent)                  \
  X(cuCtxPopCurrent)                   \
  X(cuCtxGetDevice)                    \
  X(cuCtxGetStreamPriorityRange)       \
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
  std::string file;  // that the runtime was loaded as
  int runtime = 0;   // 12080: 12.8
  int driver = 0;
  int devices = 0;
};

inline constexpr int kMinVersion = 12'000;

// file: of the runtime, in place of those that are there. kUnavailable and why.
Status load(const std::string& file, Library* library);

// What a call of the driver returned, as a status: kNoMemory, kArg, kState for what a capture forbids for
// now, kSystem.
Status check(const Library& library, const char* what, CUresult result);

// "12.8"
std::string version_text(int version);

}  // namespace weft::cuda
