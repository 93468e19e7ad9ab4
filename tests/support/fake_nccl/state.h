// What the fake's files share: communicators, what is posted to them, and the one lock that guards all of it.
// Where the fake CUDA's lock is taken as well, it is taken second.
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

// One call, as it waits on a stream.
struct Task {
  Kind kind = Kind::kAllReduce;
  const void* src = nullptr;
  void* dst = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclUint8;
  ncclRedOp_t op = ncclSum;
  double factor = 1.0;  // of an operation that was made
  int peer = 0;         // or root
  cudaStream_t stream = nullptr;
  uint64_t number = 0;  // among the rank's collectives, or the messages of the pair
  bool done = false;
  ptrdiff_t src_at = -1, dst_at = -1;  // in memory that was registered when it was called
};

// The ranks of a communicator and what they have come to.
struct Clique {
  int size = 0;
  std::vector<ncclComm*> members;                            // by rank; null: has not joined
  std::map<uint64_t, std::map<int, Task*>> collectives;      // by number, by rank
  std::map<std::tuple<int, int, uint64_t>, Task*> messages;  // sends that no receive has met: from, to
  std::map<std::tuple<int, int, uint64_t>, Task*> receives;
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t seed = 1;
  int delay_us = 0;
  int version = NCCL_VERSION_CODE;
  uint64_t made = 0;  // identifiers and communicators
  std::map<std::string, std::shared_ptr<Clique>> cliques;
  std::map<ncclComm*, std::shared_ptr<ncclComm>> live;
  std::map<const void*, size_t> memory;         // of ncclMemAlloc
  std::vector<std::shared_ptr<ncclComm>> dead;  // so that no two have one address
  std::map<std::string, int> failures;
  std::map<std::string, uint64_t> calls;
  std::vector<std::string> problems;
  std::string aborted_on;  // the thread of the last ncclCommAbort
};
State& state();

// With the lock held, all below.
void problem(const std::string& text);
size_t size_of(ncclDataType_t type);
const char* name(Kind kind);
// Put the tasks, all of one communicator and stream, on the stream. false: there is no such stream.
bool enqueue(const std::shared_ptr<ncclComm>& comm, std::vector<Task> tasks);
// How far behind the beginning of registered memory; -1: it is in none.
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
  int pending = 0;             // what runs or will run: threads, and what is on streams
  std::atomic<int> graphs{0};  // tasks in graphs that exist; changes without the lock
  uint64_t replayed = 0;       // collectives of those
  uint64_t collectives = 0;
  std::map<int, uint64_t> sent, received;  // by peer
  std::map<int, double> operations;        // that were made: factor, by handle
  struct Registered {
    const char* at = nullptr;
    size_t size = 0;
  };
  std::map<uintptr_t, Registered> registered;  // by handle
  uint64_t random = 0;
};
