#include "base/text.h"
#include "reducer/feature/sparse/sparse.h"
#include "reducer/feature/sparse/sparse_gradient.h"
#include "reducer/step/hook_plan.h"

namespace weft {
namespace {

// Reads a hook's plan: how the entries are communicated.
Status read_plan(const weft_bucket& bucket, const weft_hook_plan& plan, HookedBucket* hooked) {
  const auto bad = [](const std::string& what) { return Status::error(Code::kArg, what); };
  if (plan.collective_count > 1) {
    return bad(cat("weft_hook_plan.collective_count is ", plan.collective_count,
                   "; for a sparse gradient at most one is allowed"));
  }
  WEFT_TRY(check_scratch(plan.scratch_bytes));
  if (plan.result_space != WEFT_SPACE_BUCKET || plan.result_offset_bytes != 0) {
    return bad(cat("weft_hook_plan.result_space is ", plan.result_space, " and result_offset_bytes ",
                   plan.result_offset_bytes,
                   ", but the result of a sparse gradient stays where its entries are: set ",
                   WEFT_SPACE_BUCKET, " (WEFT_SPACE_BUCKET) and 0"));
  }
  hooked->scratch_bytes = plan.scratch_bytes;
  if (plan.collective_count == 0) return {};
  const weft_hook_collective& c = plan.collectives[0];
  const bool sums = c.op == WEFT_OP_SUM;
  uint64_t rest = c.count | c.src_offset_bytes | c.dst_offset_bytes | c.flags;
  for (const uint64_t reserved : c.reserved) rest |= reserved;
  rest |= static_cast<uint64_t>(c.src_space | c.dst_space | c.root);
  if (c.coll != WEFT_COLL_ALL_REDUCE || (!sums && c.op != WEFT_OP_AVG) || c.dtype != bucket.dtype ||
      rest != 0) {
    return bad(
        "collective 0: for a sparse gradient it must be an all_reduce with WEFT_OP_SUM or WEFT_OP_AVG and "
        "the bucket's dtype; all other fields must be 0");
  }
  hooked->collectives = SparseGradient::kCollectives;
  hooked->sums = sums;
  return {};
}

// Plans the collectives of a sparse gradient. The step sets the fields that are known only then.
Status plan_entries(Hook& hook, const weft_bucket& bucket, HookedBucket* hooked, std::vector<Slot>* slots) {
  hooked->asks = bucket.entries != nullptr;
  if (hooked->asks) {
    weft_hook_plan plan{};
    plan.struct_size = sizeof plan;
    WEFT_TRY(hook.plan(bucket, &plan));
    const Status read = read_plan(bucket, plan, hooked);
    WEFT_TRY(read.with_prefix(read.ok() ? "" : cat("hook '", hook.name(), "': ")));
  } else {
    hooked->collectives = hook.sends_sparse() ? SparseGradient::kCollectives : 0;
  }
  for (uint32_t k = 0; k < hooked->collectives; k++) {
    Slot& slot = slots->emplace_back();
    slot.kind = Slot::Kind::kStaged;
    slot.bucket = bucket.index;
    slot.index = k;
    slot.optional = true;
    slot.args.coll = Coll::kAllGather;
    slot.args.dtype = static_cast<Dtype>(bucket.dtype);
  }
  return {};
}

}  // namespace

PlanBucket sparse_planner(const PlannedBucket& bucket) {
  return bucket.sparse ? plan_entries : nullptr;
}

}  // namespace weft
