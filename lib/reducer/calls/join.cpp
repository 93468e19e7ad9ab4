#include "reducer/calls/join.h"

#include "base/arguments.h"
#include "base/text.h"
#include "comm/context.h"
#include "reducer/calls/begin.h"
#include "reducer/calls/end_step.h"
#include "reducer/calls/fail_step.h"
#include "reducer/calls/finish.h"
#include "reducer/calls/replan.h"
#include "reducer/feature/sharded/gather_calls.h"
#include "reducer/features.h"

namespace weft {
Status join_steps(ReducerData& r, const weft_join_options& options, weft_join_result* result) {
  *result = {};
  result->struct_size = sizeof *result;
  result->last_active = -1;
  if (!r.state->has(WEFT_REDUCER_UNEVEN)) {
    return note(r, Status::error(Code::kState, "join: create the reducer with WEFT_REDUCER_UNEVEN"));
  }
  constexpr NamedValue kFinishFlags[] = {WEFT_NAMED(WEFT_FINISH_COMMIT)};
  WEFT_TRY(note(r, check_flags("weft_join_options.finish_flags", options.finish_flags, kFinishFlags)));
  WEFT_TRY(note(r, check_timeout("weft_join_options.timeout_ms", options.timeout_ms)));
  WEFT_TRY(settle_finish(r));
  const bool commit = options.finish_flags != 0 || r.state->has(WEFT_REDUCER_RETAIN);
  r.program.destinations = nullptr;
  {
    // The last rank with data in the last step, which may be this rank. The result stays so if all ranks have
    // joined already and no step follows.
    r.statistics.locked([&](const Statistics::Values& v) {
      if (v.stats.steps > 0) result->last_active = v.stats.last_active;
    });
  }
  for (;;) {
    const ReducerState& s = *r.state;  // a re-plan replaces it
    if (s.comm->failed()) return note(r, s.comm->failure());
    WEFT_TRY(note(r, outside_step(r, "weft_reducer_join")));
    WEFT_TRY(note(r, end_between_steps(r)));
    StepStart start;
    start.local_steps = s.presence->local_steps();
    WEFT_TRY(note(r, begin_without_data(r, start, true)));
    publish_finish(s, FinishRecord{.flags = FinishRecord::kJoined});
    WEFT_TRY(await_open_features(r, options.timeout_ms != 0 ? options.timeout_ms : r.timeout_ms));
    const std::string text =
        r.program.fail_next.value_or("");  // a copy, because fail_step resets r.program.fail_next
    const Status ended = r.program.fail_next
                             ? fail_step(r, text)
                             : wait_for_step(r, s.comm->context().clock().now_ns(), commit,
                                             options.timeout_ms != 0 ? options.timeout_ms : r.timeout_ms);
    if (ended.code() == Code::kStepFailed) continue;  // the other ranks handle the failure
    WEFT_TRY(ended);
    const StepOutcome outcome = r.step->handshake().outcome;
    if (outcome == StepOutcome::kOver) return {};
    if (outcome == StepOutcome::kReplan) {
      // An invalid request of the other ranks is their error; the old plan stays.
      const Status planned = take_plan(r, nullptr, {});
      if (!planned.ok() && r.state->comm->failed()) return note(r, planned);
      continue;
    }
    if (outcome == StepOutcome::kGather) {
      start_gather(r, options.timeout_ms, Status(), false);
      const Status gathered = settle_gather(r);
      if (!gathered.ok() && s.comm->failed()) return note(r, gathered);
      continue;
    }
    result->steps++;
    result->last_active = r.step->handshake().last_active;
  }
}

}  // namespace weft
