// Prepares the C++ runtime of this library or module for exceptions that others throw. In the wheel the
// library and each module contain a copy of libgcc. A copy that has thrown no exception itself aborts the
// process when an exception of another copy passes through its frames. Threads: any thread.
#pragma once

#include <exception>

namespace weft {

inline void prepare_unwinding() {
  try {
    throw std::exception();
  } catch (const std::exception&) {
    return;
  }
}

}  // namespace weft
