// The interface that executes collectives. shm and nccl implement it natively; lib/coll implements it over
// any Transport (core/transport.h). A reducer and the C layer see this interface alone, through a Lane
// (core/lane.h).
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
class Program;
class WaitNotes;
struct CollectiveArgs;
struct DeviceCall;

// The tag of a reducer's collective, from the lowest bit: how many local steps (of accumulation) came before
// the step, where more than the bits can hold are as many as they can; the step's number plus one, modulo the
// number of steps that can be told apart, or 0 outside a step; and a name of the slot of its plan.
inline constexpr uint64_t kTagLocalSteps = 0xfff;
inline constexpr uint64_t kTagStep = kTagLocalSteps + 1;          // the lowest bit of the step
inline constexpr uint64_t kTagSteps = 0xffffff;                   // so many are told apart
inline constexpr uint64_t kTagSlot = kTagStep * (kTagSteps + 1);  // the lowest bit of the name
inline uint64_t slot_tag(uint64_t hash) {
  return std::max(hash / kTagSlot * kTagSlot, kTagSlot);  // 0 is the user's
}
inline uint64_t step_tag(uint64_t step) {
  return (step % kTagSteps + 1) * kTagStep;
}

// What must be equal on all ranks for one slot. Trivially copyable: it lies in shared memory and travels in
// headers, so every field may hold anything when another process wrote it; text() copes.
struct Descriptor {
  uint8_t coll = 0;
  uint8_t dtype = 0;
  uint8_t op = 0;
  uint8_t device = 0;  // WEFT_DEVICE_* of the buffers: ranks move data in other pieces for each
  int32_t root = 0;    // where there is a root; else CollectiveArgs::micro_batches
  uint64_t count = 0;
  double scale = 1.0;  // prescale * postscale
  uint64_t tag = 0;

  static Descriptor of(const CollectiveArgs& args);
  uint64_t hash() const;     // never 0
  std::string text() const;  // "all_reduce sum f32 x 4096", "broadcast u8 x 3 from rank 2"
  bool operator==(const Descriptor&) const = default;
};
static_assert(sizeof(Descriptor) == 32);

// The call that an operation among some of its ranks is a part of (lib/coll/hierarchical): it is what ranks
// compare, and what errors show.
struct WholeCall {
  Descriptor descriptor;
  uint64_t slot = 0;
};

// Where the blocks of the ranks lie in a buffer, in elements, one entry a rank.
struct BlockList {
  const uint64_t* counts = nullptr;
  const uint64_t* offsets = nullptr;
  uint64_t count(int rank) const { return counts[rank]; }
  uint64_t offset(int rank) const { return offsets[rank]; }
};

// Of a collective of blocks of different sizes: where those that this rank gives and takes are. A list that a
// collective does not need (where there is one block alone) has the counts of the other.
struct Blocks {
  BlockList from;
  BlockList to;
};

