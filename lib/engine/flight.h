// The flight recorder: the recent operations of every lane of a communicator. Always on: recording an
// operation writes one cache line and does not read the clock. The record is written to a file when the
// communicator fails (comm/flight_dump.h) or when the program requests it; `weft trace explain` reads the
// files of all ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/collectives.h"

namespace weft {

struct FlightOperation {
  // kRunning is also the state of an operation that was running at the failure.
  enum class State : uint8_t { kRunning, kFinished, kFailed };
  Descriptor call;
  uint64_t slot = 0;
  uint64_t waiting_since_ns = 0;  // first clock read since it last advanced; 0: none
  const char* algorithm = "";     // static; set once finished
  State state = State::kRunning;
};

// The most recent operations of one lane. Threads: under the progress lock.
class FlightRing {
 public:
  static constexpr size_t kCapacity = 256;
  static constexpr size_t kPairCapacity = 32;  // for the lane of a pair: there may be as many lanes as ranks

  // capacity: a power of two.
  explicit FlightRing(size_t capacity) : entries_(capacity) {}

  void started(const CollectiveArgs& args, uint64_t slot) {
    FlightOperation& entry = at(slot);
    entry.call = Descriptor::of(args);
    entry.slot = slot;
    entry.waiting_since_ns = 0;
    entry.algorithm = "";
    entry.state = FlightOperation::State::kRunning;
  }
  void waiting(uint64_t slot, uint64_t now_ns) { at(slot).waiting_since_ns = now_ns; }
  void finished(uint64_t slot, const char* algorithm, bool ok) {
    FlightOperation& entry = at(slot);
    entry.algorithm = algorithm;
    entry.state = ok ? FlightOperation::State::kFinished : FlightOperation::State::kFailed;
  }
  // Returns the recent operations before slot `next`, oldest first; `first` was the first slot that started
  // here.
  std::vector<FlightOperation> operations(uint64_t next, uint64_t first = 0) const;

 private:
  FlightOperation& at(uint64_t slot) { return entries_[slot & (entries_.size() - 1)]; }
  std::vector<FlightOperation> entries_;
};

// A tagged message of lib/tagged, in flight or ended.
struct FlightMessage {
  // kUnmatched: as far as this rank knows, the other one has not made its call.
  enum class State : uint8_t { kUnmatched, kMoving, kFinished, kFailed };
  static constexpr int kAnyPeer = -1;
  static constexpr uint64_t kAnyTag = UINT64_MAX;
  bool sends = false;
  int peer = 0;  // kAnyPeer: a receive from any rank
  uint64_t tag = 0;
  Dtype dtype = Dtype::kU8;
  uint64_t count = 0;
  uint64_t waiting_since_ns = 0;  // first clock read since its call; 0: none
  State state = State::kUnmatched;
  uint32_t waiters = 0;  // threads of the program that are blocked until it is complete

  bool running() const { return state == State::kUnmatched || state == State::kMoving; }
  std::string text() const;  // "recv_tagged f32 x 10 from any rank with tag 7"
};

// Progress of a reducer's step.
struct FlightStep {
  uint64_t step = kNoStep;  // kNoStep: no step is running
  uint32_t buckets = 0;
  uint32_t launched = 0;
  uint32_t done = 0;
  std::string where;  // what the step waits for
};

// A reducer, as seen by its lane.
class FlightSource {
 public:
  virtual ~FlightSource() = default;
  virtual FlightStep flight_step() const = 0;  // needs the progress lock
  // Returns a suffix "; ..." for the error that a rank has left during its steps, with advice for the
  // program. Any thread.
  virtual const char* departure_hint() const { return ""; }
};

// The recorded state of one lane, and of a communicator. Value types.
struct FlightLane {
  LaneKey key;
  uint64_t next_slot = 0;  // number of started operations
  uint64_t queued = 0;     // submitted and not yet started
  std::vector<FlightOperation> operations;
  std::vector<int> waits_for;  // ranks, if an operation is running
  bool has_step = false;       // the lane is a reducer's
  FlightStep step;
};

struct FlightRecord {
  uint64_t comm = 0;  // equal on all ranks and unique among communicators
  std::string job;
  int rank = 0;
  int size = 1;
  uint32_t generation = 0;  // number of shrinks before it
  int first_rank = 0;       // this rank's number in generation 0
  std::string backend;
  uint64_t now_ns = 0;
  uint64_t operations = 0;  // completed on all lanes
  Status failure;
  std::vector<FlightLane> lanes;
  std::vector<FlightMessage> messages;  // the last that ended, then those in flight, each in order
};

}  // namespace weft
