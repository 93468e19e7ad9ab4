// Where the other ranks of a host have the buckets of a reducer, so that a program reads results where their
// owners have them (WEFT_REDUCER_REDUCED_VIEWS). Part of a reducer's state: made with the plan, and anew for
// every communicator. Threads: immutable after make; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "core/comm.h"
#include "sync/agreement.h"
#include "sync/buckets.h"

namespace weft {

class PeerBuckets {
 public:
  // Collective: every rank says where its buckets lie and finds those of the others, or none does.
  // kUnsupported where ranks do not reach each other's memory.
  // agreement: what is being made, by when, over which lane.
  static Status make(const Agreement& agreement, const Plan& plan, const Buckets& buckets,
                     std::unique_ptr<PeerBuckets>* peers);

  // A rank's bucket. To be read while that rank lets it be.
  const std::byte* at(int rank, uint32_t bucket) const {
    return memory_[static_cast<size_t>(rank) * buckets_ + bucket];
  }
  uint64_t memory_bytes() const { return sizeof *this + memory_.capacity() * sizeof memory_[0]; }

 private:
  PeerBuckets() = default;
  // What the ranks said of their buckets, which are other processes' words. The drive lock is held.
  Status find(Comm& comm, const std::vector<uint64_t>& bytes, const std::vector<Bytes>& said);

  size_t buckets_ = 0;
  std::vector<const std::byte*> memory_;  // of rank 0's buckets, rank 1's and so on
};

}  // namespace weft
