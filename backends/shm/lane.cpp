#include "lane.h"

#include <cassert>

#include "base/pause.h"
#include "base/text.h"

namespace weft::shm {
namespace {

constexpr int kPolls = 8;  // polls of the peers' counters within one poll, if each rank has a core
constexpr uint64_t kWorkPerPoll = 1 << 20;  // approximate bytes touched in one poll
constexpr uint64_t kRegained = 4096;  // bytes of a half prefetched ahead of the operation that writes them
constexpr uint64_t kAsked = 2048;  // up to this size a peer's half is prefetched at once, before it is read

// Prefetches a cache line that is about to be written. The compiler's builtin prefetches it as readable
// unless the target processor is given; every x86-64 processor executes this instruction.
inline void prefetch_for_write(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

}  // namespace

GroupLane::GroupLane(std::shared_ptr<Group> group, uint32_t id)
    : group_(std::move(group)),
      blocks_(*group_, id),
      context_{*group_, group_->layout().lane_staging(id), {}, {}, {}},
      paths_(context_),
      run_(*group_, op_, context_, blocks_) {
  const auto size = static_cast<size_t>(group_->size());
  context_.claims.resize(size);
  context_.inputs.resize(size);
  context_.outputs.resize(size);
}

void GroupLane::start(const CollectiveArgs& args, uint64_t slot) {
  op_ = Operation::of(args, slot, group_->rank(), group_->size());
  result_ = {};
  arrived_ = 0;
  inline_ = op_.input_bytes() <= kInlineBytes;
  algorithm_ = inline_ ? "inline" : "one-shot";
  state_ = State::kArriving;
  moved_ = inline_ && op_.gives && op_.size > 1 ? op_.input_bytes() : 0;
  if (op_.size == 1) return finish(take_range(*group_, op_, 0, op_.bytes, context_.inputs.data(), NoPeers{}));
  if ((slot + 1) % kCatchUpSlots == 0) blocks_.catch_up(slot);
  const uint64_t before = group_->moved_bytes();
  post(Descriptor::of(args));
  moved_ += group_->moved_bytes() - before;
}

void GroupLane::post(const Descriptor& descriptor) {
  const size_t turn = op_.slot & 1;
  if (hash_ == 0 || !(descriptor == descriptor_)) {
    descriptor_ = descriptor;
    hash_ = descriptor.hash();
    written_ = {};
  }
  Post& mine = block(op_.rank).posts[turn];
  if (!written_[turn]) mine.descriptor = descriptor_;
  written_[turn] = true;
  mine.arrival.hash = hash_;
  if (!inline_) {
    context_.claims[static_cast<size_t>(op_.rank)] = claims();
    if (state_ == State::kDone) return;
    mine.arrival.claims = context_.claims[static_cast<size_t>(op_.rank)];
  } else if (op_.gives && op_.input_bytes() > 0) {
    std::memcpy(mine.arrival.payload, op_.input(), op_.input_bytes());
  }
  mine.arrival.sequence.store(op_.slot + 1, std::memory_order_release);
}

// Returns this rank's claims. A short input is copied at once, unless peers can access it in place.
Claims GroupLane::claims() {
  Claims claims{};
  const bool all_reduce = op_.args.coll == Coll::kAllReduce;
  bool mapped = op_.input_bytes() >= kMappedMin;
  if (mapped && op_.gives) {
    mapped = group_->in_arena(op_.input(), op_.input_bytes(), op_.element, &claims.src_offset);
  }
  if (mapped && all_reduce) {
    mapped = group_->in_arena(op_.args.dst, op_.bytes, op_.element, &claims.dst_offset);
  }
  if (mapped) claims.flags |= kMapped;
  if (op_.input_bytes() >= group_->thresholds().pull) claims.flags |= kPulled;
  claims.src_address = reinterpret_cast<uint64_t>(op_.input());
  claims.dst_address = reinterpret_cast<uint64_t>(op_.args.dst);
  if (!mapped && (fits_half() || goes_two_shot())) {
    Status status = fits_half() ? fill_half() : paths_.two_shot->in(op_, 0);
    if (!status.ok()) finish(std::move(status));
    claims.flags |= kStaged;
  }
  return claims;
}

// The group's other lanes move nothing meanwhile.
Poll GroupLane::poll() {
  const uint64_t before = group_->moved_bytes();
  const Poll polled = advance();
  moved_ += group_->moved_bytes() - before;
  return polled;
}

Poll GroupLane::advance() {
  if (state_ == State::kDone) return Poll::kFinished;
  uint64_t work = 0;
  bool advanced = false;
  const int polls = group_->crowded() ? 1 : kPolls;
  for (int pass = 0; pass < polls; pass++) {
    bool moved = false;
    if (state_ == State::kArriving && arrivals()) {
      if (state_ == State::kArriving) dispatch();
      moved = true;
    }
    if (state_ == State::kHalves && take_halves()) moved = true;
    if (state_ == State::kRounds && advance_rounds(&work)) moved = true;
    if (state_ == State::kDone) return Poll::kFinished;
    if (work >= kWorkPerPoll) return Poll::kAdvanced;
    advanced = advanced || moved;
    if (moved) pass = 0;
    if (!moved && polls > 1) group_->pause();
  }
  return advanced ? Poll::kAdvanced : Poll::kWaiting;
}

// Withdraws the arrival, so that waiting ranks see that this rank will not take part, even if it had arrived.
// The error names this rank once its goodbye arrives.
void GroupLane::abandon() {
  if (state_ != State::kDone && op_.size > 1) {
    block(op_.rank).posts[op_.slot & 1].arrival.sequence.store(kWithdrawn, std::memory_order_release);
  }
  state_ = State::kDone;
  block(group_->rank()).sealed.value.store(1, std::memory_order_seq_cst);
}

std::vector<int> GroupLane::writers() const {
  std::vector<int> ranks;
  for (int r = 0; r < group_->size(); r++) {
    if (r != group_->rank() && block(r).writing.value.load(std::memory_order_seq_cst) != 0)
      ranks.push_back(group_->name(r));
  }
  return ranks;
}

bool GroupLane::arrivals() {
  const uint64_t goal = op_.slot + 1;
  const uint64_t before = op_.slot >= 2 ? goal - 2 : 0;
  for (; arrived_ < op_.size; arrived_++) {
    const Post& post = block(arrived_).posts[op_.slot & 1];
    const uint64_t sequence = post.arrival.sequence.load(std::memory_order_acquire);
    if (sequence != goal) {
      if (sequence == before || sequence == kWithdrawn) return false;
      finish(Status::error(
                 Code::kPeerFailed,
                 cat("operation ", reported_slot(op_.args, op_.slot), ": rank ", group_->name(arrived_),
                     " is at operation ", sequence, ", expected ", goal, ": the shared memory is corrupt"),
                 Evidence::kDescriptor)
                 .with_ranks({group_->name(arrived_)})
                 .with_slot(reported_slot(op_.args, op_.slot)));
      return true;
    }
    if (arrived_ == op_.rank) continue;
    if (post.arrival.hash != hash_) {
      const Descriptor theirs = post.descriptor;
      finish(mismatch(reported_slot(op_.args, op_.slot), group_->name(op_.rank), descriptor_,
                      group_->name(arrived_), theirs));
      return true;
    }
    if (!inline_) context_.claims[static_cast<size_t>(arrived_)] = post.arrival.claims;
  }
  return true;
}

// Makes the error for an input with parts outside src (InputSlices) if some rank's input is not in its arena:
// the buckets of all ranks must be.
Status GroupLane::not_mapped() const {
  int r = 0;
  while ((context_.claims[static_cast<size_t>(r)].flags & kMapped) != 0) r++;
  return Status::error(Code::kPeerFailed,
                       cat("rank ", group_->name(r),
                           " published a bucket outside its segment, expected one in its arena: the shared "
                           "memory is corrupt"),
                       Evidence::kDescriptor)
      .with_ranks({group_->name(r)})
      .with_slot(reported_slot(op_.args, op_.slot));
}

// Chooses the way in which the data moves, from the posts of all ranks: all have arrived and execute the same
// operation.
void GroupLane::dispatch() {
  // Peers have the line of the next post in their caches, from two slots ago; no rank reads it any more.
  prefetch_for_write(&block(op_.rank).posts[(op_.slot & 1) ^ 1].arrival);
  if (inline_) return take_inline();
  uint64_t flags = ~uint64_t{0};
  for (const Claims& claims : context_.claims) flags &= claims.flags;
  const bool all_reduce = op_.args.coll == Coll::kAllReduce;
  if (flags & kMapped) return begin(all_reduce ? *paths_.owner : *paths_.mapped);
  if (op_.args.slices != nullptr) return finish(not_mapped());
  if (fits_half()) {
    state_ = State::kHalves;
    if (context_.claims[static_cast<size_t>(op_.rank)].flags & kStaged) return;
    if (Status status = fill_half(); !status.ok()) return finish(std::move(status));
    return blocks_.publish(LaneBlocks::kProduced, op_.slot, 1);
  }
  if (goes_two_shot()) return begin(*paths_.two_shot);
  if (flags & kPulled) return begin(all_reduce ? *paths_.owner_pulled : *paths_.pulled);
  begin(*paths_.staged);
}

void GroupLane::begin(Path& path) {
  algorithm_ = path.name();
  if (Status status = run_.begin(path); !status.ok()) return finish(std::move(status));
  state_ = State::kRounds;
}

bool GroupLane::advance_rounds(uint64_t* work) {
  Status status;
  const Poll polled = run_.advance(work, &status);
  if (polled == Poll::kFinished) finish(std::move(status));
  return polled != Poll::kWaiting;
}

void GroupLane::finish(Status status) {
  result_ = std::move(status);
  state_ = State::kDone;
  regain_half();
}

void GroupLane::take_inline() {
  struct Source {
    const GroupLane& lane;
    const std::byte* payload(int peer) const {
      return lane.block(peer).posts[lane.op_.slot & 1].arrival.payload + lane.op_.wanted();
    }
    Status view(int peer, uint64_t, const std::byte** at) {
      *at = payload(peer);
      return {};
    }
    Status copy(int peer, uint64_t bytes, std::byte* to) {
      assert(to != nullptr);  // a rank that takes has given a destination
      std::memcpy(to, payload(peer), bytes);
      return {};
    }
  };
  finish(take_range(*group_, op_, 0, op_.bytes, context_.inputs.data(), Source{*this}));
}

// Depends only on values that all ranks agree on.
bool GroupLane::fits_half() const {
  const bool all_reduce = op_.args.coll == Coll::kAllReduce;
  return op_.input_bytes() <= (all_reduce ? group_->thresholds().one_shot : kHalfBytes / 2);
}

bool GroupLane::goes_two_shot() const {
  return op_.args.coll == Coll::kAllReduce && !fits_half() && op_.bytes < group_->thresholds().pull;
}

Status GroupLane::fill_half() {
  const uint64_t bytes = op_.input_bytes();
  if (bytes > half_ready_) {
    for (int r = 0; r < op_.size; r++) {
      WEFT_TRY(group_->ensure(r, context_.staging, bytes));
      WEFT_TRY(group_->ensure(r, context_.staging + kHalfBytes, bytes));
    }
    half_ready_ = bytes;
  }
  if (!op_.gives) return {};
  std::memcpy(half(op_.rank), op_.input(), bytes);
  group_->count_shared(bytes);
  shown_[op_.slot & 1] = bytes <= kRegained ? bytes : 0;
  return {};
}

// Prefetches the lines of the next operation's half that peers have in their caches, from two slots ago. Its
// copy would wait for each line. Runs after this operation, whose own reads come first.
void GroupLane::regain_half() {
  const size_t next = (op_.slot & 1) ^ 1;
  if (shown_[next] == 0) return;
  std::byte* const memory = group_->memory(op_.rank, context_.staging + next * kHalfBytes);
  const uint64_t bytes = std::min(shown_[next], kRegained);
  for (uint64_t at = 0; at < bytes; at += kCacheLine) prefetch_for_write(memory + at);
  shown_[next] = 0;
}

bool GroupLane::take_halves() {
  for (int r = 0; r < op_.size; r++) {
    if (r == op_.rank || !op_.takes_from(r)) continue;
    if (context_.claims[static_cast<size_t>(r)].flags & kStaged) continue;
    if (!half_filled(r)) return false;
  }
  const int peer = op_.only_source();
  if (peer >= 0 && op_.bytes <= kAsked) {
    for (uint64_t at = 0; at < op_.bytes; at += kCacheLine)
      __builtin_prefetch(half(peer) + op_.wanted() + at);
  }
  struct Source {
    const GroupLane& lane;
    Status view(int peer, uint64_t, const std::byte** at) {
      *at = lane.half(peer) + lane.op_.wanted();
      return {};
    }
    Status copy(int peer, uint64_t bytes, std::byte* to) {
      assert(to != nullptr);
      std::memcpy(to, lane.half(peer) + lane.op_.wanted(), bytes);
      return {};
    }
  };
  finish(take_range(*group_, op_, 0, op_.bytes, context_.inputs.data(), Source{*this}));
  if (peer >= 0 && op_.bytes > kRegained) write_read_lines(half(peer) + op_.wanted(), op_.bytes);
  return true;
}

std::vector<int> GroupLane::missing() const {
  std::vector<int> ranks;
  for (int r = 0; r < op_.size && state_ != State::kDone; r++) {
    if (r != op_.rank && is_behind(r)) ranks.push_back(group_->name(r));
  }
  return ranks;
}

bool GroupLane::waits_for(int rank) const {
  for (int r = 0; r < op_.size && state_ != State::kDone; r++) {
    if (group_->name(r) == rank) return r != op_.rank && is_behind(r);
  }
  return false;
}

// True if the running operation waits for a rank.
bool GroupLane::is_behind(int rank) const {
  switch (state_) {
    case State::kArriving:
      return block(rank).posts[op_.slot & 1].arrival.sequence.load(std::memory_order_acquire) != op_.slot + 1;
    case State::kHalves:
      return op_.takes_from(rank) && (context_.claims[static_cast<size_t>(rank)].flags & kStaged) == 0 &&
             !half_filled(rank);
    case State::kRounds:
      return run_.is_behind(rank);
    case State::kDone:
      return false;
  }
  return false;
}

}  // namespace weft::shm
