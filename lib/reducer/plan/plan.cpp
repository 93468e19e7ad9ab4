#include "reducer/plan/plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "base/text.h"

namespace weft {
namespace {

// A bucket with less is not closed before a large parameter: a message of its own would cost more than the
// wait.
constexpr uint64_t kWorthSendingBytes = 64u << 10;

// The bucket that parameters of a dtype and device are added to.
struct Open {
  size_t limit = 0;              // index into the limits
  uint32_t first = 0, last = 0;  // positions of its first and last member in the order of assignment
  uint64_t bytes = 0;
  PlannedBucket bucket;
};

struct Closed {
  uint32_t first, last;  // positions of the first and the last member in the order of assignment
  PlannedBucket bucket;
};

int32_t device_of(const Param& param) {
  return param.on_device() ? param.device : PlannedBucket::kHost;
}

PlannedBucket sparse_bucket(const Param& param, uint32_t index) {
  PlannedBucket bucket;
  bucket.dtype = bucket.gradients = param.dtype;
  bucket.sparse = true;
  bucket.params = {index};
  bucket.offsets = {0};
  return bucket;
}

// Puts the members of a bucket, which were added from the last of the list to the first, into the listed
// order.
void list_in_order(const Manifest& manifest, PlannedBucket* bucket) {
  std::reverse(bucket->params.begin(), bucket->params.end());
  uint64_t offset = 0;
  for (size_t i = 0; i < bucket->params.size(); i++) {
    bucket->offsets[i] = offset;
    offset += manifest.params[bucket->params[i]].count;
  }
}

// Returns the buckets in the order in which they were closed.
std::vector<Closed> assign(const Manifest& manifest, const std::vector<uint64_t>& limits,
                           const std::vector<uint32_t>& order, bool ddp) {
  // An ordered map, so that the buckets left over at the end have the same order on all ranks.
  std::map<std::tuple<Dtype, bool, int32_t, int32_t>, Open> open;
  std::vector<Closed> closed;
  const auto close = [&](Open& o) {
    o.bucket.limit_bytes = limits[o.limit];
    closed.push_back({o.first, o.last, std::move(o.bucket)});
    o = {.limit = std::min(o.limit + 1, limits.size() - 1)};
  };
  for (uint32_t at = 0; at < order.size(); at++) {
    const Param& param = manifest.params[order[at]];
    if (!param.reduced()) continue;
    if (param.sparse()) {
      closed.push_back({at, at, sparse_bucket(param, order[at])});
      continue;
    }
    Open& o = open[{param.dtype, param.pairs, param.device_kind, param.device}];
    const Dtype sent = manifest.comm_dtype_of(param.dtype);
    const uint64_t bytes = param.count * dtype_size(sent);
    if (!ddp && bytes > limits[o.limit] && o.bytes >= kWorthSendingBytes) close(o);
    if (o.bucket.params.empty()) o.first = at;
    o.last = at;
    o.bucket.gradients = param.dtype;
    o.bucket.device = device_of(param);
    o.bucket.dtype = sent;
    o.bucket.params.push_back(order[at]);
    o.bucket.offsets.push_back(o.bucket.count);
    o.bucket.count += param.count;
    o.bytes += bytes;
    if (o.bytes >= limits[o.limit]) close(o);
  }
  for (auto& [key, o] : open) {
    if (!o.bucket.params.empty()) close(o);
  }
  return closed;
}

// Takes the buckets, whose order is that of a member of Closed.
std::vector<PlannedBucket> in_order_of(uint32_t Closed::* position, std::vector<Closed> closed) {
  std::sort(closed.begin(), closed.end(),
            [&](const Closed& a, const Closed& b) { return a.*position < b.*position; });
  std::vector<PlannedBucket> buckets;
  buckets.reserve(closed.size());
  for (Closed& c : closed) buckets.push_back(std::move(c.bucket));
  return buckets;
}

// Returns a text like "f32 on CUDA device 1", of what a bucket's members have in common.
std::string kind_text(const Manifest& manifest, uint32_t param) {
  const Param& p = manifest.params[param];
  return cat(
      p.pairs ? "complex " : "", name(p.dtype),
      p.on_device() ? cat(" on CUDA device ", manifest.device(param)) : std::string(" in host memory"));
}

// Checks that every parameter with gradients is in exactly one bucket, and that a bucket's members have the
// same dtype and device.
Status check_buckets(const Manifest& manifest, const std::vector<std::vector<uint32_t>>& buckets) {
  std::vector<bool> seen(manifest.params.size());
  size_t count = 0;
  for (size_t b = 0; b < buckets.size(); b++) {
    if (buckets[b].empty())
      return Status::error(Code::kArg,
                           cat("plan: bucket ", b, " is empty; every bucket needs at least one parameter"));
    for (const uint32_t param : buckets[b]) {
      if (param >= seen.size()) {
        return Status::error(Code::kArg, cat("plan: bucket ", b, " has an unknown parameter, ", param,
                                             param == UINT32_MAX ? " or more" : "", "; the reducer has ",
                                             seen.size(), " parameters, numbered from 0"));
      }
      const Param& p = manifest.params[param];
      const Param& first = manifest.params[buckets[b].front()];
      const std::string text = cat("plan: ", manifest.named(param));
      if (!p.reduced()) {
        return Status::error(
            Code::kArg, cat(text, " is in bucket ", b, ", but must be in no bucket, as it is ", p.kind()));
      }
      if (seen[param]) {
        return Status::error(Code::kArg, cat(text, " is listed twice, the second time in bucket ", b,
                                             "; every parameter with a gradient must be in one bucket"));
      }
      if (p.dtype != first.dtype || p.pairs != first.pairs || p.device_kind != first.device_kind ||
          p.device != first.device) {
        return Status::error(Code::kArg,
                             cat(text, " is ", kind_text(manifest, param), ", but '", first.name,
                                 "' in the same bucket ", b, " is ", kind_text(manifest, buckets[b].front()),
                                 "; parameters of a bucket must have one dtype and device"));
      }
      if (p.sparse() && buckets[b].size() > 1) {
        return Status::error(Code::kArg,
                             cat(text, " must be alone in bucket ", b, ": its gradient is sparse"));
      }
      seen[param] = true;
      count++;
    }
  }
  if (count == manifest.reduced()) return {};
  size_t missing = 0;
  while (seen[missing] || !manifest.params[missing].reduced()) missing++;
  return Status::error(Code::kArg,
                       cat("plan: ", manifest.named(missing),
                           " is in no bucket; every parameter with a gradient must be in one bucket"));
}

}  // namespace

std::vector<uint64_t> bucket_limits(std::span<const uint64_t> given) {
  if (given.empty()) return {kFirstBucketBytes, kBucketBytes};
  return {given.begin(), given.end()};
}

Plan make_plan(const Manifest& manifest, const PlanOptions& options) {
  Plan plan;
  const std::vector<uint64_t> limits = bucket_limits(options.limits);
  if (!options.order.empty()) {
    plan.buckets = in_order_of(&Closed::last, assign(manifest, limits, options.order, options.ddp));
  } else {
    std::vector<uint32_t> order(manifest.params.size());
    std::iota(order.begin(), order.end(), 0u);
    if (options.ddp) {
      plan.buckets = in_order_of(&Closed::first, assign(manifest, limits, order, true));
      std::reverse(plan.buckets.begin(), plan.buckets.end());
    } else {
      std::reverse(order.begin(), order.end());
      plan.buckets = in_order_of(&Closed::last, assign(manifest, limits, order, false));
      for (PlannedBucket& bucket : plan.buckets) list_in_order(manifest, &bucket);
    }
  }
  plan.index(manifest.params.size());
  return plan;
}

Status make_plan(const Manifest& manifest, const std::vector<std::vector<uint32_t>>& buckets, Plan* plan) {
  WEFT_TRY(check_buckets(manifest, buckets));
  *plan = {};
  for (const std::vector<uint32_t>& params : buckets) {
    PlannedBucket& bucket = plan->buckets.emplace_back();
    if (const Param& first = manifest.params[params.front()]; first.sparse()) {
      bucket = sparse_bucket(first, params.front());
      continue;
    }
    bucket.gradients = manifest.params[params.front()].dtype;
    bucket.device = device_of(manifest.params[params.front()]);
    bucket.dtype = manifest.comm_dtype_of(bucket.gradients);
    bucket.params = params;
    for (const uint32_t param : params) {
      bucket.offsets.push_back(bucket.count);
      bucket.count += manifest.params[param].count;
    }
  }
  plan->index(manifest.params.size());
  return {};
}

Status read_plan(const weft_plan& given, const Manifest& manifest,
                 std::vector<std::vector<uint32_t>>* buckets) {
  const uint64_t count = manifest.params.size();
  if (given.sizes == nullptr || given.params == nullptr) {
    return Status::error(Code::kArg,
                         cat("plan: weft_plan.", given.sizes == nullptr ? "sizes" : "params", " is NULL"));
  }
  if (given.bucket_count == 0 || given.bucket_count > count) {
    return Status::error(Code::kArg, cat("plan: weft_plan.bucket_count is ", given.bucket_count,
                                         ": allowed are 1 to ", count, ", the number of parameters"));
  }
  buckets->clear();
  uint64_t at = 0;
  for (uint64_t b = 0; b < given.bucket_count; b++) {
    if (given.sizes[b] > count - at) {
      return Status::error(
          Code::kArg, cat("plan: weft_plan.sizes[", b, "] is ", given.sizes[b], ", but only ", count - at,
                          " of ", count, " parameters are left for this bucket"));
    }
    std::vector<uint32_t>& params = buckets->emplace_back();
    for (uint64_t i = 0; i < given.sizes[b]; i++) {
      const uint64_t param = given.params[at++];
      params.push_back(static_cast<uint32_t>(std::min<uint64_t>(param, UINT32_MAX)));
    }
  }
  return check_buckets(manifest, *buckets);
}

void Plan::index(size_t params) {
  bucket_of.assign(params, kNoBucket);
  offset_of.assign(params, 0);
  for (uint32_t b = 0; b < buckets.size(); b++) {
    const PlannedBucket& bucket = buckets[b];
    for (size_t i = 0; i < bucket.params.size(); i++) {
      bucket_of[bucket.params[i]] = b;
      offset_of[bucket.params[i]] = bucket.offsets[i];
    }
  }
}

void Plan::pack(std::vector<uint32_t>* words) const {
  std::fill(words->begin(), words->end(), 0);
  auto at = words->begin();
  *at++ = static_cast<uint32_t>(buckets.size());
  for (const PlannedBucket& bucket : buckets) *at++ = static_cast<uint32_t>(bucket.params.size());
  for (const PlannedBucket& bucket : buckets) at = std::copy(bucket.params.begin(), bucket.params.end(), at);
  for (const PlannedBucket& bucket : buckets) {
    *at++ = static_cast<uint32_t>(bucket.limit_bytes);
    *at++ = static_cast<uint32_t>(bucket.limit_bytes >> 32);
  }
}

void Plan::take_limits(const Plan& equal) {
  for (size_t b = 0; b < buckets.size(); b++) buckets[b].limit_bytes = equal.buckets[b].limit_bytes;
}

Status Plan::unpack(const Manifest& manifest, const std::vector<uint32_t>& words, Plan* plan) {
  const size_t params = manifest.params.size();
  const auto bad = [](const std::string& why) { return Status::error(Code::kMismatch, why); };
  if (words.size() != Plan::words(params))
    return bad(cat("it has ", words.size(), " words of 32 bits, expected ", Plan::words(params), " for ",
                   params, " parameters"));
  if (words[0] == 0 || words[0] > params)
    return bad(cat("it has ", words[0], " buckets, expected 1 to ", params));
  std::vector<std::vector<uint32_t>> buckets;
  size_t at = 1 + words[0];
  for (uint32_t b = 0; b < words[0]; b++) {
    const uint32_t size = words[1 + b];
    if (size > words.size() - at)
      return bad(cat("bucket ", b, " has ", size, " parameters, but only ", words.size() - at, " of its ",
                     words.size(), " words are left for them"));
    const auto first = words.begin() + static_cast<ptrdiff_t>(at);
    buckets.emplace_back(first, first + size);
    at += size;
  }
  if (words.size() - at < 2 * buckets.size())
    return bad(cat("only ", words.size() - at, " of its ", words.size(), " words are left for the limits of ",
                   buckets.size(), " buckets, expected ", 2 * buckets.size()));
  const Status made = make_plan(manifest, buckets, plan);
  if (!made.ok()) return Status::error(Code::kMismatch, made.text());
  for (PlannedBucket& bucket : plan->buckets) {
    bucket.limit_bytes = words[at] | uint64_t{words[at + 1]} << 32;
    at += 2;
  }
  return {};
}

void Plan::write(ByteWriter* writer) const {
  writer->put(static_cast<uint32_t>(buckets.size()));
  for (const PlannedBucket& bucket : buckets) {
    writer->put(bucket.dtype).put(bucket.count).put(static_cast<uint32_t>(bucket.params.size()));
    for (const uint32_t param : bucket.params) writer->put(param);
  }
}

uint64_t Plan::largest_bytes() const {
  uint64_t most = 0;
  for (const PlannedBucket& bucket : buckets) most = std::max(most, bucket.bytes());
  return most;
}

std::string Plan::text(const Manifest& manifest, uint32_t bucket) const {
  return cat("bucket ", bucket, " [", manifest.names(buckets[bucket].params, 3), "]");
}

}  // namespace weft
