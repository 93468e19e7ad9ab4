#include "reducer/step/step.h"

#include <algorithm>

#include "base/text.h"
#include "comm/context.h"
#include "reducer/step/bucket_trace.h"

namespace weft {
namespace {

constexpr uint32_t kWatchEvery = 64;  // idle polls between reads of the clock
// Extra time of the collectives' deadline over the step's. The rank whose stage does not return thus reports
// the timeout first.
constexpr uint64_t kStageFirstNs = 250'000'000;
// The time for a stage to return after the communicator has failed, unless the step's deadline passes first.
// The next call (rebind, destroy) then finds no stage of the hook running.
constexpr uint64_t kReturnNs = 1'000'000'000;

}  // namespace

Step::Step(std::shared_ptr<ReducerState> state)
    : state_(std::move(state)),
      s_(*state_),
      clock_(s_.comm->context().clock()),
      streams_(s_.comm->context().gate()),
      results_(s_, step_, buckets_, streams_),
      collectives_(s_, step_, buckets_, results_.writing()) {
  step_.buckets.resize(bucket_count());
  pending_.reserve(bucket_count());
  std::vector<size_t> counts(bucket_count());
  for (const Slot& slot : s_.schedule.slots) {
    const Comm& comm = slot.own ? *s_.hook->comm() : *s_.comm;
    if (slot.dynamic) counts[slot.bucket] = static_cast<size_t>(comm.size());
  }
  for (uint32_t b = 0; b < bucket_count(); b++) {
    auto job = std::make_shared<StageJob>(state_, b, counts[b]);
    buckets_.emplace_back(b, s_.comm->context().engine(), std::move(job));
  }
}

void Step::prepare(const StepStart& start) {
  step_.begun = start;
  for (const auto& exchange : s_.exchanges) exchange->prepare();
  collectives_.prepare();
  deadline_ns_.store(UINT64_MAX, std::memory_order_relaxed);
  for (std::atomic<uint64_t>& ready_ns : *s_.ready_ns) ready_ns.store(0, std::memory_order_relaxed);
}

Poll Step::poll() {
  const StepWord now = s_.readiness->step();
  device_waits_ = false;
  if (!active_) {
    if (now.local() || now.stamp() == step_.stamp) return Poll::kParked;
    // A step that finish() closed before it started is abandoned here, because the reducer's destructor waits
    // for its end.
    if (!now.open() && !step_.sealed) return Poll::kParked;
    start(now.stamp());
  }
  if (s_.comm->failed()) return give_up();
  apply_deadline();
  bool advanced = resume();
  advanced |= collect();
  watch_pre_step();
  advanced |= launch();
  advanced |= collectives_.submit(request_deadline());
  advanced |= give_back();
  const bool all_done = results_.complete() && collectives_.over();
  if (step_.handshake.outcome == StepOutcome::kExhausted) {
    results_.report_rest(Code::kState);
  }
  if (all_done || step_.handshake.outcome != StepOutcome::kReduce) {
    end();
    return Poll::kParked;
  }
  if (advanced) {
    idle_polls_ = 0;
    return Poll::kAdvanced;
  }
  // Submitted requests have their own deadlines, and the lane's error names the missing ranks.
  if (collectives_.waiting()) {
    collectives_.waits().look(*s_.lane, clock_.now_ns());
    if (!pending_.empty()) watch();
    return Poll::kWaiting;
  }
  watch();
  return idle();
}

void Step::start(uint32_t stamp) {
  active_ = true;
  step_.start(stamp, s_.comm->size());
  for (const auto& exchange : s_.exchanges) exchange->start(step_);
  skipped_ = 0;
  preparing_.start();
  results_.start();
  collectives_.start();
  s_.lane->share_waits(&waits());
  applied_deadline_ns_ = UINT64_MAX;
  given_up_ns_ = 0;
  first_launch_ns_ = 0;
  for (BucketRun& bucket : buckets_) bucket.start();
}

// Ends the step after the communicator has failed: once its requests have completed and results are in place.
Poll Step::give_up() {
  // The hook's communicator fails too, so that its other ranks do not wait for this one.
  if (s_.hook_lane && !s_.hook->comm()->failed()) s_.hook->comm()->fail(s_.comm->failure().with_ranks({}));
  if (!stages_ended()) return Poll::kWaiting;
  if (!collectives_.settled()) return Poll::kWaiting;
  if (s_.comm->dumping()) return Poll::kWaiting;
  // The work on the next bucket may still access it.
  if (preparing_.current() != nullptr && !preparing_.current()->quiet()) return Poll::kWaiting;
  // Buckets with a result are copied back completely, so that no gradient is left half written.
  if (give_back()) return Poll::kAdvanced;
  if (device_waits_) return Poll::kWaiting;
  results_.report_rest(s_.comm->failure().code());
  end();
  return Poll::kParked;
}

void Step::end() {
  active_ = false;
  s_.lane->share_waits(nullptr);
  finished_.store(step_.stamp, std::memory_order_release);
  streams_.release(HeldStreams::kWholeStep);
}

// Collects a collective, and runs the stage after it.
bool Step::collect() {
  const StepCollectives::Collected collected = collectives_.collect();
  // A rank that starts a step has finished the one before.
  if (collected.all_began) commit(step_.begun.number);
  if (collected.bucket != StepCollectives::kNone) run_stage(collected.bucket);
  return collected.any;
}

void Step::watch_pre_step() {
  if (!step_.opened || !step_.compared || !collectives_.first_over() || pre_step_done(step_.stamp)) return;
  if (!s_.comm->failed()) pre_step_done_.store(step_.stamp, std::memory_order_release);
}

// Launches strictly in the plan's order: a full bucket waits for the buckets before it.
bool Step::launch() {
  if (!step_.opened || !step_.compared || step_.launched == bucket_count() ||
      !s_.readiness->full(step_.launched))
    return false;
  const uint32_t b = step_.launched;
  const Progress prepared = preparing_.go_on(s_.works.prepare[b], step_, b);
  if (prepared != Progress::kDone) return worked(prepared);
  step_.launched++;
  if (step_.buckets[b].skipped) {
    results_.add(b);
    skipped_++;
    return true;
  }
  const uint64_t now_ns = clock_.now_ns();
  buckets_[b].launch_ns = now_ns;
  buckets_[b].number = step_.begun.number;
  if (first_launch_ns_ == 0) first_launch_ns_ = now_ns;
  trace_bucket(s_, step_, TraceKind::kLaunch, b, UINT32_MAX, now_ns, now_ns);
  weft_bucket& view = s_.views->bucket(b);
  view.step = step_.begun.number;
  view.divisor = collectives_.divisor(s_.hook_lane != nullptr);
  run_stage(b, step_.begun.zeros && (step_.begun.record.flags & HandshakeRecord::kData) == 0);
  return true;
}

// Begins the bucket's next stage.
void Step::run_stage(uint32_t bucket, bool joins) {
  const Progress begun = s_.stages[bucket]->begin(step_, buckets_[bucket], joins);
  if (begun == Progress::kDone) {
    stage_done(bucket);
  } else if (begun != Progress::kOver) {
    pending_.push_back(bucket);
  }
}

// Does a piece of a stage, or completes one.
bool Step::resume() {
  for (size_t i = 0; i < pending_.size(); i++) {
    const uint32_t b = pending_[i];
    const Progress progress = s_.stages[b]->piece(step_, buckets_[b]);
    if (progress == Progress::kWaiting) continue;
    if (progress == Progress::kMore) return true;
    pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(i));
    if (progress == Progress::kDone) stage_done(b);
    return true;
  }
  return false;
}

