#include "reducer/calls/read.h"

#include <algorithm>

#include "base/arguments.h"
#include "base/text.h"
#include "comm/context.h"
#include "reducer/bucket/dense_check.h"
#include "reducer/bucket/results.h"
#include "reducer/calls/finish.h"
#include "reducer/feature/devices/device_ready.h"
#include "reducer/feature/sharded/gather_calls.h"

namespace weft {
Status read_grad_view(ReducerData& r, uint64_t param, void** view) {
  *view = nullptr;
  const std::shared_ptr<ReducerState> state = parts_of(r).state;
  if (state->copy)
    return note(
        r, Status::error(Code::kState,
                         "the reducer is in copy mode and has no views: create it with WEFT_GRADIENT_VIEW"));
  WEFT_TRY(note(r, check_param(state->manifest, param)));
  const Buckets::Place& place = state->buckets->place(param);
  if (place.sparse) return note(r, no_dense_gradient(*state, param));
  *view = view_of(*state, param);
  return {};
}

Status wait_for_param(ReducerData& r, uint64_t param, int64_t timeout_ms) {
  WEFT_TRY(note(r, check_timeout("timeout_ms", timeout_ms, true)));
  WEFT_TRY(note(r, check_param(parts_of(r).state->manifest, param)));
  start_owed_gather(r);
  // Read before parts_of(r): parts that are installed later know this step, too.
  const uint32_t stamp = r.program.synchronised.load();
  const bool gathering = r.gathering.active.load();
  const Parts at = parts_of(r);
  const ReducerState& s = *at.state;
  const std::shared_ptr<Step>& step = at.step;
  WEFT_TRY(note(r, check_param(s.manifest, param)));
  if (gathering) return wait_value(r, at, param, timeout_ms);
  if (stamp == 0) {
    return note(r, Status::error(Code::kState, cat(s.manifest.named(param),
                                                   " has no result: no synchronised step has begun since the "
                                                   "reducer was created or rebound")));
  }
  const uint32_t bucket = s.buckets->place(param).bucket;
  const auto over = [&] { return step->done(bucket, stamp) || step->finished(stamp); };
  if (!over()) step->let_end_for(bucket);
  Context& context = s.comm->context();
  if (!context.engine().wait(over,
                             Deadline::after(context.clock(), timeout_ms, WEFT_DEFAULT_OP_TIMEOUT_MS))) {
    return Status::error(Code::kNotDone,
                         cat(s.manifest.named(param),
                             " has no result yet: wait longer, or test again later (WEFT_ERR_NOT_DONE)"));
  }
  if (step->done(bucket, stamp)) return {};
  if (s.comm->failed()) return note(r, s.comm->failure());
  return note(r, Status::error(Code::kState, cat(s.manifest.named(param),
                                                 " has no result: the last synchronised step ended without "
                                                 "reducing its bucket")));
}

Status read_result(ReducerData& r, uint64_t param, void* gradient) {
  WEFT_TRY(settle_finish(r));
  ReducerState& s = *r.state;
  WEFT_TRY(note(r, check_param(s.manifest, param)));
  const std::string name = cat(s.manifest.named(param), ": ");
  const Buckets::Place& place = s.buckets->place(param);
  if (place.sparse)
    return note(
        r,
        Status::error(
            Code::kArg,
            name + "its gradient is sparse: call weft_reducer_sparse_result instead of weft_reducer_result"));
  if (gradient == nullptr && place.count > 0) {
    return note(r, Status::error(Code::kArg, cat(name, "the gradient given to weft_reducer_result is NULL")));
  }
  if (reinterpret_cast<uintptr_t>(gradient) % place.gradient_bytes != 0) {
    return note(r,
                Status::error(
                    Code::kArg,
                    cat(name, "the gradient given to weft_reducer_result is not aligned to its elements of ",
                        int{place.gradient_bytes}, " bytes")));
  }
  WEFT_TRY(note(r, check_result(r, param)));
  if (place.on_device) return note(r, result_on_device(r, param, gradient).with_prefix(name));
  const Owned mine = s.ownership ? s.ownership->of(s.comm->rank(), param) : Owned{0, place.count};
  if (mine.count > 0) {
    // In view mode the result is in the view.
    const Dtype dtype = s.copy ? s.comm_dtype(place.bucket) : place.dtype;
    const std::byte* const from =
        s.copy ? result_of(s, place.bucket) + s.plan.offset_of[param] * dtype_size(dtype) : place.memory;
    place.layout->unflatten(s.comm->context().host(), from, dtype, static_cast<std::byte*>(gradient),
                            mine.first, mine.count, s.copy ? r.step->factor_of(place.bucket) : 1.0, false);
  }
  return {};
}

Status check_result(const ReducerData& r, uint64_t param) {
  const ReducerState& s = *r.state;
  const auto refuse = [&](const char* why) {
    return Status::error(Code::kState, cat(s.manifest.named(param), ": ", why));
  };
  if (!r.program.reduced)
    return refuse("there is no result: the last step was not reduced, or the next one has begun");
  if (s.presence->absent(param, r.program.synchronised) &&
      r.step->absent_everywhere(static_cast<uint32_t>(param))) {
    return refuse("it was absent on every rank in the last step, so it has no result");
  }
  const bool aside = s.copy || s.buckets->place(param).sparse;  // results are not where the gradients are
  if (aside && s.norms && s.norms->decision.skipped)
    return refuse("the last step was skipped, so it has no results (weft_norms.skipped is 1)");
  return {};
}

Status read_param(const ReducerData& r, uint64_t param, weft_param_info* info) {
  const ReducerState& s = *r.state;
  *info = {};
  info->struct_size = sizeof *info;
  if (param >= s.manifest.params.size()) return check_param(s.manifest, param);
  const Buckets::Place& place = s.buckets->place(param);
  info->bucket = place.bucket;
  info->offset = s.plan.offset_of[param];
  info->count = s.manifest.params[param].count;
  info->absent = r.program.synchronised != 0 && s.presence->absent(param, r.program.synchronised);
  info->absent_everywhere =
      info->absent && r.program.reduced && r.step->absent_everywhere(static_cast<uint32_t>(param));
  return {};
}

Status read_bucket(ReducerData& r, uint32_t bucket, weft_bucket_info* info, uint64_t* params,
                   uint64_t capacity) {
  if (bucket >= bucket_count(*r.state)) {
    return note(r, Status::error(Code::kArg, cat("bucket ", bucket, " is unknown: the reducer has ",
                                                 bucket_count(*r.state), " buckets, numbered from 0")));
  }
  const PlannedBucket& planned = r.state->plan.buckets[bucket];
  const Step::Times times = times_of(r, bucket);
  const auto since = [&](uint64_t ns) {
    return ns > r.program.start.begin_ns ? ns - r.program.start.begin_ns : 0;
  };
  *info = {};
  info->struct_size = sizeof *info;
  info->index = bucket;
  info->dtype = static_cast<int32_t>(planned.dtype);
  info->param_count = planned.params.size();
  info->count =
      planned.sparse ? r.state->sparse->of(planned.params.front())->result_elements() : planned.count;
  info->bytes = reduced_bytes(*r.state, bucket);
  info->limit_bytes = planned.limit_bytes;
  info->ready_ns = since(times.ready_ns);
  info->launch_ns = since(times.launch_ns);
  info->done_ns = since(times.done_ns);
  info->transfer_ns = times.transfer_ns;
  info->sent_bytes = times.sent_bytes;
  for (uint64_t i = 0; params != nullptr && i < std::min<uint64_t>(capacity, planned.params.size()); i++) {
    params[i] = planned.params[i];
  }
  return {};
}

Step::Times times_of(const ReducerData& r, uint32_t bucket) {
  const uint32_t stamp = r.program.synchronised.load();
  if (r.step->finished(stamp)) return r.step->times(bucket);
  Step::Times times;
  if (r.step->done(bucket, stamp)) times.done_ns = r.step->done_ns(bucket);
  return times;
}

uint64_t reduced_bytes(const ReducerState& s, uint32_t bucket) {
  const PlannedBucket& planned = s.plan.buckets[bucket];
  return planned.sparse ? s.sparse->of(planned.params.front())->result_bytes() : planned.bytes();
}

}  // namespace weft
