// The messages from one rank to another. NCCL sends those between devices; the lanes below send those of host
// memory.
//
// A message runs alone on both devices (launch_gate.h). Its ranks take their launch gates one after the
// other, the lower rank first (it asks). They coordinate by notes on the lanes below, which carry the
// descriptor of the call:
//
//   hello   from the sender, when the program's stream has reached the message
//   here    from the higher rank, when it is ready as well
//   ask     from the lower rank, which has taken its own gate
//   decision from the higher rank. Granted: it has taken its own gate too, and both launch. Refused: it has a
//           collective inside; the lower rank gives its gate back, and waits for the next "here"
//
// A hello from the higher rank counts as "here". So no rank holds a gate while it waits for the other rank's
// program, for a collective, or for a rank on the lanes below: there is no cyclic wait. Both engines must
// make progress meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "communicator.h"
#include "transport/collectives.h"

namespace weft::nccl {

// Threads: as transport/collectives.h says.
class MessageLane final : public CollectiveLane {
 public:
  // Both lanes connect the pair. data carries messages from sender to receiver, and the notes in that
  // direction; back carries the receiver's notes.
  MessageLane(std::shared_ptr<Communicator> communicator, const LaneKey& key,
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
    kStream,  // the program's stream has not reached it
    kHello,
    kHere,
    kGate,  // the lower rank waits for its own gate
    kAsk,
    kDecide,  // the higher rank tries its own gate
    kDecision,
    kCalm,  // the higher rank has refused, and waits for its collectives
    kCall,
    kLaunching,  // NCCL is putting it on the stream
    kRunning,
    kEnding,  // failed on the device; NCCL has not released it yet
    kOver,
  };
  // A lane below, with slots of its own.
  struct Below {
    std::unique_ptr<CollectiveLane> lane;
    uint64_t slot = 0;
  };
  bool on_device() const { return own_ && state_ >= State::kLaunching && state_ < State::kOver; }
  const CollectiveLane* talks() const { return own_ ? talks_ : data_.lane.get(); }
  LaunchGate& launch_gate() { return communicator_->launch_gate(); }
  // Send or receive a note; `state` is the state until that completes.
  void say(State state, uint64_t word);
  void receive(State state);
  void note(State state, bool says);
  Poll advance();
  Status step();
  Status poll_stream();
  void after_hello();
  void decide();
  void after_verdict();
  Status call();
  Status settle();
  Status poll_work();
  Poll fail(const Status& status);

  const std::shared_ptr<Communicator> communicator_;
  const int peer_;
  const bool sends_;  // this rank is the sender
  const bool asks_;   // this is the lower rank
  Below data_;
  Below back_;

  std::mutex mutex_;
  DeviceEvent done_ = nullptr;  // guarded by mutex_ until the first operation

  // The running operation.
  bool own_ = false;  // executed by NCCL
  State state_ = State::kOver;
  CollectiveLane* talks_ = nullptr;  // lane of the note in flight
  uint64_t word_ = 0;                // its contents
  CollectiveArgs args_;
  WholeCall whole_;
  Status status_;
};

}  // namespace weft::nccl
