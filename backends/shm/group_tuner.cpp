#include "group_tuner.h"

#include <cstring>

#include "base/text.h"

namespace weft::shm {
namespace {

constexpr uint64_t kCheckNs = 20'000'000;  // between checks whether an awaited rank is lost

// Returns thresholds that make every operation use one route.
Thresholds only(Route route) {
  Thresholds thresholds;
  thresholds.one_shot = route == Route::kOneShot ? kHalfBytes : 0;
  thresholds.pull = route == Route::kPulled ? 0 : kNever;
  return thresholds;
}

}  // namespace

GroupTuner::GroupTuner(std::shared_ptr<Group> group, const BackendArgs& args, uint64_t bytes)
    : group_(std::move(group)),
      args_(args),
      bytes_(bytes),
      memory_(args.allocator.get(bytes, kPage), {&args.allocator, bytes}),
      lane_(group_, 0),
      begin_ns_(args.clock.now_ns()) {}

Status GroupTuner::run(Route route, uint64_t bytes, uint64_t* slowest_ns, uint64_t* elapsed_ns) {
  if (memory_ == nullptr) {
    return give_up(Status::error(Code::kNoMemory, cat("cannot allocate ", bytes_text(bytes_),
                                                      "; WEFT_SHM_THRESHOLDS=off skips the autotuning")));
  }
  CollectiveArgs args;
  args.coll = Coll::kAllReduce;
  args.dtype = Dtype::kF32;
  args.op = ReduceOp::kSum;
  args.count = bytes / sizeof(float);
  args.src = args.dst = memory_.get();
  uint64_t times[2] = {};
  uint64_t start = 0;
  // Routes leave their staging lines in different caches, so a short operation is timed after another one on
  // the same route.
  for (int i = bytes <= kHalfBytes ? 0 : 1; i < 2; i++) {
    std::memset(memory_.get(), 1, bytes);  // a small number; brings its lines into this core's cache
    WEFT_TRY(synchronise(times));
    group_->set_thresholds(only(route));
    start = args_.clock.now_ns();
    WEFT_TRY(finish(args));
  }
  const uint64_t end = args_.clock.now_ns();
  times[0] = end - start;
  times[1] = end - begin_ns_;
  WEFT_TRY(synchronise(times));
  *slowest_ns = times[0];
  *elapsed_ns = times[1];
  return {};
}

Status GroupTuner::synchronise(uint64_t numbers[2]) {
  CollectiveArgs args;
  args.coll = Coll::kAllReduce;
  args.dtype = Dtype::kU64;
  args.op = ReduceOp::kMax;
  args.count = 2;
  args.dst = reinterpret_cast<std::byte*>(numbers);
  args.src = args.dst;
  return finish(args);
}

Status GroupTuner::finish(const CollectiveArgs& args) {
  lane_.start(args, slot_++);
  uint64_t next_check_ns = args_.clock.now_ns() + kCheckNs;
  for (uint32_t round = 0;; round++) {
    const Poll poll = lane_.poll();
    if (poll == Poll::kFinished) return lane_.result().ok() ? Status() : give_up(lane_.result());
    if (poll == Poll::kAdvanced) {
      round = 0;
      continue;
    }
    if (round % 64 == 63) WEFT_TRY(check_peers(&next_check_ns));
    args_.clock.relax(round);
  }
}

// Returns an error if waiting no longer makes sense.
Status GroupTuner::check_peers(uint64_t* next_ns) {
  for (int r = 0; r < group_->size(); r++) {
    const LaneBlock& theirs = group_->at<LaneBlock>(r, group_->layout().lane(0));
    if (theirs.sealed.value.load(std::memory_order_acquire) == 0) continue;
    return give_up(Status::error(Code::kCancelled, cat("rank ", group_->name(r), " stopped it")));
  }
  if (args_.deadline.expired(args_.clock)) {
    const std::vector<int> missing = lane_.missing();
    return give_up(Status::error(Code::kTimeout,
                                 cat("rank ", list_text(missing), " did not take part before the deadline"))
                       .with_ranks(missing));
  }
  const uint64_t now = args_.clock.now_ns();
  if (now < *next_ns) return {};
  *next_ns = now + kCheckNs;
  const Status lost = args_.exchange.check();
  return lost.ok() ? lost : give_up(lost);
}

// Abandons the operation. The other ranks see it and stop waiting.
Status GroupTuner::give_up(Status why) {
  lane_.abandon();
  return why;
}

}  // namespace weft::shm
