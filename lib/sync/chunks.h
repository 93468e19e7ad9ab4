// Values of parameters as messages of bounded size: which pieces travel together, and how they are packed.
// For broadcasts of the model's state (values.cpp) and of buffers as steps begin (prelude.cpp). Pure
// functions. Threads: any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "sync/buckets.h"
#include "sync/manifest.h"

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
  // One piece without gaps: it travels from where it is to where it belongs, and is not packed.
  bool direct = false;
};

inline constexpr uint64_t kChunkBytes = 250u << 20;  // by default
inline constexpr uint64_t kLeastChunkBytes = 16;     // an element fits

// Parameters whose flags are among these (0: those that have gradients too, if `reduced`), in their order.
std::vector<uint32_t> params_with(const Manifest& manifest, uint64_t flags, bool reduced);

// kArg naming the first of params of which this rank has no value; *missing is 1 + that one.
Status check_values(const Manifest& manifest, const std::vector<uint32_t>& params,
                    uint64_t* missing = nullptr);
Status without_value(const Manifest& manifest, uint64_t param);

// What of params travels in which message, of chunk_bytes at most; of any dtypes. Equal on all ranks: it
// depends on what they have agreed on alone.
std::vector<Chunk> make_chunks(const Manifest& manifest, const std::vector<uint32_t>& params,
                               uint64_t chunk_bytes);

// Values -> chunk.bytes at `packed`, and back.
void pack(const Chunk& chunk, const Manifest& manifest, const Buckets& buckets, std::byte* packed);
void unpack(const Chunk& chunk, const Manifest& manifest, const Buckets& buckets, const std::byte* packed);
// Where a direct chunk is.
std::byte* home(const Chunk& chunk, const Manifest& manifest);

}  // namespace weft
