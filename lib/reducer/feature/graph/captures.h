// Steps that the program captures into CUDA graphs (WEFT_REDUCER_GRAPH, WEFT_BEGIN_CAPTURE). Nothing runs
// while they are captured, and the engine takes no part when they are launched. Each bucket is three nodes on
// the graph lane's stream. A kernel copies and casts its gradients into the bucket, NCCL sums it in place,
// and a kernel copies the results back. Buckets run in the plan's order, each as soon as its gradients exist.
// The device counts begun and ended launches in two words.
//
// The memory that graphs refer to lives as long as this object: a table for each capture, the buckets, and
// the counters. All captures share the buckets, so launches run one after the other.
//
// Threads: begin and finish by the program's, one at a time; ready, open and the counts by any. One mutex
// guards the step that is being captured. From the first capture on, a thread named weft-graph checks for
// failures ten times a second: of the communicator, of NCCL, and launches that do not end.
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
#include "device/accelerator.h"
#include "transport/graph_lane.h"

namespace weft {

struct Agreement;
struct ReducerState;

class Captures {
 public:
  // Makes the Captures of a reducer's state that is otherwise complete. Collective.
  static Status make(const Agreement& agreement, ReducerState* state, std::unique_ptr<Captures>* made);
  explicit Captures(ReducerState* state) : s_(*state) {}
  // Waits some seconds for a launch in progress, and then aborts it.
  ~Captures();
  Captures(const Captures&) = delete;
  Captures& operator=(const Captures&) = delete;

  bool open() const { return open_.load(std::memory_order_acquire); }
  Status begin(uint32_t micro_batches, int64_t timeout_ms);
  // Adds a gradient. The caller has checked that the stream belongs to the device and is being captured.
  Status ready(uint64_t param, std::byte* gradient, DeviceStream stream);
  // Ends the step, with or without an error. wrong: an error of the caller, which makes the step fail.
  Status finish(const std::vector<DeviceStream>& streams, const Status& wrong);

  int device() const { return device_; }
  uint64_t captures() const { return captures_.load(std::memory_order_relaxed); }
  uint64_t launches() const { return words_ == nullptr ? 0 : load(words_->begun); }
  uint64_t replays() const { return words_ == nullptr ? 0 : load(words_->ended); }
  uint64_t memory_bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  // Counters in pinned memory; kernels write begun and ended.
  struct Words {
    uint64_t begun;
    uint64_t ended;
    uint64_t one;
  };
  // Reads a counter. A kernel writes it without tearing, which the thread sanitizer cannot know. The read
  // orders nothing.
  __attribute__((no_sanitize("thread"))) static uint64_t load(const volatile uint64_t& word) { return word; }
  // A bucket of the step that is being captured.
  struct Bucket {
    uint32_t missing = 0;               // gradients not ready yet
    std::vector<DeviceStream> streams;  // the streams that produce them
    CopyPiece* pieces = nullptr;        // of the copy into the bucket, then of the copy out of it
    std::byte* table = nullptr;         // the graph lane's table
  };
  Status prepare();
  Deadline most_of(Deadline deadline) const;
  Status await(const char* what, const std::function<Status(bool* done)>& ask, Deadline deadline) const;
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
  std::byte* memory_ = nullptr;     // of all buckets; the graph lane owns it
  std::vector<std::byte*> places_;  // each bucket's address in memory_
  std::vector<uint32_t> room_;      // per bucket: most pieces in one direction
  Words* words_ = nullptr;
  DeviceEvent event_ = nullptr;

  std::atomic<bool> open_{false};
  std::atomic<uint64_t> captures_{0};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<int64_t> timeout_ms_{0};
  mutable std::mutex mutex_;        // guards all members below; open_ changes under it
  std::vector<std::byte*> tables_;  // pinned, of all captures
  bool spare_table_ = false;        // no graph refers to the last table
  std::vector<Bucket> buckets_;
  std::vector<std::byte*> gradients_;  // by parameter
  std::vector<bool> ready_;
  uint32_t next_ = 0;  // the bucket to be launched next
  double divisor_ = 1;
  Status failure_;

  std::thread watcher_;
  std::atomic<uint32_t> ending_{0};  // futex on which the watcher sleeps
  // Used by the watcher thread only.
  uint64_t seen_ = 0;
  Deadline deadline_ = Deadline::never();
};

}  // namespace weft
