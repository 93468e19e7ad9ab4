// NCCL's entry points, and the fake's controls for tests.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "fake_nccl.h"
#include "state.h"
#include "support/fake_cuda/state.h"

using namespace fake_nccl;

namespace {

thread_local int t_depth = 0;
thread_local std::vector<std::pair<std::shared_ptr<ncclComm>, Task>> t_group;

std::string text_;  // the text that was returned last; guarded by the lock

uint64_t next_random(uint64_t& random) {
  uint64_t z = (random += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  return z ^ (z >> 31);
}

// Begins a call: counts it and returns the result that a test has set for it.
ncclResult_t begin(const char* call) {
  State& s = state();
  s.calls[call]++;
  const auto it = s.failures.find(call);
  if (it == s.failures.end()) return ncclSuccess;
  const auto result = static_cast<ncclResult_t>(it->second);
  s.failures.erase(it);
  return result;
}

std::shared_ptr<ncclComm> find(ncclComm_t comm, const char* call) {
  const auto it = state().live.find(comm);
  if (it != state().live.end()) return it->second;
  problem(std::string(call) + " of a communicator that does not exist");
  return nullptr;
}

// Finds a communicator that can be called now. Otherwise records a problem and returns null.
std::shared_ptr<ncclComm> find_ready(ncclComm_t handle, const char* call) {
  std::shared_ptr<ncclComm> comm = find(handle, call);
  if (comm != nullptr && comm->state == ncclInProgress && t_depth == 0) {
    problem(std::string(call) + " while the call before goes on");
    return nullptr;
  }
  if (comm != nullptr && (comm->aborted || comm->finalized)) {
    problem(std::string(call) + " after the end");
    return nullptr;
  }
  return comm;
}

// Runs the rest of a call later, on a thread and with the lock held.
template <class Rest>
void later(const std::shared_ptr<ncclComm>& comm, Rest rest) {
  State& s = state();
  const uint64_t delay = s.delay_us > 0 ? next_random(comm->random) % static_cast<uint64_t>(s.delay_us) : 0;
  comm->pending++;
  if (comm->state == ncclSuccess) comm->state = ncclInProgress;  // an error stays
  std::thread([comm, delay, rest = std::move(rest)] {
    if (delay > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay));
    State& then = state();
    std::unique_lock lock(then.mutex);
    rest(lock);
    comm->pending--;
    then.changed.notify_all();
  }).detach();
}

ncclResult_t submit(const std::shared_ptr<ncclComm>& comm, std::vector<Task> tasks) {
  if (!comm->blocking && next_random(comm->random) % 2 == 0) {
    later(comm, [comm, tasks = std::move(tasks)](std::unique_lock<std::mutex>&) {
      if (!comm->aborted && !enqueue(comm, tasks)) comm->state = ncclInvalidArgument;
      if (comm->state == ncclInProgress) comm->state = ncclSuccess;
    });
    return ncclInProgress;
  }
  return enqueue(comm, std::move(tasks)) ? ncclSuccess : ncclInvalidArgument;
}

// Checks that memory is accessible. A null pointer is valid if the size is 0.
bool reaches(const void* pointer, size_t size, const char* call) {
  if (size == 0) return true;
  if (pointer == nullptr) {
    problem(std::string(call) + " with a null pointer");
    return false;
  }
  const std::lock_guard lock(fake::state().mutex);
  const fake::Block* const block = fake::find_block(pointer);
  if (block == nullptr || block->freed) {
    problem(std::string(call) + " with memory that no device reaches");
    return false;
  }
  return fake::reach(pointer, size, call) != nullptr;
}

bool right_stream(const ncclComm& comm, cudaStream_t handle, const char* call) {
  const std::lock_guard lock(fake::state().mutex);
  const auto stream = fake::find_stream(handle, call);
  if (stream != nullptr && stream->device == comm.device) return true;
  problem(std::string(call) + " with a stream of another device");
  return false;
}

// Refuses a call with ncclInvalidArgument, which stays the state of a non-blocking communicator.
ncclResult_t refuse(ncclComm& comm) {
  if (!comm.blocking) comm.state = ncclInvalidArgument;
  return ncclInvalidArgument;
}

// Checks and queues a call. `in` and `out` are sizes in blocks of count elements.
ncclResult_t post(const char* call, Task task, ncclComm_t handle, int in, int out) {
  const std::lock_guard lock(state().mutex);
  if (const ncclResult_t result = begin(call); result != ncclSuccess) return result;
  const auto comm = find_ready(handle, call);
  if (comm == nullptr) return ncclInvalidArgument;
  if (comm->state != ncclSuccess && comm->state != ncclInProgress) return comm->state;
  const size_t size = task.count * size_of(task.type);
  if (size_of(task.type) == 0 || task.peer < 0 || task.peer >= comm->size) return refuse(*comm);
  const auto blocks = [&](int of) {
    return of < 0 ? static_cast<size_t>(comm->size) : static_cast<size_t>(of);
  };
  if (!right_stream(*comm, task.stream, call) || !reaches(task.src, blocks(in) * size, call) ||
      !reaches(task.dst, blocks(out) * size, call)) {
    return refuse(*comm);
  }
  if (task.op >= ncclNumOps) {
    const auto made = comm->operations.find(task.op);
    if (made == comm->operations.end()) {
      problem(std::string(call) + " with an operation that does not exist");
      return refuse(*comm);
    }
    task.factor = made->second;
  }
  task.src_at = place_of(*comm, task.src);
  task.dst_at = place_of(*comm, task.dst);
  if (task.op == ncclAvg) problem("ncclAvg: Weft scales by itself");
  task.number = task.kind == Kind::kSend   ? comm->sent[task.peer]++
                : task.kind == Kind::kRecv ? comm->received[task.peer]++
                                           : comm->collectives++;
  if (t_depth > 0) {
    t_group.emplace_back(comm, task);
    return ncclSuccess;
  }
  return submit(comm, {task});
}

bool is_root(ncclComm_t handle, int root) {
  const std::lock_guard lock(state().mutex);
  const auto it = state().live.find(handle);
  return it != state().live.end() && it->second->rank == root;
}

void join(const std::shared_ptr<ncclComm>& comm, std::unique_lock<std::mutex>& lock) {
  State& s = state();
  Clique& clique = *comm->clique;
  clique.members[static_cast<size_t>(comm->rank)] = comm.get();
  s.changed.notify_all();
  const auto complete = [&] {
    return std::find(clique.members.begin(), clique.members.end(), nullptr) == clique.members.end();
  };
  s.changed.wait(lock, [&] { return comm->aborted || complete(); });
  if (comm->aborted) return;
  for (const ncclComm* other : clique.members) {
    if (other->rank == comm->rank || other->device != comm->device) continue;
    comm->error = "Duplicate GPU detected : rank " + std::to_string(comm->rank) + " and rank " +
                  std::to_string(other->rank) + " both on CUDA device " + std::to_string(comm->device);
    comm->state = ncclInvalidUsage;
    return;
  }
  comm->state = ncclSuccess;
}

// Waits until the communicator has no operations left, and removes it.
void remove(const std::shared_ptr<ncclComm>& comm, std::unique_lock<std::mutex>& lock, const char* call) {
  State& s = state();
  s.changed.notify_all();
  if (!s.changed.wait_for(lock, std::chrono::seconds(20), [&] { return comm->pending == 0; }))
    problem(std::string(call) + " waits for what does not end");
  // Waits for graphs too, as NCCL does.
  const auto most = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (comm->graphs > 0 && std::chrono::steady_clock::now() < most)
    s.changed.wait_for(lock, std::chrono::milliseconds(1));
  if (comm->graphs > 0) problem(std::string(call) + " waits for a graph that is not destroyed");
  s.live.erase(comm.get());
  s.dead.push_back(comm);
}

}  // namespace

