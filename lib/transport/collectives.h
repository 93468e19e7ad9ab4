// The interface that executes collectives. shm and nccl implement it natively; lib/coll implements it over
// any Transport (transport/transport.h). Reducers and the C layer use it through a Lane (comm/lane.h).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"

namespace weft {

class Arena;
class GraphLane;
class Composite;
class WaitStats;
struct CollectiveArgs;
struct DeviceCall;

// The tag of a reducer's collective has three fields. The lowest bits hold the number of local (accumulation)
// steps before the step, saturated at kTagLocalSteps. The next bits hold the step number modulo kTagSteps,
// plus 1, or 0 outside a step. The highest bits hold a hash that names the slot of the reducer's plan.
inline constexpr uint64_t kTagLocalSteps = 0xfff;
inline constexpr uint64_t kTagStep = kTagLocalSteps + 1;          // lowest bit of the step
inline constexpr uint64_t kTagSteps = 0xffffff;                   // number of steps that can be told apart
inline constexpr uint64_t kTagSlot = kTagStep * (kTagSteps + 1);  // lowest bit of the hash
inline uint64_t slot_tag(uint64_t hash) {
  return std::max(hash / kTagSlot * kTagSlot, kTagSlot);  // 0 is the tag of the user's calls
}
inline uint64_t step_tag(uint64_t step) {
  return (step % kTagSteps + 1) * kTagStep;
}

// The arguments that must be equal on all ranks for one slot. Trivially copyable: it is stored in shared
// memory and sent in message headers. Another process may have written any value into any field, so text()
// accepts all values.
struct Descriptor {
  uint8_t coll = 0;
  uint8_t dtype = 0;
  uint8_t op = 0;
  uint8_t device = 0;  // WEFT_DEVICE_* of the buffers: ranks split data differently for each kind
  int32_t root = 0;    // if the collective has a root; otherwise CollectiveArgs::micro_batches
  uint64_t count = 0;
  double scale = 1.0;  // prescale * postscale
  uint64_t tag = 0;

