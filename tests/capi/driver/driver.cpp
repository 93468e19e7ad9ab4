// A stand-in for the CUDA driver that a program loads long after Weft has started. It has only the call that
// reports where memory lies.
#include <cuda.h>

#include <atomic>

namespace {
std::atomic<CUdeviceptr> g_first{0}, g_last{0};
}

extern "C" {

__attribute__((visibility("default"))) void driver_owns(const void* first, const void* last) {
  g_last = reinterpret_cast<CUdeviceptr>(last);
  g_first = reinterpret_cast<CUdeviceptr>(first);
}

// Until driver_owns is called, no device is in use.
__attribute__((visibility("default"))) CUresult cuPointerGetAttributes(unsigned int count,
                                                                       CUpointer_attribute* wanted,
                                                                       void** values, CUdeviceptr pointer) {
  if (g_first == 0) return CUDA_ERROR_NOT_INITIALIZED;
  const bool ours = pointer >= g_first && pointer <= g_last;
  for (unsigned int i = 0; i < count; i++) {
    *static_cast<int*>(values[i]) = 0;
    if (ours && wanted[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
      *static_cast<int*>(values[i]) = CU_MEMORYTYPE_DEVICE;
    if (ours && wanted[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) *static_cast<int*>(values[i]) = 3;
  }
  return CUDA_SUCCESS;
}
}
