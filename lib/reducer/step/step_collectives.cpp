#include "reducer/step/step_collectives.h"

#include <algorithm>

#include "base/splitmix.h"
#include "base/text.h"
#include "comm/context.h"
#include "reducer/step/counts.h"

namespace weft {
namespace {

// True if the collective completes on this rank only after every rank has started it.
bool needs_all(const CollectiveArgs& args, int rank) {
  const Coll coll = args.coll;
  return (coll == Coll::kReduce && args.peer == rank) || coll == Coll::kAllReduce ||
         coll == Coll::kAllGather || coll == Coll::kReduceScatter || coll == Coll::kAllToAll ||
         coll == Coll::kBarrier;
}

}  // namespace

StepCollectives::StepCollectives(ReducerState& state, StepContext& step, BucketRuns& buckets,
                                 std::mutex& writing)
    : s_(state),
      step_(step),
      buckets_(buckets),
      engine_(state.comm->context().engine()),
      clock_(state.comm->context().clock()),
      end_slot_(find_end()),
      waits_(state.comm->rank(), state.comm->size()) {
  if (s_.input_parts) slices_.resize(bucket_count());
  for (uint32_t b = 0; b < slices_.size(); b++) {
    slices_[b].parts.reserve(s_.input_parts->most(b));
    slices_[b].streaming = s_.buckets->streaming();
    slices_[b].mutex = &writing;
    slices_[b].gone = &step_.sealed;
  }
}

void StepCollectives::prepare() {
  end_.store(End::kAwaited, std::memory_order_relaxed);
  held_since_ns_ = 0;
  stopped_.store(Stopped::kNot, std::memory_order_relaxed);
}

void StepCollectives::start() {
  submitted_ = collected_ = 0;
  sent_bytes_ = 0;
  waits_.clear();
}

// Returns the divisor of averages over the hook's communicator (own), or over the reducer's.
double StepCollectives::divisor(bool own) const {
  if (!own) return step_.handshake.divisor;
  return step_.handshake.divisor / s_.comm->size() * s_.hook->comm()->size();
}

// True for a slot that all ranks skip in this step.
bool StepCollectives::skips(const Slot& slot) const {
  return slot.exchange != nullptr ? slot.exchange->left_out(step_) : step_.buckets[slot.bucket].skipped;
}

// True for a bucket's collective that does not take place in this step, on any rank.
bool StepCollectives::left_out(const Slot& slot) const {
  if (slot.exchange != nullptr) return false;
  const BucketRun& running = buckets_[slot.bucket];
  return (slot.optional && running.count == 0) || (slot.dynamic && running.moved == 0);
}

bool StepCollectives::may_submit(const Slot& slot) const {
  if (slot.exchange != nullptr) return slot.exchange->ready(step_);
  const BucketRun& running = buckets_[slot.bucket];
  if (slot.bucket >= step_.launched) return false;
  if (step_.buckets[slot.bucket].skipped) return true;
  return running.stages > slot.index && (!slot.dynamic || running.counted == slot.index);
}

// True if the collective takes place in every step and `rank` cannot complete it before this rank has started
// it.
bool StepCollectives::needs(const Slot& slot, int rank) const {
  const bool conditional = slot.own || slot.optional || slot.dynamic;
  return !conditional && needs_all(slot.args, rank);
}

// Finds the position where the step waits for finish. For each other rank there is a last collective in which
// it needs this rank. The result is the smallest of these positions. If that is long before the step's end,
// or unknown, the result is the last bucket's first collective. The other buckets then overlap with the
// backward pass.
size_t StepCollectives::find_end() const {
  const std::vector<Slot>& slots = s_.schedule.slots;
  size_t end = slots.size();
  for (int r = 0; r < s_.comm->size(); r++) {
    if (r == s_.comm->rank()) continue;
    size_t last = slots.size();
    while (last > 0 && !needs(slots[last - 1], r)) last--;
    end = last == 0 ? 0 : std::min(end, last - 1);
    if (last == 0) break;
  }
  const auto late = [&](const Slot& slot) {
    return !slot.own && (!slot.of_bucket() || slot.bucket + 1 == bucket_count());
  };
  if (end < slots.size() && (end < s_.schedule.leading || !late(slots[end]))) {
    const auto of_last = [&](const Slot& slot) { return slot.of_bucket() && late(slot); };
    end = static_cast<size_t>(std::find_if(slots.begin(), slots.end(), of_last) - slots.begin());
  }
  return end;
}

void StepCollectives::let_end_for(uint32_t bucket) {
  const std::vector<Slot>& slots = s_.schedule.slots;
  const auto comes_to = [&](const Slot& slot) { return slot.of_bucket() && slot.bucket == bucket; };
  if (std::none_of(slots.begin() + static_cast<ptrdiff_t>(end_slot_), slots.end(), comes_to)) return;
  End awaited = End::kAwaited;
  if (end_.compare_exchange_strong(awaited, End::kFree)) engine_.notify();
}

// True if the next collective must not be submitted yet: the step's end waits for finish, or fail stopped the
// step.
bool StepCollectives::held_up() {
  const End end = end_.load(std::memory_order_acquire);
  if (end == End::kFree || (end == End::kAwaited && submitted_ < end_slot_)) return false;
  if (end == End::kAwaited) {
    // A program that waits in another call may wait for a rank that waits for this step: ranks may finish
    // two reducers in different orders. Where it waits cannot be seen if it waits outside of Weft, so the
    // wait for finish is bounded as well.
    const uint64_t now_ns = s_.comm->context().clock().now_ns();
    if (held_since_ns_ == 0) held_since_ns_ = now_ns;
    const bool over = engine_.waited_on() || now_ns - held_since_ns_ >= kHoldNs;
    End awaited = End::kAwaited;
    if (over && end_.compare_exchange_strong(awaited, End::kFree)) return false;
  }
  if (end == End::kStopped && stopped_.load(std::memory_order_relaxed) == Stopped::kNot)
    stopped_.store(all_need_rest() ? Stopped::kInTime : Stopped::kTooLate, std::memory_order_release);
  return true;
}

// True if every other rank needs this one in the rest of the step. The next collective is known to take
// place.
bool StepCollectives::all_need_rest() const {
  const auto passed_over = [&](const Slot& slot) {
    if (slot.exchange != nullptr) return skips(slot);
    if (!step_.begun.fixed) return false;
    const std::vector<uint32_t>& params = s_.plan.buckets[slot.bucket].params;
    return std::all_of(params.begin(), params.end(),
                       [&](uint32_t param) { return s_.presence->absent(param, step_.stamp); });
  };
  const std::vector<Slot>& slots = s_.schedule.slots;
  for (int r = 0; r < s_.comm->size(); r++) {
    const Slot& next = slots[submitted_];
    bool needed = r == s_.comm->rank() || (!next.own && needs_all(next.args, r));
    for (size_t i = submitted_ + 1; i < slots.size() && !needed; i++)
      needed = needs(slots[i], r) && !passed_over(slots[i]);
    if (!needed) return false;
  }
  return true;
}

// Checks that the hook's count is within what it declared.
bool StepCollectives::allowed(const Slot& slot) {
  if (slot.kind != Slot::Kind::kCounts) return true;
  const uint64_t most = s_.schedule.slots[submitted_ + 1].args.count;
  const uint64_t count = buckets_[slot.bucket].count;
  if (count <= most) return true;
  fail_stage(s_, step_, buckets_[slot.bucket], buckets_[slot.bucket].stages,
             Status::error(Code::kHook,
                           cat("hook '", s_.hook->name(), "' counts ", count, " for collective ", slot.index,
                               " (weft_stage.dynamic_count), but declared at most ", most)));
  return false;
}

// Fills in the arguments of a slot's collective that are known only now.
void StepCollectives::fill(const Slot& slot, CollectiveArgs* args) {
  args->postscale = slot.average ? 1.0 / divisor(slot.own) : 1.0;
  if (args->coll == Coll::kReduce && args->peer != s_.comm->rank()) args->dst = nullptr;
  if (slot.exchange != nullptr) {
    slot.exchange->fill(step_, args);
  } else if (slot.kind == Slot::Kind::kCounts) {
    args->src = reinterpret_cast<const std::byte*>(&buckets_[slot.bucket].count);
    args->dst = reinterpret_cast<std::byte*>(buckets_[slot.bucket].job->counts.data());
  } else if (slot.kind == Slot::Kind::kStaged) {
    s_.stages[slot.bucket]->fill(slot.index, args);
  } else if (slot.dynamic) {
    args->count = buckets_[slot.bucket].moved;
  } else if (s_.device_bucket(slot.bucket)) {
    args->device = s_.device_buckets->call(slot.bucket);
  } else if (s_.input_parts && slot.kind == Slot::Kind::kBucket) {
    InputSlices& slices = slices_[slot.bucket];
    s_.input_parts->locate(slot.bucket, step_.stamp, &slices);
    if (!slices.parts.empty()) args->slices = &slices;
  }
}

// Puts micro_batches into the descriptor, which the ranks compare. A descriptor with a root has no field for
// it. There an average shows it by its scale, and if a stage divides, the number is mixed into the tag.
void StepCollectives::show_micro_batches(const Slot& slot, CollectiveArgs* args) const {
  const uint32_t micro_batches = step_.begun.record.micro_batches;
  args->micro_batches = micro_batches;
  if (has_root(args->coll) && !slot.average) {
    args->tag = slot_tag(args->tag + (micro_batches - 1) * kSplitMixStep);
  }
}

// Submits strictly in the schedule's order.
bool StepCollectives::submit(Deadline deadline) {
  const size_t before = submitted_;
  while (submitted_ < s_.schedule.slots.size() && submitted_ - collected_ < requests_.size()) {
    const Slot& slot = s_.schedule.slots[submitted_];
    if (!may_submit(slot)) break;
    if (skips(slot)) {
      submitted_++;
      continue;
    }
    if (!allowed(slot) || (!left_out(slot) && held_up())) break;
    Request& next = request(submitted_);
    next.reset();
    next.start_ns = 0;
    next.step = step_.begun.number;
    next.bucket = slot.of_bucket() ? slot.bucket : kNone;
    next.args = slot.args;
    fill(slot, &next.args);
    next.deadline = deadline;
    // The ranks compare the divisor, also if a stage divides by it.
    if (!s_.has(WEFT_REDUCER_UNEVEN) && slot.of_bucket()) show_micro_batches(slot, &next.args);
    // The step in the tag keeps a rank that left out a collective in this step alone from matching one of the
    // next step.
    const bool hooked = slot.kind == Slot::Kind::kBucket || slot.kind == Slot::Kind::kCounts;
    const uint64_t step = hooked ? buckets_[slot.bucket].number : step_.begun.number;
    if (slot.numbered) next.args.tag |= step_tag(step);
    if (!s_.has(WEFT_REDUCER_UNEVEN)) next.args.tag |= std::min(step_.begun.local_steps, kTagLocalSteps);
    if (left_out(slot)) {
      next.complete({});
    } else {
      const Comm& comm = slot.own ? *s_.hook->comm() : *s_.comm;
      const uint64_t bytes = least_bytes(next.args, comm.size());
      if (slot.counted) sent_bytes_ += bytes;
      if (slot.of_bucket()) buckets_[slot.bucket].least_bytes += bytes;
      submitted_ns_[submitted_ % requests_.size()] = clock_.now_ns();
      (slot.own ? s_.hook_lane : s_.lane)->submit(&next);
    }
    submitted_++;
  }
  return submitted_ != before;
}

StepCollectives::Collected StepCollectives::collect() {
  Collected out;
  if (collected_ == submitted_) return out;
  const Slot& slot = s_.schedule.slots[collected_];
  out.any = true;
  if (skips(slot)) {
    collected_++;
    return out;
  }
  Request& ended = request(collected_);
  if (!ended.done()) return {};
  const bool ok = ended.result.ok(), took_place = !left_out(slot);
  const uint64_t began_ns = std::max(submitted_ns_[collected_ % requests_.size()], collected_ns_);
  collected_ns_ = clock_.now_ns();
  waits_.end(collected_ns_);
  if (slot.of_bucket() && took_place) count(slot, ended, began_ns);
  collected_++;
  if (!ok) {
    own_failed(slot);  // for other slots the communicator has failed
    return out;
  }
  out.all_began = took_place && !slot.own && needs_all(slot.args, s_.comm->rank());
  switch (slot.kind) {
    case Slot::Kind::kStep:
      if (const Status judged = slot.exchange->completed(step_); !judged.ok())
        s_.comm->fail(judged.with_step(step_.begun.number));
      break;
    case Slot::Kind::kCounts:
      counted(slot);
      break;
    case Slot::Kind::kStaged:
    case Slot::Kind::kBucket:
      if (slot.last) out.bucket = slot.bucket;
  }
  return out;
}

// Counts what a collective of a bucket took.
void StepCollectives::count(const Slot& slot, const Request& ended, uint64_t began_ns) {
  BucketRun& run = buckets_[slot.bucket];
  const Comm& comm = slot.own ? *s_.hook->comm() : *s_.comm;
  run.transfer_ns += collected_ns_ - began_ns;
  run.sent_bytes += ended.moved_bytes.value_or(least_bytes(ended.args, comm.size()));
}

void StepCollectives::set_deadline(Deadline deadline) {
  for (size_t i = collected_; i < submitted_; i++) request(i).deadline = deadline;
}

bool StepCollectives::settled() {
  for (; collected_ < submitted_; collected_++) {
    if (!skips(s_.schedule.slots[collected_]) && !request(collected_).done()) return false;
  }
  return true;
}

std::string StepCollectives::awaited() const {
  const Slot& slot = s_.schedule.slots[collected_];
  if (slot.exchange != nullptr) return slot.exchange->awaited();
  const char* const what =
      slot.kind == Slot::Kind::kCounts ? "the exchange of counts has not completed for " : "";
  return cat(what, "collective ", slot.index, " of ", s_.plan.text(s_.manifest, slot.bucket),
             *what != 0 ? "" : " has not completed");
}

// Evaluates the ranks' counts for a dynamic collective.
void StepCollectives::counted(const Slot& slot) {
  BucketRun& running = buckets_[slot.bucket];
  const uint64_t most = s_.schedule.slots[collected_].args.count;  // the collective is the next slot
  const Status judged = judge_counts(running.job->counts, most, &running.moved);
  if (judged.ok()) {
    running.counted = slot.index;
  } else {
    s_.comm->fail(
        judged.with_prefix(cat(s_.plan.text(s_.manifest, slot.bucket), ", collective ", slot.index, ": "))
            .with_step(step_.begun.number));
  }
}

// Fails the step after a collective over the hook's own communicator has failed.
void StepCollectives::own_failed(const Slot& slot) {
  if (!slot.own || s_.comm->failed()) return;
  const Status failure = s_.hook->comm()->failure();
  s_.comm->fail(failure
                    .with_prefix(cat("rank ", s_.comm->rank(), ", step ", step_.begun.number,
                                     ", the hook's own communicator: "))
                    .with_ranks({})
                    .with_step(step_.begun.number));
}

}  // namespace weft
