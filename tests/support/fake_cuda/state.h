// State that the fake's source files share: memory, streams, events, and the one lock that guards them.
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
  std::byte* base = nullptr;  // the program's address; of device memory it is inaccessible
  size_t size = 0;
  std::shared_ptr<std::byte[]> content;  // contents of device memory; null once freed
  bool freed = false;
  // A second mapping of registered memory. It refers to the pages that existed at registration, as a device
  // does, whatever is mapped at these addresses later. Null where there is none.
  std::byte* pages = nullptr;
};

// Maps the pages of [base, base + size) a second time. Null for private memory, which cannot be mapped twice.
std::byte* map_again(std::byte* base, size_t size);
void unmap_again(const Block& block);

struct Operation {
  std::function<bool()> may_run;  // called with the lock held; empty: runs at once
  std::function<void()> run;      // called without the lock; a graph may call it any number of times
  bool asks = false;  // may_run reads a word in memory, so no notification arrives: the stream polls it
};

// One captured operation, with the numbers of the earlier operations that it follows.
struct Node {
  Operation operation;
  std::set<size_t> after;
};
struct Graph {
  int device = 0;
  std::vector<Node> nodes;
};

// A capture of one or several streams (capture.cpp).
struct Capture {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;  // the thread that began the capture
  bool spoilt = false;     // invalidated by a call that the capture forbids
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
};

struct Event {
  int device = 0;
  std::shared_ptr<bool> done;  // completion of the last record; null if it was never recorded
  // Set if the last record was on a captured stream: the capture and the nodes that the record follows.
  std::shared_ptr<Capture> capture;
  std::set<size_t> after;
  bool completed() const { return done == nullptr || *done; }
};

struct Stream {
  int device = 0;
  bool blocking = true;  // ordered with the legacy default stream
  int priority = 0;
  std::shared_ptr<Capture> capture;
  bool began = false;      // the capture began on this stream
  std::set<size_t> after;  // the graph nodes that the next captured operation follows
  std::deque<Operation> queue;
  uint64_t enqueued = 0;
  uint64_t completed = 0;
  uint64_t random = 0;
  bool ending = false;
  std::condition_variable given;  // signalled when the stream has work
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
  std::map<const std::byte*, Block> blocks;  // by base; freed blocks stay, to report later uses
  std::map<cudaStream_t, std::shared_ptr<Stream>> streams;
  std::map<int, std::shared_ptr<Stream>> legacy;  // default streams, by device
  std::map<cudaEvent_t, std::shared_ptr<Event>> events;
  std::map<cudaGraph_t, std::shared_ptr<Graph>> graphs;
  std::map<cudaGraphExec_t, std::shared_ptr<Graph>> executables;
  std::set<int> contexts;                        // devices that have a context
  std::set<const void*> dead;                    // destroyed handles
  std::set<std::pair<int, const void*>> loaded;  // kernels, by device
  std::string stalled;                           // the kernel whose launches wait after stalled_after more
  int stalled_after = 0;
  bool lazy = false;  // the reported loading mode of kernels
  std::map<std::string, int> failures;
  std::vector<std::string> problems;
};
State& state();

// The functions below are called with the lock held.
void problem(const std::string& text);
// Returns the error that a test has set for this call; otherwise cudaSuccess.
cudaError_t failure(const char* call);
Block* find_block(const void* pointer);
// Translates a device address to its host bytes. Returns null and records a problem if a device or copy may
// not access them.
std::byte* reach(const void* pointer, size_t size, const char* what);
// Starts the thread of a new stream.
void start(const std::shared_ptr<Stream>& stream);
std::shared_ptr<Stream> find_stream(cudaStream_t handle, const char* call);
// Returns true if a capture forbids the calling thread a call that may wait for the device. The capture is
// then invalidated.
bool forbidden();
// Returns true, and invalidates the capture, if the stream is captured: a captured stream has no work to
// query.
bool spoils(Stream& stream);
// Returns cudaErrorStreamCaptureImplicit for the legacy default stream while a blocking stream of the device
// is captured. With `work`, which would depend on that stream, the capture is invalidated.
cudaError_t implicit(cudaStream_t handle, bool work);
// Records the operation in the stream's capture instead of queueing it.
void capture(Stream& stream, Operation operation);
// Makes a stream wait for an event, where one or both are captured.
cudaError_t join(Stream& stream, const Event& event);
void enqueue(const std::shared_ptr<Stream>& stream, Operation operation);
// Waits until the streams of a device (-1: all devices) are empty. Returns false after 20 s.
bool drain(std::unique_lock<std::mutex>& lock, int device);

// Loads a kernel on the current device. CUDA may wait for the device to be idle then, so the fake does.
void load_kernel(std::unique_lock<std::mutex>& lock, const void* kernel);

int current_device();
// Stores the error as the thread's last error until the program reads it. Applies to results of runtime
// calls, cudaErrorNotReady included. Driver calls set no last error; both use the same numbers.
cudaError_t note(cudaError_t error);
inline CUresult driver(cudaError_t error) {
  return static_cast<CUresult>(error);
}
// Returns a handle whose address is unique and never reused.
template <class Handle>
Handle new_handle() {
  return reinterpret_cast<Handle>(new char);
}

}  // namespace fake