namespace fake_nccl {

State& state() {
  static State* const only = new State;  // never destroyed: threads may outlive static destruction
  return *only;
}

void problem(const std::string& text) {
  state().problems.push_back(text);
}

size_t size_of(ncclDataType_t type) {
  constexpr size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return static_cast<size_t>(type) < std::size(kSizes) ? kSizes[type] : 0;
}

ptrdiff_t place_of(const ncclComm& comm, const void* pointer) {
  const auto* const at = static_cast<const char*>(pointer);
  for (const auto& [handle, block] : comm.registered) {
    if (at >= block.at && at < block.at + block.size) return at - block.at;
  }
  return -1;
}

const char* name(Kind kind) {
  constexpr const char* kNames[] = {"ncclAllReduce", "ncclReduce",   "ncclReduceScatter", "ncclBroadcast",
                                    "ncclAllGather", "ncclAlltoAll", "ncclGather",        "ncclScatter",
                                    "ncclSend",      "ncclRecv"};
  return kNames[static_cast<int>(kind)];
}

}  // namespace fake_nccl

extern "C" {

void fake_nccl_setup(uint64_t seed, int delay_us) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.seed = seed;
  s.delay_us = delay_us;
  s.version = NCCL_VERSION_CODE;
  s.failures.clear();
  s.calls.clear();
  s.problems.clear();
  s.aborted_on.clear();
}

