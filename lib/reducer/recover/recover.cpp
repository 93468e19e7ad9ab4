// Recovery after a failure: the outcome of each step, rebinding the reducer to another communicator, and
// retrying the failed step.
#include <algorithm>
#include <cstring>
#include <optional>
#include <span>

#include "base/text.h"
#include "core/context.h"
#include "reducer/agreement.h"
#include "reducer/plan/relocation.h"
#include "reducer/proposal.h"
#include "reducer/reducer.h"
#include "reducer/step/hook_plan.h"

namespace weft {
namespace {

constexpr int64_t kPatienceMs = 2000;  // for a stage, or for a gradient that another thread copies

}  // namespace

void Reducer::verdict(weft_verdict* verdict) const {
  const auto last = [](uint64_t steps) { return steps == 0 ? kNoStep : steps - 1; };
  *verdict = {};
  verdict->struct_size = sizeof *verdict;
  verdict->last_finished_step = last(finished_);
  verdict->last_committed_step = last(step_->committed());
  verdict->next_step = stats_.steps;
  verdict->can_retry = retained_step_ == stats_.steps ? 1 : 0;
  verdict->rolled_back = finished_ > stats_.steps ? 1 : 0;
}

// Waits until every rank has finished the step. The lane runs the barrier after the step's collectives.
Status Reducer::commit(Deadline deadline) {
  CollectiveArgs barrier;
  barrier.coll = Coll::kBarrier;
  barrier.tag = state_->schedule.slots.empty() ? 1 : state_->schedule.slots.front().args.tag;
  const Status done = state_->comm->run(state_->lane, barrier, deadline);
  if (done.ok()) {
    step_->commit(stats_.steps);
    return {};
  }
  return note(done.with_prefix(cat("step ", stats_.steps - 1,
                                   " is reduced on this rank, but not every other rank has confirmed it: "))
                  .with_step(stats_.steps - 1));
}

// Finds the number of steps that all ranks of comm have finished; these include all committed ones. plan: set
// to the common plan. A re-plan that was interrupted may have completed on some ranks only; then all take
// rank 0's plan. given: the error that keeps this rank from rebinding; the others receive it.
Status Reducer::agree_on_committed(const Agreement& agreement, const Status& given, uint64_t* committed,
                                   Plan* plan) {
  Comm& comm = agreement.comm;
  const auto difference = [](int rank, ByteView mine, int other_rank, ByteView theirs) {
    return cat("rank ", rank, " rebinds a reducer that differs from that of rank ", other_rank, ": ",
               proposal_difference(rank, mine, other_rank, theirs));
  };
  WEFT_TRY(agree_on(agreement, given, state_->wanted, difference));
  ByteWriter mine;
  std::vector<uint32_t> words(Plan::words(state_->manifest.params.size()));
  state_->plan.pack(&words);
  const uint64_t my_plan = digest64(std::as_bytes(std::span(words)));
  bool alike = true;
  mine.put(stats_.steps).put(my_plan).put(replanned_);
  std::vector<Bytes> all;
  WEFT_TRY(comm.agree(mine.bytes(), &all, agreement.deadline));
  *committed = stats_.steps;
  for (int r = 0; r < comm.size(); r++) {
    ByteReader reader(all[static_cast<size_t>(r)]);
    const auto steps = reader.get<uint64_t>();
    alike &= reader.get<uint64_t>() == my_plan;
    replanned_ |= reader.get<uint8_t>() != 0;
    if (!reader.done()) {
      return Status::error(Code::kMismatch,
                           cat("rebind: rank ", r, " sent ", all[static_cast<size_t>(r)].size(),
                               " bytes about its reducer's steps and plan, expected ", mine.bytes().size(),
                               ": run the same version of Weft on all ranks"))
          .with_ranks({r});
    }
    *committed = std::min(*committed, steps);
  }
  *plan = state_->plan;
  if (alike) return {};
  WEFT_TRY(comm.agree(std::as_bytes(std::span(words)), &all, agreement.deadline));
  if (all[0].size() != words.size() * sizeof words[0]) {
    return Status::error(Code::kMismatch,
                         cat("rebind: rank 0 sent a bucket plan of ", all[0].size(), " bytes, expected ",
                             words.size() * sizeof words[0], " for ", state_->manifest.params.size(),
                             " parameters: run the same version of Weft on all ranks"))
        .with_ranks({0});
  }
  std::memcpy(words.data(), all[0].data(), all[0].size());
  return Plan::unpack(state_->manifest, words, plan)
      .with_prefix("rebind: the bucket plan that rank 0 sent is invalid: ");
}

// Checks that the reducer can be bound to comm now: none of its operations is in progress.
Status Reducer::check_rebind(Comm& comm) {
  const ReducerState& old = *state_;
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
  WEFT_TRY(outside_capture("rebind"));
  if (old.readiness->step().open()) {
    return Status::error(Code::kState, cat("rebind inside ", step_text(), ": finish it first"));
  }
  end_owed_gather().ok();  // its error is known by then
  const bool quiet = step_->finished(old.readiness->step().stamp()) || old.readiness->step().local();
  const auto returned = [&] { return !step_->stage_out(); };
  const Deadline soon = Deadline::after(context.clock(), kPatienceMs, 0);
  if (!quiet || !context.engine().wait(returned, soon)) {
    return Status::error(Code::kState,
                         cat("a stage of hook '", old.hook->name(), "' has not returned within ", kPatienceMs,
                             " ms: let it return, and rebind again"));
  }
  if (step_->stage_given_up()) {  // the stage has returned, but is still pending
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
  WEFT_TRY(await_devices(Deadline::after(context.clock(), kPatienceMs, 0)));
  return comm.failed() ? comm.failure() : Status();
}

Status Reducer::rebind(std::shared_ptr<Comm> comm) {
  static_cast<void>(settle_finish().ok());  // its failure is known
  ReducerState& old = *state_;
  Context& context = comm->context();
  const Deadline deadline =
      Deadline::after(context.clock(), comm->options().init_timeout_ms, WEFT_DEFAULT_INIT_TIMEOUT_MS);
  Agreement agreement{*comm, "bind its reducer", deadline};
  agreement.opens = true;
  uint64_t committed = 0;
  Plan plan;
  WEFT_TRY(note(agree_on_committed(agreement, check_rebind(*comm), &committed, &plan)));
  // Set from here on, even if the rest fails: another rank may have reported it to its program.
  {
    const std::lock_guard lock(mutex_);
    stats_.steps = committed;
  }
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
  bound = build_collectives(next.get(), bound, agreement);
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
    return note(bound);
  }
  if (relocation) {
    relocation->run();
    retained_step_ = kNoStep;  // the retained contributions have the old plan's layout
  }
  take_over(std::move(next), relocation.has_value());
  return {};
}

// Replaces the state by that of another communicator. Of the old steps only their number remains. moved: the
// new state has another plan.
void Reducer::take_over(std::shared_ptr<ReducerState> next, bool moved) {
  const std::shared_ptr<ReducerState> old = state_;
  synchronised_ = 0;
  failed_attempts_ = 0;
  may_retry_ = old->retain;
  results_ = false;
  replace(&next, [&](Step& step) { step.commit(stats_.steps); });
  old->comm->lane_messages().ignore(old->lane->key().id);
  old->comm->close_lane(old->lane);
  {
    const std::lock_guard lock(mutex_);
    history_.forget_waits(state_->comm->size());
    stats_.first_active = stats_.last_active = -1;
    if (moved) stats_.plan_generation++;
  }
  next_window();
  reduced_ = false;
  last_active_ = -1;  // ranks have new numbers
}

Status Reducer::retry(const weft_finish_options& options) {
  ReducerState& s = *state_;
  const uint64_t entered_ns = s.comm->context().clock().now_ns();
  WEFT_TRY(settle_finish());
  WEFT_TRY(note(check_finish(options)));
  if (s.comm->failed()) return note(s.comm->failure());
  if (s.readiness->step().open()) {
    return note(Status::error(Code::kState, cat("retry inside ", step_text(), ": finish it first")));
  }
  WEFT_TRY(note(end_owed_gather()));
  if (!s.retain || retained_step_ != stats_.steps) {
    return note(Status::error(
        Code::kState, cat("retry: no gradients of step ", stats_.steps, " are retained: ",
                          !s.retain ? "the reducer was created without WEFT_REDUCER_RETAIN"
                                    : "it has not begun, not all of its gradients became ready, or the plan "
                                      "has changed since. Compute the step again")));
  }
  for (uint32_t b = 0; b < retained_buckets_; b++) {
    std::copy_n(s.buckets->retained(b), s.plan.buckets[b].count * dtype_size(s.buckets->held(b)),
                s.buckets->buffers()[b]);
  }
  const uint32_t failed = stamp_;
  s.presence->carry(failed, next_stamp());
  // The gradients of absent parameters are zero. A bucket with only absent parameters was not communicated,
  // so nothing was retained of it: its gradients are cleared here.
  for (uint64_t i = 0; i < s.manifest.params.size(); i++) {
    if (has_bucket(i) && s.presence->absent(i, stamp_) && !s.buckets->place(i).sparse)
      clear_place(s.buckets->place(i));
  }
  start_.noting = false;  // the failed step has recorded the order already
  open_step(start_, true);
  publish(options);
  WEFT_TRY(await_pre_step(timeout_ms_));
  return wait_for_step(entered_ns, true, timeout_ms_);
}

}  // namespace weft
