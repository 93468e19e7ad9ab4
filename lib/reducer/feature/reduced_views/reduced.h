// The addresses of the buckets of the host's other ranks, so that a program reads results in their owners'
// memory (WEFT_REDUCER_REDUCED_VIEWS). Part of a reducer's state: made with the plan, and anew for every
// communicator. Threads: immutable after make; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "core/comm.h"
#include "reducer/agreement.h"
#include "reducer/bucket/buckets.h"

namespace weft {

class PeerBuckets {
 public:
  // Collective: every rank publishes the places of its buckets and maps those of the others, or no rank does.
  // kUnsupported if ranks cannot access each other's memory. agreement: what is being made, the deadline and
  // the lane.
  static Status make(const Agreement& agreement, const Plan& plan, const Buckets& buckets,
                     std::unique_ptr<PeerBuckets>* peers);

  // Returns the address of a rank's bucket. This rank may read it until its own next begin
  // (Reducer::await_readers).
  const std::byte* at(int rank, uint32_t bucket) const {
    return memory_[static_cast<size_t>(rank) * buckets_ + bucket];
  }
  uint64_t memory_bytes() const { return sizeof *this + memory_.capacity() * sizeof memory_[0]; }

 private:
  PeerBuckets() = default;
  // Maps the buckets that the ranks published; `published` comes from other processes. The progress lock is
  // held.
  Status find(Comm& comm, const std::vector<uint64_t>& bytes, const std::vector<Bytes>& published);

  size_t buckets_ = 0;
  std::vector<const std::byte*> memory_;  // rank 0's buckets, rank 1's and so on
};

}  // namespace weft
