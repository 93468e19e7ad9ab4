// Encoding of the data that ranks exchange while a communicator is being created. Pure functions, for
// bootstrap.cpp and tests. Decoded data comes from other ranks and is not trusted. Threads: any thread.
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
struct Offer {
  uint64_t id = 0;                     // number for the communicator; rank 0's is used
  std::string wanted;                  // specified backend; empty: none
  std::string algorithms;              // specified algorithms; empty: none
  std::string shm_thresholds;          // specified shm crossover sizes; empty: none
  int32_t host = -1;                   // specified simulated host; -1: none
  bool modules = false;                // available includes backends that modules have to be loaded for
  std::vector<std::string> available;  // backends that work on this rank
};

Bytes encode(const Offer& offer);
// Returns false for anything that encode does not write.
bool decode(ByteView bytes, Offer* offer);

// A rank's place in a split.
struct SplitChoice {
  bool none = false;  // in no subgroup
  int32_t color = 0;
  int32_t key = 0;
};

Bytes encode(const SplitChoice& place);
bool decode(ByteView bytes, SplitChoice* place);

}  // namespace weft
