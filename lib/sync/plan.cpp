#include "sync/plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "base/text.h"

namespace weft {
namespace {

// The bucket that a dtype and device are filling.
struct Open {
  size_t limit = 0;  // index into the limits
  uint32_t first = 0;
  uint64_t bytes = 0;
  PlannedBucket bucket;
};

struct Closed {
  uint32_t first;  // position of the first member in the order of assignment
  PlannedBucket bucket;
};

std::vector<PlannedBucket> assign(const Manifest& manifest, const std::vector<uint64_t>& limits,
                                  const std::vector<uint32_t>& order) {
  // An ordered map, so that what is left over at the end comes in an order that all ranks share.
  std::map<std::tuple<Dtype, int32_t, int32_t>, Open> open;
  std::vector<Closed> closed;
  const auto close = [&](Open& o) {
    o.bucket.limit_bytes = limits[o.limit];
    closed.push_back({o.first, std::move(o.bucket)});
    o = {.limit = std::min(o.limit + 1, limits.size() - 1)};
  };
  for (uint32_t at = 0; at < order.size(); at++) {
    const Param& param = manifest.params[order[at]];
    Open& o = open[{param.dtype, param.device_kind, param.device}];
    if (o.bucket.params.empty()) o.first = at;
    o.bucket.dtype = param.dtype;
    o.bucket.params.push_back(order[at]);
    o.bucket.offsets.push_back(o.bucket.count);
    o.bucket.count += param.count;
    o.bytes += param.bytes();
    if (o.bytes >= limits[o.limit]) close(o);
  }
  for (auto& [key, o] : open) {
    if (!o.bucket.params.empty()) close(o);
  }
  std::sort(closed.begin(), closed.end(), [](const Closed& a, const Closed& b) { return a.first < b.first; });
  std::vector<PlannedBucket> buckets;
  buckets.reserve(closed.size());
  for (Closed& c : closed) buckets.push_back(std::move(c.bucket));
  return buckets;
}

}  // namespace

std::vector<uint64_t> bucket_limits(std::span<const uint64_t> given) {
  if (given.empty()) return {kFirstBucketBytes, kBucketBytes};
  return {given.begin(), given.end()};
}

Plan make_plan(const Manifest& manifest, const PlanOptions& options) {
  Plan plan;
  std::vector<uint32_t> order = options.order;
  if (order.empty()) {
    order.resize(manifest.params.size());
    std::iota(order.begin(), order.end(), 0u);
  }
  plan.buckets = assign(manifest, bucket_limits(options.limits), order);
  if (options.order.empty()) std::reverse(plan.buckets.begin(), plan.buckets.end());
  plan.bucket_of.resize(manifest.params.size());
  plan.offset_of.resize(manifest.params.size());
  for (uint32_t b = 0; b < plan.buckets.size(); b++) {
    const PlannedBucket& bucket = plan.buckets[b];
    for (size_t i = 0; i < bucket.params.size(); i++) {
      plan.bucket_of[bucket.params[i]] = b;
      plan.offset_of[bucket.params[i]] = bucket.offsets[i];
    }
  }
  return plan;
}

void Plan::write(ByteWriter* writer) const {
  writer->put(static_cast<uint32_t>(buckets.size()));
  for (const PlannedBucket& bucket : buckets) {
    writer->put(bucket.dtype).put(bucket.count).put(static_cast<uint32_t>(bucket.params.size()));
    for (const uint32_t param : bucket.params) writer->put(param);
  }
}

std::string Plan::text(const Manifest& manifest, uint32_t bucket) const {
  return cat("bucket ", bucket, " [", manifest.names(buckets[bucket].params, 3), "]");
}

}  // namespace weft
