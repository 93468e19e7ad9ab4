#include "reducer/calls/rebind.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "base/text.h"
#include "comm/context.h"
#include "reducer/agreement.h"
#include "reducer/calls/end_step.h"
#include "reducer/calls/finish.h"
#include "reducer/feature/devices/device_ready.h"
#include "reducer/feature/graph/captured.h"
#include "reducer/features.h"
#include "reducer/plan/relocation.h"
#include "reducer/program.h"
#include "reducer/proposal.h"
#include "reducer/recover/step_failures.h"
#include "reducer/step/hook_plan.h"

namespace weft {
namespace {

constexpr int64_t kPatienceMs = 2000;  // for a stage, or for a gradient that another thread copies

// Finds the number of steps that all ranks of comm have finished; these include all committed ones. plan: set
// to the common plan. A re-plan that was interrupted may have completed on some ranks only; then all take
// rank 0's plan. given: the error that keeps this rank from rebinding; the others receive it.
Status agree_on_committed(ReducerData& r, const Agreement& agreement, const Status& given,
                          uint64_t* committed, Plan* plan) {
  Comm& comm = agreement.comm;
  const auto difference = [](int rank, ByteView mine, int other_rank, ByteView theirs) {
    return cat("rank ", rank, " rebinds a reducer that differs from that of rank ", other_rank, ": ",
               proposal_difference(rank, mine, other_rank, theirs));
  };
  WEFT_TRY(agree_on(agreement, given, r.state->wanted, difference));
  ByteWriter mine;
  std::vector<uint32_t> words(Plan::words(r.state->manifest.params.size()));
  r.state->plan.pack(&words);
  const uint64_t my_plan = digest64(std::as_bytes(std::span(words)));
  bool alike = true;
  mine.put(r.statistics.steps()).put(my_plan).put(r.program.replanned);
  std::vector<Bytes> all;
  WEFT_TRY(comm.agree(mine.bytes(), &all, agreement.deadline));
  *committed = r.statistics.steps();
  for (int rank = 0; rank < comm.size(); rank++) {
    ByteReader reader(all[static_cast<size_t>(rank)]);
    const auto steps = reader.get<uint64_t>();
    alike &= reader.get<uint64_t>() == my_plan;
    r.program.replanned |= reader.get<uint8_t>() != 0;
    if (!reader.done()) {
      return Status::error(Code::kMismatch,
                           cat("rebind: rank ", rank, " sent ", all[static_cast<size_t>(rank)].size(),
                               " bytes about its reducer's steps and plan, expected ", mine.bytes().size(),
                               ": run the same version of Weft on all ranks"))
          .with_ranks({rank});
    }
    *committed = std::min(*committed, steps);
  }
  *plan = r.state->plan;
  if (alike) return {};
  WEFT_TRY(comm.agree(std::as_bytes(std::span(words)), &all, agreement.deadline));
  if (all[0].size() != words.size() * sizeof words[0]) {
    return Status::error(Code::kMismatch,
                         cat("rebind: rank 0 sent a bucket plan of ", all[0].size(), " bytes, expected ",
                             words.size() * sizeof words[0], " for ", r.state->manifest.params.size(),
                             " parameters: run the same version of Weft on all ranks"))
        .with_ranks({0});
  }
  std::memcpy(words.data(), all[0].data(), all[0].size());
  return Plan::unpack(r.state->manifest, words, plan)
      .with_prefix("rebind: the bucket plan that rank 0 sent is invalid: ");
}

// Checks that the reducer can be bound to comm now: none of its operations is in progress.
Status check_rebind(ReducerData& r, Comm& comm) {
  const ReducerState& old = *r.state;
  Context& context = old.comm->context();
  if (&comm.context() != &context) {
    return Status::error(Code::kArg,
                         "the communicator belongs to another context than the reducer's; create it "
                         "in the reducer's context");
  }
  if (old.hook_lane) {
    return Status::error(Code::kUnsupported,
                         cat("hook '", old.hook->name(),
                             "' has a communicator of its own, which a rebind does not replace: create a new "
                             "hook and a new reducer"));
  }
  WEFT_TRY(outside_capture(*r.state, "rebind"));
  WEFT_TRY(outside_step(r, "rebind"));
  end_between_steps(r).ok();  // its error is known by then
  const bool quiet = r.step->finished(old.readiness->step().stamp()) || old.readiness->step().local();
  const auto returned = [&] { return !r.step->stage_out(); };
  const Deadline soon = Deadline::after(context.clock(), kPatienceMs, 0);
  if (!quiet || !context.engine().wait(returned, soon)) {
    return Status::error(Code::kState,
                         cat("a stage of hook '", old.hook->name(), "' has not returned within ", kPatienceMs,
                             " ms: let it return, and rebind again"));
  }
  if (r.step->stage_given_up()) {  // the stage has returned, but is still pending
    return Status::error(Code::kState, cat("a stage of hook '", old.hook->name(),
                                           "' was given up before it completed, and may still write into "
                                           "its bucket: create a new reducer"));
  }
  // Another thread may still be copying a gradient that came too late for the step.
  const auto settled = [&] { return old.readiness->step().local() || old.readiness->settled(); };
  if (!context.engine().wait(settled, Deadline::after(context.clock(), kPatienceMs, 0))) {
    return Status::error(Code::kState, cat("a call of weft_reducer_ready has not returned within ",
                                           kPatienceMs, " ms: let it return, and rebind again"));
  }
  WEFT_TRY(await_devices(*r.state, Deadline::after(context.clock(), kPatienceMs, 0)));
  return comm.failed() ? comm.failure() : Status();
}

// Replaces the state by that of another communicator. Of the old steps only their number remains. moved: the
// new state has another plan.
void take_over(ReducerData& r, std::shared_ptr<ReducerState> next, bool moved) {
  const std::shared_ptr<ReducerState> old = r.state;
  r.program.synchronised = 0;
  r.program.failed_attempts = 0;
  r.program.may_retry = old->has(WEFT_REDUCER_RETAIN);
  r.program.results = false;
  replace_program(r, &next, [&](Step& step) { step.commit(r.statistics.steps()); });
  old->comm->lane_messages().ignore(old->lane->key().id);
  old->comm->close_lane(old->lane);
  r.statistics.locked([&](Statistics::Values& v) {
    v.history.forget_waits(r.state->comm->size());
    v.stats.first_active = v.stats.last_active = -1;
    if (moved) v.stats.plan_generation++;
  });
  next_window(r);
  r.program.reduced = false;
  r.program.last_active = -1;  // ranks have new numbers
}

}  // namespace

Status rebind_reducer(ReducerData& r, std::shared_ptr<Comm> comm) {
  static_cast<void>(settle_finish(r).ok());  // its failure is known
  ReducerState& old = *r.state;
  Context& context = comm->context();
  const Deadline deadline =
      Deadline::after(context.clock(), comm->options().init_timeout_ms, WEFT_DEFAULT_INIT_TIMEOUT_MS);
  Agreement agreement{*comm, "bind its reducer", deadline};
  agreement.opens = true;
  uint64_t committed = 0;
  Plan plan;
  WEFT_TRY(note(r, agree_on_committed(r, agreement, check_rebind(r, *comm), &committed, &plan)));
  // Set from here on, even if the rest fails: another rank may have reported it to its program.
  r.statistics.locked([&](Statistics::Values& v) { v.stats.steps = committed; });
  std::shared_ptr<ReducerState> next = old.carry_over();
  Status bound = comm->open_lane(&next->lane, true);  // by all ranks or by none
  next->comm = comm;
  if (bound.ok()) listen_for_failures(next.get());
  std::optional<Relocation> relocation;
  next->buckets = old.buckets;
  next->plan = std::move(plan);
  if (!(next->plan == old.plan)) relocation.emplace(old, next.get());
  bool notified = false;  // the hook was notified of the new communicator
  if (bound.ok()) {
    bound = with_turn(context, *next->hook, deadline, [&] {
      WEFT_TRY(next->hook->rebind(comm->rank(), comm->size()));
      notified = true;
      return relocation ? next->hook->replan(next->plan.buckets.size()) : Status();
    });
  }
  agreement.opens = false;
  bound = build_program(next.get(), bound, agreement);
  if (!bound.ok()) {
    if (next->lane) {
      comm->lane_messages().ignore(next->lane->key().id);
      comm->close_lane(next->lane);
    }
    // Restores the old binding, because steps on the old communicator may continue.
    const auto back = [&] { return old.hook->rebind(old.comm->rank(), old.comm->size()); };
    Status stays = notified ? with_turn(context, *old.hook, deadline, back) : Status();
    if (notified && stays.ok()) stays = plan_again(old, deadline);
    if (!stays.ok()) old.comm->fail(stays.with_ranks({old.comm->rank()}));
    return note(r, bound);
  }
  if (relocation) {
    relocation->run();
    r.program.retained_step = kNoStep;  // the retained contributions have the old plan's layout
  }
  take_over(r, std::move(next), relocation.has_value());
  return {};
}

}  // namespace weft
