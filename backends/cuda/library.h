// The CUDA runtime and driver, found and loaded when they are first used: a runtime that the process has
// loaded already before an installed one. Only what CUDA 12.0 has, and what later ones have kept.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

#include "base/status.h"

namespace weft::cuda {

#define WEFT_CUDA_RUNTIME(X)             \
  X(cudaRuntimeGetVersion)               \
  X(cudaDriverGetVersion)                \
  X(cudaGetDeviceCount)                  \
  X(cudaGetDevice)                       \
  X(cudaSetDevice)                       \
  X(cudaGetErrorString)                  \
  X(cudaGetLastError)                    \
  X(cudaPointerGetAttributes)            \
  X(cudaThreadExchangeStreamCaptureMode) \
  X(cudaStreamIsCapturing)               \
  X(cudaDeviceGetStreamPriorityRange)    \
  X(cudaStreamCreateWithPriority)        \
  X(cudaStreamDestroy)                   \
  X(cudaStreamWaitEvent)                 \
  X(cudaEventCreateWithFlags)            \
  X(cudaEventDestroy)                    \
  X(cudaEventRecord)                     \
  X(cudaEventQuery)                      \
  X(cudaMalloc)                          \
  X(cudaFree)                            \
  X(cudaHostAlloc)                       \
  X(cudaFreeHost)                        \
  X(cudaHostRegister)                    \
  X(cudaHostUnregister)                  \
  X(cudaMemcpyAsync)

struct Functions {
  // NOLINTBEGIN(bugprone-macro-parentheses,readability-identifier-naming): names are the runtime's
#define WEFT_CUDA_MEMBER(name) decltype(&::name) name = nullptr;
  WEFT_CUDA_RUNTIME(WEFT_CUDA_MEMBER)
#undef WEFT_CUDA_MEMBER
  // NOLINTEND(bugprone-macro-parentheses,readability-identifier-naming)
  // Of the driver. The headers' names stand for the versions that they mean.
  decltype(&::cuStreamWaitValue32) wait_value = nullptr;
  decltype(&::cuLibraryLoadData) load_library = nullptr;
  decltype(&::cuLibraryGetKernel) get_kernel = nullptr;
  decltype(&::cuLibraryUnload) unload_library = nullptr;
  decltype(&::cuKernelGetFunction) kernel_function = nullptr;
  decltype(&::cuLaunchKernel) launch = nullptr;
  decltype(&::cuDevicePrimaryCtxRetain) retain_context = nullptr;
  decltype(&::cuDevicePrimaryCtxRelease) release_context = nullptr;
  decltype(&::cuCtxPushCurrent) push_context = nullptr;
  decltype(&::cuCtxPopCurrent) pop_context = nullptr;
  decltype(&::cuGetErrorString) error_string = nullptr;
  CUresult (*function_load)(CUfunction function) = nullptr;  // CUDA 12.4; null before
  // CUDA 12.8; null before.
  cudaError_t (*stream_get_device)(cudaStream_t stream, int* device) = nullptr;
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

// "12.8"
std::string version_text(int version);

}  // namespace weft::cuda
