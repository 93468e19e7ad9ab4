#include "reducer/calls/retry.h"

#include <algorithm>

#include "base/text.h"
#include "comm/context.h"
#include "reducer/calls/begin.h"
#include "reducer/calls/end_step.h"
#include "reducer/calls/finish.h"
#include "reducer/features.h"

namespace weft {
Status retry_step(ReducerData& r, const weft_finish_options& options) {
  ReducerState& s = *r.state;
  const uint64_t entered_ns = s.comm->context().clock().now_ns();
  WEFT_TRY(settle_finish(r));
  WEFT_TRY(note(r, check_finish(s, options)));
  if (s.comm->failed()) return note(r, s.comm->failure());
  WEFT_TRY(note(r, outside_step(r, "retry")));
  WEFT_TRY(note(r, end_between_steps(r)));
  if (!s.has(WEFT_REDUCER_RETAIN) || r.program.retained_step != r.statistics.steps()) {
    return note(
        r, Status::error(Code::kState,
                         cat("retry: no gradients of step ", r.statistics.steps(), " are retained: ",
                             !s.has(WEFT_REDUCER_RETAIN)
                                 ? "the reducer was created without WEFT_REDUCER_RETAIN"
                                 : "it has not begun, not all of its gradients became ready, or the plan "
                                   "has changed since. Compute the step again")));
  }
  for (uint32_t b = 0; b < r.program.retained_buckets; b++) {
    std::copy_n(s.buckets->retained(b), s.plan.buckets[b].count * dtype_size(s.buckets->held(b)),
                s.buckets->buffers()[b]);
  }
  const uint32_t failed = r.program.stamp;
  s.presence->carry(failed, next_stamp(r));
  // The gradients of absent parameters are zero. A bucket with only absent parameters was not communicated,
  // so nothing was retained of it: its gradients are cleared here.
  for (uint64_t i = 0; i < s.manifest.params.size(); i++) {
    if (has_bucket(s, i) && s.presence->absent(i, r.program.stamp) && !s.buckets->place(i).sparse)
      clear_place(s.buckets->place(i));
  }
  r.program.start.noting = false;  // the failed step has recorded the order already
  open_step(r, r.program.start, true);
  publish_finish(s, options);
  WEFT_TRY(await_open_features(r, r.timeout_ms));
  WEFT_TRY(wait_for_step(r, entered_ns, true, r.timeout_ms));
  r.statistics.locked([](Statistics::Values& v) { v.retries++; });
  return {};
}

}  // namespace weft
