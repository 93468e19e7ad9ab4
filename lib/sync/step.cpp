#include "sync/step.h"

#include <algorithm>

#include "base/text.h"
#include "core/context.h"
#include "sync/counts.h"

namespace weft {
namespace {

constexpr uint64_t kPieceBytes = 1u << 20;  // copied or scaled in one poll
constexpr uint32_t kWatchEvery = 64;        // fruitless polls between looks at the clock

// Whether such a collective completes on this rank only after every rank has started it.
bool needs_all(const CollectiveArgs& args, int rank) {
  const Coll coll = args.coll;
  return (coll == Coll::kReduce && args.peer == rank) || coll == Coll::kAllReduce ||
         coll == Coll::kAllGather || coll == Coll::kReduceScatter || coll == Coll::kAllToAll ||
         coll == Coll::kBarrier;
}

}  // namespace

Step::Step(std::shared_ptr<ReducerState> state)
    : state_(std::move(state)),
      s_(*state_),
      engine_(s_.comm->context().engine()),
      clock_(s_.comm->context().clock()),
      waits_(s_.comm->size()) {
  for (uint32_t b = 0; b < bucket_count(); b++) running_.emplace_back(engine_);
  pending_.reserve(bucket_count());
  results_.reserve(bucket_count());
  late_.reserve(bucket_count());
  for (const Slot& slot : s_.schedule.slots) {
    const Comm& comm = slot.own ? *s_.hook->comm() : *s_.comm;
    if (slot.dynamic) running_[slot.bucket].counts.resize(static_cast<size_t>(comm.size()));
  }
  if (s_.uneven) records_.resize(static_cast<size_t>(s_.comm->size()));
  if (s_.norms) finishing_.resize(static_cast<size_t>(s_.comm->size()));
  if (s_.prelude && s_.prelude->compares()) digests_.resize(static_cast<size_t>(s_.comm->size()));
}

void Step::prepare(const StepStart& start) {
  begun_ = start;
  told_.store(false, std::memory_order_relaxed);
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
  watch_prelude();
  advanced |= launch();
  advanced |= submit();
  advanced |= copy_back();
  const bool all_done = done_ == bucket_count() && collected_ == s_.schedule.slots.size();
  if (opening_.turn == Turn::kExhausted) {
    for (uint32_t b = 0; b < bucket_count(); b++) report(b, Code::kState);
  }
  if (all_done || opening_.turn != Turn::kReduce) {
    end();
    return Poll::kParked;
  }
  if (advanced) {
    fruitless_ = 0;
    return Poll::kAdvanced;
  }
  // Requests have deadlines of their own, and their lane knows better who is missing.
  if (collected_ < submitted_) {
    waits_.look(*s_.lane, clock_.now_ns());
    return Poll::kWaiting;
  }
  watch();
  return Poll::kParked;
}

void Step::start(uint32_t stamp) {
  active_ = true;
  stamp_ = stamp;
  launched_ = done_ = skipped_ = measured_ = 0;
  submitted_ = collected_ = 0;
  result_ = late_at_ = copy_param_ = 0;
  copy_element_ = made_up_ = restored_ = 0;
  copying_ = kNone;
  sent_bytes_ = 0;
  results_.clear();
  late_.clear();
  mapped_ = heard_ = ruled_ = false;
  opened_ = !s_.uneven;
  compared_ = !s_.prelude || !s_.prelude->compares(begun_.number);
  opening_ = even_opening(s_.comm->size(), begun_.record.micro_batches);
  waits_.clear();
  applied_deadline_ns_ = UINT64_MAX;
  first_launch_ns_ = last_done_ns_ = 0;
  for (Running& r : running_) {
    r.launch_ns = r.done_ns = r.transfer_ns = r.sent_bytes = 0;
    r.stages = r.absent = 0;
    r.counted = UINT32_MAX;
    r.skipped = false;
  }
}

// The communicator has failed: the step is over once its requests have completed and results are in place.
Poll Step::give_up() {
  // Whoever shares the hook's communicator has failed as well, or will.
  if (s_.hook_lane && !s_.hook->comm()->failed()) s_.hook->comm()->fail(s_.comm->failure().with_ranks({}));
  for (const uint32_t b : pending_) {
    if (s_.plan.buckets[b].sparse) continue;
    s_.hook->gate().close(running_[b].generation);
    stage_given_up_ |= !running_[b].waiter.done();
  }
  pending_.clear();
  for (; collected_ < submitted_; collected_++) {
    if (!skips(s_.schedule.slots[collected_]) && !request(collected_).done()) return Poll::kWaiting;
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
    if (s_.plan.buckets[b].sparse && !work_on_sparse(b)) return true;
    if (!s_.plan.buckets[b].sparse && !running_[b].waiter.done()) continue;
    pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(i));
    if (s_.plan.buckets[b].sparse) {
      stage_done(b);
    } else if (const Status& status = running_[b].waiter.result(); !status.ok()) {
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
  if (collected_ == submitted_) return false;
  const Slot& slot = s_.schedule.slots[collected_];
  if (skips(slot)) {
    collected_++;
    return true;
  }
  if (!request(collected_).done()) return false;
  const bool ok = request(collected_).result.ok();
  const bool took_place = !left_out(slot);
  const uint64_t began_ns = std::max(submitted_ns_[collected_ % requests_.size()], collected_ns_);
  collected_ns_ = clock_.now_ns();
  waits_.end(collected_ns_);
  if (slot.of_bucket() && took_place) {
    running_[slot.bucket].transfer_ns += collected_ns_ - began_ns;
  }
  collected_++;
  if (!ok) {
    own_failed(slot);  // else the communicator has failed
    return true;
  }
  // Who starts a step has finished the one before.
  if (took_place && !slot.own && needs_all(slot.args, s_.comm->rank())) commit(begun_.number);
  switch (slot.kind) {
    case Slot::Kind::kOpening:
      opened();
      break;
    case Slot::Kind::kCompare:
      compared();
      break;
    case Slot::Kind::kBuffers:
      break;
    case Slot::Kind::kMap:
      mapped_ = true;
      break;
    case Slot::Kind::kNorms:
      break;
    case Slot::Kind::kFinish:
      heard_ = true;
      break;
    case Slot::Kind::kCounts:
      counted(slot);
      break;
    case Slot::Kind::kSparse:
    case Slot::Kind::kBucket:
      if (slot.last) run_stage(slot.bucket);
  }
  return true;
}

// What the ranks count of a dynamic collective is known.
void Step::counted(const Slot& slot) {
  Running& running = running_[slot.bucket];
  const uint64_t most = s_.schedule.slots[collected_].args.count;  // the collective follows
  const Status judged = judge_counts(running.counts, most, &running.moved);
  if (judged.ok()) {
    running.counted = slot.index;
  } else {
    s_.comm->fail(
        judged.with_prefix(cat(s_.plan.text(s_.manifest, slot.bucket), ", collective ", slot.index, ": "))
            .with_step(begun_.number));
  }
}

// Of a collective over the hook's communicator, whose failure is the step's.
void Step::own_failed(const Slot& slot) {
  if (!slot.own || s_.comm->failed()) return;
  const Status failure = s_.hook->comm()->failure();
  s_.comm->fail(failure
                    .with_prefix(cat("rank ", s_.comm->rank(), ", step ", begun_.number,
                                     ", the hook's own communicator: "))
                    .with_ranks({})
                    .with_step(begun_.number));
}

// What averages over the hook's communicator divide by, or those over the reducer's.
double Step::divisor(bool own) const {
  if (!own) return opening_.divisor;
  return opening_.divisor / s_.comm->size() * s_.hook->comm()->size();
}

// All ranks have begun the step, and draw the same conclusion.
void Step::opened() {
  const Status judged = judge_opening(records_, s_.comm->rank(), s_.rules, &opening_);
  opened_ = judged.ok() && opening_.turn == Turn::kReduce;
  if (!judged.ok()) s_.comm->fail(judged.with_step(begun_.number));
}

// The ranks' values are equal, or the step is not reduced. A rank that has joined updates nothing: what it
// holds may be old.
void Step::compared() {
  int first = -1;
  for (int r = 0; r < s_.comm->size(); r++) {
    if (std::binary_search(opening_.joined.begin(), opening_.joined.end(), r)) continue;
    if (first < 0) first = r;
    if (digests_[static_cast<size_t>(r)] != digests_[static_cast<size_t>(first)])
      opening_.turn = Turn::kDiffers;
  }
  compared_ = opening_.turn == Turn::kReduce;
}

void Step::watch_prelude() {
  if (!opened_ || !compared_ || collected_ < s_.schedule.leading || prelude_over(stamp_)) return;
  if (!s_.comm->failed()) prelude_over_.store(stamp_, std::memory_order_release);
}

// Strictly in the plan's order: a full bucket waits for those before it.
bool Step::launch() {
  if (!opened_ || !compared_ || launched_ == bucket_count() || !s_.readiness->full(launched_)) return false;
  if (made_up_ == 0) look_at(launched_);
  if (running_[launched_].skipped) {
    results_.push_back(launched_++);
    skipped_++;
    return true;
  }
  if (!make_up(launched_)) return true;
  const uint32_t b = launched_++;
  running_[b].launch_ns = clock_.now_ns();
  if (first_launch_ns_ == 0) first_launch_ns_ = running_[b].launch_ns;
  trace(TraceKind::kLaunch, b, UINT32_MAX, running_[b].launch_ns, running_[b].launch_ns);
  weft_bucket& view = s_.views->bucket(b);
  view.step = begun_.number;
  view.divisor = divisor(s_.hook_lane != nullptr);
  const bool empty = begun_.zeros && (begun_.record.flags & OpeningRecord::kData) == 0;
  if (const Status joined = empty ? s_.hook->join(view) : Status(); !joined.ok()) {
    stage_failed(b, joined);
    return true;
  }
  run_stage(b);
  return true;
}

// What of a full bucket is absent.
void Step::look_at(uint32_t bucket) {
  Running& running = running_[bucket];
  const std::vector<uint32_t>& params = s_.plan.buckets[bucket].params;
  for (size_t i = 0; begun_.zeros && i < params.size(); i++) {
    if (s_.presence->absent(params[i], stamp_)) clear_place(s_.buckets->place(params[i]));
  }
  if (!s_.mapped && !begun_.fixed) return;
  running.absent = static_cast<uint32_t>(std::count_if(
      params.begin(), params.end(), [&](uint32_t param) { return s_.presence->absent(param, stamp_); }));
  running.skipped = begun_.fixed && running.absent == params.size();
}

// Before a bucket travels, a piece at a time: keep its contributions; then scale them by the rank's weight
// and give them the type in which they travel. True when that is done.
bool Step::make_up(uint32_t bucket) {
  const PlannedBucket& planned = s_.plan.buckets[bucket];
  const Dtype held = s_.buckets->held(bucket);
  const uint64_t element = dtype_size(held), count = planned.count;
  std::byte* const buffer = s_.buckets->buffers()[bucket];
  std::byte* const copy = s_.buckets->retained(bucket);
  const double factor = opening_.factor;
  if (copy == nullptr && made_up_ < count) made_up_ = count;
  if (made_up_ < count) {
    const uint64_t n = std::min(kPieceBytes / element, count - made_up_);
    std::copy_n(buffer + made_up_ * element, n * element, copy + made_up_ * element);
    made_up_ += n;
    return false;
  }
  if (made_up_ < 2 * count && (factor != 1 || held != planned.dtype)) {
    const uint64_t done = made_up_ - count;
    const uint64_t n = std::min(kPieceBytes / element, count - done);
    const bool wider = dtype_size(planned.dtype) > element;
    convert_in_place(s_.comm->context().host(), buffer, held, planned.dtype, wider ? count - done - n : done,
                     n, factor);
    made_up_ += n;
    if (made_up_ < 2 * count) return false;
  }
  made_up_ = 0;
  return true;
}

// Slots that all ranks pass over in this step.
bool Step::skips(const Slot& slot) const {
  switch (slot.kind) {
    case Slot::Kind::kMap:
      return begun_.fixed;
    case Slot::Kind::kCompare:
      return !s_.prelude->compares(begun_.number);
    case Slot::Kind::kBuffers:
      return s_.prelude->root(opening_, s_.comm->size()) < 0;  // nobody has data
    case Slot::Kind::kOpening:
      return false;
    default:
      return slot.of_bucket() && running_[slot.bucket].skipped;
  }
}

// A collective of a bucket that does not take place in this step, on any rank.
bool Step::left_out(const Slot& slot) const {
  const Running& running = running_[slot.bucket];
  return (slot.optional && running.count == 0) || (slot.dynamic && running.moved == 0);
}

bool Step::may_submit(const Slot& slot) const {
  switch (slot.kind) {
    case Slot::Kind::kOpening:
      return true;
    case Slot::Kind::kCompare:
      return opened_;
    case Slot::Kind::kBuffers:
      return opened_ && compared_;
    case Slot::Kind::kMap:
      return launched_ == bucket_count();
    case Slot::Kind::kFinish:
      return told_.load(std::memory_order_acquire);
    case Slot::Kind::kNorms:
      return measured_ == bucket_count();
    case Slot::Kind::kCounts:
    case Slot::Kind::kSparse:
    case Slot::Kind::kBucket:
      break;
  }
  const Running& running = running_[slot.bucket];
  if (slot.bucket >= launched_) return false;
  if (running.skipped) return true;
  return running.stages > slot.index && (!slot.dynamic || running.counted == slot.index);
}

// The hook counts no more than it declared.
bool Step::allowed(const Slot& slot) {
  if (slot.kind != Slot::Kind::kCounts) return true;
  const uint64_t most = s_.schedule.slots[submitted_ + 1].args.count;
  const uint64_t count = running_[slot.bucket].count;
  if (count <= most) return true;
  stage_failed(slot.bucket, Status::error(Code::kHook, cat("hook '", s_.hook->name(), "' counts ", count,
                                                           " for collective ", slot.index,
                                                           ", of which it declared at most ", most)));
  return false;
}

// What is known of a slot's collective only now.
void Step::fill(const Slot& slot, CollectiveArgs* args) {
  args->postscale = slot.average ? 1.0 / divisor(slot.own) : 1.0;
  if (args->coll == Coll::kReduce && args->peer != s_.comm->rank()) args->dst = nullptr;
  if (slot.kind == Slot::Kind::kOpening) {
    args->src = reinterpret_cast<const std::byte*>(&begun_.record);
    args->dst = reinterpret_cast<std::byte*>(records_.data());
  } else if (slot.kind == Slot::Kind::kMap) {
    s_.presence->map(stamp_);
    args->src = reinterpret_cast<const std::byte*>(s_.presence->here().data());
    args->dst = reinterpret_cast<std::byte*>(s_.presence->anywhere().data());
  } else if (slot.kind == Slot::Kind::kCompare) {
    args->src = reinterpret_cast<const std::byte*>(&begun_.digest);
    args->dst = reinterpret_cast<std::byte*>(digests_.data());
  } else if (slot.kind == Slot::Kind::kBuffers) {
    args->peer = s_.prelude->root(opening_, s_.comm->size());
    args->src = args->dst = s_.prelude->memory(s_.manifest, slot.index);
  } else if (slot.kind == Slot::Kind::kNorms) {
    args->src = args->dst = reinterpret_cast<std::byte*>(s_.norms->sums().data());
  } else if (slot.kind == Slot::Kind::kFinish) {
    args->src = reinterpret_cast<const std::byte*>(&record_);
    args->dst = reinterpret_cast<std::byte*>(finishing_.data());
  } else if (slot.kind == Slot::Kind::kCounts) {
    args->src = reinterpret_cast<const std::byte*>(&running_[slot.bucket].count);
    args->dst = reinterpret_cast<std::byte*>(running_[slot.bucket].counts.data());
  } else if (slot.kind == Slot::Kind::kSparse) {
    sparse(slot.bucket).fill(slot.index, args);
    args->ordered = s_.ordered && is_reduction(args->coll);
  } else if (slot.dynamic) {
    args->count = running_[slot.bucket].moved;
  }
}

// Strictly in the schedule's order.
bool Step::submit() {
  const size_t before = submitted_;
  while (submitted_ < s_.schedule.slots.size() && submitted_ - collected_ < requests_.size()) {
    const Slot& slot = s_.schedule.slots[submitted_];
    if (!may_submit(slot)) break;
    if (skips(slot)) {
      submitted_++;
      continue;
    }
    if (!allowed(slot)) break;
    Request& next = request(submitted_);
    next.reset();
    next.start_ns = 0;
    next.args = slot.args;
    fill(slot, &next.args);
    next.deadline = Deadline::at(applied_deadline_ns_);
    if (slot.optional) next.args.tag += begun_.number;  // a rank that left it out meets nobody one step later
    if (left_out(slot)) {
      next.complete({});
    } else {
      const Comm& comm = slot.own ? *s_.hook->comm() : *s_.comm;
      const uint64_t bytes = least_bytes(next.args, comm.size());
      if (slot.kind != Slot::Kind::kBuffers) sent_bytes_ += bytes;
      if (slot.of_bucket()) running_[slot.bucket].sent_bytes += bytes;
      submitted_ns_[submitted_ % requests_.size()] = clock_.now_ns();
      (slot.own ? s_.hook_lane : s_.lane)->submit(&next);
    }
    submitted_++;
  }
  return submitted_ != before;
}

void Step::run_stage(uint32_t bucket) {
  if (s_.plan.buckets[bucket].sparse) return run_sparse_stage(bucket);
  Running& running = running_[bucket];
  weft_stage stage{};
  stage.struct_size = sizeof stage;
  stage.index = running.stages;
  if (running.stages > 0 && running.counted == running.stages - 1) {
    stage.counts = running.counts.data();
    stage.moved_count = running.moved;
  }
  // Opened before the call: the completion may come before the call returns.
  running.generation = s_.hook->gate().open(&running.waiter);
  stage.token = {bucket, stage.index, running.generation};
  running.stage_began_ns = s_.comm->context().trace() != nullptr ? clock_.now_ns() : 0;
  Status status = s_.comm->reach(FailPlace::kStage, bucket, stage.index);
  if (status.ok()) status = s_.hook->stage(s_.views->bucket(bucket), &stage);
  running.count = stage.dynamic_count;
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
          .with_prefix(cat("rank ", s_.comm->rank(), ", step ", begun_.number, ", ",
                           s_.plan.text(s_.manifest, bucket), ", stage ", running_[bucket].stages, ": "))
          .with_ranks({s_.comm->rank()})
          .with_step(begun_.number));
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
  s_.comm->fail(Status::error(Code::kTimeout,
                              cat("rank ", s_.comm->rank(), ", step ", begun_.number,
                                  " passed its deadline: ", where()),
                              Evidence::kDeadline)
                    .with_ranks({s_.comm->rank()})
                    .with_step(begun_.number));
}

std::string Step::where() const {
  if (!pending_.empty()) {
    const uint32_t b = pending_.front();
    if (s_.plan.buckets[b].sparse) return cat("entries of ", s_.plan.text(s_.manifest, b), " are added up");
    return cat("hook '", s_.hook->name(), "' has not completed stage ", running_[b].stages, " of ",
               s_.plan.text(s_.manifest, b));
  }
  if (collected_ < submitted_) {
    const Slot& slot = s_.schedule.slots[collected_];
    if (slot.kind == Slot::Kind::kOpening) return "not every rank has begun the step";
    if (slot.kind == Slot::Kind::kCompare) return "the ranks compare their values";
    if (slot.kind == Slot::Kind::kBuffers) return "buffers are under way";
    if (slot.kind == Slot::Kind::kMap) return "the ranks agree on which parameters are absent";
    if (slot.kind == Slot::Kind::kNorms) return "the norms of the ranks' slices are being added up";
    if (slot.kind == Slot::Kind::kFinish) return "not every rank has called finish";
    if (slot.kind == Slot::Kind::kCounts) {
      return cat("the ranks exchange their counts for collective ", slot.index, " of ",
                 s_.plan.text(s_.manifest, slot.bucket));
    }
    return cat("collective ", slot.index, " of ", s_.plan.text(s_.manifest, slot.bucket), " is under way");
  }
  if (launched_ < bucket_count()) {
    return cat("gradients of ", s_.plan.text(s_.manifest, launched_), " are still being handed over");
  }
  if (s_.norms && !ruled_) return "results are being measured, or finish has not been called";
  return "results are being copied back";
}

FlightStep Step::flight_step() const {
  FlightStep now;
  now.buckets = bucket_count();
  if (!active_) return now;
  now.step = begun_.number;
  now.launched = launched_;
  now.done = done_;
  now.where = where();
  return now;
}

Step::Times Step::times(uint32_t bucket) const {
  const Running& r = running_[bucket];
  return {r.ready_ns.load(std::memory_order_relaxed),
          r.launch_ns,
          r.done_ns,
          r.transfer_ns,
          r.sent_bytes,
          r.absent,
          r.skipped};
}

uint64_t Step::memory_bytes() const {
  return sizeof *this + running_.size() * sizeof(Running) +
         (pending_.capacity() + results_.capacity() + late_.capacity()) * sizeof(uint32_t) +
         records_.capacity() * sizeof(OpeningRecord) + finishing_.capacity() * sizeof(FinishRecord) +
         digests_.capacity() * sizeof(uint64_t) + waits_.memory_bytes();
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
  event.index = begun_.number;
  event.bytes = s_.plan.buckets[bucket].bytes();
  sink->record(event);
}

}  // namespace weft
