#include "engine/composite.h"

#include <utility>

#include "base/text.h"

namespace weft {

void CompositeLane::start(const CollectiveArgs& args, uint64_t slot) {
  composite_ = args.composite;
  if (composite_ == nullptr && below_slot_ == slot) return below_->start(args, below_slot_++);
  // After the first composite operation, slots of the lane below differ from the caller's. Errors show the
  // caller's.
  whole_ = {Descriptor::of(args), slot};
  if (composite_ == nullptr) {
    CollectiveArgs told = args;
    told.whole = &whole_;
    return below_->start(told, below_slot_++);
  }
  dtype_ = args.dtype;
  device_ = args.device;
  staged_ = over_ = false;
  moved_ = 0;
  result_ = Status();
}

Poll CompositeLane::poll() {
  if (composite_ == nullptr) return below_->poll();
  if (over_) return Poll::kFinished;
  if (!staged_) return advance();
  const Poll polled = below_->poll();
  if (polled != Poll::kFinished) return polled;
  staged_ = false;
  result_ = below_->result();
  moved_ = plus(moved_, below_->moved_bytes());
  over_ = !result_.ok();
  return over_ ? Poll::kFinished : Poll::kAdvanced;
}

Poll CompositeLane::advance() {
  CollectiveArgs stage;
  stage.dtype = dtype_;
  stage.device = device_;
  Composite::Next next = Composite::Next::kOver;
  Status status = composite_->next(&stage, &next);
  if (!status.ok()) {
    over_ = true;
    result_ = status.with_prefix(cat("operation ", whole_.slot, ": ")).with_slot(whole_.slot);
    return Poll::kFinished;
  }
  if (next == Composite::Next::kMore) return Poll::kAdvanced;
  over_ = next == Composite::Next::kOver;
  if (over_) return Poll::kFinished;
  stage.whole = &whole_;
  staged_ = true;
  below_->start(stage, below_slot_++);
  return Poll::kAdvanced;
}

const char* CompositeLane::algorithm() const {
  const char* const own = composite_ != nullptr ? composite_->name() : nullptr;
  return own != nullptr ? own : below_->algorithm();
}

}  // namespace weft
