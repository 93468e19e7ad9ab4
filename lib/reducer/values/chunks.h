// Splits values of parameters into messages of bounded size and packs them. Used for broadcasts of the
// model's state (calls/values.cpp) and of buffers as steps begin (feature/pre_step). Pure functions. Threads:
// any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "reducer/bucket/buckets.h"
#include "reducer/manifest/manifest.h"

namespace weft {

// Consecutive elements of a value.
struct Piece {
  uint32_t param = 0;
  uint64_t first = 0;  // elements
  uint64_t count = 0;
  uint64_t bytes = 0;
};

struct Chunk {
  std::vector<Piece> pieces;
  uint64_t bytes = 0;
  // A single piece without gaps: it is sent and received in place, without packing.
  bool direct = false;
};

inline constexpr uint64_t kChunkBytes = 250u << 20;  // default
inline constexpr uint64_t kLeastChunkBytes = 16;     // room for one element

// Returns the parameters with one of these flags, in their order, and those with gradients if `reduced`.
std::vector<uint32_t> params_with(const Manifest& manifest, uint64_t flags, bool reduced);

// Returns kArg, naming the first of params without a value on this rank; *missing is 1 + its index.
Status check_values(const Manifest& manifest, const std::vector<uint32_t>& params,
                    uint64_t* missing = nullptr);
Status without_value(const Manifest& manifest, uint64_t param);

// Divides params, of any dtypes, into messages of at most chunk_bytes. Equal on all ranks, because it depends
// only on what they have agreed on.
std::vector<Chunk> make_chunks(const Manifest& manifest, const std::vector<uint32_t>& params,
                               uint64_t chunk_bytes);

// Copy values to `packed`, chunk.bytes in all, and back.
void pack(const Chunk& chunk, const Manifest& manifest, const Buckets& buckets, std::byte* packed);
void unpack(const Chunk& chunk, const Manifest& manifest, const Buckets& buckets, const std::byte* packed);
// Returns the address of a direct chunk.
std::byte* home(const Chunk& chunk, const Manifest& manifest);

}  // namespace weft
