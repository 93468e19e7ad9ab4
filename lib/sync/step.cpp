#include "sync/step.h"

#include <algorithm>

#include "base/text.h"
#include "core/context.h"

namespace weft {
namespace {

constexpr uint64_t kPieceBytes = 1u << 20;  // copied in one poll
constexpr uint32_t kWatchEvery = 64;        // fruitless polls between looks at the clock

// Whether such a collective completes only after every rank has started it.
bool needs_all(Coll coll) {
  return coll == Coll::kAllReduce || coll == Coll::kAllGather || coll == Coll::kReduceScatter ||
         coll == Coll::kAllToAll || coll == Coll::kBarrier;
}

}  // namespace

Step::Step(std::shared_ptr<ReducerState> state)
    : state_(std::move(state)),
      s_(*state_),
      engine_(s_.comm->context().engine()),
      clock_(s_.comm->context().clock()) {
  for (uint32_t b = 0; b < bucket_count(); b++) running_.emplace_back(engine_);
  pending_.reserve(bucket_count());
  results_.reserve(bucket_count());
}

void Step::prepare(uint64_t number, double divisor, uint64_t begin_ns) {
  number_ = number;
  divisor_ = divisor;
  begin_ns_ = begin_ns;
  deadline_ns_.store(UINT64_MAX, std::memory_order_relaxed);
  for (Running& r : running_) r.ready_ns.store(0, std::memory_order_relaxed);
}

Poll Step::poll() {
  const StepWord now = s_.readiness->step();
  if (!active_) {
    if (!now.open() || now.local() || now.stamp() == stamp_) return Poll::kParked;
    start(now.stamp());
  }
  if (s_.comm->failed()) return give_up();
  apply_deadline();
  bool advanced = resume();
  advanced |= collect();
  advanced |= launch();
  advanced |= submit();
  advanced |= copy_back();
  if (done_ == bucket_count()) {
    end();
    return Poll::kParked;
  }
  if (advanced) {
    fruitless_ = 0;
    return Poll::kAdvanced;
  }
  // Requests have deadlines of their own, and their lane knows better who is missing.
  if (collected_ < submitted_) return Poll::kWaiting;
  watch();
  return Poll::kParked;
}

void Step::start(uint32_t stamp) {
  active_ = true;
  stamp_ = stamp;
  launched_ = done_ = 0;
  submitted_ = collected_ = 0;
  result_ = copy_param_ = 0;
  copy_element_ = retained_ = 0;
  results_.clear();
  applied_deadline_ns_ = UINT64_MAX;
  first_launch_ns_ = last_done_ns_ = 0;
  for (Running& r : running_) {
    r.launch_ns = r.done_ns = 0;
    r.stages = 0;
  }
}

// The communicator has failed: the step is over once its requests have completed and results are in place.
Poll Step::give_up() {
  for (const uint32_t b : pending_) {
    s_.hook->gate().close(running_[b].generation);
    stage_given_up_ |= !running_[b].waiter.done();
  }
  pending_.clear();
  for (; collected_ < submitted_; collected_++) {
    if (!request(collected_).done()) return Poll::kWaiting;
  }
  if (s_.comm->dumping()) return Poll::kWaiting;
  // What has its result gets it whole: no gradient is left half written.
  if (copy_back()) return Poll::kAdvanced;
  const Code code = s_.comm->failure().code();
  for (uint32_t b = 0; b < bucket_count(); b++) {
    if (running_[b].done_ns == 0) report(b, code);
  }
  end();
  return Poll::kParked;
}

void Step::end() {
  active_ = false;
  finished_.store(stamp_, std::memory_order_release);
}

// Stages that completed since the last look.
bool Step::resume() {
  for (size_t i = 0; i < pending_.size(); i++) {
    const uint32_t b = pending_[i];
    if (!running_[b].waiter.done()) continue;
    pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(i));
    if (const Status& status = running_[b].waiter.result(); !status.ok()) {
      stage_failed(b, status);
    } else {
      stage_done(b);
    }
    return true;
  }
  return false;
}

// The oldest collective: the lane completes them in order.
bool Step::collect() {
  if (collected_ == submitted_ || !request(collected_).done()) return false;
  const Slot& slot = s_.schedule.slots[collected_];
  const uint32_t bucket = slot.bucket;
  const bool ok = request(collected_).result.ok();
  const bool left_out = slot.optional && running_[bucket].left_out;
  collected_++;
  // Who starts a step has finished the one before.
  if (ok && !left_out && needs_all(slot.args.coll)) commit(number_);
  if (ok) run_stage(bucket);  // otherwise the communicator has failed
  return true;
}

