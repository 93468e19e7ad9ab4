// NCCL's communicator of the ranks on one device, made once and collectively; and the order in which the
// lanes of a communicator of Weft's use it, equal on all ranks. NCCL's calls that may block (destroying,
// aborting) are made on a thread of the communicator's own, so that nobody waits for them longer than he
// likes. It is started with the communicator: when an operation fails there may be no thread to be had.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/accelerator.h"
#include "core/backend.h"
#include "doors.h"
#include "library.h"

namespace weft::nccl {

// Threads: with the drive lock held, except where it says otherwise.
class Communicator {
 public:
  // On args.device. Collective over args.exchange; within args.deadline.
  static Status make(const BackendArgs& args, std::shared_ptr<const Library> library,
                     std::shared_ptr<Communicator>* communicator);
  // Memory on the device, registered where NCCL can, freed when the last one lets go of it, or, where
  // operations were aborted, once NCCL has let go as well. Any thread, also for the end; may wait for the
  // device.
  static Status allocate(const std::shared_ptr<Communicator>& communicator, uint64_t size,
                         std::shared_ptr<std::byte>* memory);
  // A further one, of the same ranks on the same device, for graphs that programs capture. NCCL ends it once
  // these are destroyed, and so is its memory freed, which is not registered: NCCL does that for each graph.
  // Local: not connected yet. Any thread, all calls to it.
  static Status for_graphs(const Communicator& like, std::shared_ptr<Communicator>* communicator);
  Communicator(const BackendArgs& args, std::shared_ptr<const Library> library, int device);
  // What was started is over or was aborted. Takes ten seconds at most, one of one for graphs; what NCCL does
  // not let go of by then is left to it.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Constant, any thread.
  int rank() const { return rank_; }
  int size() const { return size_; }
  int device() const { return device_; }
  int name() const { return name_; }  // this rank's, in Weft's communicator
  Accelerator& accelerator() const { return *accelerator_; }
  const DeviceOps& host() const { return host_; }
  const Library& nccl() const { return *nccl_; }
  ncclComm_t native() const { return held_->comm; }
  DeviceStream stream() const { return stream_; }

  // To make one: what all ranks connect by, from one of them; then until settled says that it is done.
  Status identify(ncclUniqueId* id) const;
  Status connect(const ncclUniqueId& id);

  // Rank 0 numbers operations as they come to be ready everywhere; they are launched in that order.
  uint64_t next_turn() { return turns_++; }
  bool has_turn(uint64_t turn) const { return turn == turn_; }
  void pass_turn() { turn_++; }

  // Whether messages go by NCCL: every rank has a progress thread, because one that computes between two
  // calls would hold the other ranks' doors. Constant.
  bool messages() const { return messages_; }
  Doors& doors() { return doors_; }
  // kArg where the stream is of another device. Any thread.
  Status check_device(const DeviceCall& call) const;

  // Before each of NCCL's calls below: not held while a call that is no lane's is under way.
  std::unique_lock<std::mutex> try_calls() const { return {held_->calls, std::try_to_lock}; }
  std::unique_lock<std::mutex> calls() const { return std::unique_lock(held_->calls); }
  Clock& clock() const { return clock_; }
  // Ok if it succeeded or goes on by itself.
  Status check(const char* what, ncclResult_t result) const;
  // Whether what was called last is done; errors, also those of operations under way.
  Status settled(bool* done) const;
  // Whether the device has come to the event behind an operation; errors, also those of what goes on. Takes
  // calls if it can.
  Status reached(DeviceEvent event, bool* done) const;

  // End what is under way, without waiting, and say why to who comes next. From here on nothing of it may be
  // called.
  void give_up(const Status& why);
  // Why, or ok while it works.
  Status failure() const { return aborted() ? failure_ : Status(); }
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  // Nothing of it is on the device any more. Any thread.
  bool ended() const { return held_->ended.load(std::memory_order_acquire); }

  void count(uint64_t bytes) { bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }  // any thread

 private:
  // Outlives this object where a thread of ours is inside NCCL.
  struct Held {
    std::shared_ptr<Accelerator> accelerator;
    std::shared_ptr<const Library> nccl;
    int device = 0;
    ncclComm_t comm = nullptr;
    std::mutex calls;  // NCCL's, of this communicator: one at a time
    std::mutex mutex;
    std::vector<std::byte*> left;    // memory that is freed at the end; guarded by mutex
    DeviceStream stream = nullptr;   // as well
    std::atomic<bool> ended{false};  // written under mutex
    // What the end thread waits for: how NCCL's communicator ends, or that there is none. Guarded by mutex.
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
  // Starts the thread that `end` gives its work to. Before connect.
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
  Doors doors_;
  uint64_t turns_ = 0;                // on rank 0: how many were given
  uint64_t turn_ = 0;                 // whose it is
  Status failure_;                    // once aborted_
  std::atomic<bool> aborted_{false};  // written with the drive lock held, or at the end
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace weft::nccl
