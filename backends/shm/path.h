// Moves the data of a long operation in rounds of up to three stages. The lane runs a stage as soon as its
// inputs are there, so that round k is staged while k-1 is reduced and k-2 is copied out:
//
//   in   this rank's input into its staging           waits until all have consumed round k - kDepth, or this
//                                                     rank alone, if results come back into the staging
//   mid  reduce the slice that this rank owns         waits until all have produced round k
//   out  this rank's result out of peers' memory      waits until all have reduced (or produced) round k
//
// The path follows from the posts of all ranks, so all ranks use the same one. Needs the progress lock.
#pragma once

#include <memory>
#include <vector>

#include "operation.h"

namespace weft::shm {

struct Rounds {
  uint64_t count = 0;
  bool in = false;
  bool mid = false;
  bool out = false;
  uint64_t bytes = 0;     // approximate bytes that one stage of a round touches
  bool intrudes = false;  // mid writes into peers' arenas
  // mid leaves its results in the peers' staging, in place of their inputs. Once all have reduced a round,
  // only its own rank uses its chunk.
  bool returns = false;
};

// Borrowed by the paths of a lane. claims are the peers' claims, copied once and checked by each path's
// begin.
struct PathContext {
  Group& group;
  uint64_t staging;            // offset of the lane's staging in every segment
  std::vector<Claims> claims;  // of every rank
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
};

class Path {
 public:
  explicit Path(PathContext& context) : context_(context) {}
  virtual ~Path() = default;
  Path(const Path&) = delete;
  Path& operator=(const Path&) = delete;

  virtual const char* name() const = 0;
  virtual Status begin(const Operation& op, Rounds* rounds) = 0;
  virtual Status in(const Operation& /*op*/, uint64_t /*round*/) { return {}; }
  virtual Status mid(const Operation& /*op*/, uint64_t /*round*/) { return {}; }
  virtual Status out(const Operation& /*op*/, uint64_t /*round*/) { return {}; }

 protected:
  // Returns chunk `round` of a rank's staging ring.
  std::byte* chunk(int rank, uint64_t round) const {
    return context_.group.memory(rank, context_.staging + round % kDepth * kChunkBytes);
  }
  Status ensure_staging();

  PathContext& context_;
  bool staging_ready_ = false;
};

// Holds all paths of a lane.
struct Paths {
  explicit Paths(PathContext& context);
  std::unique_ptr<Path> staged;    // any collective through staging
  std::unique_ptr<Path> two_shot;  // all_reduce through staging: owners reduce, each rank copies out
  std::unique_ptr<Path> mapped;    // any collective but all_reduce, out of peers' arenas
  std::unique_ptr<Path> owner;     // all_reduce on arenas: owners reduce and write to all
  std::unique_ptr<Path> pulled;    // as mapped, out of peers' private memory
  // all_reduce of private memory: owners pull and reduce, the other ranks pull the result.
  std::unique_ptr<Path> owner_pulled;
};

std::unique_ptr<Path> make_staged(PathContext& context);
std::unique_ptr<Path> make_two_shot(PathContext& context);
std::unique_ptr<Path> make_mapped(PathContext& context);
std::unique_ptr<Path> make_owner(PathContext& context);
std::unique_ptr<Path> make_pulled(PathContext& context);
std::unique_ptr<Path> make_owner_pulled(PathContext& context);

// The bytes [offset, offset + bytes) of a buffer.
struct Range {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// Returns part `index` of `total` bytes cut into parts of `part` bytes.
inline Range part_of(uint64_t total, uint64_t part, uint64_t index) {
  const uint64_t offset = std::min(total, index * part);
  return {offset, std::min(part, total - offset)};
}

// Returns the size of a slice when `total` bytes are divided among `ranks` in whole `unit`s.
inline uint64_t slice_bytes(uint64_t total, int ranks, uint64_t unit) {
  const auto count = static_cast<uint64_t>(ranks);
  const uint64_t slice = total / count + (total % count != 0);
  return (slice + unit - 1) / unit * unit;
}

// Below this size a copy is cheaper than the second synchronisation of paths that read peers' buffers.
inline constexpr uint64_t kMappedMin = 8192;

// For all_reduce on arenas: owner_slice returns the size of a slice, owned_by the slice of a rank.
inline uint64_t owner_slice(uint64_t bytes, int size) {
  return slice_bytes(bytes, size, bytes < (256 << 10) ? 64 : kPage);
}
inline Range owned_by(int rank, uint64_t bytes, int size) {
  return part_of(bytes, owner_slice(bytes, size), static_cast<uint64_t>(rank));
}

inline uint64_t divide_up(uint64_t total, uint64_t part) {
  return part == 0 ? 0 : total / part + (total % part != 0);
}

}  // namespace weft::shm
