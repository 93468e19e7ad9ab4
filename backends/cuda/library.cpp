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

// One file may replace both the runtime and the driver.
template <class Function>
Status find_driver(const std::string& file, const char* symbol, Function* function) {
  if (find(file, symbol, function).ok()) return {};
  return find(kDriver, symbol, function).with_prefix("the NVIDIA driver: ");
}

Status unavailable(const Library& library, const std::string& why) {
  return Status::error(Code::kUnavailable, cat(why, " (", library.file, ")"));
}

// Returns "CUDA_ERROR_INVALID_VALUE (invalid argument)".
std::string text_of(const Library& library, CUresult result) {
  const char* name = nullptr;
  const char* text = nullptr;
  (void)library.call.cuGetErrorName(result, &name);
  (void)library.call.cuGetErrorString(result, &text);
  if (name == nullptr || text == nullptr)
    return cat("error ", static_cast<int>(result), ", which this driver does not know");
  return cat(name, " (", text, ")");
}

}  // namespace

std::string version_text(int version) {
  return cat(version / 1000, ".", version % 1000 / 10);
}

Status load(const std::string& file, Library* library) {
  WEFT_TRY(find_runtime(file, &library->file));
  Functions& call = library->call;
#define WEFT_CUDA_TEXT(name) #name
#define WEFT_CUDA_FIND(name) \
  WEFT_TRY(find(library->file, WEFT_CUDA_TEXT(name), &call.name).with_prefix("the CUDA runtime: "));
  WEFT_CUDA_RUNTIME(WEFT_CUDA_FIND)
#undef WEFT_CUDA_FIND
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
#define WEFT_CUDA_FIND(name) WEFT_TRY(find_driver(library->file, WEFT_CUDA_TEXT(name), &call.name));
  WEFT_CUDA_DRIVER(WEFT_CUDA_FIND)
#undef WEFT_CUDA_FIND
#undef WEFT_CUDA_TEXT
  (void)find_driver(library->file, "cuFuncLoad", &call.function_load).ok();
  (void)find_driver(library->file, "cuStreamGetDevice", &call.stream_get_device).ok();
  CUresult counted = call.cuInit(0);
  if (counted == CUDA_SUCCESS) counted = call.cuDeviceGetCount(&library->devices);
  CUmoduleLoadingMode mode = CU_MODULE_LAZY_LOADING;
  if (counted == CUDA_SUCCESS) counted = call.cuModuleGetLoadingMode(&mode);
  library->lazy = mode == CU_MODULE_LAZY_LOADING;
  if (counted == CUDA_SUCCESS && library->devices > 0) return {};
  return unavailable(*library, counted == CUDA_SUCCESS
                                   ? "there is no CUDA device"
                                   : cat("there is no CUDA device: ", text_of(*library, counted)));
}

Status check(const Library& library, const char* call, CUresult result) {
  switch (result) {
    case CUDA_SUCCESS:
      return {};
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
      return Status::error(
          Code::kState, cat("CUDA: ", call,
                            ": the legacy default stream cannot be used while a stream that it waits for is "
                            "captured into a graph: end the capture first, or use a stream that was made "
                            "with cudaStreamNonBlocking"));
    case CUDA_ERROR_OUT_OF_MEMORY:
      return Status::error(Code::kNoMemory, cat("CUDA: ", call, ": ", text_of(library, result)));
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_HANDLE:
      return Status::error(Code::kArg, cat("CUDA: ", call, ": ", text_of(library, result)));
    default:
      return Status::error(Code::kSystem, cat("CUDA: ", call, ": ", text_of(library, result)));
  }
}

}  // namespace weft::cuda