// Strictly in the plan's order: a full bucket waits for those before it.
bool Step::launch() {
  if (launched_ == bucket_count() || !s_.readiness->full(launched_)) return false;
  if (!retain(launched_)) return true;
  const uint32_t b = launched_++;
  running_[b].launch_ns = clock_.now_ns();
  if (b == 0) first_launch_ns_ = running_[b].launch_ns;
  trace(TraceKind::kLaunch, b, UINT32_MAX, running_[b].launch_ns, running_[b].launch_ns);
  weft_bucket& view = s_.views->bucket(b);
  view.step = number_;
  view.divisor = divisor_;
  run_stage(b);
  return true;
}

// Keep a bucket's contributions, a piece at a time: true when all are kept that are to be.
bool Step::retain(uint32_t bucket) {
  std::byte* const copy = s_.buckets->retained(bucket);
  if (copy == nullptr) return true;
  const uint64_t all = s_.plan.buckets[bucket].bytes();
  const uint64_t bytes = std::min(kPieceBytes, all - retained_);
  if (bytes > 0) std::copy_n(s_.buckets->buffers()[bucket] + retained_, bytes, copy + retained_);
  retained_ += bytes;
  if (retained_ < all) return false;
  retained_ = 0;
  return true;
}

// Strictly in the schedule's order.
bool Step::submit() {
  const size_t before = submitted_;
  while (submitted_ < s_.schedule.slots.size() && submitted_ - collected_ < requests_.size()) {
    const Slot& slot = s_.schedule.slots[submitted_];
    if (slot.bucket >= launched_ || running_[slot.bucket].stages <= slot.index) break;
    Request& next = request(submitted_);
    next.reset();
    next.start_ns = 0;
    next.args = slot.args;
    next.args.postscale = slot.average ? 1.0 / divisor_ : 1.0;
    next.deadline = Deadline::at(applied_deadline_ns_);
    if (slot.optional) next.args.tag += number_;  // a rank that left it out meets nobody one step later
    if (slot.optional && running_[slot.bucket].left_out) {
      next.complete({});
    } else {
      s_.lane->submit(&next);
    }
    submitted_++;
  }
  return submitted_ != before;
}

// Results go back bucket by bucket, in pieces, while later buckets travel.
bool Step::copy_back() {
  if (result_ == results_.size()) return false;
  if (copy_piece(results_[result_])) {
    bucket_done(results_[result_]);
    result_++;
    copy_param_ = 0;
    copy_element_ = 0;
  }
  return true;
}

bool Step::copy_piece(uint32_t bucket) {
  const std::lock_guard lock(copy_mutex_);
  if (sealed_) return true;
  const HookedBucket& hooked = s_.schedule.buckets[bucket];
  const PlannedBucket& planned = s_.plan.buckets[bucket];
  std::byte* const buffer = s_.buckets->buffers()[bucket];
  const std::byte* const result =
      (hooked.result_space == WEFT_SPACE_BUCKET ? buffer : s_.scratch->parts()[bucket]) +
      hooked.result_offset;
  if (!s_.copy && result == buffer) return true;
  const DeviceOps& ops = s_.comm->context().host();
  for (uint64_t bytes = 0; bytes < kPieceBytes;) {
    if (copy_param_ == planned.params.size()) return true;
    const uint32_t param = planned.params[copy_param_];
    const Buckets::Place& place = s_.buckets->place(param);
    const uint64_t left = std::max<uint64_t>((kPieceBytes - bytes) / place.element_bytes, 1);
    const std::byte* const from = result + planned.offsets[copy_param_] * place.element_bytes;
    uint64_t count = 0;
    if (s_.copy) {
      count = place.layout->piece(copy_element_, left);
      place.layout->unflatten(ops, from, s_.gradients[param], copy_element_, count);
    } else {
      count = std::min(left, place.count - copy_element_);
      const uint64_t at = copy_element_ * place.element_bytes;
      if (count > 0) std::copy_n(from + at, count * place.element_bytes, place.memory + at);
    }
    bytes += std::max<uint64_t>(count * place.element_bytes, 64);
    copy_element_ += count;
    if (copy_element_ == place.count) {
      copy_param_++;
      copy_element_ = 0;
    }
  }
  return copy_param_ == planned.params.size();
}

void Step::bucket_done(uint32_t bucket) {
  running_[bucket].done_ns = last_done_ns_ = clock_.now_ns();
  done_++;
  trace(TraceKind::kDone, bucket, UINT32_MAX, last_done_ns_, last_done_ns_);
  report(bucket, Code::kOk);
}

void Step::report(uint32_t bucket, Code code) {
  if (s_.on_bucket == nullptr) return;
  s_.comm->context().callbacks().post([call = s_.on_bucket, data = s_.on_bucket_user_data, step = number_,
                                       bucket,
                                       code] { call(data, step, bucket, static_cast<weft_status>(code)); });
}

