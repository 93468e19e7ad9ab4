// Executes schedules over a transport: one lane of collectives, or of messages to or from one rank.
#pragma once

#include <atomic>
#include <memory>
#include <unordered_map>
#include <vector>

#include "coll/progress_reports.h"
#include "coll/schedule.h"
#include "coll/scratch.h"
#include "coll/select.h"
#include "device/device.h"
#include "transport/transport.h"

namespace weft::coll {

// State that all lanes of a communicator share.
struct LaneContext {
  Transport& transport;
  const DeviceOps& host;
  int rank;
  int size;
  Forced forced;
  std::vector<int> members = {};  // the transport's ranks of this group, by rank; empty: all
  // For operations without a handshake; null where the lane's user has other means to name absent ranks.
  ProgressReports* reports = nullptr;
  int name(int peer) const { return members.empty() ? peer : members[static_cast<size_t>(peer)]; }
};

// Threads: as transport/collectives.h says. Buffers of messages and scratch are kept between operations.
class TransportLane final : public CollectiveLane {
 public:
  // context outlives the lane.
  TransportLane(const LaneContext& context, const LaneKey& key);
  ~TransportLane() override { abandon(); }

  void start(const CollectiveArgs& args, uint64_t slot) override;
  Poll poll() override;
  Status result() const override { return result_; }
  void abandon() override;
  std::vector<int> missing() const override { return awaited(false); }
  std::vector<int> absent() const override;
  bool waits_for(int rank) const override;
  void share_waits(WaitStats* stats) override { waits_ = stats; }
  const char* algorithm() const override { return plan_ != nullptr ? plan_->algorithm : ""; }
  std::optional<uint64_t> moved_bytes() const override { return sent_bytes_; }
  uint64_t memory_bytes() const override { return memory_bytes_.load(std::memory_order_relaxed); }

 private:
  std::vector<int> awaited(bool in_use) const;
  Status choose_plan();
  Status build(const Shape& shape);
  Status reserve(const Schedule& schedule);
  void note_memory();
  void post_round();
  void post(size_t round, When when, bool sends);
  void take_back(Message& message);
  // A transfer's message. The messages of two consecutive rounds may be in flight.
  Message& message(size_t round, uint32_t transfer) {
    return messages_[round % 2 * (messages_.size() / 2) + transfer];
  }
  const Message& message(size_t round, uint32_t transfer) const {
    return messages_[round % 2 * (messages_.size() / 2) + transfer];
  }
  bool reap();  // handles completed messages; true if there were any
  Status check(const Transfer& transfer, const Message& message) const;
  bool reports() const { return context_.reports != nullptr && !plan_->has_handshake; }
  Status check_reports();
  Status check_peers();  // checks whether an awaited rank executes something else
  // Executes part of the round's first `most` works, reading about `budget` bytes. Returns true when they are
  // done.
  bool work(size_t most, uint64_t budget);
  void run(const Work& work, uint64_t begin, uint64_t count);
  void finish(Status status);
  std::byte* at(const Ref& ref) const;

  const LaneContext& context_;
  const LaneKey key_;
  const uint32_t wire_lane_;  // as in MessageTag

  // The running operation.
  CollectiveArgs args_;
  Descriptor descriptor_;
  uint64_t slot_ = 0;
  bool running_ = false;
  Status result_;
  size_t round_ = 0;
  size_t ahead_round_ = 0;         // this round's kAhead messages are posted; 0: none
  std::vector<uint32_t> pending_;  // transfers of the round whose messages are not complete
  size_t work_index_ = 0;          // into the round's works
  uint64_t work_begin_ = 0;        // how much of that work is done
  uint64_t sent_bytes_ = 0;        // payload of its messages
  uint32_t idle_polls_ = 0;        // idle polls since the last progress
  WaitStats* waits_ = nullptr;     // of the lane's user
  ProgressReports::Wait wait_;     // if reports()

  // Kept between operations: the schedules of recently used shapes, and memory for the largest.
  struct Plan {
    Shape shape;
    const char* algorithm = "";
    bool has_handshake = false;
    Schedule schedule;
    uint64_t memory_bytes() const { return sizeof *this + schedule.memory_bytes(); }
  };
  struct ShapeKey {
    Coll coll;
    int root;
    uint64_t count;
    uint64_t element;
    bool at_once;
    bool operator==(const ShapeKey&) const = default;
  };
  struct HashShape {
    size_t operator()(const ShapeKey& key) const;
  };
  std::unordered_map<ShapeKey, Plan, HashShape> plans_;
  uint64_t plan_bytes_ = 0;
  Plan once_;                      // for blocks of different sizes, whose schedule serves one operation
  const Plan* plan_ = nullptr;     // of the running operation
  std::vector<Message> messages_;  // see message(); never moves while messages are posted
  std::vector<const std::byte*> fold_inputs_;
  Scratch scratch_;
  std::atomic<uint64_t> memory_bytes_{0};  // total of the above; written under the progress lock
};

}  // namespace weft::coll
