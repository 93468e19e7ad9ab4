// What the fake's files share: memory, streams and events, and the one lock that guards them.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace fake {

enum class Kind { kPinned, kRegistered, kDevice, kManaged };
const char* name(Kind kind);

struct Block {
  Kind kind = Kind::kDevice;
  int device = 0;
  std::byte* base = nullptr;  // as the program sees it; device memory: nothing may touch it
  size_t size = 0;
  std::shared_ptr<std::byte[]> content;  // of device memory, null once freed
  bool freed = false;
  // A second mapping of registered memory: of the pages that were there then, to which a device keeps
  // whatever is mapped at these addresses later. Null where there is none.
  std::byte* pages = nullptr;
};

// Maps the pages of [base, base + size) once more. Null for memory that is private: it has no second mapping.
std::byte* map_again(std::byte* base, size_t size);
void unmap_again(const Block& block);

struct Operation {
  std::function<bool()> may_run;  // with the lock held; empty: at once
  std::function<void()> run;      // without the lock; of a graph's: any number of times
  bool asks = false;              // nobody is told when may_run changes: it is for a word in memory
};

// What was captured: operations, each with the numbers of those before it that it comes after.
struct Node {
  Operation operation;
  std::set<size_t> after;
};
struct Graph {
  int device = 0;
  std::vector<Node> nodes;
};

// Of the streams that take part (capture.cpp).
struct Capture {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;  // that has begun it
  bool spoilt = false;     // by a call that it forbids
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
};

struct Event {
  int device = 0;
  std::shared_ptr<bool> done;  // of the last record; null: there was none
  // That was one of a stream that is captured: where it was there.
  std::shared_ptr<Capture> capture;
  std::set<size_t> after;
  bool completed() const { return done == nullptr || *done; }
};

struct Stream {
  int device = 0;
  bool blocking = true;  // ordered with the legacy default stream
  int priority = 0;
  std::shared_ptr<Capture> capture;
  bool began = false;      // it, on this stream
  std::set<size_t> after;  // what is captured next comes after these of the graph's nodes
  std::deque<Operation> queue;
  uint64_t enqueued = 0;
  uint64_t completed = 0;
  uint64_t random = 0;
  bool ending = false;
  std::condition_variable given;  // there is something to do
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;
  int devices = 1;
  uint64_t seed = 1;
  int delay_us = 0;
  int runtime_version = 13'000;
  int driver_version = 13'000;
  uint64_t operations = 0;
  uint64_t streams_made = 0;
  std::map<const std::byte*, Block> blocks;  // by base; freed ones stay, so that uses of them are known
  std::map<cudaStream_t, std::shared_ptr<Stream>> streams;
  std::map<int, std::shared_ptr<Stream>> legacy;  // default streams, by device
  std::map<cudaEvent_t, std::shared_ptr<Event>> events;
  std::map<cudaGraph_t, std::shared_ptr<Graph>> graphs;
  std::map<cudaGraphExec_t, std::shared_ptr<Graph>> executables;
  std::set<int> contexts;                        // devices that have one
  std::set<const void*> dead;                    // handles that were destroyed
  std::set<std::pair<int, const void*>> loaded;  // kernels, by device
  std::string stalled;                           // a kernel whose launches wait, once so many have come
  int stalled_after = 0;
  std::map<std::string, int> failures;
  std::vector<std::string> problems;
};
State& state();

// With the lock held, all below.
void problem(const std::string& text);
// The error that a test wants from this call; cudaSuccess otherwise.
cudaError_t failure(const char* call);
Block* find_block(const void* pointer);
// Where the bytes really are; null and a problem if a device or copy may not touch them.
std::byte* reach(const void* pointer, size_t size, const char* what);
// Begin the thread of a new stream.
void start(const std::shared_ptr<Stream>& stream);
std::shared_ptr<Stream> find_stream(cudaStream_t handle, const char* call);
// Whether a capture forbids the calling thread a call that might wait for the device; the capture is spoilt
// then.
bool forbidden();
// That, of a call that asks for the stream's work: of one that is captured there is none.
bool spoils(Stream& stream);
// cudaErrorStreamCaptureImplicit for the legacy default stream while a blocking stream of the device is
// captured; with `work`, which would depend on that stream, the capture is spoilt.
cudaError_t implicit(cudaStream_t handle, bool work);
// In place of putting it on the stream's queue.
void capture(Stream& stream, Operation operation);
// A stream that waits for an event, of which one or both are captured.
cudaError_t join(Stream& stream, const Event& event);
void enqueue(const std::shared_ptr<Stream>& stream, Operation operation);
// Until the streams of a device (-1: all) have nothing left; false after 20 s.
bool drain(std::unique_lock<std::mutex>& lock, int device);

// A kernel is loaded on the current device, for which the real one may have to wait until that is idle.
void load_kernel(std::unique_lock<std::mutex>& lock, const void* kernel);

int current_device();
// It is the thread's last error, until it is read. Of what calls of the runtime return, cudaErrorNotReady
// included; calls of the driver have none, and the two share their numbers.
cudaError_t note(cudaError_t error);
inline CUresult driver(cudaError_t error) {
  return static_cast<CUresult>(error);
}
// Handles are addresses that nothing else has, and that are never given again.
template <class Handle>
Handle new_handle() {
  return reinterpret_cast<Handle>(new char);
}

}  // namespace fake
