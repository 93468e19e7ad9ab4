#include "coll/staged_lane.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/round_up.h"
#include "device/arena.h"

namespace weft::coll {
namespace {

// True if the buffer (`in`: the input) has a block of each rank; false if it has only this rank's.
bool has_all(Coll coll, bool in) {
  const Coll kind = even(coll);
  return kind == Coll::kAllToAll || in == (kind == Coll::kReduceScatter || kind == Coll::kScatter);
}

}  // namespace

StagedShape staged_shape(const CollectiveArgs& args, int rank, int size) {
  const bool root = rank == args.peer;
  switch (even(args.coll)) {
    case Coll::kAllReduce:
      return {1, 1, 1, true};
    case Coll::kReduce:
      return {1, root ? 1 : 0, 1, true};
    case Coll::kBroadcast:
      return {root ? 1 : 0, root && args.dst == args.src ? 0 : 1, 1, true};
    case Coll::kAllGather:
      return {1, size, size + 1};
    case Coll::kReduceScatter:
      return {size, 1, size + 1};
    case Coll::kGather:
      return {1, root ? size : 0, size + 1};
    case Coll::kScatter:
      return {root ? size : 0, 1, size + 1};
    case Coll::kAllToAll:
      return {size, size, 2 * size};
    case Coll::kSend:
      return {1, 0, 1, true};
    case Coll::kRecv:
      return {0, 1, 1, true};
    default:
      return {};  // barrier
  }
}

uint64_t staged_count(const CollectiveArgs& args, int size) {
  // A rank of all_to_all_v does not know the other ranks' counts. The caller that compared them has put the
  // longest into count.
  if (args.blocks == nullptr || args.coll == Coll::kAllToAllV) return args.count;
  const uint64_t* const counts = args.blocks->from.counts;
  return *std::max_element(counts, counts + size);
}

uint64_t staged_chunk(const StagedShape& shape, uint64_t element, uint64_t slot_bytes) {
  if (shape.room == 0) return 1;
  constexpr uint64_t kLine = 64;  // between src and dst
  const uint64_t fits = (slot_bytes - kLine) / (static_cast<uint64_t>(shape.room) * element);
  return fits >= kLine ? fits / kLine * kLine : std::max<uint64_t>(fits, 1);
}

Status Staging::make(Accelerator& accelerator, int device, std::shared_ptr<Arena> arena, uint64_t slot_bytes,
                     std::unique_ptr<Staging>* staging) {
  // A failure below frees what was made so far.
  auto made = std::make_unique<Staging>(accelerator, device, std::move(arena));
  const uint64_t bytes = round_up(slot_bytes * kSlots, Arena::kAlignment);
  WEFT_TRY(made->arena_->allocate(bytes, &made->memory_));
  WEFT_TRY(made->arena_->pin(accelerator, device, made->memory_, bytes));
  WEFT_TRY(accelerator.create_stream(device, &made->in_));
  WEFT_TRY(accelerator.create_stream(device, &made->out_));
  for (size_t i = 0; i < kSlots; i++) {
    made->slots_[i].memory = made->memory_ + i * slot_bytes;
    WEFT_TRY(accelerator.create_event(device, &made->slots_[i].filled));
    WEFT_TRY(accelerator.create_event(device, &made->slots_[i].drained));
  }
  *staging = std::move(made);
  return {};
}

Staging::~Staging() {
  for (const Slot& slot : slots_) {
    if (slot.filled != nullptr) accelerator_.destroy_event(device_, slot.filled);
    if (slot.drained != nullptr) accelerator_.destroy_event(device_, slot.drained);
  }
  if (in_ != nullptr) accelerator_.destroy_stream(device_, in_);
  if (out_ != nullptr) accelerator_.destroy_stream(device_, out_);
  if (memory_ == nullptr) return;
  arena_->unpin(memory_);
  (void)arena_->free(memory_).ok();
}

StagedLane::~StagedLane() = default;

void StagedLane::send_blocks_as_they_are() {
  const auto n = static_cast<size_t>(size_);
  cut_.resize(3 * n);
  cut_blocks_ = {{cut_.data(), cut_.data() + 2 * n}, {cut_.data() + n, cut_.data() + 2 * n}};
}

Status StagedLane::prepare(const DeviceCall& call) {
  if (taken_ != nullptr) WEFT_TRY(inner_->prepare(call));
  if (call.direct) return {};
  {
    const std::lock_guard lock(mutex_);
    if (stagings_.contains(call.device)) return {};
  }
  std::unique_ptr<Staging> made;
  WEFT_TRY(Staging::make(*call.accelerator, call.device, arena_, slot_bytes_, &made));
  const std::lock_guard lock(mutex_);
  // Keeps the entry of another thread that was faster.
  stagings_.emplace(call.device, std::move(made));
  return {};
}

void StagedLane::start(const CollectiveArgs& args, uint64_t slot) {
  if (passes_on(args)) {
    staging_ = nullptr;
    const uint64_t inner_slot = next_slot();
    if (inner_slot == slot || args.whole != nullptr) return inner_->start(args, inner_slot);
    whole_ = {Descriptor::of(args), slot};
    args_ = args;
    args_.whole = &whole_;
    return inner_->start(args_, inner_slot);
  }
  {
    const std::lock_guard lock(mutex_);
    staging_ = stagings_.at(args.device->device).get();
  }
  whole_ = {Descriptor::of(args), reported_slot(args, slot)};
  args_ = args;
  status_ = Status();
  shape_ = staged_shape(args, rank_, size_);
  chunk_ = staged_chunk(shape_, dtype_size(args.dtype), slot_bytes_);
  count_ = staged_count(args, size_);
  chunks_ = std::max<uint64_t>((count_ + chunk_ - 1) / chunk_, 1);
  filled_ = communicated_ = drained_ = 0;
  arrived_ = communicating_ = false;
  moved_ = 0;
}

Poll StagedLane::poll() {
  if (staging_ == nullptr) return inner_->poll();
  if (!status_.ok()) {
    if (std::exchange(communicating_, false)) {
      inner_->abandon();
      // Other ranks do not know of the failure yet, and may still write into a slot at any time.
      if (!inner_->writers().empty()) arena_->taint();
    }
    // Copies in flight end by themselves.
    if (!writers().empty()) return Poll::kWaiting;
    return Poll::kFinished;
  }
  if (!arrived_ && !poll_stream()) return status_.ok() ? Poll::kWaiting : Poll::kAdvanced;
  bool advanced = fill();
  advanced = communicate() || advanced;
  advanced = drain() || advanced;
  if (!status_.ok()) return Poll::kAdvanced;
  if (drained_ == chunks_) return Poll::kFinished;
  return advanced ? Poll::kAdvanced : Poll::kWaiting;
}

// Queues nothing behind the program's work. So no copy of a failed operation is left in a stream that hangs.
bool StagedLane::poll_stream() {
  arrived_ = done(args_.device->ready);
  return arrived_;
}

bool StagedLane::done(DeviceEvent event) {
  bool done = false;
  fail(staging_->query(event, &done));
  return done && status_.ok();
}

bool StagedLane::fill() {
  if (!status_.ok() || filled_ == chunks_ || filled_ == drained_ + Staging::kSlots) return false;
  copy_blocks(filled_, true);
  fail(staging_->filling(staging_->slot(filled_)));
  filled_++;
  return true;
}

bool StagedLane::communicate() {
  if (!status_.ok()) return false;
  if (!communicating_) {
    if (communicated_ == filled_ || !done(staging_->slot(communicated_).filled)) return false;
    CollectiveArgs part = args_;
    part.device = nullptr;
    part.whole = &whole_;
    part.count = elements(communicated_);
    if (args_.blocks != nullptr) cut_blocks(communicated_, &part);
    std::byte* const memory = staging_->slot(communicated_).memory;
    // A rank whose collective has no src or dst passes null.
    part.src = shape_.in > 0 || args_.coll == Coll::kBroadcast ? memory : nullptr;
    part.dst = shape_.out > 0 || args_.coll == Coll::kBroadcast ? out_area(communicated_) : nullptr;
    inner_->start(part, next_slot());
    communicating_ = true;
    return true;
  }
  const Poll poll = inner_->poll();
  if (poll != Poll::kFinished) return poll == Poll::kAdvanced;
  communicating_ = false;
  fail(inner_->result());
  moved_ = plus(moved_, inner_->moved_bytes());
  if (!status_.ok()) return true;
  copy_blocks(communicated_, false);
  fail(staging_->draining(staging_->slot(communicated_)));
  communicated_++;
  return true;
}

bool StagedLane::drain() {
  if (!status_.ok() || drained_ == communicated_ || !done(staging_->slot(drained_).drained)) return false;
  drained_++;
  return true;
}

uint64_t StagedLane::clipped(uint64_t chunk, uint64_t count) const {
  return std::min(chunk_, count - std::min(count, chunk * chunk_));
}

StagedLane::Extent StagedLane::extent(uint64_t chunk, uint64_t block, bool in) const {
  const uint64_t done = chunk * chunk_;
  if (args_.blocks == nullptr) return {block * count_ + done, clipped(chunk, count_)};
  const BlockList& list = in ? args_.blocks->from : args_.blocks->to;
  // A buffer of a single block has it at its beginning.
  const bool all = has_all(args_.coll, in);
  const int rank = all ? static_cast<int>(block) : rank_;
  return {(all ? list.offset(rank) : 0) + done, clipped(chunk, list.count(rank))};
}

// Sets up the chunk as the collective that inner_ executes: either one of equal blocks, whose shorter blocks
// are padded with the slot's old bytes, or one of exactly these blocks.
void StagedLane::cut_blocks(uint64_t chunk, CollectiveArgs* part) {
  part->tag = 0;
  if (cut_.empty()) {
    part->coll = even(args_.coll);
    part->blocks = nullptr;
    return;
  }
  const auto n = static_cast<size_t>(size_);
  for (size_t r = 0; r < n; r++) {
    cut_[r] = clipped(chunk, args_.blocks->from.counts[r]);
    cut_[n + r] = clipped(chunk, args_.blocks->to.counts[r]);
    cut_[2 * n + r] = r * elements(chunk);
  }
  part->blocks = &cut_blocks_;
  part->count =
      args_.coll == Coll::kAllToAllV ? 0 : std::accumulate(cut_.begin(), cut_.begin() + size_, uint64_t{0});
}

std::byte* StagedLane::out_area(uint64_t chunk) {
  std::byte* const memory = staging_->slot(chunk).memory;
  if (shape_.in_place) return memory;
  const uint64_t in = static_cast<uint64_t>(shape_.in) * elements(chunk) * dtype_size(args_.dtype);
  return memory + round_up(in, 64);
}

// Copies this rank's part of the chunk, block by block, between the buffers and the chunk's slot.
void StagedLane::copy_blocks(uint64_t chunk, bool in) {
  const uint64_t element = dtype_size(args_.dtype);
  const uint64_t size = elements(chunk) * element;
  if (size == 0) return;
  const auto blocks = static_cast<uint64_t>(in ? shape_.in : shape_.out);
  std::byte* const staged = in ? staging_->slot(chunk).memory : out_area(chunk);
  for (uint64_t block = 0; block < blocks && status_.ok(); block++) {
    const Extent part = extent(chunk, block, in);
    if (part.count == 0) continue;
    const uint64_t at = part.begin * element, bytes = part.count * element;
    std::byte* const to = staged + block * size;
    fail(in ? staging_->copy_in(to, args_.src + at, bytes) : staging_->copy_out(args_.dst + at, to, bytes));
  }
}

void StagedLane::fail(const Status& status) {
  if (status_.ok() && !status.ok()) status_ = status.with_slot(whole_.slot);
}

void StagedLane::abandon() {
  if (communicating()) inner_->abandon();
}

// Returns the ranks that write into this process's memory. This rank is one of them while its own device
// copies.
std::vector<int> StagedLane::writers() const {
  std::vector<int> writers = communicating() ? inner_->writers() : std::vector<int>{};
  if (staging_ == nullptr) return writers;
  bool idle = true;
  const auto poll_event = [&](DeviceEvent event) {
    bool done = false;
    // A failed device no longer copies anything.
    if (staging_->query(event, &done).ok() && !done) idle = false;
  };
  for (uint64_t chunk = communicated_; chunk < filled_; chunk++) poll_event(staging_->slot(chunk).filled);
  for (uint64_t chunk = drained_; chunk < communicated_; chunk++) poll_event(staging_->slot(chunk).drained);
  if (!idle) writers.push_back(rank_);
  return writers;
}

std::vector<int> StagedLane::missing() const {
  return communicating() ? inner_->missing() : std::vector<int>{};
}

bool StagedLane::waits_for(int rank) const {
  return communicating() && inner_->waits_for(rank);
}

std::vector<int> StagedLane::absent() const {
  return communicating() ? inner_->absent() : std::vector<int>{};
}

}  // namespace weft::coll