void Step::stage_done(uint32_t bucket) {
  const uint32_t stages = ++buckets_[bucket].stages;
  if (stages == s_.schedule.buckets[bucket].collectives + 1) results_.add(bucket);
}

// Ends the stages after a failure. A stage that has not begun is cancelled. A running one has kReturnNs to
// return, and is then set aside: it keeps the objects that it uses until it returns.
bool Step::stages_ended() {
  if (given_up_ns_ == 0) given_up_ns_ = clock_.now_ns();
  bool out = false;
  for (const uint32_t b : pending_) out |= !s_.stages[b]->quiet(buckets_[b]);
  const uint64_t now = out ? clock_.now_ns() : 0;
  if (out && now < applied_deadline_ns_ && now - given_up_ns_ < kReturnNs) return false;
  if (out) left_text_ = where();
  for (const uint32_t b : pending_) s_.stages[b]->leave(buckets_[b]);
  pending_.clear();
  return true;
}

bool Step::bring_rest(Deadline deadline) {
  for (uint32_t b = step_.launched; b < bucket_count(); b++) {
    for (BucketWork* const work : s_.works.prepare[b]) {
      if (!work->bring(step_, b, deadline)) return false;
    }
  }
  return true;
}

void Step::hold(const DeviceCall& call, uint32_t stamp, uint32_t bucket) {
  streams_.add(call, bucket);
  // The step or the bucket may have ended just before that, and nothing would release the stream later. A
  // step with another stamp is over as well.
  if (finished(stamp) || s_.readiness->step().stamp() != stamp) {
    streams_.release(HeldStreams::kWholeStep);
  } else if (bucket != HeldStreams::kWholeStep && done(bucket, stamp)) {
    streams_.release(bucket);
  }
}

