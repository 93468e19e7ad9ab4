// The CUDA driver that the program itself has loaded, through CUDA's runtime or directly. A program with
// device memory has loaded it. Weft queries it for the location of memory. A query loads and starts nothing:
// no library, no device, no context. Threads: any thread.
#pragma once

#include <cuda.h>

#include <atomic>
#include <string>

#include "device/accelerator.h"

namespace weft::cuda {

// Returns the location of memory, as a driver's cuPointerGetAttributes reports it.
PointerInfo ask(decltype(&::cuPointerGetAttributes) attributes_of, const void* pointer);

class ProgramsDriver {
 public:
  // Returns true once the driver has been found. file: a replacement that counts besides libcuda.so.
  // Allocates nothing until then.
  bool find(const std::string& file);
  bool found() const { return attributes_of_.load(std::memory_order_acquire) != nullptr; }
  // Returns where memory is, as the driver reports it. Called only after the driver was found. A driver that
  // the program has not initialised knows no memory.
  PointerInfo query_pointer(const void* pointer) const {
    return ask(attributes_of_.load(std::memory_order_acquire), pointer);
  }

 private:
  std::atomic<decltype(&::cuPointerGetAttributes)> attributes_of_{nullptr};
  std::atomic<unsigned long long> seen_{0};  // number of loaded objects when the driver was last not found
};

}  // namespace weft::cuda
