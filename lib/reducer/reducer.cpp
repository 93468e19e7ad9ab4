#include "reducer/reducer.h"

#include <atomic>
#include <utility>

#include "base/guard.h"
#include "base/text.h"
#include "comm/context.h"
#include "reducer/calls/absent.h"
#include "reducer/calls/begin.h"
#include "reducer/calls/commit.h"
#include "reducer/calls/fail_step.h"
#include "reducer/calls/finish.h"
#include "reducer/calls/join.h"
#include "reducer/calls/read.h"
#include "reducer/calls/ready.h"
#include "reducer/calls/ready_tensor.h"
#include "reducer/calls/rebind.h"
#include "reducer/calls/replan.h"
#include "reducer/calls/retry.h"
#include "reducer/calls/values.h"
#include "reducer/create.h"
#include "reducer/feature/devices/stream_waits.h"
#include "reducer/feature/graph/captured.h"
#include "reducer/feature/norms/read_norms.h"
#include "reducer/feature/sharded/gather_calls.h"
#include "reducer/feature/sparse/sparse_calls.h"
#include "reducer/metrics.h"
#include "reducer/program.h"
#include "reducer/report.h"

namespace weft {
namespace {

constexpr int64_t kDestroyTimeoutMs = WEFT_DEFAULT_DESTROY_TIMEOUT_MS;

// Sets the numbers of steps to where a test wants them to begin (FailCounter).
void begin_counters(ReducerData& r, const ReducerState& s) {
  const FailPointsPtr& points = s.comm->options().failpoints;
  if (points == nullptr) return;
  r.statistics.locked([&](Statistics::Values& v) { v.stats.steps = points->first(FailCounter::kSteps); });
  r.program.stamp = first_of_32(points, FailCounter::kStamps);
  s.presence->skip_to(r.program.stamp);
  s.hook->gate().skip_to(points->first(FailCounter::kStages));
}

}  // namespace

Reducer::Reducer(std::shared_ptr<ReducerState> state, int64_t timeout_ms) {
  data_.timeout_ms = timeout_ms;
  begin_counters(data_, *state);
  Metrics& metrics = state->comm->context().metrics();
  install_program(data_, std::move(state));
  static std::atomic<uint64_t> reducers{0};  // a rebind to another communicator keeps the number unique
  metrics_ = metrics.add(
      [this, number = reducers.fetch_add(1)](MetricsText* text) { describe_reducer(data_, number, text); });
  start_polling(data_);  // last: nothing ends it if this constructor throws
}

Status Reducer::create(std::shared_ptr<Comm> comm, const Status& given, const weft_reducer_options& options,
                       std::shared_ptr<Hook> hook, std::unique_ptr<Reducer>* reducer) {
  std::shared_ptr<ReducerState> state;
  WEFT_TRY(create_state(std::move(comm), given, options, std::move(hook), &state));
  reducer->reset(new Reducer(std::move(state), options.timeout_ms));
  return {};
}

Reducer::~Reducer() {
  ReducerData& r = data_;
  ReducerState& s = *r.state;
  (void)guarded([&] { return weft::settle_finish(r); }).ok();
  metrics_.reset();  // with the last numbers
  Comm& comm = *s.comm;
  Context& context = comm.context();
  const StepWord word = s.readiness->step();
  const bool begun = r.program.stamp != 0 && !word.local();
  if (begun && word.open()) {
    comm.fail(guarded([&] {
      return Status::error(Code::kCancelled,
                           cat("rank ", comm.rank(), " destroyed its reducer in ", step_text(r),
                               ", which is still open: call weft_reducer_finish or weft_reducer_fail first"))
          .with_ranks({comm.rank()});
    }));
  }
  const Deadline deadline = Deadline::after(context.clock(), kDestroyTimeoutMs, 0);
  // A step that finish gave up on ends too, once its stage returns.
  const bool quiet =
      !begun || context.engine().wait([&] { return r.step->finished(word.stamp()); }, deadline);
  // A stage that does not return keeps the memory that it uses, and the hook.
  context.engine().wait([&] { return !r.step->stage_out(); }, deadline);
  bool gathered = false;
  (void)guarded_run([&] { gathered = end_gather(r); }).ok();
  stop_polling(r);
  s.captures.reset();
  if (!quiet || r.step->stage_given_up()) {
    s.buckets->abandon();
    s.scratch->abandon();
  }
  if (quiet && gathered) {
    (void)guarded_run([&] { close_lanes(s); }).ok();  // a lane that is not reused is opened anew
  } else if (!quiet) {
    // A stage that never completes still has the step's requests. They outlive the reducer until the process
    // ends, and with them its communicator and context.
    (void)guarded_run([&] { context.keep(r.step); }).ok();
  }
  if (s.options.on_bucket != nullptr)
    (void)guarded([&] { return context.callbacks().drain(context.clock()); }).ok();
}

Status Reducer::ready(uint64_t param, void* gradient, const weft_stream* stream) {
  return make_ready(data_, param, gradient, nullptr, stream);
}

Status Reducer::ready_tensor(uint64_t param, const weft_tensor& gradient, const weft_stream* stream) {
  return make_tensor_ready(data_, param, gradient, stream);
}

Status Reducer::ready_sparse(uint64_t param, const weft_sparse& gradient, const weft_stream* stream) {
  return make_sparse_ready(data_, param, gradient, stream);
}

Status Reducer::absent(const uint64_t* params, uint64_t count) {
  return declare_absent(data_, params, count);
}

Status Reducer::grad_view(uint64_t param, void** view) {
  return read_grad_view(data_, param, view);
}

Status Reducer::wait_param(uint64_t param, int64_t timeout_ms) {
  return wait_for_param(data_, param, timeout_ms);
}

Status Reducer::stream_wait_param(uint64_t param, int device, DeviceStream stream) {
  return make_stream_wait(data_, param, device, stream);
}

Status Reducer::refuse(Status status) {
  return note(data_, std::move(status));
}

bool Reducer::capturing() const {
  return is_capturing(*data_.state);
}

Status Reducer::error() const {
  return data_.statistics.last_error();
}

void Reducer::query(weft_reducer_stats* stats) const {
  query_stats(data_, stats);
}

Status Reducer::begin(const weft_begin_options* options) {
  return begin_step(data_, options);
}

Status Reducer::finish(const weft_finish_options& options) {
  return finish_step(data_, options);
}

Status Reducer::finish_captured(const weft_finish_options& options, const Status& given) {
  return weft::finish_captured(data_, options, given);
}

Status Reducer::settle_finish() {
  return weft::settle_finish(data_);
}

Status Reducer::fail(std::string_view text) {
  return fail_open_step(data_, text);
}

Status Reducer::join(const weft_join_options& options, weft_join_result* result) {
  return join_steps(data_, options, result);
}

Status Reducer::result(uint64_t param, void* gradient) {
  return read_result(data_, param, gradient);
}

Status Reducer::sparse_result(uint64_t param, weft_sparse* result) {
  return read_sparse_result(data_, param, result);
}

Status Reducer::norms(weft_norms* norms, double* per_param) {
  return read_norms(data_, norms, per_param);
}

Status Reducer::owned(int32_t rank, weft_slice* slices, uint64_t* count) {
  return read_owned(data_, rank, slices, count);
}

Status Reducer::param(uint64_t param, weft_param_info* info) const {
  return read_param(data_, param, info);
}

Status Reducer::bucket(uint32_t bucket, weft_bucket_info* info, uint64_t* params, uint64_t capacity) {
  return read_bucket(data_, bucket, info, params, capacity);
}

uint32_t Reducer::bucket_count() const {
  return weft::bucket_count(*data_.state);
}

std::string Reducer::report() const {
  return report_json(data_);
}

Status Reducer::gather_params(const weft_gather_options& options, const Status& given) {
  return weft::gather_params(data_, options, given);
}

Status Reducer::replan(const weft_replan_options& options, const Status& given) {
  return replan_reducer(data_, options, given);
}

Status Reducer::broadcast(const weft_broadcast_options& options, const Status& given) {
  return broadcast_values(data_, options, given);
}

Status Reducer::check() {
  return compare_values(data_);
}

void Reducer::verdict(weft_verdict* verdict) const {
  read_verdict(data_, verdict);
}

Status Reducer::rebind(std::shared_ptr<Comm> comm) {
  return rebind_reducer(data_, std::move(comm));
}

Status Reducer::retry(const weft_finish_options& options) {
  return retry_step(data_, options);
}

}  // namespace weft
