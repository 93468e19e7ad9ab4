// Assigns elements of a sharded reducer's buckets to ranks. The owner receives their sums and updates the
// parameters there. A pure function of manifest, plan and number of ranks, so all ranks get the same result.
// Part of a reducer's state. Threads: immutable; any thread.
#pragma once

#include <weft/weft.h>

#include <cstdint>
#include <vector>

#include "reducer/plan/plan.h"

namespace weft {

struct Schedule;

// Consecutive elements of a bucket that one collective sends to their owners.
struct Share {
  static constexpr int kEach = -1;  // the range has one equal part for each rank; rank r owns the r-th
  int owner = kEach;
  uint64_t offset = 0;  // in the bucket
  uint64_t count = 0;   // of each rank's part
};

// A range of a parameter's elements, in the order of its place.
struct Owned {
  uint64_t first = 0;
  uint64_t count = 0;
};

class Ownership {
 public:
  // whole: a parameter has one owner (WEFT_REDUCER_OWN_WHOLE), which does not depend on the plan. Otherwise
  // each rank owns one range of every bucket. The ranges are equal and aligned to cache lines, and the last
  // rank's also has the remainder. A bucket that is too small for that belongs to one rank, in turn.
  Ownership(const Manifest& manifest, const Plan& plan, int size, bool whole);

  const std::vector<Share>& shares(uint32_t bucket) const { return shares_[bucket]; }
  // Returns where each rank's range of a bucket begins, and the bucket's end. For ranks that own ranges.
  std::vector<uint64_t> begins(uint32_t bucket) const;
  // Returns the part of a bucket's parameter that a rank owns.
  Owned of(int rank, uint64_t param) const;
  std::vector<weft_slice> slices(int rank) const;  // in the order of the buckets
  uint64_t memory_bytes() const;

 private:
  uint64_t begin_of(int rank, uint32_t bucket) const;
  void share_equally(uint32_t bucket);
  void share_whole(uint32_t bucket);

  const Manifest& manifest_;
  const Plan& plan_;
  const int size_;
  std::vector<int> owners_;  // per parameter; empty unless whole
  std::vector<std::vector<Share>> shares_;
};

// Returns for each parameter the rank that owns it whole: the largest first, each to the rank with the fewest
// bytes so far.
std::vector<int> whole_owners(const Manifest& manifest, int size);

// Returns the same buckets with the parameters of an owner next to each other, so that fewer collectives are
// needed.
Plan grouped_by_owner(const Manifest& manifest, const Plan& plan, int size);

// Replaces each bucket's only collective, an all-reduce, by those that send its shares to their owners. For a
// schedule that has no slots of the step yet.
void part(const Ownership& ownership, int rank, Schedule* schedule);

}  // namespace weft
