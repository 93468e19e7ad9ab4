// The flight recorder: what every lane of a communicator did last. Always on: an operation costs it one cache
// line that is written, and no look at the clock. Written to a file when the communicator fails
// (core/flight_dump.h), or when the program asks; `weft trace explain` reads the files of all ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/collectives.h"

namespace weft {

struct FlightOperation {
  enum class State : uint8_t { kRunning, kFinished, kFailed };  // kRunning: also when the failure found it so
  Descriptor call;
  uint64_t slot = 0;
  uint64_t waiting_since_ns = 0;  // the first look at the clock since it last advanced; 0: there was none
  const char* algorithm = "";     // static; once finished
  State state = State::kRunning;
};

// The last operations of one lane. Threads: under the drive lock.
class FlightRing {
 public:
  static constexpr size_t kCapacity = 256;
  static constexpr size_t kPairCapacity = 32;  // of a lane of a pair: there may be as many as ranks

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
  // The last ones before slot `next`, oldest first; `first` was the first that started here.
  std::vector<FlightOperation> operations(uint64_t next, uint64_t first = 0) const;

 private:
  FlightOperation& at(uint64_t slot) { return entries_[slot & (entries_.size() - 1)]; }
  std::vector<FlightOperation> entries_;
};

// Where a reducer's step is.
struct FlightStep {
  uint64_t step = kNoStep;  // kNoStep: none is under way
  uint32_t buckets = 0;
  uint32_t launched = 0;
  uint32_t done = 0;
  std::string where;  // what it waits for
};

// A reducer, as its lane sees it.
class FlightSource {
 public:
  virtual ~FlightSource() = default;
  virtual FlightStep flight_step() const = 0;  // under the drive lock
  // Ends the error that a rank has left amid its steps: "; ..." and what programs do about it. Any
  // thread.
  virtual const char* departure_hint() const { return ""; }
};

// What is known of one lane, and of all of a communicator. Values.
struct FlightLane {
  LaneKey key;
  uint64_t next_slot = 0;  // how many operations have been started
  uint64_t queued = 0;     // submitted and not started
  std::vector<FlightOperation> operations;
  std::vector<int> waits_for;  // ranks, if an operation is under way
  bool has_step = false;       // it is a reducer's
  FlightStep step;
};

struct FlightRecord {
  uint64_t comm = 0;  // equal on all ranks, and of no other communicator
  std::string job;
  int rank = 0;
  int size = 1;
  uint32_t generation = 0;  // how often it was shrunk
  int first_rank = 0;       // this rank's number before the first shrink
  std::string backend;
  uint64_t now_ns = 0;
  uint64_t operations = 0;  // completed on all lanes
  Status failure;
  std::vector<FlightLane> lanes;
};

}  // namespace weft
