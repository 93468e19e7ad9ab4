// The fake's kernels by name.
#pragma once

#include <cstdint>
#include <functional>

namespace fake {

struct Kernel {
  const char* name;
  // What a launch with these arguments does once its stream comes to it; they are read now.
  std::function<void()> (*prepare)(uint32_t blocks, uint32_t threads, const void* args);
};
const Kernel* find_kernel(const char* name);  // null: there is none

}  // namespace fake
