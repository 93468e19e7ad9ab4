// The schedule of one operation on one rank. A round consists of messages that are awaited together, local
// work beside them, and local work that starts when all its messages are complete. An algorithm builds the
// schedule and a lane (lane.h) executes it. It names memory by space and offset, so one schedule serves many
// operations of the same shape. Threads: a value; one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace weft::coll {

enum class Space : uint64_t { kSource, kTarget, kScratch };

// A location in the operation's memory, in bytes. Kept small, because a long operation's schedule has
// thousands.
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

// When a message is posted: with the round that waits for it, or already with the round before. kAhead keeps
// the network busy while this rank ends one round and begins the next. The earlier round then may neither
// write what such a message sends nor use the memory that it receives into.
enum class When : bool { kInRound, kAhead };

struct Transfer {
  bool is_send : 1 = false;
  When when : 1 = When::kInRound;
  int peer : 30 = 0;
  uint32_t step = 0;  // the same on both sides; unique for a pair and direction
  Ref memory;
  uint64_t bytes = 0;
};
static_assert(sizeof(Transfer) == 24);

enum class WorkKind : uint8_t {
  kCopy,  // count is in bytes
  kFold,  // folds all inputs at once with the operation's scales and rounds once; count is in elements
  kAdd,   // folds all inputs without scales: a partial result
};

struct Work {
  WorkKind kind = WorkKind::kCopy;
  uint32_t first_input = 0;  // index into Schedule::inputs; a copy has one input
  uint32_t input_count = 0;
  Ref to;
  uint64_t count = 0;
};

// The ends of a round's transfers and works; they begin where the previous round's end. Works before
// meanwhile_end need none of its messages.
struct Round {
  uint32_t transfers_end = 0;
  uint32_t meanwhile_end = 0;
  uint32_t works_end = 0;
};

class Schedule {
 public:
  // Building. Messages and work are added to the current round until end_round(). A message of zero bytes is
  // still sent; work on zero elements is left out.
  void send(int peer, uint32_t step, Ref from, uint64_t bytes, When when = When::kInRound);
  void receive(int peer, uint32_t step, Ref to, uint64_t bytes, When when = When::kInRound);
  // to = fold of the inputs in their order, with the operation's op and scales.
  void fold(std::span<const Ref> inputs, Ref to, uint64_t count);
  // to = partial result of the inputs in their order. The last fold of an element is fold(), which scales.
  void add(std::span<const Ref> inputs, Ref to, uint64_t count);
  void copy(Ref from, Ref to, uint64_t bytes);
  // Declares that the round's work so far neither reads what its messages receive nor writes what they send.
  // It is then done while the messages are in flight.
  void meanwhile() { meanwhile_end_ = static_cast<uint32_t>(works_.size()); }
  void end_round();
  // Reserves scratch memory for the whole operation, aligned to 64 bytes.
  Ref scratch(uint64_t bytes);
  // Called after the algorithm: makes every rank send to and receive from every other rank in the first
  // round, even if only to compare descriptors. So a rank that completes an operation knows that all ranks
  // executed the same one.
  // every_pair: also between ranks that exchange messages in their first round (Algorithm::synchronises).
  void add_handshake(int rank, int size, bool every_pair = false);

  std::span<const Round> rounds() const { return rounds_; }
  std::span<const Transfer> transfers(size_t round) const;
  std::span<const Work> works(size_t round) const;
  size_t meanwhile(size_t round) const;  // number of works that await no message; they come first
  std::span<const Ref> inputs(const Work& work) const {
    return std::span(inputs_).subspan(work.first_input, work.input_count);
  }
  uint64_t scratch_bytes() const { return scratch_bytes_; }
  size_t most_transfers() const;  // largest number in one round
  uint64_t memory_bytes() const;  // of the schedule itself
  void shrink();                  // frees spare capacity; the schedule is complete

  static constexpr uint32_t kHandshakeStep = UINT32_MAX;

 private:
  void append(WorkKind kind, std::span<const Ref> inputs, Ref to, uint64_t count);

  std::vector<Transfer> transfers_;
  std::vector<Work> works_;
  std::vector<Ref> inputs_;
  std::vector<Round> rounds_;
  uint32_t meanwhile_end_ = 0;  // of the current round, as declared so far
  uint64_t scratch_bytes_ = 0;
};

}  // namespace weft::coll