bool Step::seal(Deadline deadline) {
  const bool sealed = results_.seal(deadline);
  streams_.release(HeldStreams::kWholeStep);
  return sealed;
}

void Step::apply_deadline() {
  const uint64_t deadline = deadline_ns_.load(std::memory_order_acquire);
  if (deadline == applied_deadline_ns_) return;
  applied_deadline_ns_ = deadline;
  collectives_.set_deadline(request_deadline());
}

Deadline Step::request_deadline() const {
  const uint64_t later = s_.hook->stage_kind() == StageKind::kNothing ? 0 : kStageFirstNs;
  return Deadline::at(applied_deadline_ns_ + std::min(later, UINT64_MAX - applied_deadline_ns_));
}

// Checks the deadline while no request is on the lane: a stage is pending, or a gradient is still being
// copied.
void Step::watch() {
  if (++idle_polls_ % kWatchEvery != 0) return;
  if (!pending_.empty()) s_.comm->context().stages().relieve();
  if (!Deadline::at(applied_deadline_ns_).expired(clock_)) return;
  s_.comm->fail(Status::error(Code::kTimeout,
                              cat("rank ", s_.comm->rank(), ", step ", step_.begun.number,
                                  " passed its deadline: ", where()),
                              Evidence::kDeadline)
                    .with_ranks({s_.comm->rank()})
                    .with_step(step_.begun.number));
}

std::string Step::where() const {
  if (!pending_.empty()) {
    const auto runs = [&](uint32_t b) { return buckets_[b].job->running(); };
    const auto begun = [&](uint32_t b) { return !buckets_[b].job->out(); };
    auto found = std::find_if(pending_.begin(), pending_.end(), runs);
    if (found == pending_.end()) found = std::find_if(pending_.begin(), pending_.end(), begun);
    const uint32_t b = found != pending_.end() ? *found : pending_.front();
    return s_.stages[b]->awaited(buckets_[b]);
  }
  if (collectives_.waiting()) return collectives_.awaited();
  if (step_.launched < bucket_count()) {
    const char* const what = preparing_.current() != nullptr
                                 ? preparing_.current()->awaited()
                                 : " are not ready, or are being copied by weft_reducer_ready";
    return cat("gradients of ", s_.plan.text(s_.manifest, step_.launched), what);
  }
  if (collectives_.awaits_finish()) return "this rank has not called finish";
  return results_.awaited();
}

const char* Step::departure_hint() const {
  return s_.has(WEFT_REDUCER_UNEVEN)
             ? "; a rank without data calls weft_reducer_join, which returns when no rank has any, before it "
               "leaves"
             : "; if ranks may have different numbers of steps, create the reducer with WEFT_REDUCER_UNEVEN "
               "and call weft_reducer_join on each rank that has no more data";
}

FlightStep Step::flight_step() const {
  FlightStep now;
  now.buckets = bucket_count();
  if (!active_) return now;
  now.step = step_.begun.number;
  now.launched = step_.launched;
  now.done = results_.done();
  now.where = where();
  return now;
}

Step::Times Step::times(uint32_t bucket) const {
  const BucketRun& r = buckets_[bucket];
  const StepContext::Bucket& here = step_.buckets[bucket];
  return {(*s_.ready_ns)[bucket].load(std::memory_order_relaxed),
          r.launch_ns,
          done_ns(bucket),
          r.transfer_ns,
          r.sent_bytes,
          r.least_bytes,
          here.absent,
          here.skipped,
          here.skipped ? std::nullopt : r.job->error_memory()};
}

uint64_t Step::memory_bytes() const {
  uint64_t jobs = 0;
  for (const BucketRun& running : buckets_) jobs += running.job->memory_bytes();
  for (const auto& exchange : s_.exchanges) jobs += exchange->memory_bytes();
  for (const auto& work : s_.works.all) jobs += work->memory_bytes();
  return sizeof *this + jobs + buckets_.size() * sizeof(BucketRun) + pending_.capacity() * sizeof(uint32_t) +
         results_.memory_bytes() + collectives_.memory_bytes() + streams_.memory_bytes();
}

}  // namespace weft
