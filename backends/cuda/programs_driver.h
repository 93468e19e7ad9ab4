// The CUDA driver that the program itself has loaded, by CUDA's runtime or otherwise: whoever has device
// memory has loaded it. It is asked where memory lies; nothing is loaded or started for that, no device, no
// context. Threads: any thread.
#pragma once

#include <cuda.h>

#include <atomic>
#include <string>

#include "core/accelerator.h"

namespace weft::cuda {

// Where memory lies, by a driver's cuPointerGetAttributes.
PointerInfo ask(decltype(&::cuPointerGetAttributes) attributes_of, const void* pointer);

class ProgramsDriver {
 public:
  // file: what stands in for it, besides libcuda.so. True once it was found. Allocates nothing before.
  bool find(const std::string& file);
  bool found() const { return attributes_of_.load(std::memory_order_acquire) != nullptr; }
  // Only of a driver that was found. One that the program has not begun to use knows no memory.
  PointerInfo look_at(const void* pointer) const {
    return ask(attributes_of_.load(std::memory_order_acquire), pointer);
  }

 private:
  std::atomic<decltype(&::cuPointerGetAttributes)> attributes_of_{nullptr};
  std::atomic<unsigned long long> seen_{0};  // objects that the process had loaded when there was none
};

}  // namespace weft::cuda
