// The bucket plan: which parameters share a bucket, the launch order of buckets, and the place of each
// gradient in its bucket. A pure function of the manifest and the limits, so all ranks get the same plan.
// Used by create_state. Threads: values; one thread at a time.
#pragma once

#include <weft/weft.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "reducer/manifest/manifest.h"

namespace weft {

inline constexpr uint64_t kFirstBucketBytes = 1u << 20;
inline constexpr uint64_t kBucketBytes = 25u << 20;
inline constexpr uint32_t kNoBucket = UINT32_MAX;  // for parameters without gradients
inline constexpr uint32_t kMaxLimits = 1u << 16;

struct PlannedBucket {
  Dtype dtype = Dtype::kF32;      // communication dtype
  Dtype gradients = Dtype::kF32;  // of the gradients; not `dtype` only with Manifest::reduce_dtype
  uint64_t limit_bytes = 0;       // the limit that closed the bucket, or would have closed it; 0: none
  uint64_t count = 0;             // elements; 0 for a sparse gradient
  bool sparse = false;            // it has one parameter, whose entries are communicated
                                  // (reducer/feature/sparse/sparse_gradient.h)
  int32_t device = kHost;         // Param::device of its parameters
  std::vector<uint32_t> params;   // in the bucket's order: packed, without padding
  std::vector<uint64_t> offsets;  // of each parameter, in elements

  static constexpr int32_t kHost = -1;
  bool on_device() const { return device != kHost; }
  uint64_t bytes() const { return count * dtype_size(dtype); }
  // Compares what is communicated, not limit_bytes.
  bool operator==(const PlannedBucket& other) const {
    return dtype == other.dtype && gradients == other.gradients && count == other.count &&
           sparse == other.sparse && device == other.device && params == other.params &&
           offsets == other.offsets;
  }
};

struct Plan {
  std::vector<PlannedBucket> buckets;  // in launch order
  std::vector<uint32_t> bucket_of;     // per parameter, or kNoBucket
  std::vector<uint64_t> offset_of;     // per parameter: elements from the bucket's start

  void index(size_t params);             // fills bucket_of and offset_of from the buckets
  void write(ByteWriter* writer) const;  // the part that ranks must agree on
  // pack() encodes a plan as a fixed number of words, for a broadcast: the number of buckets, their sizes,
  // all parameters, and the limits. words() returns that number.
  static size_t words(size_t params) { return 1 + 4 * params; }
  void pack(std::vector<uint32_t>* words) const;
  // Reads words from another rank: kMismatch for words that are no plan of the manifest.
  static Status unpack(const Manifest& manifest, const std::vector<uint32_t>& words, Plan* plan);
  uint64_t largest_bytes() const;  // size of the largest bucket
  void take_limits(const Plan& equal);
  bool operator==(const Plan&) const = default;
  // Returns "bucket 2 ['layer4.weight', 'layer4.bias' and 3 more]".
  std::string text(const Manifest& manifest, uint32_t bucket) const;
};

struct PlanOptions {
  // Per dtype and device, the first bucket closes at limits[0], the next at limits[1], and so on; the last
  // limit repeats. In bytes of the communication dtype. 0 closes after every parameter. Empty: 1 MiB, then 25
  // MiB.
  std::vector<uint64_t> limits;
  // The order in which parameters become ready. Empty: from the last of the list to the first, as a backward
  // pass produces gradients; buckets then keep their members in the listed order.
  std::vector<uint32_t> order;
  // DistributedDataParallel's buckets: without an order, parameters are added in the listed order, and the
  // list of buckets is reversed. A parameter larger than the limit waits for no bucket to close.
  bool ddp = false;
};

// Adds each parameter, in the order, to the open bucket of its dtype and device, which closes once it has
// reached its limit, and before a parameter that is larger than the limit. A bucket may thus exceed its
// limit, and a parameter is never split. A sparse parameter is alone in its bucket. Buckets are launched in
// the order of their last members.
Plan make_plan(const Manifest& manifest, const PlanOptions& options);

// Makes a plan of the program's own buckets. buckets: the parameters of each. kArg, naming the parameter, if
// they are no plan of the manifest.
Status make_plan(const Manifest& manifest, const std::vector<std::vector<uint32_t>>& buckets, Plan* plan);
// Reads weft.h's struct, whose size the C layer has checked.
Status read_plan(const weft_plan& given, const Manifest& manifest,
                 std::vector<std::vector<uint32_t>>* buckets);

// Returns the given limits, or the defaults if there are none.
std::vector<uint64_t> bucket_limits(std::span<const uint64_t> given);

}  // namespace weft