const char* fake_nccl_problems() {
  const std::lock_guard lock(state().mutex);
  text_.clear();
  for (const std::string& line : state().problems) text_ += line + "\n";
  return text_.c_str();
}

const char* fake_nccl_live() {
  const std::lock_guard lock(state().mutex);
  text_.clear();
  if (!state().live.empty()) text_ += std::to_string(state().live.size()) + " communicators\n";
  if (!state().memory.empty()) text_ += std::to_string(state().memory.size()) + " blocks of ncclMemAlloc\n";
  return text_.c_str();
}

const char* fake_nccl_aborted_on() {
  const std::lock_guard lock(state().mutex);
  text_ = state().aborted_on;
  return text_.c_str();
}

uint64_t fake_nccl_calls(const char* call) {
  const std::lock_guard lock(state().mutex);
  return state().calls[call];
}

void fake_nccl_fail(const char* call, int result) {
  const std::lock_guard lock(state().mutex);
  if (result == 0) {
    state().failures.erase(call);
  } else {
    state().failures[call] = result;
  }
}

void fake_nccl_break(int rank, int result) {
  const std::lock_guard lock(state().mutex);
  for (const auto& [handle, comm] : state().live) {
    if (comm->rank != rank) continue;
    comm->state = static_cast<ncclResult_t>(result);
    comm->error = "the fake was told so";
  }
}

void fake_nccl_version(int version) {
  const std::lock_guard lock(state().mutex);
  state().version = version == 0 ? NCCL_VERSION_CODE : version;
}

ncclResult_t ncclGetVersion(int* version) {
  const std::lock_guard lock(state().mutex);
  *version = state().version;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(state().mutex);
  if (const ncclResult_t result = begin("ncclGetUniqueId"); result != ncclSuccess) return result;
  const uint64_t number = ++state().made;
  std::memset(id->internal, 0, sizeof id->internal);
  std::memcpy(id->internal, &number, sizeof number);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* handle, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  State& s = state();
  std::unique_lock lock(s.mutex);
  if (const ncclResult_t result = begin("ncclCommInitRankConfig"); result != ncclSuccess) return result;
  if (handle == nullptr || size < 1 || rank < 0 || rank >= size || config == nullptr ||
      config->magic != NCCL_API_MAGIC) {
    return ncclInvalidArgument;
  }
  auto comm = std::make_shared<ncclComm>();
  std::shared_ptr<Clique>& clique = s.cliques[std::string(id.internal, sizeof id.internal)];
  if (!clique) clique = std::make_shared<Clique>();
  clique->size = size;
  clique->members.resize(static_cast<size_t>(size));
  comm->clique = clique;
  comm->rank = rank;
  comm->size = size;
  comm->blocking = config->blocking != 0;
  comm->random = s.seed * 1000 + ++s.made;
  {
    const std::lock_guard cuda(fake::state().mutex);
    comm->device = fake::current_device();
  }
  s.live[comm.get()] = comm;
  *handle = comm.get();
  if (comm->blocking) {
    join(comm, lock);
    return comm->state;
  }
  later(comm, [comm](std::unique_lock<std::mutex>& then) { join(comm, then); });
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* result) {
  const std::lock_guard lock(state().mutex);
  const auto comm = find(handle, "ncclCommGetAsyncError");
  if (comm == nullptr) return ncclInvalidArgument;
  *result = comm->state;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  const std::lock_guard lock(state().mutex);
  if (const ncclResult_t result = begin("ncclCommFinalize"); result != ncclSuccess) return result;
  const auto comm = find_ready(handle, "ncclCommFinalize");
  if (comm == nullptr) return ncclInvalidUsage;
  comm->finalized = true;
  if (comm->state != ncclSuccess) return comm->state;
  later(comm, [comm](std::unique_lock<std::mutex>& then) {
    while (!comm->aborted && (comm->pending > 1 || comm->graphs > 0))
      state().changed.wait_for(then, std::chrono::milliseconds(1));
    if (comm->state == ncclInProgress) comm->state = ncclSuccess;
  });
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  std::unique_lock lock(state().mutex);
  const auto comm = find(handle, "ncclCommDestroy");
  if (comm == nullptr) return ncclInvalidArgument;
  // ncclCommDestroy finalizes a communicator that the program has not finalized.
  if (comm->finalized && comm->state != ncclSuccess) problem("ncclCommDestroy before the end");
  comm->finalized = true;
  if (!comm->operations.empty()) problem("ncclCommDestroy of a communicator that has operations");
  if (!comm->registered.empty()) problem("ncclCommDestroy of a communicator that has registered memory");
  remove(comm, lock, "ncclCommDestroy");
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  std::unique_lock lock(state().mutex);
  state().calls["ncclCommAbort"]++;
  char thread[16] = {};
  pthread_getname_np(pthread_self(), thread, sizeof thread);
  state().aborted_on = thread;
  const auto comm = find(handle, "ncclCommAbort");
  if (comm == nullptr) return ncclInvalidArgument;
  comm->aborted = true;
  remove(comm, lock, "ncclCommAbort");
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "internal error";
  }
}

