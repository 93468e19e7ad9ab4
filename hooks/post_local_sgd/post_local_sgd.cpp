// post_local_sgd: averages over all ranks until step `start`. Then it averages over the ranks of the hook's
// own communicator (those of a host, for example) or, with local=none, not at all. The replicas then diverge,
// and an averager (weft_averager) averages the models from time to time (Lin et al. 2018, "Don't use large
// mini-batches, use local SGD"). Listed in the registry; calls never overlap (hook/hook.h).
#include <memory>
#include <string>
#include <utility>

#include "common/bucket.h"
#include "common/options.h"
#include "common/stateful.h"

namespace weft::hook_post_local_sgd {
namespace {

struct Settings {
  std::string name;
  uint64_t start = 1000;
  bool local = true;  // averages over its own communicator from step `start` on
};

class PostLocalSgd final : public StatefulHook {
 public:
  PostLocalSgd(Settings settings, const HookArgs& args)
      : StatefulHook(args.log), settings_(std::move(settings)), host_(args.host) {}

  std::string name() const override { return settings_.name; }
  StageKind stage_kind() const override { return settings_.local ? StageKind::kNothing : StageKind::kFinite; }
  bool equal_results() const override { return false; }

  Status plan(const weft_bucket& bucket, weft_hook_plan* plan) override {
    state_.set_rank(bucket.rank, bucket.size);
    plan->collective_count = settings_.local ? 2 : 1;
    for (uint32_t k = 0; k < plan->collective_count; k++) {
      weft_hook_collective& c = plan->collectives[k];
      c.coll = WEFT_COLL_ALL_REDUCE;
      c.op = WEFT_OP_AVG;
      c.dtype = bucket.dtype;
      c.count = bucket.count;
      c.flags = WEFT_HOOK_COLLECTIVE_OPTIONAL;
      if (k == kAll) c.flags |= WEFT_HOOK_COLLECTIVE_WORLD;
    }
    return {};
  }

  Status stage(const weft_bucket& bucket, weft_stage* stage) override {
    const uint32_t runs = state_.iteration(bucket) < settings_.start ? kAll : kLocal;
    stage->dynamic_count = stage->index == runs ? 1 : 0;
    if (!settings_.local && runs == kLocal && stage->index == kLocal) share(bucket);
    return {};
  }

 private:
  static constexpr uint32_t kAll = 0, kLocal = 1;  // collectives

  // Scales gradients that no collective averages by size / divisor: the divisor without the number of ranks
  // (the micro-batches, for example). The mean of the ranks' results then equals the result of an all-reduce.
  void share(const weft_bucket& bucket) const {
    const Dtype dtype = dtype_of(bucket);
    copy(host_, dtype, bucket.buffer, dtype, bucket.buffer, bucket.count, bucket.size / bucket.divisor);
  }

  const Settings settings_;
  const DeviceOps& host_;
};

Status make(const HookArgs& args, std::shared_ptr<Hook>* hook) {
  Settings settings;
  auto start = static_cast<int64_t>(settings.start);
  int local = 0;
  WEFT_TRY(Options("post_local_sgd", args.options)
               .integer("start", &start, 0, INT64_MAX)
               .choice("local", &local, {"average", "none"})
               .done(&settings.name));
  settings.start = static_cast<uint64_t>(start);
  settings.local = local == 0;
  if (settings.local && args.comm == nullptr) {
    return Status::error(
        Code::kArg,
        "hook 'post_local_sgd' with local=average needs a communicator for the steps from 'start' on: set "
        "weft_hook_params.comm, or use local=none");
  }
  *hook = std::make_shared<PostLocalSgd>(std::move(settings), args);
  return {};
}

}  // namespace

const HookFactory& factory();
const HookFactory& factory() {
  static constexpr HookFactory kFactory = {"post_local_sgd",
                                           "averages over all ranks, later over some of them", false, make};
  return kFactory;
}

}  // namespace weft::hook_post_local_sgd
