// Which parameters share a bucket, in which order buckets are launched, and where each gradient lies in its
// bucket: DistributedDataParallel's rule. A pure function of the manifest and the limits, so all ranks get
// the same. Used by Reducer::create. Threads: values; one thread at a time.
#pragma once

#include <weft/weft.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "sync/manifest.h"

namespace weft {

inline constexpr uint64_t kFirstBucketBytes = 1u << 20;
inline constexpr uint64_t kBucketBytes = 25u << 20;
inline constexpr uint32_t kNoBucket = UINT32_MAX;  // of parameters without gradients
inline constexpr uint32_t kMaxLimits = 1u << 16;

struct PlannedBucket {
  Dtype dtype = Dtype::kF32;      // in which it travels
  Dtype gradients = Dtype::kF32;  // of its members; the same unless Manifest::reduce_dtype says otherwise
  uint64_t limit_bytes = 0;       // what closed it, or would have; 0: no limit did
  uint64_t count = 0;             // elements; none where the gradient is sparse
  bool sparse = false;            // of one parameter, whose entries travel (sync/sparse.h)
  int32_t device = kHost;         // Param::device of its members
  std::vector<uint32_t> params;   // in the order of the layout: packed, without padding
  std::vector<uint64_t> offsets;  // of each, in elements

  static constexpr int32_t kHost = -1;
  bool on_device() const { return device != kHost; }
  uint64_t bytes() const { return count * dtype_size(dtype); }
  // Of what travels: not why it ends there.
  bool operator==(const PlannedBucket& other) const {
    return dtype == other.dtype && gradients == other.gradients && count == other.count &&
           sparse == other.sparse && device == other.device && params == other.params &&
           offsets == other.offsets;
  }
};

struct Plan {
  std::vector<PlannedBucket> buckets;  // in the order of launch
  std::vector<uint32_t> bucket_of;     // per parameter, or kNoBucket
  std::vector<uint64_t> offset_of;     // per parameter: elements from the bucket's start

  void write(ByteWriter* writer) const;  // what ranks must agree on
  // As words of fixed number, for a broadcast: the number of buckets, their sizes, all parameters, limits.
  static size_t words(size_t params) { return 1 + 4 * params; }
  void pack(std::vector<uint32_t>* words) const;
  // Of words from another rank: kMismatch for what is no plan of the manifest.
  static Status unpack(const Manifest& manifest, const std::vector<uint32_t>& words, Plan* plan);
  uint64_t largest_bytes() const;  // of its buckets
  void take_limits(const Plan& equal);
  bool operator==(const Plan&) const = default;
  // "bucket 2 ['layer4.weight', 'layer4.bias' and 3 more]"
  std::string text(const Manifest& manifest, uint32_t bucket) const;
};

struct PlanOptions {
  // Per dtype and device the first bucket closes at limits[0], the next at limits[1], ...; the last repeats.
  // Bytes of the type in which it travels.
  // 0 closes after every parameter. Empty: 1 MiB, then 25 MiB.
  std::vector<uint64_t> limits;
  // The order in which parameters are put into buckets, which is then that in which they become ready:
  // buckets are launched in the order in which their last members come. Empty: as listed, and then the list
  // of buckets (not their contents) is reversed, because backward produces gradients in about that order.
  std::vector<uint32_t> order;
};

// A parameter is added to the open bucket of its dtype and device, which is closed if it has then reached its
// limit: a bucket may overshoot, a parameter is never split. A sparse one is alone in its bucket. Buckets are
// ordered by the first of their members.
Plan make_plan(const Manifest& manifest, const PlanOptions& options);

// The buckets that the program says: params of each. kArg naming the parameter if they are no plan of the
// manifest.
Status make_plan(const Manifest& manifest, const std::vector<std::vector<uint32_t>>& buckets, Plan* plan);
// From weft.h's struct, whose size is checked.
Status read_plan(const weft_plan& given, const Manifest& manifest,
                 std::vector<std::vector<uint32_t>>* buckets);

// The default limits, or those given.
std::vector<uint64_t> bucket_limits(std::span<const uint64_t> given);

}  // namespace weft