const char* ncclGetLastError(ncclComm_t handle) {
  const std::lock_guard lock(state().mutex);
  const auto it = state().live.find(handle);
  return it == state().live.end() ? "" : it->second->error.c_str();
}

ncclResult_t ncclGroupStart() {
  t_depth++;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  const std::lock_guard lock(state().mutex);
  if (t_depth == 0) {
    problem("ncclGroupEnd without a start");
    return ncclInvalidUsage;
  }
  if (--t_depth > 0 || t_group.empty()) return ncclSuccess;
  std::vector<Task> tasks;
  const std::shared_ptr<ncclComm> comm = t_group.front().first;
  for (const auto& [owner, task] : t_group) {
    if (owner != comm || task.stream != t_group.front().second.stream)
      problem("a group of several communicators or streams, which the fake does not have");
    tasks.push_back(task);
  }
  t_group.clear();
  return submit(comm, std::move(tasks));
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t handle) {
  const std::lock_guard lock(state().mutex);
  const auto comm = find_ready(handle, "ncclRedOpCreatePreMulSum");
  if (comm == nullptr || residence != ncclScalarHostImmediate || type != ncclFloat16)
    return ncclInvalidArgument;
  uint16_t half = 0;
  std::memcpy(&half, scalar, sizeof half);
  const int exponent = half >> 10 & 31;
  double value = exponent == 0 ? (half & 1023) / 16777216.0 : (1024 + (half & 1023)) / 1024.0;
  for (int i = exponent; i > 15; i--) value *= 2;
  for (int i = exponent; i < 15 && exponent > 0; i++) value /= 2;
  const int made = static_cast<int>(ncclNumOps) + 1 + static_cast<int>(comm->operations.size());
  comm->operations[made] = (half & 0x8000) != 0 ? -value : value;
  *op = static_cast<ncclRedOp_t>(made);
  return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void** memory, size_t size) {
  {
    const std::lock_guard lock(state().mutex);
    if (const ncclResult_t result = begin("ncclMemAlloc"); result != ncclSuccess) return result;
  }
  if (memory == nullptr || size == 0) return ncclInvalidArgument;
  if (cudaMalloc(memory, size) != cudaSuccess) return ncclUnhandledCudaError;
  const std::lock_guard lock(state().mutex);
  state().memory[*memory] = size;
  return ncclSuccess;
}

