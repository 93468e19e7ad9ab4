#include "reducer/feature/pre_step/await_pre_step.h"

#include "base/text.h"
#include "comm/context.h"
#include "reducer/calls/end_step.h"
#include "reducer/calls/finish.h"
#include "reducer/calls/values.h"
#include "reducer/feature/pre_step/pre_step_values.h"
#include "reducer/grace.h"

namespace weft {
Status await_pre_step(ReducerData& r, int64_t timeout_ms) {
  ReducerState& s = *r.state;
  if (!s.pre_step || !s.pre_step->due(r.program.start.number)) return {};
  Context& context = s.comm->context();
  const uint64_t entered_ns = context.clock().now_ns();
  const Deadline deadline = s.comm->op_deadline(timeout_ms);
  r.step->set_deadline(deadline);
  context.engine().wait(
      [&] { return r.step->pre_step_done(r.program.stamp) || r.step->finished(r.program.stamp); },
      with_grace(deadline));
  if (r.step->pre_step_done(r.program.stamp)) {
    r.step->set_deadline(Deadline::never());
    const int root = s.pre_step->root(r.step->handshake(), s.comm->size());
    if (root >= 0 && root != s.comm->rank()) s.pre_step->arrive(s.manifest, *s.buckets);
    return {};
  }
  if (r.step->finished(r.program.stamp) && r.step->handshake().outcome != StepOutcome::kReduce) {
    // finish_step(r) handles all other outcomes.
    if (r.step->handshake().outcome != StepOutcome::kDiffers) return {};
    const std::vector<int> stale = r.step->handshake().joined;
    WEFT_TRY(not_reduced(r));
    return note(r, name_difference(s, s.pre_step->params(), s.pre_step->digests(), stale, deadline)
                       .with_prefix(cat("step ", r.program.start.number, " cannot begin: ")));
  }
  return wait_for_step(r, entered_ns, false, timeout_ms);
}

}  // namespace weft
