// randomk: sends values at random positions. These are the same on all ranks, so only values are sent, in one
// all-reduce. With feedback the other values are kept (Stich et al. 2018, "Sparsified SGD with memory"). It
// is off by default, because values that are kept for many steps and then sent at once make training with
// momentum unstable. Listed in the registry; calls never overlap (core/hook.h).
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "common/bucket.h"
#include "common/feedback_hook.h"
#include "common/options.h"

namespace weft::hook_randomk {
namespace {

struct Settings {
  std::string name;
  double ratio = 0.2;
  bool feedback = false;
  bool rescue = false;
  uint64_t seed = 0;
};

class RandomK final : public FeedbackHook {
 public:
  RandomK(Settings settings, const HookArgs& args)
      : FeedbackHook(args, settings.feedback, settings.rescue),
        settings_(std::move(settings)),
        host_(args.host) {}

  std::string name() const override { return settings_.name; }
  uint64_t step_of(const weft_bucket& /*bucket*/) const override { return state_.last_iteration(); }

  Status plan(const weft_bucket& bucket, weft_hook_plan* plan) override {
    WEFT_TRY(check_floats(settings_.name.c_str(), bucket));
    state_.set_rank(bucket.rank, bucket.size);
    if (settings_.feedback) {
      plan_errors(state_, bucket);
      watch_.plan(bucket);
    }
    plan->scratch_bytes = values_bytes(bucket) + (chosen_count(bucket) + 1) * sizeof(float);
    plan->collective_count = 1;
    weft_hook_collective& c = plan->collectives[0];
    c.coll = WEFT_COLL_ALL_REDUCE;
    c.dtype = WEFT_DTYPE_F32;
    c.op = WEFT_OP_AVG;
    c.count = chosen_count(bucket) + 1;
    c.src_space = c.dst_space = WEFT_SPACE_SCRATCH;
    c.src_offset_bytes = c.dst_offset_bytes = values_bytes(bucket);
    if (!watch_.rescues()) return {};
    c.flags = WEFT_HOOK_COLLECTIVE_OPTIONAL;
    ErrorWatch::declare_plain(bucket, plan);
    ErrorWatch::declare_vote(plan, plan->scratch_bytes);
    plan->scratch_bytes += ErrorWatch::kVoteBytes;
    return {};
  }

  Status stage(const weft_bucket& bucket, weft_stage* stage) override {
    const uint64_t iteration = state_.iteration(bucket);
    const uint64_t seed = mix(mix(settings_.seed ^ mix(iteration)), bucket.params[0].name);
    const bool plain = watch_.uncompressed(bucket);
    if (stage->index == 0) {
      if (settings_.feedback) watch_.measure_gradient(bucket);
      if (plain) {
        watch_.release(bucket);
      } else {
        choose(bucket, seed);
      }
    } else if (stage->index == kPlain) {
      if (!plain) spread(bucket, seed);
      if (settings_.feedback) watch_.measure_memory(bucket);
    }
    if (watch_.rescues()) {
      watch_.stage(bucket, iteration, kPlain, chosen(bucket) + chosen_count(bucket) + 1, stage);
    }
    return {};
  }

 private:
  static constexpr uint32_t kPlain = 1;  // the last stage, and the collective of uncompressed steps

  uint64_t chosen_count(const weft_bucket& bucket) const {
    const auto wanted = static_cast<uint64_t>(std::ceil(settings_.ratio * static_cast<double>(bucket.count)));
    return std::min(std::max<uint64_t>(wanted, 1), bucket.count);
  }
  float* chosen(const weft_bucket& bucket) const {
    return reinterpret_cast<float*>(static_cast<std::byte*>(bucket.scratch) + values_bytes(bucket));
  }
  // Divides a bucket into as many ranges as values are chosen. Their lengths differ by at most one.
  struct Ranges {
    uint64_t each, longer;
    Ranges(const weft_bucket& bucket, uint64_t chosen)
        : each(chosen > 0 ? bucket.count / chosen : 0), longer(chosen > 0 ? bucket.count % chosen : 0) {}
    uint64_t begin(uint64_t j) const { return j * each + std::min(j, longer); }
    uint64_t length(uint64_t j) const { return each + (j < longer ? 1 : 0); }
  };
  // Returns the position of chosen value j, a random one within range j.
  static uint64_t place(const Ranges& ranges, uint64_t j, uint64_t seed) {
    return ranges.begin(j) + ((scramble(seed + j * kSplitMixStep) >> 32) * ranges.length(j) >> 32);
  }

  // Chooses the values to send. An additional value is a NaN if an infinity or a NaN is among the others,
  // because the other ranks must learn of it in this step.
  void choose(const weft_bucket& bucket, uint64_t seed) {
    float* const values = load_values(host_, bucket);
    if (settings_.feedback) add_errors(host_, state_, bucket, 0, bucket.count, values);
    const uint64_t count = chosen_count(bucket);
    const Ranges ranges(bucket, count);
    float* const to = chosen(bucket);
    for (uint64_t j = 0; j < count; j++) {
      float& value = values[place(ranges, j, seed)];
      to[j] = value;
      value = 0;
    }
    const bool finite = copy_finite(values, bucket.count, values);
    to[count] = finite ? 0 : std::numeric_limits<float>::quiet_NaN();
    if (settings_.feedback) keep_errors(state_, bucket, 0, bucket.count, values);
  }

  void spread(const weft_bucket& bucket, uint64_t seed) {
    float* const values = values_of(bucket);
    const uint64_t count = chosen_count(bucket);
    const Ranges ranges(bucket, count);
    const float* const from = chosen(bucket);
    const bool bad = !std::isfinite(from[count]);
    std::fill(values, values + bucket.count, bad ? from[count] : 0.0f);
    for (uint64_t j = 0; j < count && !bad; j++) values[place(ranges, j, seed)] = from[j];
    store_values(host_, bucket);
  }

  const Settings settings_;
  const DeviceOps& host_;
};

Status make(const HookArgs& args, std::shared_ptr<Hook>* hook) {
  Settings settings;
  int64_t seed = 0;
  WEFT_TRY(Options("randomk", args.options)
               .real("ratio", &settings.ratio, 1e-6, 1)
               .flag("feedback", &settings.feedback)
               .flag("rescue", &settings.rescue)
               .integer("seed", &seed, 0, INT64_MAX)
               .done(&settings.name));
  WEFT_TRY(check_rescue(settings.name, settings.rescue, settings.feedback));
  settings.seed = static_cast<uint64_t>(seed);
  *hook = std::make_shared<RandomK>(std::move(settings), args);
  return {};
}

}  // namespace

const HookFactory& factory();
const HookFactory& factory() {
  static constexpr HookFactory kFactory = {"randomk", "gradients at random places, the same on all ranks",
                                           false, make};
  return kFactory;
}

}  // namespace weft::hook_randomk
