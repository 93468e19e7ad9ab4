// Looks up the fake's kernels by name.
#pragma once

#include <cstdint>
#include <functional>

namespace fake {

struct Kernel {
  const char* name;
  // Reads the arguments and returns the function that the stream runs when it reaches the launch.
  std::function<void()> (*prepare)(uint32_t blocks, uint32_t threads, const void* args);
};
const Kernel* find_kernel(const char* name);  // null: no kernel of this name

}  // namespace fake
