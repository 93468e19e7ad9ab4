// fp16 and bf16: an inner hook, by default allreduce, works on the bucket cast to 16 bits, and its result is
// cast back. Listed in the registry; calls never overlap (hook/hook.h).
//
// The bucket is divided before the cast, so that neither the cast nor a sum overflows where the mean does
// not. The inner hook then sees a divisor of 1, and its averages become sums. order=ddp casts first and
// divides in 16 bits, as DistributedDataParallel's hooks do. Some inner hooks leave gradients undivided: one
// that sends nothing, and one that averages over all ranks in its first steps, and later over its own
// communicator or not at all (post_local_sgd). The cast does not divide for these, and their averages stay
// averages.
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "common/bucket.h"
#include "common/options.h"
#include "hook/hook.h"

namespace weft::hook_cast {
namespace {

constexpr uint64_t kAlignment = 64;
constexpr uint64_t kMostScratch = uint64_t{1} << 40;

struct Settings {
  Dtype dtype = Dtype::kF16;
  bool ddp_order = false;
  std::string name;
};

class Cast final : public Hook {
 public:
  Cast(Settings settings, std::shared_ptr<Hook> inner, const DeviceOps& host)
      : settings_(std::move(settings)), inner_(std::move(inner)), host_(host) {}

  std::string name() const override { return cat(settings_.name, "[", inner_->name(), "]"); }
  // Sparse gradients are passed to the inner hook without a cast.
  bool takes_sparse() const override { return inner_->takes_sparse(); }
  bool sends_sparse() const override { return inner_->sends_sparse(); }
  bool takes_shares() const override { return inner_->takes_shares(); }
  bool equal_results() const override { return inner_->equal_results(); }
  uint64_t step_of(const weft_bucket& bucket) const override { return inner_->step_of(bucket); }
  std::optional<Dtype> cast_dtype() const override {
    if (!inner_->plain() || settings_.ddp_order) return {};
    return settings_.dtype;
  }

  Status plan(const weft_bucket& bucket, weft_hook_plan* plan) override {
    if (bucket.entries != nullptr) return inner_->plan(bucket, plan);
    WEFT_TRY(check_floats(settings_.name.c_str(), bucket));
    const weft_bucket narrow = narrowed(bucket, true);
    weft_hook_plan inside{};
    inside.struct_size = sizeof inside;
    WEFT_TRY(inner_->plan(narrow, &inside));
    if (inside.scratch_bytes > kMostScratch || inside.collective_count > WEFT_HOOK_COLLECTIVES) {
      return wrong(cat("its plan has ", inside.scratch_bytes, " bytes of scratch (allowed: ", kMostScratch,
                       ") and ", inside.collective_count, " collectives (allowed: ", WEFT_HOOK_COLLECTIVES,
                       ")"));
    }
    bool scaled = inside.collective_count > 0;
    for (uint32_t k = 0; k < inside.collective_count; k++) {
      scaled &= (inside.collectives[k].flags & WEFT_HOOK_COLLECTIVE_WORLD) == 0;
    }
    const uint64_t before = narrow_bytes(bucket);
    const uint64_t room[] = {bucket.count * 2, inside.scratch_bytes};
    plan->scratch_bytes = before + inside.scratch_bytes;
    plan->collective_count = inside.collective_count;
    for (uint32_t k = 0; k < inside.collective_count; k++) {
      weft_hook_collective& c = plan->collectives[k];
      c = inside.collectives[k];
      const auto ranks = static_cast<uint64_t>(bucket.size);
      const bool wide_src = c.coll == WEFT_COLL_REDUCE_SCATTER || c.coll == WEFT_COLL_ALL_TO_ALL;
      const bool wide_dst = c.coll == WEFT_COLL_ALL_GATHER || c.coll == WEFT_COLL_ALL_TO_ALL;
      WEFT_TRY(move(room, before, wide_src ? ranks : 1, c, &c.src_space, &c.src_offset_bytes));
      WEFT_TRY(move(room, before, wide_dst ? ranks : 1, c, &c.dst_space, &c.dst_offset_bytes));
      if (scaled && c.op == WEFT_OP_AVG) c.op = WEFT_OP_SUM;  // the cast has divided already
    }
    weft_hook_collective result{};
    result.dtype = static_cast<int32_t>(settings_.dtype);
    result.count = bucket.count;
    result.src_space = inside.result_space;
    result.src_offset_bytes = inside.result_offset_bytes;
    WEFT_TRY(move(room, before, 1, result, &result.src_space, &result.src_offset_bytes));
    placed_[bucket.params[0].name] = {result.src_offset_bytes, inside.collective_count, scaled};
    return {};
  }

