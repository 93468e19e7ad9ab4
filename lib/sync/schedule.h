// What a hook declared for each bucket, checked, and the one order in which the collectives of all buckets
// run. Made when a reducer is created, equal on all ranks (they agree on it), then only read.
//
// The order is a wavefront: collective k of bucket b comes at b + k, and among equals the smaller k first. So
// for two collectives a bucket: (0,0) (1,0) (0,1) (2,0) (1,1) (3,0) ... While bucket b's second stage
// computes, bucket b + 1's first collective travels. It depends on the plan alone, never on timing: a
// collective whose stage has not run yet holds up all that come after it, on every rank alike, and no two
// ranks can meet in different collectives. The price: with n collectives a bucket, its last one waits until
// bucket b + n - 1 is ready. With one collective a bucket (allreduce) the order is that of the buckets.
#pragma once

#include <weft/weft.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"
#include "core/collectives.h"
#include "core/hook.h"
#include "sync/ownership.h"
#include "sync/plan.h"

namespace weft {

class SparseGradients;

// The buckets as hooks see them, and what these point at. Not movable: the views point into it.
class HookViews {
 public:
  // sparse: those that the hook is shown, too; null: none. It outlives this.
  HookViews(const Manifest& manifest, const Plan& plan, int rank, int size,
            const SparseGradients* sparse = nullptr);
  HookViews(const HookViews&) = delete;
  HookViews& operator=(const HookViews&) = delete;

  weft_bucket& bucket(uint32_t b) { return buckets_[b]; }
  uint64_t memory_bytes() const;

 private:
  std::vector<weft_bucket> buckets_;
  std::vector<weft_bucket_param> params_;
  std::vector<int64_t> strides_;  // row-major ones of gradients that are not dense
};

// One collective of a step: one of a bucket's, or the exchange of counts before it (dynamic), or one of a
// sparse gradient's (sync/sparse.h), or the opening (sync/opening.h), or of the prelude (sync/prelude.h), the
// map of the parameters that are present (sync/presence.h), or what ranks say in finish (sync/norms.h), whose
// memory is Step's.
struct Slot {
  enum class Kind : uint8_t {
    kBucket,
    kCounts,
    kSparse,
    kOpening,
    kCompare,
    kBuffers,
    kMap,
    kNorms,
    kFinish
  };
  Kind kind = Kind::kBucket;
  uint32_t bucket = 0;
  uint32_t index = 0;              // among the bucket's collectives; kBuffers: among the prelude's chunks
  bool average = false;            // postscale is 1 / divisor of the step
  bool optional = false;           // the stage before says whether it runs
  bool last = true;                // of the parts that a collective of the hook's has (sharded)
  bool dynamic = false;            // the ranks' counts, which travel before, say how much of it; kBucket
  bool own = false;                // over the hook's own communicator
  std::array<int32_t, 2> space{};  // WEFT_SPACE_* of source and destination
  std::array<uint64_t, 2> offset{};
  CollectiveArgs
      args;  // but src and dst, set by bind, and postscale; kCounts: of ranks' counts, without memory

  bool of_bucket() const { return kind == Kind::kBucket || kind == Kind::kCounts || kind == Kind::kSparse; }
  // Of a bucket's own elements, in every step, over the reducer's communicator.
  bool whole() const { return kind == Kind::kBucket && !own && !optional && !dynamic; }
};

struct HookedBucket {
  uint32_t collectives = 0;
  int32_t result_space = WEFT_SPACE_BUCKET;
  uint64_t result_offset = 0;
  uint64_t scratch_bytes = 0;
  // Of a sparse gradient.
  bool asks = false;  // the hook's stages come before and behind its way
  bool sums = false;  // its sums are not divided
  // It travels from device to device (sync/resident.h).
  bool resident = false;
  // To which its copies round it, divided: the hook's stages are not called (Hook::narrows).
  std::optional<Dtype> narrow = {};
  // Gradients may come as they travel (sync/straight.h).
  bool straight = false;
};

struct Schedule {
  std::vector<HookedBucket> buckets;
  std::vector<Slot> slots;  // in the order in which they run
  size_t leading = 0;       // of them, those up to the prelude's end

  // A prelude comes first: values are compared, and so many buffers sent. Before add_opening.
  void add_prelude(bool compares, const std::vector<uint64_t>& buffers_bytes);
  // The opening comes first.
  void add_opening(uint64_t record_bytes);
  // The map comes before the last bucket's first collective: all gradients are ready or absent by then, and
  // it holds up only that bucket.
  void add_map(uint64_t words);
  // Sharded: each bucket's only collective, an all-reduce, becomes those that bring its shares to their
  // owners.
  void part(const Ownership& ownership, int rank);
  // Sharded: the sums of the ranks' norms, before what they say in finish.
  void add_norms(uint64_t params);
  // What the ranks say in finish comes last.
  void add_finish(uint64_t record_bytes);
  void write(ByteWriter* writer) const;  // what ranks must agree on: what the hook declared
  // Point the slots at memory. buffers and scratch: per bucket.
  void bind(const std::vector<std::byte*>& buffers, const std::vector<std::byte*>& scratch);
  // Reductions give the same bits however they are executed.
  void order();
  // Mark the slots as those of this plan; descriptors of other plans differ.
  void tag(uint64_t plan_hash);
};

// What each of `size` ranks sends for a collective that is done with the least traffic possible.
uint64_t least_bytes(const CollectiveArgs& args, int size);

// Ask the hook for every bucket. kHook from it, kArg for what it may not declare, kUnsupported; the text
// names hook, bucket and collective. With the hook's turn.
Status make_schedule(Hook& hook, const Manifest& manifest, const Plan& plan, HookViews* views,
                     Schedule* schedule);

// The first difference between what two ranks' hooks declared, from the bytes that write() made, naming the
// bucket and both sides; empty if there is none.
std::string schedule_difference(const Manifest& manifest, const Plan& plan, int rank, ByteView mine,
                                int other_rank, ByteView theirs);

}  // namespace weft
