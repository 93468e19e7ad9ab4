// The default hook: one all-reduce of the bucket in place, averaged over the step's divisor. Its stages do
// nothing. Listed in the registry; calls never overlap (hook/hook.h).
#include <memory>
#include <string>

#include "common/options.h"
#include "hook/hook.h"

namespace weft::hook_allreduce {
namespace {

class AllReduce final : public Hook {
 public:
  std::string name() const override { return "allreduce"; }
  StageKind stage_kind() const override { return StageKind::kNothing; }

  Status plan(const weft_bucket& bucket, weft_hook_plan* plan) override {
    plan->collective_count = 1;
    weft_hook_collective& collective = plan->collectives[0];
    collective.coll = WEFT_COLL_ALL_REDUCE;
    collective.dtype = bucket.dtype;
    collective.op = WEFT_OP_AVG;
    collective.count = bucket.count;
    return {};
  }
  Status stage(const weft_bucket& /*bucket*/, weft_stage* /*stage*/) override { return {}; }
  bool plain() const override { return true; }
};

Status make(const HookArgs& args, std::shared_ptr<Hook>* hook) {
  WEFT_TRY(Options("allreduce", args.options).done(nullptr));
  *hook = std::make_shared<AllReduce>();
  return {};
}

}  // namespace

const HookFactory& factory();
const HookFactory& factory() {
  static constexpr HookFactory kFactory = {"allreduce", "one averaged all-reduce a bucket", false, make};
  return kFactory;
}

}  // namespace weft::hook_allreduce
