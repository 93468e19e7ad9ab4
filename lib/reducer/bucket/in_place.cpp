#include "reducer/bucket/in_place.h"

#include <weft/weft.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/text.h"

namespace weft {
namespace {

// Returns the position in the bucket of the first gradient, from `first` on, that does not follow those
// before it. Parameters without elements have no place.
size_t end_of_run(const Manifest& manifest, const PlannedBucket& bucket, size_t first) {
  const std::byte* next = nullptr;
  for (size_t i = first; i < bucket.params.size(); i++) {
    const Param& param = manifest.params[bucket.params[i]];
    if (param.count == 0) continue;
    const std::byte* const at = manifest.gradient(bucket.params[i]);
    if (next != nullptr && at != next) return i;
    next = at + param.bytes();
  }
  return bucket.params.size();
}

// Returns the bucket of the parameters at [first, last) in `whole`.
PlannedBucket part_of(const PlannedBucket& whole, size_t first, size_t last) {
  PlannedBucket part = whole;
  const auto begin = static_cast<ptrdiff_t>(first), end = static_cast<ptrdiff_t>(last);
  part.params.assign(whole.params.begin() + begin, whole.params.begin() + end);
  part.offsets.assign(whole.offsets.begin() + begin, whole.offsets.begin() + end);
  for (uint64_t& offset : part.offsets) offset -= whole.offsets[first];
  part.count = (last < whole.offsets.size() ? whole.offsets[last] : whole.count) - whole.offsets[first];
  return part;
}

}  // namespace

Status check_in_place_flags(uint64_t flags) {
  constexpr std::pair<uint64_t, const char*> kExcluded[] = {
      {WEFT_REDUCER_GRAPH, "WEFT_REDUCER_GRAPH"},
      {WEFT_REDUCER_OWN_WHOLE, "WEFT_REDUCER_OWN_WHOLE"},
  };
  for (const auto& [flag, name] : kExcluded) {
    if ((flags & flag) != 0) {
      return Status::error(Code::kArg,
                           cat("weft_reducer_options.mode is WEFT_GRADIENT_IN_PLACE, which excludes ", name,
                               ": use WEFT_GRADIENT_VIEW or WEFT_GRADIENT_COPY with it"));
    }
  }
  return {};
}

Status check_in_place(const Manifest& manifest) {
  for (uint32_t i = 0; i < manifest.params.size(); i++) {
    const Param& param = manifest.params[i];
    if (!param.reduced()) continue;
    const auto wrong = [&](Code code, const std::string& what) {
      return Status::error(code, cat(manifest.named(i), ": ", what, " with WEFT_GRADIENT_IN_PLACE"));
    };
    if (param.sparse()) return wrong(Code::kUnsupported, "its gradient is sparse, and must be dense");
    if (param.on_device())
      return wrong(Code::kUnsupported, "its gradient is on a device, and must be on the host");
    if (!param.dense) return wrong(Code::kUnsupported, "its gradient has gaps, and must have none");
    if (param.count > 0 && manifest.gradient(i) == nullptr)
      return wrong(Code::kArg, "weft_param.gradient is NULL, and must be the gradient's address");
    const Dtype sent = manifest.comm_dtype_of(param.dtype);
    if (dtype_size(sent) > dtype_size(param.dtype)) {
      return wrong(Code::kUnsupported,
                   cat("reduce_dtype is ", name(sent), ", which needs more memory than a ", name(param.dtype),
                       " gradient has, and must not be wider"));
    }
  }
  return {};
}

void cut_in_place(const Manifest& manifest, Plan* plan) {
  Plan cut;
  for (const PlannedBucket& bucket : plan->buckets) {
    std::vector<PlannedBucket> parts;
    for (size_t first = 0; first < bucket.params.size();) {
      const size_t last = end_of_run(manifest, bucket, first);
      parts.push_back(part_of(bucket, first, last));
      first = last;
    }
    // Buckets are in the reverse order of the list of parameters, and so are the parts.
    std::move(parts.rbegin(), parts.rend(), std::back_inserter(cut.buckets));
  }
  *plan = std::move(cut);
  plan->index(manifest.params.size());
}

Status check_adjacent(const Manifest& manifest, const Plan& plan) {
  for (uint32_t b = 0; b < plan.buckets.size(); b++) {
    const PlannedBucket& bucket = plan.buckets[b];
    const size_t end = end_of_run(manifest, bucket, 0);
    if (end == bucket.params.size()) continue;
    return Status::error(Code::kArg,
                         cat("plan: bucket ", b, ": the gradient of ", manifest.named(bucket.params[end]),
                             " does not lie directly behind that of the parameter before it, as "
                             "WEFT_GRADIENT_IN_PLACE needs"));
  }
  return {};
}

std::vector<std::byte*> buckets_in_place(const Manifest& manifest, const Plan& plan) {
  static std::byte nowhere[1];  // the place of a bucket without elements
  std::vector<std::byte*> begins;
  begins.reserve(plan.buckets.size());
  for (const PlannedBucket& bucket : plan.buckets) {
    const auto first = std::find_if(bucket.params.begin(), bucket.params.end(),
                                    [&](uint32_t param) { return manifest.params[param].count > 0; });
    begins.push_back(first == bucket.params.end() ? nowhere : manifest.gradient(*first));
  }
  return begins;
}

}  // namespace weft
