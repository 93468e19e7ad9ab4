// Copy mode: parts of gradients that do not come into their bucket. Where a rank alone reads some elements of
// its own bucket (Collectives::kept: shm's owner of a slice), it reads them in the gradients, which are lent
// until the bucket is done, and their copy into the bucket is saved. Only gradients that would be
// copied as they are, in one piece, and steps that look at a bucket in no other way. Results come to the
// bucket as ever. Made with the plan.
//
// Threads: said of each call.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/collectives.h"
#include "core/device.h"
#include "sync/buckets.h"

namespace weft {

struct ReducerState;

class KeptParts {
 public:
  // For a state that has all else; null if there are none.
  static std::unique_ptr<KeptParts> make(const ReducerState& state);

  // ---- any thread, by who claimed the parameter, before it is counted
  bool has(uint64_t param) const { return parts_[param].count > 0; }
  // Copy a gradient into its place, but for its part.
  void copy_rest(const DeviceOps& ops, const Buckets::Place& place, uint64_t param, const std::byte* gradient,
                 uint32_t stamp, bool streaming);

  // ---- drive lock, once all gradients of the bucket are there
  // Where the parts are that lie in gradients in the step of this stamp; nothing of `away` but that is set.
  void locate(const ReducerState& state, uint32_t bucket, uint32_t stamp, Away* away) const;
  size_t most(uint32_t bucket) const { return params_[bucket].size(); }  // parts
  uint64_t memory_bytes() const;

 private:
  // Elements of a gradient.
  struct Part {
    uint64_t first = 0;
    uint64_t count = 0;
    uint32_t stamp = 0;  // of the last step in which it stayed in its gradient
  };
  KeptParts() = default;

  std::vector<Part> parts_;                    // by parameter
  std::vector<std::vector<uint32_t>> params_;  // by bucket: those with a part, as they lie there
};

}  // namespace weft
