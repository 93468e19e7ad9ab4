#include "reducer/feature/sharded/gather_calls.h"

#include <algorithm>
#include <mutex>
#include <queue>

#include "base/arguments.h"
#include "base/text.h"
#include "comm/context.h"
#include "reducer/calls/finish.h"
#include "reducer/feature/sharded/gather.h"
#include "reducer/feature/sharded/ownership.h"
#include "reducer/grace.h"
#include "reducer/values/chunks.h"

namespace weft {
namespace {

Status await_gather(ReducerData& r) {
  Context& context = r.state->comm->context();
  const auto over = [&] { return r.gather->finished(); };
  if (!context.engine().wait(over, with_grace(r.gathering.deadline))) {
    Comm& comm = *r.state->comm;
    const Status stuck =
        Status::error(Code::kTimeout,
                      cat("rank ", comm.rank(), ": gathering the parameters did not end before its timeout"),
                      Evidence::kDeadline)
            .with_ranks({comm.rank()});
    comm.fail(Interrupt::requested() ? comm.interrupted("the gathering of parameters") : stuck);
    if (!context.engine().settle(over, Deadline::after(context.clock(), WEFT_DEFAULT_DESTROY_TIMEOUT_MS, 0)))
      return r.state->comm->failure();
  }
  return r.gather->result();
}

}  // namespace

Status gather_params(ReducerData& r, const weft_gather_options& options, const Status& given) {
  ReducerState& s = *r.state;
  if (!s.has(WEFT_REDUCER_SHARDED)) {
    return note(r,
                Status::error(
                    Code::kState,
                    "weft_reducer_gather_params needs a reducer that was created with WEFT_REDUCER_SHARDED"));
  }
  WEFT_TRY(note(r, check_between_steps(r, "gather_params")));
  Status wish = given;
  if (wish.ok()) wish = check_flags("weft_gather_options.flags", options.flags, {});
  if (wish.ok()) wish = check_timeout("weft_gather_options.timeout_ms", options.timeout_ms);
  {
    const std::lock_guard lock(r.gathering.mutex);
    if (r.gathering.active.load()) return note(r, wish);  // wait_param on another thread has started it
    start_gather(r, wish.ok() ? options.timeout_ms : 0, wish, s.has(WEFT_REDUCER_UNEVEN));
  }
  if (wish.ok() && s.staging) return {};
  // The error is returned here at once. The next call returns it as well, as on the other ranks.
  const Status gathered = await_gather(r);
  return note(r, !wish.ok() ? wish : !gathered.ok() && s.comm->failed() ? gathered : r.gathering.unable);
}

void start_gather(ReducerData& r, int64_t timeout_ms, const Status& wish, bool announce) {
  ReducerState& s = *r.state;
  Gather::Call call;
  call.step = r.statistics.steps();
  call.announce = announce;
  r.gathering.unable = {};
  if (!s.staging) {
    r.gathering.unable = check_values(s.manifest, params_with(s.manifest, 0, true), &call.vote.missing);
  }
  if (!wish.ok()) call.vote.refuses = 1;
  call.deadline = s.comm->op_deadline(timeout_ms != 0 ? timeout_ms : r.timeout_ms);
  r.gathering.deadline = call.deadline;
  r.gather->start(call);
  r.gathering.active.store(true);
  r.gathering.owed.store(false);
}

void start_owed_gather(ReducerData& r) {
  if (!r.gathering.owed.load()) return;  // then r.gathering.active is set, if there is a gather
  const std::lock_guard lock(r.gathering.mutex);
  if (r.gathering.owed.load()) start_gather(r, 0, Status(), r.state->has(WEFT_REDUCER_UNEVEN));
}

Status end_owed_gather(ReducerData& r) {
  {
    const std::lock_guard lock(r.gathering.mutex);
    r.gathering.owed.store(false);
  }
  return settle_gather(r);
}

Status settle_gather(ReducerData& r) {
  if (!r.gathering.active.load()) return {};
  const Status gathered = await_gather(r);
  r.gathering.active.store(!r.gather->finished());
  return gathered;
}

bool end_gather(ReducerData& r) {
  constexpr int64_t kPatienceMs = WEFT_DEFAULT_DESTROY_TIMEOUT_MS / 2;
  if (!r.gathering.active.load()) return true;
  Comm& comm = *r.state->comm;
  Context& context = comm.context();
  const auto over = [&] { return r.gather->finished(); };
  if (context.engine().wait(over, Deadline::after(context.clock(), kPatienceMs, 0))) return true;
  comm.fail(Status::error(Code::kCancelled, cat("rank ", comm.rank(),
                                                " destroyed its reducer while parameters were being "
                                                "gathered: wait with weft_reducer_wait_param first"))
                .with_ranks({comm.rank()}));
  if (context.engine().settle(over, Deadline::after(context.clock(), kPatienceMs, 0))) return true;
  if (r.state->staging) r.state->staging->abandon();
  context.keep(r.gather);
  return false;
}

Status wait_value(ReducerData& r, const Parts& at, uint64_t param, int64_t timeout_ms) {
  const ReducerState& s = *at.state;
  const std::shared_ptr<Gather>& gather = at.gather;
  const uint32_t bucket = s.buckets->place(param).bucket;
  const auto over = [&] { return gather->done(bucket) || gather->finished(); };
  Context& context = s.comm->context();
  if (!context.engine().wait(over,
                             Deadline::after(context.clock(), timeout_ms, WEFT_DEFAULT_OP_TIMEOUT_MS))) {
    return Status::error(
        Code::kNotDone,
        cat(s.manifest.named(param),
            " has not been gathered yet: call weft_reducer_wait_param again, or with a longer timeout_ms"));
  }
  return gather->done(bucket) ? Status() : note(r, gather->result());
}

Status read_owned(ReducerData& r, int32_t rank, weft_slice* slices, uint64_t* count) {
  const ReducerState& s = *r.state;
  const uint64_t room = *count;
  *count = 0;
  if (!s.ownership) {
    return note(
        r, Status::error(Code::kState,
                         "weft_reducer_owned needs a reducer that was created with WEFT_REDUCER_SHARDED"));
  }
  if (rank < 0 || rank >= s.comm->size()) {
    return note(r, Status::error(Code::kArg, cat("weft_reducer_owned: rank is ", rank, ": allowed are 0 to ",
                                                 s.comm->size() - 1)));
  }
  const std::vector<weft_slice> owned = s.ownership->slices(rank);
  *count = owned.size();
  if (slices == nullptr) return {};
  if (room < owned.size()) {
    return note(
        r, Status::error(Code::kArg, cat("weft_reducer_owned: *count is ", room, ", but rank ", rank,
                                         " owns ", owned.size(), " slices: pass an array for all of them")));
  }
  std::copy(owned.begin(), owned.end(), slices);
  return {};
}

}  // namespace weft
