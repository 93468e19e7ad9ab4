// Encoding of the data that ranks exchange while a communicator is being created. Pure functions, for
// form.cpp and tests. Decoded data comes from other ranks and is not trusted. Threads: any thread.
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

// The settings and capabilities of a rank.
// id: a number for the communicator, of which rank 0's is used.
// wanted, algorithms, shm_thresholds, host: the specified backend, algorithms, shm crossover sizes and
// simulated host, if any.
// node: its NUMA node is specified.
// available: the backends that work on this rank.
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
// Returns false for anything that encode does not write.
bool decode(ByteView bytes, Offer* offer);

// A rank's place in a split.
struct Place {
  bool none = false;  // in no subgroup
  int32_t color = 0;
  int32_t key = 0;
};

Bytes encode(const Place& place);
bool decode(ByteView bytes, Place* place);

}  // namespace weft
