#include "reducer/feature/sharded/ownership.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "reducer/step/schedule.h"

namespace weft {
namespace {

constexpr uint64_t kAlignBytes = 64;

}  // namespace

std::vector<int> whole_owners(const Manifest& manifest, int size) {
  std::vector<uint32_t> order(manifest.params.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return manifest.params[a].bytes() > manifest.params[b].bytes();
  });
  using Load = std::pair<uint64_t, int>;  // bytes, rank
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (int r = 0; r < size; r++) loads.push({0, r});
  std::vector<int> owners(manifest.params.size(), 0);
  for (const uint32_t param : order) {
    if (!manifest.params[param].reduced()) continue;
    const auto [bytes, rank] = loads.top();
    loads.pop();
    owners[param] = rank;
    loads.push({bytes + manifest.params[param].bytes(), rank});
  }
  return owners;
}

Plan grouped_by_owner(const Manifest& manifest, const Plan& plan, int size) {
  const std::vector<int> owners = whole_owners(manifest, size);
  Plan grouped = plan;
  for (PlannedBucket& bucket : grouped.buckets) {
    std::stable_sort(bucket.params.begin(), bucket.params.end(),
                     [&](uint32_t a, uint32_t b) { return owners[a] < owners[b]; });
    uint64_t offset = 0;
    for (size_t i = 0; i < bucket.params.size(); i++) {
      bucket.offsets[i] = grouped.offset_of[bucket.params[i]] = offset;
      offset += manifest.params[bucket.params[i]].count;
    }
  }
  return grouped;
}

Ownership::Ownership(const Manifest& manifest, const Plan& plan, int size, bool whole)
    : manifest_(manifest), plan_(plan), size_(size), shares_(plan.buckets.size()) {
  if (whole) owners_ = whole_owners(manifest, size);
  for (uint32_t b = 0; b < plan.buckets.size(); b++) {
    if (whole) {
      share_whole(b);
    } else {
      share_equally(b);
    }
  }
}

void Ownership::share_equally(uint32_t bucket) {
  const PlannedBucket& planned = plan_.buckets[bucket];
  const auto ranks = static_cast<uint64_t>(size_);
  const uint64_t aligned = kAlignBytes / dtype_size(planned.dtype);
  const uint64_t part = planned.count / ranks / aligned * aligned;
  if (part > 0) shares_[bucket].push_back({Share::kEach, 0, part});
  const uint64_t rest = planned.count - part * ranks;
  const int owner = part > 0 ? size_ - 1 : static_cast<int>(bucket % ranks);
  if (rest > 0 || part == 0) shares_[bucket].push_back({owner, part * ranks, rest});
}

void Ownership::share_whole(uint32_t bucket) {
  const PlannedBucket& planned = plan_.buckets[bucket];
  std::vector<Share>& shares = shares_[bucket];
  for (size_t i = 0; i < planned.params.size(); i++) {
    const int owner = owners_[planned.params[i]];
    const uint64_t count = manifest_.params[planned.params[i]].count;
    if (!shares.empty() && (shares.back().owner == owner || count == 0)) {
      shares.back().count += count;
    } else {
      shares.push_back({owner, planned.offsets[i], count});
    }
  }
}

Owned Ownership::of(int rank, uint64_t param) const {
  if (!manifest_.params[param].reduced()) return {};
  const uint64_t count = manifest_.params[param].count;
  if (!owners_.empty()) return owners_[param] == rank ? Owned{0, count} : Owned{};
  const uint32_t bucket = plan_.bucket_of[param];
  const uint64_t at = plan_.offset_of[param];
  const uint64_t begin = std::max(begin_of(rank, bucket), at);
  const uint64_t end = std::min(begin_of(rank + 1, bucket), at + count);
  return begin < end ? Owned{begin - at, end - begin} : Owned{};
}

// Returns where a rank's range of a bucket begins; for rank size_ the bucket's end.
uint64_t Ownership::begin_of(int rank, uint32_t bucket) const {
  const uint64_t count = plan_.buckets[bucket].count;
  const Share& first = shares_[bucket].front();
  if (rank == size_) return count;
  if (first.owner == Share::kEach) return static_cast<uint64_t>(rank) * first.count;
  return rank <= first.owner ? 0 : count;  // one rank owns the bucket
}

std::vector<uint64_t> Ownership::begins(uint32_t bucket) const {
  std::vector<uint64_t> begins;
  for (int rank = 0; rank <= size_; rank++) begins.push_back(begin_of(rank, bucket));
  return begins;
}

std::vector<weft_slice> Ownership::slices(int rank) const {
  std::vector<weft_slice> out;
  for (const PlannedBucket& bucket : plan_.buckets) {
    for (const uint32_t param : bucket.params) {
      const Owned owned = of(rank, param);
      if (owned.count > 0) out.push_back({param, owned.first, owned.count});
    }
  }
  return out;
}

uint64_t Ownership::memory_bytes() const {
  uint64_t bytes =
      sizeof *this + owners_.capacity() * sizeof(int) + shares_.capacity() * sizeof(std::vector<Share>);
  for (const std::vector<Share>& shares : shares_) bytes += shares.capacity() * sizeof(Share);
  return bytes;
}

void part(const Ownership& ownership, int rank, Schedule* schedule) {
  std::vector<Slot> parts;
  for (const Slot& whole : schedule->slots) {
    const std::vector<Share>& shares = ownership.shares(whole.bucket);
    for (const Share& share : shares) {
      const uint64_t size = dtype_size(whole.args.dtype);
      Slot& slot = parts.emplace_back(whole);
      slot.last = &share == &shares.back();
      slot.args.count = share.count;
      for (uint64_t& offset : slot.offset) offset += share.offset * size;
      slot.args.coll = share.owner == Share::kEach ? Coll::kReduceScatter : Coll::kReduce;
      if (share.owner == Share::kEach) {
        slot.offset[1] += static_cast<uint64_t>(rank) * share.count * size;  // in place
      } else {
        slot.args.peer = share.owner;
      }
    }
  }
  schedule->slots = std::move(parts);
}

}  // namespace weft
