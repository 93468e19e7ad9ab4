// NCCL's communicator of the ranks on one device, created once and collectively. It also holds the order in
// which the lanes of one of Weft's communicators use it, equal on all ranks. NCCL's calls that may block
// (destroy, abort) run on a thread of the communicator, so that no caller waits for them longer than it
// wants. The thread starts with the communicator, because none may be available when an operation fails.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/accelerator.h"
#include "launch_gate.h"
#include "library.h"
#include "transport/backend.h"

namespace weft::nccl {

// Threads: needs the progress lock, unless noted.
class Communicator {
 public:
  // Creates the communicator on args.device. Collective over args.exchange; within args.deadline.
  static Status make(const BackendArgs& args, std::shared_ptr<const Library> library,
                     std::shared_ptr<Communicator>* communicator);
  // Allocates device memory, registered if NCCL supports it. It is freed when its last owner releases it;
  // after aborted operations, once NCCL has released it as well. Any thread, also for the release; may wait
  // for the device.
  static Status allocate(const std::shared_ptr<Communicator>& communicator, uint64_t size,
                         std::shared_ptr<std::byte>* memory);
  // Makes a further communicator of the same ranks on the same device, for graphs that programs capture. NCCL
  // ends it once the graphs are destroyed; its memory is freed then. The memory is not registered: NCCL does
  // that for each graph. Local: not connected yet. Any thread, for all calls to it.
  static Status for_graphs(const Communicator& like, std::shared_ptr<Communicator>* communicator);
  Communicator(const BackendArgs& args, std::shared_ptr<const Library> library, int device);
  // Ends NCCL's communicator. All started work has ended or was aborted. Takes ten seconds at most, or one
  // for a communicator of graphs. What NCCL has not released by then is left to it.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Constant, any thread.
  int rank() const { return rank_; }
  int size() const { return size_; }
  int device() const { return device_; }
  int name() const { return name_; }  // this rank's number in Weft's communicator
  Accelerator& accelerator() const { return *accelerator_; }
  const DeviceOps& host() const { return host_; }
  const Library& nccl() const { return *nccl_; }
  ncclComm_t native() const { return held_->comm; }
  DeviceStream stream() const { return stream_; }

  // Steps of creation: one rank makes the id by which all ranks connect; then settled() reports when the
  // connection is complete.
  Status identify(ncclUniqueId* id) const;
  Status connect(const ncclUniqueId& id);

  // Rank 0 numbers operations in the order in which all ranks become ready for them. They are launched in
  // that order.
  uint64_t next_turn() { return turns_++; }
  bool has_turn(uint64_t turn) const { return turn == turn_; }
  void pass_turn() { turn_++; }

  // True if NCCL sends messages, which requires a progress thread on every rank. A rank that computes between
  // two calls would otherwise hold the other ranks' launch gates. Constant.
  bool messages() const { return messages_; }
  LaunchGate& launch_gate() { return launch_gate_; }
  // Returns kArg if the stream belongs to another device. Any thread.
  Status check_device(const DeviceCall& call) const;

  // Locks, taken before each of the NCCL calls below. The end thread and calls that belong to no lane take
  // them too.
  std::unique_lock<std::mutex> try_calls() const { return {held_->calls, std::try_to_lock}; }
  std::unique_lock<std::mutex> calls() const { return std::unique_lock(held_->calls); }
  Clock& clock() const { return clock_; }
  // Returns ok if the call succeeded or continues asynchronously.
  Status check(const char* what, ncclResult_t result) const;
  // Sets *done if the last call is complete. Returns errors, including those of operations in flight.
  Status settled(bool* done) const;
  // Sets *done if the device has reached the event behind an operation. Returns errors, including those of
  // operations in flight. Takes the calls lock if it can.
  Status reached(DeviceEvent event, bool* done) const;

  // Aborts what is in flight, without waiting, and stores the reason for later callers. No NCCL call may be
  // made on it afterwards.
  void give_up(const Status& why);
  // Returns the reason of the abort, or ok while the communicator works.
  Status failure() const { return aborted() ? failure_ : Status(); }
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  // True if nothing of the communicator is left on the device. Any thread.
  bool ended() const { return held_->ended.load(std::memory_order_acquire); }

  void count(uint64_t bytes) { bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }  // any thread

 private:
  // The things that a thread needs to end NCCL's communicator and free its memory. It outlives this object
  // while a Weft thread is inside NCCL.
  struct Held {
    std::shared_ptr<Accelerator> accelerator;
    std::shared_ptr<const Library> nccl;
    int device = 0;
    ncclComm_t comm = nullptr;
    std::mutex calls;  // serialises NCCL's calls for this communicator
    std::mutex mutex;
    std::vector<std::byte*> left;    // freed at the end; guarded by mutex
    DeviceStream stream = nullptr;   // guarded by mutex
    std::atomic<bool> ended{false};  // written under mutex
    // The end thread's work: the call that ends NCCL's communicator, or dismissed if there is no
    // communicator. Guarded by mutex.
    ncclResult_t (*how)(ncclComm_t) = nullptr;
    bool dismissed = false;
    std::condition_variable changed;
  };
  Communicator(Clock& clock, const DeviceOps& host, std::shared_ptr<Accelerator> accelerator,
               std::shared_ptr<const Library> library, int rank, int size, int device, int name, bool graphs);
  static void free(const Held& held, std::byte* memory);
  void release(std::byte* memory, void* handle);
  Status call(const char* what, const std::function<ncclResult_t()>& call);
  Status wait(const BackendArgs& args);
  Status finalize();
  // Starts the thread to which end() passes its work. Called before connect.
  Status start_end_thread();
  static void wait_for_end(Held& held);
  void end(ncclResult_t (*how)(ncclComm_t));

  Clock& clock_;
  const DeviceOps& host_;
  const std::shared_ptr<Accelerator> accelerator_;
  const std::shared_ptr<const Library> nccl_;
  const int rank_;
  const int size_;
  const int device_;
  const int name_;
  const bool graphs_;
  const std::shared_ptr<Held> held_;
  DeviceStream stream_ = nullptr;
  bool messages_ = false;
  LaunchGate launch_gate_;
  uint64_t turns_ = 0;                // on rank 0: the number of turns given
  uint64_t turn_ = 0;                 // the current turn
  Status failure_;                    // set before aborted_
  std::atomic<bool> aborted_{false};  // written under the progress lock, or at the end
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace weft::nccl
