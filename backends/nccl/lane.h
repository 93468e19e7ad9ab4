// An order of collectives over NCCL. Each waits for the program's stream, meets the other ranks over the
// host's collectives below (where it is compared, and ranks that do not come are named), gets its turn among
// the lanes, and is put on NCCL's stream; an event says when it is over. What NCCL does not do, and what is
// in host memory, is done below.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "calls.h"
#include "communicator.h"
#include "core/collectives.h"

namespace weft::nccl {

// Threads: as core/collectives.h says.
class Lane final : public CollectiveLane {
 public:
  Lane(std::shared_ptr<Communicator> communicator, std::unique_ptr<CollectiveLane> below)
      : communicator_(std::move(communicator)), below_(std::move(below)) {}
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
  void share_waits(WaitNotes* notes) override { below_->share_waits(notes); }
  const char* algorithm() const override { return own_ ? "nccl" : below_->algorithm(); }
  uint64_t memory_bytes() const override;
  void rest() override { below_->rest(); }

 private:
  enum class State : uint8_t {
    kStream,     // the program's stream has not come to it
    kMeeting,    // not all ranks have
    kNumbering,  // rank 0 says whose turn it is after whom
    kTurn,
    kLaunching,  // NCCL puts it on the stream
    kRunning,
    kEnding,  // it failed on the device, and NCCL lets go of it
    kOver,
  };
  bool meets() const { return !own_ || state_ == State::kMeeting || state_ == State::kNumbering; }
  bool on_device() const { return own_ && state_ >= State::kLaunching && state_ < State::kOver; }
  void start_below(CollectiveArgs args);
  Poll advance();
  Status look_at_stream();
  Status begin_meeting();
  Status begin_numbering();
  Status begin_work();
  Status settle();
  Status look_at_work();
  Poll fail(const Status& status);

  const std::shared_ptr<Communicator> communicator_;
  const std::unique_ptr<CollectiveLane> below_;
  uint64_t below_slot_ = 0;  // operations of below_

  std::mutex mutex_;
  std::byte* memory_ = nullptr;  // of work_; guarded by mutex_ until the first operation, as is done_
  DeviceEvent done_ = nullptr;
  Workspace work_;

  // The running operation.
  bool own_ = false;  // NCCL's
  State state_ = State::kOver;
  CollectiveArgs args_;
  WholeCall whole_;
  uint64_t turn_ = 0;
  Status status_;
};

}  // namespace weft::nccl