  Status stage(const weft_bucket& bucket, weft_stage* stage) override {
    if (bucket.entries != nullptr) return inner_->stage(bucket, stage);
    const Placed& placed = placed_[bucket.params[0].name];
    if (stage->index == 0) cast_down(bucket, placed.scaled);
    weft_bucket narrow = narrowed(bucket, placed.scaled);
    WEFT_TRY(inner_->stage(narrow, stage));
    if (stage->index < placed.collectives) return {};
    if (stage->pending != 0) {
      return Status::error(Code::kUnsupported,
                           cat("hook '", inner_->name(), "' inside '", settings_.name,
                               "': its last stage left work pending, and must complete before it returns"));
    }
    copy(host_, settings_.dtype, scratch(bucket) + placed.result, dtype_of(bucket), bucket.buffer,
         bucket.count);
    return {};
  }

  std::optional<ErrorMemory> error_memory(const weft_bucket& bucket) override {
    return inner_->error_memory(bucket);
  }
  bool can_replan() const override { return inner_->can_replan(); }
  Status replan(uint64_t buckets) override { return inner_->replan(buckets); }
  Status join(const weft_bucket& bucket) override {
    if (bucket.entries != nullptr) return inner_->join(bucket);
    return inner_->join(narrowed(bucket, placed_[bucket.params[0].name].scaled));
  }
  Status rebind(int rank, int size) override { return inner_->rebind(rank, size); }
  Status save(Bytes* state) override { return inner_->save(state); }
  Status load(ByteView state) override { return inner_->load(state); }
  uint64_t memory_bytes() const override { return inner_->memory_bytes(); }
  StageGate& gate() override { return inner_->gate(); }
  HookTurn& turn() override { return inner_->turn(); }
  StageKind stage_kind() const override {
    return inner_->stage_kind() == StageKind::kForeign ? StageKind::kForeign : StageKind::kFinite;
  }

 private:
  // Per bucket: the offset in the scratch of the inner hook's result, the number of its collectives, and
  // whether the cast divides.
  struct Placed {
    uint64_t result = 0;
    uint32_t collectives = 0;
    bool scaled = true;
  };

  static std::byte* scratch(const weft_bucket& bucket) { return static_cast<std::byte*>(bucket.scratch); }
  static uint64_t narrow_bytes(const weft_bucket& bucket) { return round_up(bucket.count * 2, kAlignment); }
  Status wrong(const std::string& what) const {
    return Status::error(Code::kArg,
                         cat("hook '", inner_->name(), "' inside '", settings_.name, "': ", what));
  }

  // Returns the bucket as the inner hook sees it: its buffer is at the start of the scratch, and its own
  // scratch follows.
  weft_bucket narrowed(const weft_bucket& bucket, bool scaled) {
    weft_bucket narrow = bucket;
    narrow.struct_size = sizeof narrow;
    narrow.dtype = static_cast<int32_t>(settings_.dtype);
    if (scaled) narrow.divisor = 1;
    if (bucket.scratch != nullptr) {
      narrow.buffer = bucket.scratch;
      narrow.scratch = scratch(bucket) + narrow_bytes(bucket);
      narrow.scratch_bytes = bucket.scratch_bytes - narrow_bytes(bucket);
    }
    params_.assign(bucket.params, bucket.params + bucket.param_count);
    for (weft_bucket_param& param : params_) param.dtype = narrow.dtype;
    narrow.params = params_.data();
    return narrow;
  }

