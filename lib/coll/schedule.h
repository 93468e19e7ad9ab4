// What one operation does on one rank: rounds of messages that are awaited together, local work beside them,
// and local work that starts when all messages of its round are complete. Built by an algorithm, executed by
// a lane (lane.h). It names memory by space and offset, so one schedule serves many operations of the same
// shape. Threads: a value; one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace weft::coll {

enum class Space : uint64_t { kSource, kTarget, kScratch };

// A place in the operation's memory, in bytes. Small, as a long operation's schedule has thousands.
struct Ref {
  Ref() : Ref(Space::kSource, 0) {}
  Ref(Space of, uint64_t at) : space(of), offset(at) {}
  Space space : 2;
  uint64_t offset : 62;
};
static_assert(sizeof(Ref) == 8);
inline Ref source(uint64_t offset = 0) {
  return {Space::kSource, offset};
}
inline Ref target(uint64_t offset = 0) {
  return {Space::kTarget, offset};
}

// When a message is posted: with the round that waits for it, or already with the one before, so that the
// network has something to do while this rank ends one round and begins the next. That round then neither
// writes what such a message takes nor uses the memory that it brings.
enum class When : bool { kInRound, kAhead };

struct Transfer {
  bool is_send : 1 = false;
  When when : 1 = When::kInRound;
  int peer : 30 = 0;
  uint32_t step = 0;  // the same on both sides; at most one message a pair, direction and step
  Ref memory;
  uint64_t bytes = 0;
};
static_assert(sizeof(Transfer) == 24);

enum class WorkKind : uint8_t {
  kCopy,     // count is bytes; of elements everywhere else
  kFold,     // all inputs at once, with the operation's scales, rounded once
  kBegin,    // for algorithms that add partial results: an input, scaled as far as it is scaled at first
  kCombine,  // two partial results, without scales
  kEnd,      // what is left of the scales
};

struct Work {
  WorkKind kind = WorkKind::kCopy;
  uint32_t first_input = 0;  // into Schedule::inputs; a copy has one
  uint32_t input_count = 0;
  Ref to;
  uint64_t count = 0;
};

// Where a round's transfers and works end; they begin where the round before it ends. Works up to
// meanwhile_end need none of its messages.
struct Round {
  uint32_t transfers_end = 0;
  uint32_t meanwhile_end = 0;
  uint32_t works_end = 0;
};

class Schedule {
 public:
  // Building: messages and work of the current round, until end_round(). A message of no bytes still travels;
  // work on nothing is left out.
  void send(int peer, uint32_t step, Ref from, uint64_t bytes, When when = When::kInRound);
  void receive(int peer, uint32_t step, Ref to, uint64_t bytes, When when = When::kInRound);
  // to = fold of the inputs in their order, with the operation's op and scales.
  void fold(std::span<const Ref> inputs, Ref to, uint64_t count);
  void copy(Ref from, Ref to, uint64_t bytes);
  // Partial results travel in the operation's dtype. So that sums of 16 bit do not overflow where their mean
  // does not, begin() applies all scales to them, and end() none; wider types are divided at the end.
  // combine: the lower ranks' part first.
  void begin(Ref from, Ref to, uint64_t count);
  void combine(Ref low, Ref high, Ref to, uint64_t count);
  void end(Ref at, uint64_t count);
  // The round's work so far neither reads what its messages bring nor writes what they take: it is done while
  // they travel.
  void meanwhile() { meanwhile_end_ = static_cast<uint32_t>(works_.size()); }
  void end_round();
  // Memory for the whole operation, aligned to 64 bytes.
  Ref scratch(uint64_t bytes);
  // After the algorithm: every rank sends to and hears from every other in the first round, if only to say
  // what it executes. So a rank that completes an operation knows that all ranks executed the same one.
  void add_handshake(int rank, int size);

  std::span<const Round> rounds() const { return rounds_; }
  std::span<const Transfer> transfers(size_t round) const;
  std::span<const Work> works(size_t round) const;
  size_t meanwhile(size_t round) const;  // how many of the first of them
  std::span<const Ref> inputs(const Work& work) const {
    return std::span(inputs_).subspan(work.first_input, work.input_count);
  }
  uint64_t scratch_bytes() const { return scratch_bytes_; }
  size_t most_transfers() const;  // in one round
  uint64_t memory_bytes() const;  // of the schedule itself
  void shrink();                  // it is complete

  static constexpr uint32_t kHandshakeStep = UINT32_MAX;

 private:
  void add(WorkKind kind, std::span<const Ref> inputs, Ref to, uint64_t count);

  std::vector<Transfer> transfers_;
  std::vector<Work> works_;
  std::vector<Ref> inputs_;
  std::vector<Round> rounds_;
  uint32_t meanwhile_end_ = 0;  // of the current round, as far as it has been said
  uint64_t scratch_bytes_ = 0;
};

}  // namespace weft::coll
