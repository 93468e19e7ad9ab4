// What ranks offer each other while a communicator is formed, as bytes. Pure functions, for form.cpp and
// tests; what is decoded is another rank's word. Threads: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/buffer.h"

namespace weft {

inline constexpr uint32_t kMaxBackendName = 64;
inline constexpr uint32_t kMaxBackends = 64;
inline constexpr uint32_t kMaxAlgorithms = 1024;
inline constexpr uint32_t kMaxThresholds = 256;

// What a rank has to offer: a number for the communicator (rank 0's is taken), the backend, the algorithms,
// the thresholds of shm and the simulated host that it was told to use (or none), whether it was told its
// NUMA node, and the backends that work there.
struct Offer {
  uint64_t id = 0;
  std::string wanted;
  std::string algorithms;
  std::string shm_thresholds;
  int32_t host = -1;
  bool node = false;
  std::vector<std::string> available;
};

Bytes encode(const Offer& offer);
// False for anything that encode does not write.
bool decode(ByteView bytes, Offer* offer);

// Where a rank belongs when a communicator is split.
struct Place {
  bool none = false;  // in no part
  int32_t color = 0;
  int32_t key = 0;
};

Bytes encode(const Place& place);
bool decode(ByteView bytes, Place* place);

}  // namespace weft
