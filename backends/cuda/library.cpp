#include "library.h"

#include "base/dl.h"
#include "base/text.h"

namespace weft::cuda {
namespace {

constexpr const char* kRuntimes[] = {"libcudart.so.13", "libcudart.so.12"};
constexpr const char* kDriver = "libcuda.so.1";

Status find_runtime(const std::string& wanted, std::string* file) {
  if (!wanted.empty()) {
    *file = wanted;
    return {};
  }
  for (const char* name : kRuntimes) {
    *file = name;
    if (is_loaded(name)) return {};
  }
  void* found = nullptr;
  Status first;
  for (const char* name : kRuntimes) {
    *file = name;
    Status status = load_symbol(name, "cudaRuntimeGetVersion", &found);
    if (status.ok()) return {};
    if (first.ok()) first = std::move(status);
  }
  return first.with_prefix("the CUDA runtime 12 or 13 (libcudart.so) was ");
}

template <class Function>
Status find(const std::string& file, const char* symbol, Function* function) {
  void* address = nullptr;
  WEFT_TRY(load_symbol(file, symbol, &address));
  *function = reinterpret_cast<Function>(address);
  return {};
}

// One file may stand in for both.
template <class Function>
Status find_driver(const std::string& file, const char* symbol, Function* function) {
  if (find(file, symbol, function).ok()) return {};
  return find(kDriver, symbol, function).with_prefix("the NVIDIA driver: ");
}

Status unavailable(const Library& library, const std::string& why) {
  return Status::error(Code::kUnavailable, cat(why, " (", library.file, ")"));
}

}  // namespace

std::string version_text(int version) {
  return cat(version / 1000, ".", version % 1000 / 10);
}

Status load(const std::string& file, Library* library) {
  WEFT_TRY(find_runtime(file, &library->file));
  Functions& call = library->call;
#define WEFT_CUDA_FIND(name) \
  WEFT_TRY(find(library->file, #name, &call.name).with_prefix("the CUDA runtime: "));
  WEFT_CUDA_RUNTIME(WEFT_CUDA_FIND)
#undef WEFT_CUDA_FIND
  (void)find(library->file, "cudaStreamGetDevice", &call.stream_get_device).ok();
  if (call.cudaRuntimeGetVersion(&library->runtime) != cudaSuccess || library->runtime < kMinVersion) {
    return unavailable(*library, cat("the CUDA runtime is ", version_text(library->runtime),
                                     ", and Weft needs ", version_text(kMinVersion), " or later"));
  }
  if (call.cudaDriverGetVersion(&library->driver) != cudaSuccess || library->driver == 0)
    return unavailable(*library, "there is no NVIDIA driver");
  if (library->driver < kMinVersion) {
    return unavailable(*library, cat("the NVIDIA driver is for CUDA ", version_text(library->driver),
                                     ", and Weft needs one for ", version_text(kMinVersion), " or later"));
  }
  WEFT_TRY(find_driver(library->file, "cuStreamWaitValue32_v2", &call.wait_value));
  WEFT_TRY(find_driver(library->file, "cuLibraryLoadData", &call.load_library));
  WEFT_TRY(find_driver(library->file, "cuLibraryGetKernel", &call.get_kernel));
  WEFT_TRY(find_driver(library->file, "cuLibraryUnload", &call.unload_library));
  WEFT_TRY(find_driver(library->file, "cuKernelGetFunction", &call.kernel_function));
  (void)find_driver(library->file, "cuFuncLoad", &call.function_load).ok();
  WEFT_TRY(find_driver(library->file, "cuLaunchKernel", &call.launch));
  WEFT_TRY(find_driver(library->file, "cuDevicePrimaryCtxRetain", &call.retain_context));
  WEFT_TRY(find_driver(library->file, "cuDevicePrimaryCtxRelease_v2", &call.release_context));
  WEFT_TRY(find_driver(library->file, "cuCtxPushCurrent_v2", &call.push_context));
  WEFT_TRY(find_driver(library->file, "cuCtxPopCurrent_v2", &call.pop_context));
  WEFT_TRY(find_driver(library->file, "cuGetErrorString", &call.error_string));
  const cudaError_t counted = call.cudaGetDeviceCount(&library->devices);
  if (counted == cudaSuccess && library->devices > 0) return {};
  if (counted != cudaSuccess) (void)call.cudaGetLastError();
  return unavailable(*library, cat("there is no CUDA device", counted == cudaSuccess ? "" : ": ",
                                   counted == cudaSuccess ? "" : call.cudaGetErrorString(counted)));
}

}  // namespace weft::cuda
