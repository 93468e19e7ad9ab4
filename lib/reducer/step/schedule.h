// The checked declarations of a hook for each bucket, and the order in which the collectives of all buckets
// run. Made with each plan. Equal on all ranks (they agree on it), and read-only afterwards.
//
// The order is a wavefront. Collective k of bucket b comes at position b + k, and among equals the smaller k
// comes first. With two collectives a bucket: (0,0) (1,0) (0,1) (2,0) (1,1) (3,0) ... While bucket b's second
// stage computes, bucket b + 1's first collective is communicated. The order depends on the plan alone, never
// on timing. A collective whose stage has not run yet delays all later ones on every rank alike, and no two
// ranks can meet in different collectives. The cost: with n collectives a bucket, its last one waits until
// bucket b + n - 1 is ready. With one collective a bucket (allreduce) the order is that of the buckets.
#pragma once

#include <weft/weft.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"
#include "hook/hook.h"
#include "reducer/plan/plan.h"
#include "transport/collectives.h"

namespace weft {

class StepExchange;

// Entries of gradients, as hooks see them.
class HookEntries {
 public:
  // Returns the struct to which weft_bucket.entries points. It outlives the views.
  virtual weft_bucket_entries* shown(uint64_t param) const = 0;

 protected:
  ~HookEntries() = default;
};

// The buckets as hooks see them, and the arrays that they point to. Not movable: the views point into it.
class HookViews {
 public:
  // entries: null if the hook does not see sparse gradients.
  HookViews(const Manifest& manifest, const Plan& plan, int rank, int size,
            const HookEntries* entries = nullptr);
  HookViews(const HookViews&) = delete;
  HookViews& operator=(const HookViews&) = delete;

  weft_bucket& bucket(uint32_t b) { return buckets_[b]; }
  // Sets weft_bucket.shares.
  void share(uint32_t b, std::vector<uint64_t> begins);
  uint64_t memory_bytes() const;

 private:
  std::vector<weft_bucket> buckets_;
  std::vector<weft_bucket_param> params_;
  std::vector<int64_t> strides_;               // row-major strides of gradients that are not dense
  std::vector<std::vector<uint64_t>> shares_;  // by bucket; empty: the hook's results are of all elements
};

// One collective of a step. A bucket has its hook's collectives, and an exchange of counts before each
// dynamic one; stages may set the arguments of others (kStaged). The rest belong to the step as a whole, and
// features add them (reducer/features.h).
struct Slot {
  enum class Kind : uint8_t { kBucket, kCounts, kStaged, kStep };
  Kind kind = Kind::kBucket;
  StepExchange* exchange = nullptr;  // of kStep; outlives the schedule
  bool numbered = true;              // the step's number is in its descriptor
  bool counted = true;               // its bytes are those of gradients, in weft_reducer_stats.sent_bytes
  uint32_t bucket = 0;
  uint32_t index = 0;              // among the bucket's collectives
  bool average = false;            // postscale is 1 / divisor of the step
  bool optional = false;           // the previous stage decides whether it runs
  bool last = true;                // last part of a hook's collective, which sharding divides into parts
  bool dynamic = false;            // kBucket: a preceding exchange of counts determines its size
  bool own = false;                // on the hook's own communicator
  std::array<int32_t, 2> space{};  // WEFT_SPACE_* of source and destination
  std::array<uint64_t, 2> offset{};
  // Complete except for src and dst (set by bind) and postscale. kCounts: describes the exchange of
  // counts, without memory.
  CollectiveArgs args;

  static Slot of_step(Coll coll, Dtype dtype, uint64_t count);
  bool of_bucket() const { return kind != Kind::kStep; }
  // True for a collective of a bucket's own elements that takes place in every step, on the reducer's
  // communicator.
  bool whole() const { return kind == Kind::kBucket && !own && !optional && !dynamic; }
};

struct HookedBucket {
  uint32_t collectives = 0;
  int32_t result_space = WEFT_SPACE_BUCKET;
  uint64_t result_offset = 0;
  uint64_t scratch_bytes = 0;
  // For a sparse gradient.
  bool asks = false;  // the hook has stages before and after its exchange
  bool sums = false;  // its sums are not divided
  // It is communicated from device memory (reducer/feature/devices/device_buckets.h).
  bool device_bucket = false;
  // Fused cast: its copies divide and round it to this dtype, and the hook's stages are not called
  // (Hook::cast_dtype).
  std::optional<Dtype> cast_to = {};
  // In a fresh step gradients are copied in the communication dtype, so that no pass converts the bucket.
  bool copies_narrow = false;
};

struct Schedule {
  std::vector<HookedBucket> buckets;
  std::vector<Slot> slots;  // in the order in which they run
  size_t leading = 0;       // number of slots that put_first has added

  // Puts slots of the step first. Buckets are launched once all of them are complete, except broadcasts.
  void put_first(const std::vector<Slot>& added);
  // Puts a slot of the step before the last bucket's first collective.
  void put_before_last_bucket(const Slot& slot);
  void write(ByteWriter* writer) const;  // the hook's declarations, which ranks must agree on
  // Sets the slots' addresses. buffers and scratch: per bucket.
  void bind(const std::vector<std::byte*>& buffers, const std::vector<std::byte*>& scratch);
  // Makes reductions give the same bits however they are executed.
  void order();
  // Tags the slots with this plan's hash, so that descriptors of other plans differ.
  void tag(uint64_t plan_hash);
};

// Plans the collectives of one bucket: asks the hook if it takes part, and appends a slot for each.
using PlanBucket = Status (*)(Hook& hook, const weft_bucket& bucket, HookedBucket* hooked,
                              std::vector<Slot>* slots);

// Returns the bytes that each of `size` ranks sends for a collective with the least traffic possible.
uint64_t least_bytes(const CollectiveArgs& args, int size);

// Asks the hook for the plan of every bucket. kHook from the hook, kArg for an invalid declaration, or
// kUnsupported; the text names hook, bucket and collective. Needs the hook's turn.
Status make_schedule(Hook& hook, const Manifest& manifest, const Plan& plan, HookViews* views,
                     Schedule* schedule);

// Describes the first difference between two ranks' hook declarations, from the bytes that write() made,
// naming the bucket and both sides; empty if there is none.
std::string schedule_difference(const Manifest& manifest, const Plan& plan, int rank, ByteView mine,
                                int other_rank, ByteView theirs);

}  // namespace weft
