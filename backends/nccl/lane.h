// An ordered sequence of collectives over NCCL. Each operation waits for the program's stream, then runs a
// barrier over the host's collectives below. The barrier compares the calls and names absent ranks. The
// operation then gets its turn among the lanes and is put on NCCL's stream; an event reports its end. The
// collectives below execute operations that NCCL does not support, and those on host memory.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "calls.h"
#include "communicator.h"
#include "transport/collectives.h"

namespace weft::nccl {

// Threads: as transport/collectives.h says.
class Lane final : public CollectiveLane {
 public:
  // first_slot: as in LaneKey.
  Lane(std::shared_ptr<Communicator> communicator, std::unique_ptr<CollectiveLane> below, uint64_t first_slot)
      : communicator_(std::move(communicator)), below_(std::move(below)), below_slot_(first_slot) {}
  ~Lane() override;

  Status prepare(const DeviceCall& call) override;
  void start(const CollectiveArgs& args, uint64_t slot) override;
  Poll poll() override;
  Status result() const override { return own_ ? status_ : below_->result(); }
  void abandon() override;
  std::vector<int> writers() const override;
  std::vector<int> missing() const override { return meets() ? below_->missing() : std::vector<int>(); }
  bool waits_for(int rank) const override { return meets() && below_->waits_for(rank); }
  std::vector<int> absent() const override { return meets() ? below_->absent() : std::vector<int>(); }
  void share_waits(WaitStats* notes) override { below_->share_waits(notes); }
  const char* algorithm() const override { return own_ ? "nccl" : below_->algorithm(); }
  uint64_t memory_bytes() const override;
  void rest() override { below_->rest(); }

 private:
  enum class State : uint8_t {
    kStream,     // the program's stream has not reached it
    kBarrier,    // some rank has not arrived
    kNumbering,  // rank 0 assigns its turn
    kTurn,
    kLaunching,  // NCCL is putting it on the stream
    kRunning,
    kEnding,  // failed on the device; NCCL has not released it yet
    kOver,
  };
  bool meets() const { return !own_ || state_ == State::kBarrier || state_ == State::kNumbering; }
  bool on_device() const { return own_ && state_ >= State::kLaunching && state_ < State::kOver; }
  void start_below(CollectiveArgs args);
  Poll advance();
  Status poll_stream();
  Status begin_barrier();
  Status begin_numbering();
  Status begin_work();
  Status settle();
  Status poll_work();
  Poll fail(const Status& status);

  const std::shared_ptr<Communicator> communicator_;
  const std::unique_ptr<CollectiveLane> below_;
  uint64_t below_slot_;  // of the next operation of below_

  std::mutex mutex_;
  std::byte* memory_ = nullptr;  // of work_; like done_, guarded by mutex_ until the first operation
  DeviceEvent done_ = nullptr;
  Workspace work_;

  // The running operation.
  bool own_ = false;  // executed by NCCL
  State state_ = State::kOver;
  CollectiveArgs args_;
  WholeCall whole_;
  uint64_t turn_ = 0;
  Status status_;
};

}  // namespace weft::nccl
