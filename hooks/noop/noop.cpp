// Sends nothing: every rank keeps its own gradients. For measuring the most that communication costs a
// training program. Listed in the registry; calls never overlap (hook/hook.h).
#include <memory>
#include <string>

#include "common/options.h"
#include "hook/hook.h"

namespace weft::hook_noop {
namespace {

class NoOp final : public Hook {
 public:
  std::string name() const override { return "noop"; }
  StageKind stage_kind() const override { return StageKind::kNothing; }
  Status plan(const weft_bucket& /*bucket*/, weft_hook_plan* /*plan*/) override { return {}; }
  Status stage(const weft_bucket& /*bucket*/, weft_stage* /*stage*/) override { return {}; }
  bool sends_sparse() const override { return false; }
  bool equal_results() const override { return false; }
};

Status make(const HookArgs& args, std::shared_ptr<Hook>* hook) {
  WEFT_TRY(Options("noop", args.options).done(nullptr));
  *hook = std::make_shared<NoOp>();
  return {};
}

}  // namespace

const HookFactory& factory();
const HookFactory& factory() {
  static constexpr HookFactory kFactory = {"noop", "sends nothing: what could be gained at most", false,
                                           make};
  return kFactory;
}

}  // namespace weft::hook_noop
