// State that the fake's source files share: communicators, their queued operations, and the one lock that
// guards them. If the fake CUDA's lock is needed as well, it is taken second.
#pragma once

#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace fake_nccl {

enum class Kind {
  kAllReduce,
  kReduce,
  kReduceScatter,
  kBroadcast,
  kAllGather,
  kAllToAll,
  kGather,
  kScatter,
  kSend,
  kRecv,
};

// One call that waits on a stream.
struct Task {
  Kind kind = Kind::kAllReduce;
  const void* src = nullptr;
  void* dst = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclUint8;
  ncclRedOp_t op = ncclSum;
  double factor = 1.0;  // of an operation made by ncclRedOpCreatePreMulSum
  int peer = 0;         // peer of a message, or root
  cudaStream_t stream = nullptr;
  uint64_t number = 0;  // counts the rank's collectives, or the messages of the pair
  bool done = false;
  ptrdiff_t src_at = -1, dst_at = -1;  // offset in memory that was registered at the call; -1: not registered
};

// The ranks of a communicator and their pending operations.
struct Clique {
  int size = 0;
  std::vector<ncclComm*> members;                            // by rank; null until the rank has joined
  std::map<uint64_t, std::map<int, Task*>> collectives;      // by number, then by rank
  std::map<std::tuple<int, int, uint64_t>, Task*> messages;  // unmatched sends: from, to, number
  std::map<std::tuple<int, int, uint64_t>, Task*> receives;
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t seed = 1;
  int delay_us = 0;
  int version = NCCL_VERSION_CODE;
  uint64_t made = 0;  // counts identifiers and communicators
  std::map<std::string, std::shared_ptr<Clique>> cliques;
  std::map<ncclComm*, std::shared_ptr<ncclComm>> live;
  std::map<const void*, size_t> memory;         // sizes of ncclMemAlloc blocks
  std::vector<std::shared_ptr<ncclComm>> dead;  // kept so that no address is used twice
  std::map<std::string, int> failures;
  std::map<std::string, uint64_t> calls;
  std::vector<std::string> problems;
  std::string aborted_on;  // the thread of the last ncclCommAbort
};
State& state();

// The functions below are called with the lock held.
void problem(const std::string& text);
size_t size_of(ncclDataType_t type);
const char* name(Kind kind);
// Queues the tasks, all of one communicator and stream, on the stream. Returns false if the stream does not
// exist.
bool enqueue(const std::shared_ptr<ncclComm>& comm, std::vector<Task> tasks);
// Returns the offset of the pointer in registered memory; -1 if it is in none.
ptrdiff_t place_of(const ncclComm& comm, const void* pointer);

}  // namespace fake_nccl

struct ncclComm {
  std::shared_ptr<fake_nccl::Clique> clique;
  int rank = 0;
  int size = 0;
  int device = 0;
  bool blocking = true;
  ncclResult_t state = ncclSuccess;
  std::string error;
  bool aborted = false;
  bool finalized = false;
  int pending = 0;             // running and queued work: threads, and operations on streams
  std::atomic<int> graphs{0};  // tasks in existing graphs; changes without the lock
  uint64_t replayed = 0;       // collectives in launched graphs
  uint64_t collectives = 0;
  std::map<int, uint64_t> sent, received;  // by peer
  std::map<int, double> operations;        // factors of created operations, by handle
  struct Registered {
    const char* at = nullptr;
    size_t size = 0;
  };
  std::map<uintptr_t, Registered> registered;  // by handle
  uint64_t random = 0;
};
