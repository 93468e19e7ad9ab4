// Gathers parameters of a sharded reducer: sends the owners' values to all ranks, bucket by bucket in the
// order of the parameters, while the program computes. Reducer starts it between steps, and the next step
// waits for it.
//
// Threads: start and result by the program's thread, while no gather is in progress; finished and done by any
// thread; poll and all private members under the engine's progress lock.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "reducer/state.h"
#include "transport/request.h"

namespace weft {

// A rank's vote, exchanged before any value moves. Sent as raw bytes.
struct GatherVote {
  uint64_t missing = 0;  // 1 + the index of a parameter whose value the rank lacks
  uint64_t refuses = 0;  // 1: the rank's own call is wrong; the rank has the error
};
static_assert(sizeof(GatherVote) == 16);

// Memory for two buckets of values: one is communicated while the other is packed or unpacked.
class GatherStaging {
 public:
  static Status make(const Plan& plan, std::shared_ptr<Arena> arena, std::unique_ptr<GatherStaging>* staging);
  ~GatherStaging();
  GatherStaging(const GatherStaging&) = delete;
  GatherStaging& operator=(const GatherStaging&) = delete;
  void abandon() { left_ = true; }  // leaves the memory allocated, because something may still write into it

  std::byte* part(size_t position) const { return slab_ + position % 2 * each_; }
  uint64_t bytes() const { return 2 * each_; }

 private:
  GatherStaging() = default;

  std::shared_ptr<Arena> arena_;
  bool left_ = false;
  std::byte* slab_ = nullptr;
  uint64_t each_ = 0;
};

class Gather final : public Task {
 public:
  explicit Gather(std::shared_ptr<ReducerState> state);

  struct Call {
    uint64_t step = 0;      // number of the next step
    bool announce = false;  // ranks that have joined wait for the handshake of a step
    GatherVote vote;        // this rank's
    Deadline deadline = Deadline::never();
  };
  void start(const Call& call);
  bool finished() const { return finished_.load(std::memory_order_acquire) == started_.load(); }
  // True when all values of the bucket are here.
  bool done(uint32_t bucket) const {
    return done_[bucket].load(std::memory_order_acquire) == started_.load();
  }
  Status result() const { return result_; }  // valid once finished
  uint64_t memory_bytes() const;

  Poll poll() override;
  void fail(const Status& why) noexcept override { s_.comm->fail(why); }

 private:
  // One collective: the handshake, the votes, or a share of a bucket.
  struct Move {
    enum class Kind : uint8_t { kHandshake, kVotes, kShare };
    Kind kind = Kind::kShare;
    uint32_t position = 0;  // of its bucket in order_
    Share share;
    bool last = false;  // the last of its bucket
  };

  void begin();
  Poll give_up();
  void end(Status status);
  // Each does one bounded piece of work; false if there was none.
  bool collect();
  bool submit();
  bool pack();
  bool unpack();

  void opened();
  bool may_submit(const Move& move) const;
  void fill(const Move& move, CollectiveArgs* args);
  template <class Copy>
  bool copy_some(uint32_t bucket, bool mine, Copy&& copy);
  uint64_t element_bytes(uint32_t bucket) const;
  Request& request(size_t move) { return requests_[move % requests_.size()]; }

  const std::shared_ptr<ReducerState> state_;
  ReducerState& s_;
  std::vector<uint32_t> order_;  // buckets, sorted by their first parameter
  std::vector<Move> moves_;
  uint64_t plan_tag_ = 0;
  std::atomic<uint32_t> started_{0};  // number of gathers
  std::atomic<uint32_t> finished_{0};
  // Per bucket, the number of the last gather in which its values arrived.
  std::unique_ptr<std::atomic<uint32_t>[]> done_;
  Status result_;
  Call call_;

  bool active_ = false;
  bool opened_ = false;
  bool agreed_ = false;
  HandshakeRecord record_;
  std::vector<HandshakeRecord> records_;
  std::vector<GatherVote> votes_;
  Status refused_;
  size_t submitted_ = 0;  // moves
  size_t collected_ = 0;
  size_t packed_ = 0;  // positions in order_
  size_t arrived_ = 0;
  size_t unpacked_ = 0;
  // Progress within the buckets that are being packed and unpacked.
  struct Cursor {
    size_t param = 0;
    uint64_t element = 0;
  };
  std::array<Cursor, 2> cursors_;
  std::array<Request, 16> requests_;
};

}  // namespace weft
