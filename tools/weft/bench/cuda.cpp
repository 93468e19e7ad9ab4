#include "cuda.h"

#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace {

constexpr int kHostToDevice = 1, kDeviceToHost = 2;  // cudaMemcpyKind

// Returns the library that Weft has loaded, or null.
void* open_runtime() {
  const char* const named = std::getenv("WEFT_CUDA_RUNTIME");
  if (named != nullptr && *named != '\0') return ::dlopen(named, RTLD_NOW);
  for (const char* name : {"libcudart.so.13", "libcudart.so.12"}) {
    if (void* const library = ::dlopen(name, RTLD_NOW | RTLD_NOLOAD)) return library;
  }
  return nullptr;
}

template <class Function>
void find_call(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(::dlsym(library, name));
  if (*function == nullptr)
    throw std::runtime_error(std::string("--memory cuda: the CUDA runtime has no function ") + name);
}

}  // namespace

Cuda::Cuda(Job& job) {
  weft_device_info info = WEFT_DEVICE_INFO_INIT;
  job.check(weft_device_query(job.context(), WEFT_DEVICE_CUDA, &info), "weft_device_query");
  if (info.available == 0) throw std::runtime_error(std::string("--memory cuda: ") + info.reason);
  void* const library = open_runtime();
  if (library == nullptr) throw std::runtime_error("--memory cuda: the CUDA runtime is not loaded");
  find_call(library, "cudaSetDevice", &calls_.set_device);
  find_call(library, "cudaMalloc", &calls_.malloc);
  find_call(library, "cudaFree", &calls_.free);
  find_call(library, "cudaMemcpy", &calls_.memcpy);
  find_call(library, "cudaDeviceSynchronize", &calls_.synchronize);
  find_call(library, "cudaGetErrorString", &calls_.error_text);
  stream_.kind = WEFT_DEVICE_CUDA;
  stream_.device = job.info().local_rank % info.device_count;
  check(calls_.set_device(stream_.device), "cudaSetDevice");
}

std::byte* Cuda::allocate(uint64_t bytes) const {
  void* memory = nullptr;
  check(calls_.malloc(&memory, bytes), "cudaMalloc");
  return static_cast<std::byte*>(memory);
}

void Cuda::free(std::byte* memory) const {
  calls_.free(memory);
}

void Cuda::upload(std::byte* device, const std::byte* host, uint64_t bytes) const {
  check(calls_.memcpy(device, host, bytes, kHostToDevice), "cudaMemcpy");
  check(calls_.synchronize(), "cudaDeviceSynchronize");  // a copy of pageable memory may still be running
}

void Cuda::download(std::byte* host, const std::byte* device, uint64_t bytes) const {
  check(calls_.memcpy(host, device, bytes, kDeviceToHost), "cudaMemcpy");
}

void Cuda::check(int error, const char* call) const {
  if (error != 0)
    throw std::runtime_error(std::string("--memory cuda: ") + call + ": " + calls_.error_text(error));
}
