#include "reducer/calls/commit.h"

#include "base/text.h"

namespace weft {
void read_verdict(const ReducerData& r, weft_verdict* verdict) {
  const auto last = [](uint64_t steps) { return steps == 0 ? kNoStep : steps - 1; };
  *verdict = {};
  verdict->struct_size = sizeof *verdict;
  verdict->last_finished_step = last(r.program.finished);
  verdict->last_committed_step = last(r.step->committed());
  verdict->next_step = r.statistics.steps();
  verdict->can_retry = r.program.retained_step == r.statistics.steps() ? 1 : 0;
  verdict->rolled_back = r.program.finished > r.statistics.steps() ? 1 : 0;
}

Status commit_step(ReducerData& r, Deadline deadline) {
  CollectiveArgs barrier;
  barrier.coll = Coll::kBarrier;
  barrier.tag = r.state->schedule.slots.empty() ? 1 : r.state->schedule.slots.front().args.tag;
  const Status done = r.state->comm->run(r.state->lane, barrier, deadline);
  if (done.ok()) {
    r.step->commit(r.statistics.steps());
    return {};
  }
  return note(r,
              done.with_prefix(cat("step ", r.statistics.steps() - 1,
                                   " is reduced on this rank, but not every other rank has confirmed it: "))
                  .with_step(r.statistics.steps() - 1));
}

}  // namespace weft
