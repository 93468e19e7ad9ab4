#include "coll/offload_lane.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/round_up.h"
#include "base/text.h"

namespace weft::coll {
namespace {

constexpr uint64_t kAlignment = 4096;

}  // namespace

void OffloadLane::FreeBytes::operator()(std::byte* bytes) const {
  std::free(bytes);
}

OffloadLane::OffloadLane(const LaneContext& context, const LaneKey& key, Offload& offload, uint32_t number,
                         std::atomic<uint64_t>& moved)
    : context_(context), key_(key), offload_(offload), number_(number), moved_(moved), below_(context, key) {}

void OffloadLane::start(const CollectiveArgs& args, uint64_t slot) {
  whole_ = {Descriptor::of(args), reported_slot(args, slot)};
  args_ = args;
  status_ = Status();
  const bool has_type = !is_reduction(args.coll) || computes(args.dtype);
  own_ = context_.size > 1 && has_type && !args.ordered &&
         context_.forced.named(args.coll, args.count * dtype_size(args.dtype)) == nullptr &&
         args.count * dtype_size(args.dtype) >= kOffloadLeastBytes && offload_.executes(args);
  if (!own_) return start_below(args);
  state_ = State::kBarrier;
  CollectiveArgs barrier;
  barrier.dtype = args.dtype;
  start_below(barrier);
}

void OffloadLane::start_below(CollectiveArgs args) {
  if (args.whole == nullptr) args.whole = &whole_;
  below_.start(args, key_.first_slot + key_.pipeline_index + key_.pipeline_lanes * operations_++);
}

Poll OffloadLane::poll() {
  if (!own_) return below_.poll();
  if (state_ == State::kOver) return Poll::kFinished;
  if (state_ == State::kBarrier) return poll_barrier();
  bool advanced = false;
  Status status;
  if (begun_ < chunks_ && begun_ < done_ + Offload::kDepth) {
    status = begin_chunk();
    advanced = true;
  }
  if (status.ok() && done_ < begun_) {
    bool done = false;
    status = offload_.test(number_, done_ % Offload::kDepth, &done);
    if (status.ok() && done) {
      status = end_chunk();
      advanced = true;
    }
  }
  if (!status.ok() || done_ == chunks_) return finish(status);
  return advanced ? Poll::kAdvanced : Poll::kWaiting;
}

Poll OffloadLane::poll_barrier() {
  const Poll poll = below_.poll();
  if (poll != Poll::kFinished) return poll;
  if (!below_.result().ok()) return finish(below_.result());
  state_ = State::kRunning;
  shape_ = staged_shape(args_, context_.rank, context_.size);
  count_ = args_.count;
  chunk_ = staged_chunk(shape_, dtype_size(args_.dtype), kOffloadSlotBytes);
  chunks_ = (count_ + chunk_ - 1) / chunk_;
  begun_ = done_ = 0;
  const Status reserved = reserve();
  return reserved.ok() ? Poll::kAdvanced : finish(reserved);
}

// Allocates what the operation needs, and keeps it for the next one.
Status OffloadLane::reserve() {
  const uint64_t block = std::min(count_, chunk_) * dtype_size(args_.dtype);
  const uint64_t needed = round_up(static_cast<uint64_t>(shape_.room) * block + kCacheLine, kAlignment);
  if (slot_bytes_ >= needed) return {};
  memory_.reset();
  slot_bytes_ = memory_bytes_ = 0;
  const uint64_t bytes = needed * Offload::kDepth;
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes)));
  if (memory_ == nullptr) {
    return Status::error(Code::kNoMemory, cat("cannot allocate ", bytes, " bytes of staging memory for ",
                                              weft::name(args_.coll)));
  }
  slot_bytes_ = needed;
  memory_bytes_ = bytes;
  return {};
}

Status OffloadLane::begin_chunk() {
  const uint64_t chunk = begun_++;
  copy_blocks(chunk, true);
  CollectiveArgs part = args_;
  part.count = elements(chunk);
  part.src = slot(chunk);
  part.dst = out_area(chunk);
  const size_t place = chunk % Offload::kDepth;
  WEFT_TRY(offload_.start(number_, place, part));
  busy_[place] = true;
  moved_.fetch_add(part.count * dtype_size(args_.dtype), std::memory_order_relaxed);
  return {};
}

Status OffloadLane::end_chunk() {
  busy_[done_ % Offload::kDepth] = false;
  copy_blocks(done_, false);
  done_++;
  return {};
}

Poll OffloadLane::finish(const Status& status) {
  status_ = status.with_slot(whole_.slot);
  if (state_ == State::kRunning && status.ok()) offload_.end(number_);
  if (!status.ok()) give_up_memory();
  state_ = State::kOver;
  return Poll::kFinished;
}

bool OffloadLane::under_way() {
  bool any = false;
  for (size_t place = 0; place < Offload::kDepth; place++) {
    if (!busy_[place]) continue;
    bool done = false;
    busy_[place] = !offload_.test(number_, place, &done).ok() || !done;
    any = any || busy_[place];
  }
  return any;
}

void OffloadLane::abandon() {
  if (below()) below_.abandon();
  give_up_memory();
  state_ = State::kOver;
}

// Sets the memory of a failed operation aside. The library does not report when, or whether, it stops using
// it.
void OffloadLane::give_up_memory() {
  if (!under_way()) return;
  [[maybe_unused]] const std::byte* const aside = memory_.release();
  slot_bytes_ = memory_bytes_ = 0;
  busy_.fill(false);
}

void OffloadLane::rest() {
  below_.rest();
  memory_.reset();
  slot_bytes_ = memory_bytes_ = 0;
}

uint64_t OffloadLane::elements(uint64_t chunk) const {
  return std::min(chunk_, count_ - chunk * chunk_);
}

std::byte* OffloadLane::out_area(uint64_t chunk) const {
  if (shape_.in_place) return slot(chunk);
  const uint64_t in = static_cast<uint64_t>(shape_.in) * elements(chunk) * dtype_size(args_.dtype);
  return slot(chunk) + round_up(in, kCacheLine);
}

// Copies this rank's part of the chunk, block by block, between the buffers and the chunk's memory, and
// applies the scales.
void OffloadLane::copy_blocks(uint64_t chunk, bool in) {
  const uint64_t element = dtype_size(args_.dtype);
  const uint64_t size = elements(chunk) * element;
  const auto blocks = static_cast<uint64_t>(in ? shape_.in : shape_.out);
  std::byte* const staged = in ? slot(chunk) : out_area(chunk);
  CopyArgs copy;
  // Where nothing is computed, the data is copied as bytes.
  const bool scales = is_reduction(args_.coll) && is_float(args_.dtype);
  copy.src_dtype = copy.dst_dtype = scales ? args_.dtype : Dtype::kU8;
  copy.count = scales ? elements(chunk) : size;
  if (scales) copy.scale = in ? args_.prescale : args_.postscale;
  for (uint64_t block = 0; block < blocks; block++) {
    const uint64_t at = (block * count_ + chunk * chunk_) * element;
    copy.src = in ? args_.src + at : staged + block * size;
    copy.dst = in ? staged + block * size : args_.dst + at;
    context_.host.copy(copy);
  }
}

}  // namespace weft::coll