void Step::run_stage(uint32_t bucket) {
  Running& running = running_[bucket];
  weft_stage stage{};
  stage.struct_size = sizeof stage;
  stage.index = running.stages;
  // Opened before the call: the completion may come before the call returns.
  running.generation = s_.hook->gate().open(&running.waiter);
  stage.token = {bucket, stage.index, running.generation};
  running.stage_began_ns = s_.comm->context().trace() != nullptr ? clock_.now_ns() : 0;
  Status status = s_.comm->reach(FailPlace::kStage, bucket, stage.index);
  if (status.ok()) status = s_.hook->stage(s_.views->bucket(bucket), &stage);
  running.left_out = stage.dynamic_count == 0;
  if (status.ok() && stage.pending != 0) {
    pending_.push_back(bucket);
    return;
  }
  s_.hook->gate().close(running.generation);
  if (status.ok()) {
    stage_done(bucket);
  } else {
    stage_failed(bucket, status);
  }
}

void Step::stage_done(uint32_t bucket) {
  Running& running = running_[bucket];
  if (running.stage_began_ns != 0) {
    trace(TraceKind::kStage, bucket, running.stages, running.stage_began_ns, clock_.now_ns());
  }
  running.stages++;
  if (running.stages == s_.schedule.buckets[bucket].collectives + 1) results_.push_back(bucket);
}

void Step::stage_failed(uint32_t bucket, const Status& status) {
  s_.comm->fail(
      status
          .with_prefix(cat("rank ", s_.comm->rank(), ", step ", number_, ", ",
                           s_.plan.text(s_.manifest, bucket), ", stage ", running_[bucket].stages, ": "))
          .with_ranks({s_.comm->rank()})
          .with_step(number_));
}

void Step::apply_deadline() {
  const uint64_t deadline = deadline_ns_.load(std::memory_order_acquire);
  if (deadline == applied_deadline_ns_) return;
  applied_deadline_ns_ = deadline;
  for (size_t i = collected_; i < submitted_; i++) request(i).deadline = Deadline::at(deadline);
}

// Nothing is on the lane: a stage is pending, or a gradient is still being copied.
void Step::watch() {
  if (applied_deadline_ns_ == UINT64_MAX || ++fruitless_ % kWatchEvery != 0) return;
  if (!Deadline::at(applied_deadline_ns_).expired(clock_)) return;
  s_.comm->fail(
      Status::error(Code::kTimeout,
                    cat("rank ", s_.comm->rank(), ", step ", number_, " passed its deadline: ", where()),
                    Evidence::kDeadline)
          .with_ranks({s_.comm->rank()})
          .with_step(number_));
}

std::string Step::where() const {
  if (!pending_.empty()) {
    const uint32_t b = pending_.front();
    return cat("hook '", s_.hook->name(), "' has not completed stage ", running_[b].stages, " of ",
               s_.plan.text(s_.manifest, b));
  }
  if (collected_ < submitted_) {
    const Slot& slot = s_.schedule.slots[collected_];
    return cat("collective ", slot.index, " of ", s_.plan.text(s_.manifest, slot.bucket), " is under way");
  }
  if (launched_ < bucket_count()) {
    return cat("gradients of ", s_.plan.text(s_.manifest, launched_), " are still being handed over");
  }
  return "results are being copied back";
}

FlightStep Step::flight_step() const {
  FlightStep now;
  now.buckets = bucket_count();
  if (!active_) return now;
  now.step = number_;
  now.launched = launched_;
  now.done = done_;
  now.where = where();
  return now;
}

Step::Times Step::times(uint32_t bucket) const {
  const Running& r = running_[bucket];
  return {r.ready_ns.load(std::memory_order_relaxed), r.launch_ns, r.done_ns};
}

uint64_t Step::memory_bytes() const {
  return sizeof *this + running_.size() * sizeof(Running) +
         (pending_.capacity() + results_.capacity()) * sizeof(uint32_t);
}

void Step::trace(TraceKind kind, uint32_t bucket, uint32_t stage, uint64_t begin_ns, uint64_t end_ns) {
  TraceSink* const sink = s_.comm->context().trace();
  if (sink == nullptr) return;
  TraceEvent event;
  event.kind = kind;
  // A bucket is called after its first parameter.
  event.name = s_.manifest.params[s_.plan.buckets[bucket].params.front()].name.c_str();
  event.begin_ns = begin_ns;
  event.end_ns = end_ns;
  event.rank = s_.comm->rank();
  event.lane = s_.lane->key().id;
  event.bucket = bucket;
  event.stage = stage;
  event.index = number_;
  event.bytes = s_.plan.buckets[bucket].bytes();
  sink->record(event);
}

}  // namespace weft