  static Descriptor of(const CollectiveArgs& args);
  uint64_t hash() const;     // never 0
  std::string text() const;  // "all_reduce sum f32 x 4096", "broadcast u8 x 3 from rank 2"
  bool operator==(const Descriptor&) const = default;
};
static_assert(sizeof(Descriptor) == 32);

// The user's call of which an operation is a part. lib/coll/hierarchical executes one call as several
// operations, each among some of the ranks. The ranks of each operation compare the whole call, and errors
// show it.
struct WholeCall {
  Descriptor descriptor;
  uint64_t slot = 0;
};

// The positions of the ranks' blocks in a buffer, in elements, one entry per rank.
struct BlockList {
  const uint64_t* counts = nullptr;
  const uint64_t* offsets = nullptr;
  uint64_t count(int rank) const { return counts[rank]; }
  uint64_t offset(int rank) const { return offsets[rank]; }
};

// The block lists of a collective with blocks of different sizes: `from` for this rank's input, `to` for its
// output. If one side has a single block, the collective does not need its list, which then has the counts of
// the other one.
struct Blocks {
  BlockList from;
  BlockList to;
};

// Parts of a rank's input that are not in src, in order, all of them within the range from
// Collectives::in_place_slice. Read with the mutex held, and not read any more once `gone` is set.
struct InputSlices {
  struct Part {
    uint64_t first;  // elements [first, first + count) of src
    uint64_t count;
    const std::byte* memory;
  };
  std::vector<Part> parts;
  bool streaming = false;  // FoldArgs::streaming
  std::mutex* mutex = nullptr;
  const std::atomic<bool>* gone = nullptr;
};

// One collective, with arguments that the C layer has checked. `count` is the count of the call in weft.h:
// per rank for all_gather, reduce_scatter, gather, scatter and all_to_all.
struct CollectiveArgs {
  Coll coll = Coll::kBarrier;
  Dtype dtype = Dtype::kU8;
  ReduceOp op = ReduceOp::kNone;
  int peer = 0;  // root, or the peer of send and recv
  uint64_t count = 0;
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  // Every input is multiplied by it before the reduction (premul_sum). kUser: weft_reduction.unit.
  double prescale = 1.0;
  double postscale = 1.0;  // the result is multiplied by it once, before rounding (avg)
  uint64_t tag = 0;        // 0 for calls of the user; see slot_tag
  // For errors: micro-batches that the reducer's step divides by; 0: unknown.
  uint32_t micro_batches = 0;
  const WholeCall* whole = nullptr;  // outlives the operation; null: the operation is not part of another
  // Reductions: folds each element's inputs at once, in rank order, so that the result's bits do not depend
  // on how the operation is executed.
  bool ordered = false;
  // The device of src and dst if they are not host memory; outlives the operation. Backends without device
  // support get null: lib/coll/staged substitutes its own host memory.
  const DeviceCall* device = nullptr;
  // For a collective with blocks of different sizes, whose count is the sum over the blocks (0 for
  // all_to_all_v) and whose tag is a hash of the counts. Outlives the operation.
  const Blocks* blocks = nullptr;
  const InputSlices* slices = nullptr;  // for an in-place all-reduce; outlives the operation
  // Executes the call as a composite operation of several collectives (engine/composite.h); null: the backend
  // executes it.
  Composite* composite = nullptr;
};

// Returns the call as its own rank made it, for errors: "recv f32 x 10 from rank 1". In descriptors a receive
// is the send that it matches.
std::string call_text(const CollectiveArgs& args);

// Returns the slot number that errors of an operation show: that of the user's call.
inline uint64_t reported_slot(const CollectiveArgs& args, uint64_t slot) {
  return args.whole != nullptr ? args.whole->slot : slot;
}

// Returns WEFT_ERR_MISMATCH: "operation 12: rank 3 calls all_reduce sum f32 x 4096, rank 0 calls ...".
Status mismatch(uint64_t slot, int rank, const Descriptor& mine, int other_rank, const Descriptor& theirs);

// The result of a poll.
enum class Poll {
  kParked,    // nothing to do until this process acts and calls Engine::notify()
  kWaiting,   // other ranks must act: poll again
  kLater,     // of a task: other ranks must act, and no operation waits for it: poll again after a pause
  kAdvanced,  // something was done: poll again at once
  kFinished,
};

// Identifies an ordered sequence of collectives between the ranks of a communicator, or of messages from one
// rank to another. Operations of one lane run in order; lanes are independent of each other.
struct LaneKey {
  enum class Kind : uint8_t { kCollective, kSend, kReceive };
  // The ids of a communicator's collective lanes are lower. Higher numbers are the transport's
  // (coll/lane.cpp, coll/transport_tuner.cpp).
  static constexpr uint32_t kMostIds = 0x7fff'0000;
  Kind kind = Kind::kCollective;
  // Collective lanes: 0 is the user's; others are numbered in the order in which they are opened, equally on
  // all ranks. Send and receive lanes: 0 is the user's, 1 belongs to a backend built on this one, 2 has the
  // frames of tagged messages.
  uint32_t id = 0;
  int peer = -1;  // send and receive lanes
  // For pipelined lanes: the number of lanes with this key, and the index of this one. A lane that numbers
  // the operations below it itself uses the slots pipeline_index, pipeline_index + pipeline_lanes and so on.
  uint32_t pipeline_lanes = 1;
  uint32_t pipeline_index = 0;
  // The slot of the lane's first operation. The operations below it begin with the same number.
  uint64_t first_slot = 0;
};

// Threads: called with the progress lock held (one thread at a time), except the destructor, whose caller
// ensures that no other thread calls.
class CollectiveLane {
 public:
  virtual ~CollectiveLane() = default;
  // Allocates what operations with buffers on this device need and takes long to get. Called before they are
  // started, on any thread, without the progress lock; may block.
  virtual Status prepare(const DeviceCall& call);
  // Starts the next operation; the previous one has finished or was abandoned. Never blocks. The time is
  // bounded, in a group of one rank by that of a copy; a small operation may do all its work here. slot
  // counts from LaneKey::first_slot.
  virtual void start(const CollectiveArgs& args, uint64_t slot) = 0;
  // Advances by a bounded amount of work (about a megabyte). After kFinished, result() returns the outcome,
  // and no process touches the operation's private buffers any more.
  virtual Poll poll() = 0;
  virtual Status result() const = 0;
  // Abandons the running operation (the communicator has failed). On return this process no longer touches
  // its buffers. The lane is not used again.
  virtual void abandon() = 0;
  // After abandon: returns the ranks that are writing into this process's memory right now. No rank starts a
  // new write.
  virtual std::vector<int> writers() const { return {}; }
  // Returns the ranks that the running operation waits for, as far as known. For error texts.
  virtual std::vector<int> missing() const = 0;
  // Returns true if the running operation waits for this rank. Allocates no memory; for statistics.
  virtual bool waits_for(int rank) const {
    const std::vector<int> ranks = missing();
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  }
  // Returns the ranks that have not arrived at the running operation, for the error of a deadline. missing()
  // may instead return a rank that itself waits for them.
  virtual std::vector<int> absent() const { return missing(); }
  // Sets the wait statistics that operations exchange with other ranks, in messages that are sent anyway,
  // until the next call; null: none. No operation may be running. Lanes that do not send messages to each
  // rank exchange none.
  virtual void share_waits(WaitStats* /*stats*/) {}
  // Returns the name of the algorithm of the last started operation, a static string.
  virtual const char* algorithm() const = 0;
  // Returns the bytes that this rank has moved for the last operation, once it is complete: the data of its
  // messages, or the data that it has written into shared memory and read from that of other ranks. Empty if
  // not counted.
  virtual std::optional<uint64_t> moved_bytes() const { return {}; }
  // Returns the bytes of memory that this lane has allocated for its operations and keeps. Any thread.
  virtual uint64_t memory_bytes() const { return 0; }
  // Releases the lane's memory: the lane is closed and kept for reuse. No operation is running.
  virtual void rest() {}
};

// Adds the moved bytes of the parts of an operation.
inline std::optional<uint64_t> plus(std::optional<uint64_t> a, std::optional<uint64_t> b) {
  return a && b ? std::optional(*a + *b) : std::nullopt;
}

struct CollectiveCounters {
  uint64_t bytes_shared = 0;
  uint64_t bytes_direct = 0;
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
};

// Ranks in results (missing, writers, errors) are ranks of the communicator. Ranks in LaneKey and
// CollectiveArgs are those of BackendArgs::exchange. The two differ only if the object serves a part of a
// communicator (BackendArgs::names).
class Collectives {
 public:
  virtual ~Collectives() = default;
  // Opens a lane locally, without communication. All ranks open lanes with the same ids, each id once (twice
  // for pipelined lanes). kUnsupported: too many lanes.
  virtual Status open_lane(const LaneKey& key, std::unique_ptr<CollectiveLane>* lane) = 0;
  // Makes progress in the transport below, if there is one (transport/transport.h). Needs the progress lock.
  virtual bool progress() { return false; }
  // Returns true if two operations of one collective lane may run concurrently, on two lanes opened with the
  // same key; their slots tell them apart.
  virtual bool overlaps() const { return false; }
  // Returns true if the number of collective lanes is limited, so that closed lanes are worth keeping.
  virtual bool few_lanes() const { return false; }
  // Returns true if its lanes execute the collective themselves. Other collectives are composed of those
  // (engine/composite.h).
  virtual bool executes(Coll coll) const { return coll <= Coll::kRecv; }
  // Returns the same as executes(), for buffers on a device.
  virtual bool executes_on_device(Coll coll) const { return executes(coll); }
  // Returns true if it executes any collective from device to device.
  virtual bool on_device() const { return false; }
  // Returns true if it executes this call from device to device when the buffers are on this device.
  // Otherwise the call goes through host memory. Any thread.
  virtual bool takes(int /*device*/, const CollectiveArgs& /*args*/) const { return false; }
  // Returns the elements of an all-reduce's input that only this rank reads (CollectiveArgs::slices). Any
  // thread.
  struct InPlaceSlice {
    uint64_t first = 0;
    uint64_t count = 0;
  };
  virtual InPlaceSlice in_place_slice(const CollectiveArgs& /*args*/) const { return {}; }
  // Allocates device memory for these operations. Releasing the last reference frees it and may wait for the
  // device. Memory that a failed operation may still touch is never freed. Any thread; may block.
  virtual Status allocate_on_device(int device, uint64_t size, std::shared_ptr<std::byte>* memory);
  // Opens a lane for operations that it executes on streams captured into graphs (transport/graph_lane.h).
  // Local, without communication. Any thread.
  virtual Status open_graph_lane(int device, std::shared_ptr<GraphLane>* lane);
  virtual bool settled() { return true; }
  virtual bool outlives_sender() const { return true; }
  virtual uint64_t sent_to(int /*rank*/) const { return 0; }
  virtual uint64_t received_from(int /*rank*/) const { return 0; }
  // Returns the memory that peers access directly. Never null. A communicator that is shrunk from this one
  // takes it over.
  virtual std::shared_ptr<Arena> arena() = 0;
  virtual CollectiveCounters counters() const = 0;       // any thread
  virtual int local_size() const = 0;                    // ranks that share this host's memory
  virtual std::string transports() const { return {}; }  // any thread; see Transport
  virtual const char* name() const = 0;                  // "shm": the name of the backend that moves the data
};

}  // namespace weft
