// Steps that the program captures into CUDA graphs (WEFT_REDUCER_GRAPH, WEFT_BEGIN_CAPTURE): nothing of them
// runs while they are captured, and nothing of the engine takes part when they are launched. Each bucket is
// three nodes on the graph lane's stream: a kernel copies its gradients into the bucket, cast, NCCL adds it
// up in place, a kernel copies the results back. Buckets follow each other in the plan's order, each as soon
// as its gradients are there. Numbers at both ends, which the device writes, tell how many launches have
// begun and ended.
//
// The memory that graphs name stays for as long as this object: a table for each capture, the buckets of all
// of them (so launches follow each other), the numbers.
//
// Threads: begin and finish by the program's, one at a time; ready, open and the counts by any. One mutex
// guards the step that is being captured. A thread of its own, weft-graph, from the first capture on, looks
// ten times a second after failures: of the communicator, of NCCL, of a launch that does not end.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "core/accelerator.h"
#include "core/graph_lane.h"

namespace weft {

struct Agreement;
struct ReducerState;

class Captures {
 public:
  // What cannot be captured, of this rank's wish.
  static Status check(uint64_t flags, uint32_t check_interval);
  // Collective, for a state that has all else.
  static Status make(const Agreement& agreement, ReducerState* state, std::unique_ptr<Captures>* made);
  explicit Captures(ReducerState* state) : s_(*state) {}
  // Waits some seconds for a launch that is under way, and ends it then.
  ~Captures();
  Captures(const Captures&) = delete;
  Captures& operator=(const Captures&) = delete;

  bool open() const { return open_.load(std::memory_order_acquire); }
  Status begin(uint32_t micro_batches, int64_t timeout_ms);
  // On a stream of the device, checked to be captured.
  Status ready(uint64_t param, std::byte* gradient, DeviceStream stream);
  // The step is over, well or not. wrong: why it cannot be a good one.
  Status finish(const std::vector<DeviceStream>& streams, const Status& wrong);

  int device() const { return device_; }
  uint64_t captures() const { return captures_.load(std::memory_order_relaxed); }
  uint64_t launches() const { return words_ == nullptr ? 0 : load(words_->begun); }
  uint64_t replays() const { return words_ == nullptr ? 0 : load(words_->ended); }
  uint64_t memory_bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  // In pinned memory; begun and ended are written by kernels.
  struct Words {
    uint64_t begun;
    uint64_t ended;
    uint64_t one;
  };
  // A kernel writes it whole, as the thread sanitizer cannot know. A number to look at: it orders nothing.
  __attribute__((no_sanitize("thread"))) static uint64_t load(const volatile uint64_t& word) { return word; }
  // Of one bucket of the step that is being captured.
  struct Bucket {
    uint32_t missing = 0;               // gradients
    std::vector<DeviceStream> streams;  // that make them
    CopyPiece* pieces = nullptr;        // first those into the bucket, then those out of it
    std::byte* table = nullptr;         // the lane's
  };
  Status prepare();
  Deadline most_of(Deadline deadline) const;
  Status await(const std::function<Status(bool* done)>& ask, Deadline deadline) const;
  Status warm_up(Deadline deadline);
  Status make_memory();
  Status make_table();
  Status copy(uint32_t bucket, bool in);
  Status launch(uint32_t bucket);
  Status join(const std::vector<DeviceStream>& streams);
  Status count(uint64_t* word);
  Status missing() const;
  Status watch();
  void look();
  void end_watch();

  ReducerState& s_;
  int device_ = 0;
  std::shared_ptr<GraphLane> lane_;
  std::byte* memory_ = nullptr;     // the lane's: of all buckets
  std::vector<std::byte*> places_;  // in there, by bucket
  std::vector<uint32_t> room_;      // pieces in one direction, by bucket
  Words* words_ = nullptr;
  DeviceEvent event_ = nullptr;

  std::atomic<bool> open_{false};
  std::atomic<uint64_t> captures_{0};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<int64_t> timeout_ms_{0};
  mutable std::mutex mutex_;        // all below; open_ changes under it
  std::vector<std::byte*> tables_;  // pinned, of all captures
  bool spare_table_ = false;        // no graph names the last of them
  std::vector<Bucket> buckets_;
  std::vector<std::byte*> gradients_;  // by parameter
  std::vector<bool> ready_;
  uint32_t next_ = 0;  // bucket to be launched
  double divisor_ = 1;
  Status failure_;

  std::thread watcher_;
  std::atomic<uint32_t> ending_{0};  // what it sleeps on
  // The watcher's.
  uint64_t seen_ = 0;
  Deadline deadline_ = Deadline::never();
};

}  // namespace weft