// Parts of a rank's input that are not in src: in order, all of them among Collectives::kept. Read with the
// mutex held, and no more once `gone` is set.
struct Away {
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

// One collective, with arguments that were checked by the C layer. `count` is the count of the call in
// weft.h: per rank for all_gather, reduce_scatter, gather, scatter and all_to_all.
struct CollectiveArgs {
  Coll coll = Coll::kBarrier;
  Dtype dtype = Dtype::kU8;
  ReduceOp op = ReduceOp::kNone;
  int peer = 0;  // root, or the peer of send and recv
  uint64_t count = 0;
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  double prescale = 1.0;             // every input is multiplied by it before it is added (premul_sum)
  double postscale = 1.0;            // the result is multiplied by it once, before rounding (avg)
  uint64_t tag = 0;                  // 0 for calls of the user; see slot_tag
  uint32_t micro_batches = 0;        // that the step of a reducer divides by, for errors; 0: not known
  const WholeCall* whole = nullptr;  // outlives the operation; null: it is no part of another
  // Reductions: each element's inputs are folded at once, in the order of the ranks, so
  // that its bits do not depend on how the operation is executed.
  bool ordered = false;
  // Where src and dst lie if they are no host memory; outlives the operation. Backends see null:
  // lib/coll/staged works on host memory of its own in their place.
  const DeviceCall* device = nullptr;
  // Outlive the operation. Of collectives of blocks of different sizes, whose count is the blocks' sum (0 for
  // all_to_all_v) and whose tag stands for their counts.
  const Blocks* blocks = nullptr;
  const Away* away = nullptr;  // of an all-reduce in place; outlives the operation
  // Executes it as several collectives (core/program.h); null: the backend does.
  Program* program = nullptr;
};

// The slot that errors of an operation name: the user's.
inline uint64_t told_slot(const CollectiveArgs& args, uint64_t slot) {
  return args.whole != nullptr ? args.whole->slot : slot;
}

// WEFT_ERR_MISMATCH: "operation 12: rank 3 calls all_reduce sum f32 x 4096, rank 0 calls ...".
Status mismatch(uint64_t slot, int rank, const Descriptor& mine, int other_rank, const Descriptor& theirs);

// What a polled thing has to say.
enum class Poll {
  kParked,    // nothing to do until this process does something (engine.notify())
  kWaiting,   // other ranks must act: poll again
  kAdvanced,  // something was done: poll again at once
  kFinished,
};

// An ordered sequence of collectives between the ranks of a comm, or of messages from one rank to another.
// Operations of one lane run one after the other; lanes are independent of each other.
struct LaneKey {
  enum class Kind : uint8_t { kCollective, kSend, kReceive };
  Kind kind = Kind::kCollective;
  // Collective lanes: 0 is the user's, others are numbered as they are opened, equally on all ranks. Send and
  // receive lanes: 0 is the user's, 1 a backend's that lies over this one.
  uint32_t id = 0;
  int peer = -1;  // send and receive lanes
  // Of lanes that overlap: how many there are of this key, and which of them this is. One that numbers the
  // operations below it by itself takes twin, twin + twins and so on.
  uint32_t twins = 1;
  uint32_t twin = 0;
};

// Threads: called with the engine's drive lock held (one thread at a time), except the destructor's caller,
// who makes sure that nobody else calls.
class CollectiveLane {
 public:
  virtual ~CollectiveLane() = default;
  // Before operations with buffers on this device are started: whatever they need that takes long to get. Any
  // thread, without the drive lock; may block.
  virtual Status prepare(const DeviceCall& call);
  // Start the next operation; the one before it has finished or was abandoned. Never blocks. Takes no more
  // than a bounded time, in a group of one that of a copy: small operations may do all their work here. slot
  // counts from 0.
  virtual void start(const CollectiveArgs& args, uint64_t slot) = 0;
  // Advance by a bounded amount of work (about a megabyte). kFinished: result() says how it went, and neither
  // this process nor any other touches the operation's private buffers any more.
  virtual Poll poll() = 0;
  virtual Status result() const = 0;
  // Give the running operation up (the comm has failed). On return nothing here touches its buffers any more.
  // The lane is not used again.
  virtual void abandon() = 0;
  // After abandon: ranks that are writing into this process's memory at this moment. No rank begins to any
  // more.
  virtual std::vector<int> writers() const { return {}; }
  // Ranks that the running operation waits for, as far as can be told. For error texts.
  virtual std::vector<int> missing() const = 0;
  // Whether it waits for this rank, without taking memory: for statistics.
  virtual bool waits_for(int rank) const {
    const std::vector<int> ranks = missing();
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  }
  // For the error of a deadline: those of all ranks that have not come to it, where missing() may name one
  // that waits for them as well.
  virtual std::vector<int> absent() const { return missing(); }
  // Until the next call, operations tell other ranks of these waits and hear of theirs, with the messages
  // that travel anyway; null: they do not. No operation runs. Lanes without messages to each rank have none
  // to tell.
  virtual void share_waits(WaitNotes* /*notes*/) {}
  // Static name of the algorithm of the last started operation.
  virtual const char* algorithm() const = 0;
  // What this rank has moved for the last operation, once it is complete: the data of its messages, or what
  // it has put into memory that ranks share and taken out of that of others. None where it is not counted.
  virtual std::optional<uint64_t> moved_bytes() const { return {}; }
  // What it has taken for its operations so far and keeps: of this lane alone. Any thread.
  virtual uint64_t memory_bytes() const { return 0; }
  // It is closed, and kept to be used again: gives back what it has taken. No operation runs.
  virtual void rest() {}
};

// Of operations that are made of others.
inline std::optional<uint64_t> plus(std::optional<uint64_t> a, std::optional<uint64_t> b) {
  return a && b ? std::optional(*a + *b) : std::nullopt;
}

struct CollectiveCounters {
  uint64_t bytes_shared = 0;
  uint64_t bytes_direct = 0;
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
};

// Wherever ranks are named here (missing, writers, errors) they are those of the communicator; LaneKey and
// CollectiveArgs have those of BackendArgs::exchange. The two differ for a part of one alone
// (BackendArgs::names).
class Collectives {
 public:
  virtual ~Collectives() = default;
  // Local: communicates nothing. All ranks open lanes with the same ids, each id once (twice where they
  // overlap). Errors: kUnsupported when there are too many.
  virtual Status open_lane(const LaneKey& key, std::unique_ptr<CollectiveLane>* lane) = 0;
  // Of the transport below, if there is one (core/transport.h). With the drive lock held.
  virtual bool progress() { return false; }
  // Whether operations of one collective lane may run beside each other, whose slots tell them apart: on two
  // lanes opened with one key.
  virtual bool overlaps() const { return false; }
  // Whether there is a limit to its collective lanes, so that closed ones are worth keeping.
  virtual bool few_lanes() const { return false; }
  // Whether its lanes execute the collective themselves. Others are made of what they do (core/program.h).
  virtual bool executes(Coll coll) const { return coll <= Coll::kRecv; }
  // The same for buffers on a device.
  virtual bool executes_on_device(Coll coll) const { return executes(coll); }
  // Whether there is anything that it executes from device to device.
  virtual bool on_device() const { return false; }
  // Whether it executes this one from device to device where its buffers lie on this device; it goes through
  // host memory otherwise. Any thread.
  virtual bool takes(int /*device*/, const CollectiveArgs& /*args*/) const { return false; }
  // Elements of an all-reduce's input that this rank alone reads (CollectiveArgs::away). Any thread.
  struct Kept {
    uint64_t first = 0;
    uint64_t count = 0;
  };
  virtual Kept kept(const CollectiveArgs& /*args*/) const { return {}; }
  // Memory of such a device for these, until the last one lets go, which may wait for the device. What an
  // operation that failed may still touch is never freed. Any thread; may block.
  virtual Status allocate_on_device(int device, uint64_t size, std::shared_ptr<std::byte>* memory);
  // For what it takes, put on streams that are captured into graphs (core/graph_lane.h). Local. Any thread.
  virtual Status open_graph_lane(int device, std::shared_ptr<GraphLane>* lane);
  virtual bool settled() { return true; }
  virtual bool outlives_sender() const { return true; }
  virtual uint64_t sent_to(int /*rank*/) const { return 0; }
  virtual uint64_t received_from(int /*rank*/) const { return 0; }
  // Memory that peers reach directly. Never null. A communicator that is shrunk from this one takes it over.
  virtual std::shared_ptr<Arena> arena() = 0;
  // Where the memory of the own arena lies, as a number that the other ranks find it by. False where they do
  // not reach it. Any thread.
  virtual bool place_of(const std::byte* /*memory*/, uint64_t /*bytes*/, uint64_t* /*place*/) {
    return false;
  }
  // A rank's memory, from such a number, which is checked: to be read for as long as this object lives. With
  // the drive lock held.
  virtual Status peer_memory(int rank, uint64_t place, uint64_t bytes, const std::byte** at);
  virtual CollectiveCounters counters() const = 0;       // any thread
  virtual int local_size() const = 0;                    // ranks sharing this host's memory
  virtual std::string transports() const { return {}; }  // any thread; see Transport
  virtual const char* name() const = 0;                  // "shm"; of the backend that moves the data
};

}  // namespace weft
