#include "path_run.h"

#include <algorithm>

#include "base/text.h"

namespace weft::shm {

Status PathRun::begin(Path& path) {
  Status status = path.begin(op_, &rounds_);
  if (status.ok() && rounds_.count > kMostRounds) {
    status = Status::error(Code::kUnsupported, cat("an operation of ", bytes_text(op_.bytes), " needs ",
                                                   rounds_.count, " rounds of shm, which has at most ",
                                                   kMostRounds, ": split it into smaller operations"));
  }
  if (!status.ok()) return status.with_slot(reported_slot(op_.args, op_.slot));
  path_ = &path;
  const uint64_t all = rounds_.count;
  in_ = rounds_.in && op_.gives ? 0 : all;
  if (rounds_.returns) skip_early_rounds();
  mid_ = rounds_.mid ? 0 : all;
  out_ = rounds_.out && op_.take != Operation::Take::kNothing ? 0 : all;
  published_ = 0;
  if (rounds_.in && in_ == all) publish(kProduced, all);
  publish_consumed();
  return {};
}

// Marks round 0 as produced for the ranks that staged it before they arrived.
void PathRun::skip_early_rounds() {
  for (int r = 0; r < op_.size; r++) {
    if ((context_.claims[static_cast<size_t>(r)].flags & kStaged) == 0) continue;
    blocks_.assume(r, kProduced, op_.slot, 1);
    if (r == op_.rank) publish(kProduced, in_ = 1);
  }
}

Poll PathRun::advance(uint64_t* work, Status* failure) {
  const uint64_t all = rounds_.count;
  bool moved = false;
  Status status;
  if (in_ < all && has_room()) {
    status = path_->in(op_, in_);
    publish(kProduced, ++in_);
    *work += rounds_.bytes;
    moved = true;
  }
  if (status.ok() && mid_ < all && mid_ < in_ && (!rounds_.in || all_reached(kProduced, mid_ + 1)) &&
      (!rounds_.intrudes || enter_peers())) {
    if (rounds_.intrudes || rounds_.returns) group_.reach_writing(op_.slot, mid_);
    status = path_->mid(op_, mid_);
    if (rounds_.intrudes) leave_peers();
    mid_++;
    if (rounds_.out) publish(kReduced, mid_);
    *work += rounds_.bytes;
    moved = true;
  }
  if (status.ok() && out_ < all && out_ < mid_ &&
      (rounds_.mid ? all_reached(kReduced, out_ + 1) : !rounds_.in || all_reached(kProduced, out_ + 1))) {
    status = path_->out(op_, out_);
    out_++;
    *work += rounds_.bytes;
    moved = true;
  }
  if (!status.ok()) {
    *failure = status.with_slot(reported_slot(op_.args, op_.slot));
    return Poll::kFinished;
  }
  if (moved) publish_consumed();
  // A rank does not leave while others still read its staging or its buffers.
  if (in_ == all && mid_ == all && out_ == all && (rounds_.returns || all_reached(kConsumed, all))) {
    return Poll::kFinished;
  }
  return moved ? Poll::kAdvanced : Poll::kWaiting;
}

// True if no rank uses the next round's chunk any more.
bool PathRun::has_room() {
  if (rounds_.returns) return in_ < out_ + kDepth;
  return in_ < kDepth || all_reached(kConsumed, in_ + 1 - kDepth);
}

// Returns false if a peer has abandoned the operation; its failure will arrive here.
bool PathRun::enter_peers() {
  if (const InputSlices* const slices = op_.args.slices; slices != nullptr) {
    slices_lock_ = std::unique_lock(*slices->mutex);
    if (slices->gone->load()) {  // this rank has abandoned it and is about to report that
      slices_lock_.unlock();
      return false;
    }
  }
  blocks_.of(op_.rank).writing.value.store(1, std::memory_order_seq_cst);
  for (int r = 0; r < op_.size; r++) {
    if (blocks_.of(r).sealed.value.load(std::memory_order_seq_cst) == 0) continue;
    leave_peers();
    return false;
  }
  return true;
}

void PathRun::leave_peers() {
  blocks_.of(op_.rank).writing.value.store(0, std::memory_order_release);
  if (slices_lock_.owns_lock()) slices_lock_.unlock();
}

bool PathRun::all_reached(Stage stage, uint64_t rounds) {
  for (int r = 0; r < op_.size; r++) {
    if (r == op_.rank || (stage == kProduced && !op_.takes_from(r))) continue;
    if (!blocks_.reached(r, stage, op_.slot, rounds)) return false;
  }
  return true;
}

void PathRun::publish_consumed() {
  const uint64_t done = std::min(mid_, out_);
  if (done == published_) return;
  published_ = done;
  publish(kConsumed, done);
}

}  // namespace weft::shm