  // Translates a side of an inner hook's collective to an offset in this hook's scratch.
  Status move(const uint64_t (&room)[2], uint64_t before, uint64_t ranks, const weft_hook_collective& c,
              int32_t* space, uint64_t* offset) const {
    if (*space != WEFT_SPACE_BUCKET && *space != WEFT_SPACE_SCRATCH)
      return wrong(cat("a collective or the result is in space ", *space, ", allowed: WEFT_SPACE_BUCKET (",
                       static_cast<int>(WEFT_SPACE_BUCKET), ") and WEFT_SPACE_SCRATCH (",
                       static_cast<int>(WEFT_SPACE_SCRATCH), ")"));
    if (c.dtype < 1 || c.dtype > kDtypeCount)
      return wrong(cat("a collective or the result has dtype ", c.dtype, ", allowed: 1 to ", kDtypeCount));
    uint64_t bytes = 0;
    uint64_t end = 0;
    if (__builtin_mul_overflow(c.count, ranks * dtype_size(static_cast<Dtype>(c.dtype)), &bytes) ||
        __builtin_add_overflow(bytes, *offset, &end) || end > room[*space]) {
      return wrong(cat("a collective or the result with count ", c.count, " at offset ", *offset,
                       " ends beyond the ", room[*space], " bytes of the ",
                       *space == WEFT_SPACE_BUCKET ? "bucket" : "scratch"));
    }
    if (*space == WEFT_SPACE_SCRATCH) *offset += before;
    *space = WEFT_SPACE_SCRATCH;
    return {};
  }

  void cast_down(const weft_bucket& bucket, bool scaled) const {
    const double scale = scaled ? 1.0 / bucket.divisor : 1.0;
    const Dtype narrow = settings_.dtype;
    copy(host_, dtype_of(bucket), bucket.buffer, narrow, bucket.scratch, bucket.count,
         settings_.ddp_order ? 1.0 : scale);
    if (settings_.ddp_order) copy(host_, narrow, bucket.scratch, narrow, bucket.scratch, bucket.count, scale);
  }

  const Settings settings_;
  const std::shared_ptr<Hook> inner_;
  const DeviceOps& host_;
  std::map<const char*, Placed> placed_;  // key: the unique address of the name of a bucket's first parameter
  std::vector<weft_bucket_param> params_;  // of the current bucket
};

Status make(Dtype dtype, const char* name, const HookArgs& args, std::shared_ptr<Hook>* hook) {
  Settings settings;
  settings.dtype = dtype;
  int order = 0;
  WEFT_TRY(Options(name, args.options).choice("order", &order, {"scale_first", "ddp"}).done(&settings.name));
  settings.ddp_order = order == 1;
  *hook = std::make_shared<Cast>(std::move(settings), args.inner, args.host);
  return {};
}

}  // namespace

static Status make_fp16(const HookArgs& args, std::shared_ptr<Hook>* hook) {
  return make(Dtype::kF16, "fp16", args, hook);
}
static Status make_bf16(const HookArgs& args, std::shared_ptr<Hook>* hook) {
  return make(Dtype::kBf16, "bf16", args, hook);
}

}  // namespace weft::hook_cast

namespace weft::hook_fp16 {
const HookFactory& factory();
const HookFactory& factory() {
  static constexpr HookFactory kFactory = {"fp16", "a hook on gradients cast to f16", true,
                                           hook_cast::make_fp16};
  return kFactory;
}
}  // namespace weft::hook_fp16

namespace weft::hook_bf16 {
const HookFactory& factory();
const HookFactory& factory() {
  static constexpr HookFactory kFactory = {"bf16", "a hook on gradients cast to bf16", true,
                                           hook_cast::make_bf16};
  return kFactory;
}
}  // namespace weft::hook_bf16
