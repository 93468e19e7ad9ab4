// The fake driver's kernels: looked up by name and launched on streams.
#include "kernels.h"

#include <cstring>
#include <utility>

#include "state.h"

using namespace fake;

void fake::load_kernel(std::unique_lock<std::mutex>& lock, const void* kernel) {
  if (state().loaded.contains({current_device(), kernel})) return;
  if (!drain(lock, current_device()))
    problem("a kernel's loading waits for streams that wait for the program");
  state().loaded.insert({current_device(), kernel});
}

extern "C" {

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* /*options*/, void** /*values*/,
                           unsigned int /*count*/, CUlibraryOption* /*library_options*/,
                           void** /*library_values*/, unsigned int /*library_count*/) {
  constexpr uint32_t kFatBinary = 0xBA55ED50;
  uint32_t magic = 0;
  std::memcpy(&magic, code, sizeof magic);
  if (magic != kFatBinary) return CUDA_ERROR_INVALID_IMAGE;
  *library = reinterpret_cast<CUlibrary>(const_cast<void*>(code));
  return CUDA_SUCCESS;
}
CUresult cuLibraryUnload(CUlibrary /*library*/) {
  return CUDA_SUCCESS;
}
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary /*library*/, const char* name) {
  const Kernel* const known = find_kernel(name);
  if (known != nullptr) {
    *kernel = reinterpret_cast<CUkernel>(const_cast<Kernel*>(known));
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}
CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  std::unique_lock lock(state().mutex);
  load_kernel(lock, kernel);
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}
CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  const std::lock_guard lock(state().mutex);
  *mode = state().lazy ? CU_MODULE_LAZY_LOADING : CU_MODULE_EAGER_LOADING;
  return CUDA_SUCCESS;
}
CUresult cuFuncLoad(CUfunction function) {
  std::unique_lock lock(state().mutex);
  load_kernel(lock, function);
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z,
                        unsigned int shared_bytes, CUstream handle, void** parameters, void** /*extra*/) {
  std::unique_lock lock(state().mutex);
  load_kernel(lock, function);
  const auto stream = find_stream(handle, "cuLaunchKernel");
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const cudaError_t error = implicit(handle, true); error != cudaSuccess) return driver(error);
  if (stream->device != current_device()) problem("cuLaunchKernel while another device is current");
  if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_x == 0 || block_x * block_y * block_z > 1024 ||
      shared_bytes > 48 * 1024) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto* const kernel = reinterpret_cast<const Kernel*>(function);
  std::function<bool()> may_run;
  if (state().stalled == kernel->name && state().stalled_after-- <= 0)
    may_run = [name = kernel->name] { return state().stalled != name; };
  enqueue(stream, {std::move(may_run), kernel->prepare(grid_x, block_x, parameters[0])});
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char** name) {
  switch (error) {
    case CUDA_ERROR_INVALID_VALUE:
      *name = "CUDA_ERROR_INVALID_VALUE";
      break;
    case CUDA_ERROR_OUT_OF_MEMORY:
      *name = "CUDA_ERROR_OUT_OF_MEMORY";
      break;
    case CUDA_ERROR_NO_DEVICE:
      *name = "CUDA_ERROR_NO_DEVICE";
      break;
    default:
      *name = "CUDA_ERROR_UNKNOWN";
  }
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = cudaGetErrorString(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}

}  // extern "C"
