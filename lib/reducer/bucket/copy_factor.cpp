#include "reducer/bucket/copy_factor.h"

#include <algorithm>

#include "reducer/step/stamps.h"

namespace weft {

double CopyFactor::take(uint64_t param, uint32_t stamp) {
  if (stamp_.load(std::memory_order_acquire) != stamp) return 1;
  marks_[param] = stamp;
  return factor_.load(std::memory_order_relaxed);
}

void CopyFactor::forget(uint32_t stamp) {
  for (uint32_t& mark : marks_) mark = kept_mark(mark, stamp);
  stamp_.store(kept_mark(stamp_.load(std::memory_order_relaxed), stamp), std::memory_order_relaxed);
}

CopyFactor::Range CopyFactor::range(const PlannedBucket& bucket, uint64_t first, uint32_t stamp) const {
  const auto behind = std::upper_bound(bucket.offsets.begin(), bucket.offsets.end(), first);
  const auto marked = [&](size_t i) { return marks_[bucket.params[i]] == stamp; };
  auto i = static_cast<size_t>(behind - bucket.offsets.begin());  // the next parameter
  const bool done = marked(i - 1);
  while (i < bucket.params.size() && marked(i) == done) i++;
  return {(i < bucket.params.size() ? bucket.offsets[i] : bucket.count) - first, done};
}

}  // namespace weft