ncclResult_t ncclMemFree(void* memory) {
  {
    const std::lock_guard lock(state().mutex);
    state().calls["ncclMemFree"]++;
    if (state().memory.erase(memory) == 0) {
      problem("ncclMemFree of what ncclMemAlloc did not give");
      return ncclInvalidArgument;
    }
    for (const auto& [handle, comm] : state().live) {
      if (!comm->aborted && place_of(*comm, memory) >= 0) problem("ncclMemFree of registered memory");
    }
  }
  return cudaFree(memory) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommRegister(const ncclComm_t handle, void* memory, size_t size, void** registered) {
  const std::lock_guard lock(state().mutex);
  if (const ncclResult_t result = begin("ncclCommRegister"); result != ncclSuccess) return result;
  const auto comm = find_ready(handle, "ncclCommRegister");
  if (comm == nullptr || registered == nullptr || !reaches(memory, size, "ncclCommRegister"))
    return ncclInvalidArgument;
  const uintptr_t number = ++state().made;
  comm->registered[number] = {static_cast<const char*>(memory), size};
  *registered = reinterpret_cast<void*>(number);
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t handle, void* registered) {
  const std::lock_guard lock(state().mutex);
  if (const ncclResult_t result = begin("ncclCommDeregister"); result != ncclSuccess) return result;
  const auto comm = find_ready(handle, "ncclCommDeregister");
  if (comm == nullptr) return ncclInvalidArgument;
  if (comm->registered.erase(reinterpret_cast<uintptr_t>(registered)) == 0) {
    problem("ncclCommDeregister of what is not registered");
    return ncclInvalidArgument;
  }
  return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t handle) {
  const std::lock_guard lock(state().mutex);
  const auto comm = find_ready(handle, "ncclRedOpDestroy");
  if (comm == nullptr) return ncclInvalidArgument;
  if (comm->operations.erase(op) == 0) problem("ncclRedOpDestroy of no operation");
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* src, void* dst, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return post("ncclAllReduce", {Kind::kAllReduce, src, dst, count, type, op, 1.0, 0, stream}, comm, 1, 1);
}
ncclResult_t ncclReduce(const void* src, void* dst, size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  return post("ncclReduce", {Kind::kReduce, src, dst, count, type, op, 1.0, root, stream}, comm, 1,
              is_root(comm, root) ? 1 : 0);
}
ncclResult_t ncclReduceScatter(const void* src, void* dst, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return post("ncclReduceScatter", {Kind::kReduceScatter, src, dst, count, type, op, 1.0, 0, stream}, comm,
              -1, 1);
}
ncclResult_t ncclBroadcast(const void* src, void* dst, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return post("ncclBroadcast", {Kind::kBroadcast, src, dst, count, type, ncclSum, 1.0, root, stream}, comm,
              is_root(comm, root) ? 1 : 0, 1);
}
ncclResult_t ncclAllGather(const void* src, void* dst, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return post("ncclAllGather", {Kind::kAllGather, src, dst, count, type, ncclSum, 1.0, 0, stream}, comm, 1,
              -1);
}
ncclResult_t ncclAlltoAll(const void* src, void* dst, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
  return post("ncclAlltoAll", {Kind::kAllToAll, src, dst, count, type, ncclSum, 1.0, 0, stream}, comm, -1,
              -1);
}
ncclResult_t ncclGather(const void* src, void* dst, size_t count, ncclDataType_t type, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return post("ncclGather", {Kind::kGather, src, dst, count, type, ncclSum, 1.0, root, stream}, comm, 1,
              is_root(comm, root) ? -1 : 0);
}
ncclResult_t ncclScatter(const void* src, void* dst, size_t count, ncclDataType_t type, int root,
                         ncclComm_t comm, cudaStream_t stream) {
  return post("ncclScatter", {Kind::kScatter, src, dst, count, type, ncclSum, 1.0, root, stream}, comm,
              is_root(comm, root) ? -1 : 0, 1);
}
ncclResult_t ncclSend(const void* src, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return post("ncclSend", {Kind::kSend, src, nullptr, count, type, ncclSum, 1.0, peer, stream}, comm, 1, 0);
}
ncclResult_t ncclRecv(void* dst, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return post("ncclRecv", {Kind::kRecv, nullptr, dst, count, type, ncclSum, 1.0, peer, stream}, comm, 0, 1);
}
}
