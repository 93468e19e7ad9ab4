// The messages from one rank to another: those between devices by NCCL, those of host memory below.
//
// A message is alone on both devices (doors.h). Its ranks take their doors one after the other, the lower
// rank (it asks) first, and by notes below, which carry the descriptor of the call:
//   hello   from the sender, when the program's stream has come to it
//   here    from the higher rank, when it is ready as well
//   ask     the lower rank has its own door
//   verdict the higher rank has taken its own too, and both launch; or a collective is there: the lower rank
//           gives its door back, and waits for the next "here"
// A hello of the higher rank is a "here". So nobody holds a door while he waits for the other rank's program,
// for a collective, or for a rank below: there is no circle. Both engines must be driven meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "communicator.h"
#include "core/collectives.h"

namespace weft::nccl {

// Threads: as core/collectives.h says.
class MessageLane final : public CollectiveLane {
 public:
  // sends: whether this rank does. Both lanes are of the pair; data's messages go from sender to receiver,
  // and so do notes in that direction; back's are the other rank's notes.
  MessageLane(std::shared_ptr<Communicator> communicator, int peer, bool sends,
              std::unique_ptr<CollectiveLane> data, std::unique_ptr<CollectiveLane> back);
  ~MessageLane() override;

  Status prepare(const DeviceCall& call) override;
  void start(const CollectiveArgs& args, uint64_t slot) override;
  Poll poll() override;
  Status result() const override { return own_ ? status_ : data_.lane->result(); }
  void abandon() override;
  std::vector<int> writers() const override;
  std::vector<int> missing() const override;
  bool waits_for(int rank) const override;
  std::vector<int> absent() const override;
  const char* algorithm() const override { return own_ ? "nccl" : data_.lane->algorithm(); }
  uint64_t memory_bytes() const override { return data_.lane->memory_bytes() + back_.lane->memory_bytes(); }
  void rest() override;

 private:
  enum class State : uint8_t {
    kStream,  // the program's stream has not come to it
    kHello,
    kHere,
    kDoor,  // the lower rank waits for its own
    kAsk,
    kDecide,  // the higher rank looks at its own
    kVerdict,
    kCalm,  // the higher rank has refused, and waits for its collectives
    kCall,
    kLaunching,  // NCCL puts it on the stream
    kRunning,
    kEnding,  // it failed on the device, and NCCL lets go of it
    kOver,
  };
  // A lane below, with its own slots.
  struct Below {
    std::unique_ptr<CollectiveLane> lane;
    uint64_t slot = 0;
  };
  bool on_device() const { return own_ && state_ >= State::kLaunching && state_ < State::kOver; }
  const CollectiveLane* talks() const { return own_ ? talks_ : data_.lane.get(); }
  Doors& doors() { return communicator_->doors(); }
  // Say or hear a note; the state is the one in which that goes on.
  void say(State state, uint64_t word);
  void hear(State state);
  void note(State state, bool says);
  Poll advance();
  Status step();
  Status look_at_stream();
  void after_hello();
  void decide();
  void after_verdict();
  Status call();
  Status settle();
  Status look_at_work();
  Poll fail(const Status& status);

  const std::shared_ptr<Communicator> communicator_;
  const int peer_;
  const bool sends_;
  const bool asks_;  // it is the lower rank
  Below data_;
  Below back_;

  std::mutex mutex_;
  DeviceEvent done_ = nullptr;  // guarded by mutex_ until the first operation

  // The running operation.
  bool own_ = false;  // NCCL's
  State state_ = State::kOver;
  CollectiveLane* talks_ = nullptr;  // of the note that is under way
  uint64_t word_ = 0;                // its contents
  CollectiveArgs args_;
  WholeCall whole_;
  Status status_;
};

}  // namespace weft::nccl
