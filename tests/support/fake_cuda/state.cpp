// The fake's streams, and lookups of its objects.
#include "state.h"

#include <chrono>

namespace fake {
namespace {

uint64_t next_random(Stream& stream) {
  uint64_t z = (stream.random += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Runs a stream's operations one after the other, each after a delay.
void work(const std::shared_ptr<Stream>& stream) {
  State& s = state();
  std::unique_lock lock(s.mutex);
  for (;;) {
    stream->given.wait(lock, [&] { return stream->ending || !stream->queue.empty(); });
    if (stream->queue.empty()) return;
    Operation operation = std::move(stream->queue.front());
    stream->queue.pop_front();
    const auto delay = std::chrono::microseconds(
        s.delay_us > 0 ? next_random(*stream) % static_cast<uint64_t>(s.delay_us) : 0);
    lock.unlock();
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    lock.lock();
    while (operation.may_run && !operation.may_run()) {
      if (operation.asks) {
        s.changed.wait_for(lock, std::chrono::microseconds(50));
      } else {
        s.changed.wait(lock);
      }
    }
    lock.unlock();
    if (operation.run) operation.run();
    operation = {};
    lock.lock();
    stream->completed++;
    s.operations++;
    s.changed.notify_all();
  }
}

}  // namespace

State& state() {
  static State* const only = new State;  // never destroyed: threads may outlive static destruction
  return *only;
}

const char* name(Kind kind) {
  return kind == Kind::kDevice    ? "device memory"
         : kind == Kind::kPinned  ? "pinned memory"
         : kind == Kind::kManaged ? "managed memory"
                                  : "registered memory";
}

void problem(const std::string& text) {
  state().problems.push_back(text);
}

cudaError_t failure(const char* call) {
  State& s = state();
  const auto it = s.failures.find(call);
  if (it == s.failures.end()) return cudaSuccess;
  const auto error = static_cast<cudaError_t>(it->second);
  s.failures.erase(it);
  return error;
}

Block* find_block(const void* pointer) {
  State& s = state();
  const auto* const at = static_cast<const std::byte*>(pointer);
  auto it = s.blocks.upper_bound(at);
  if (it == s.blocks.begin()) return nullptr;
  --it;
  Block& block = it->second;
  return at < block.base + block.size ? &block : nullptr;
}

std::byte* reach(const void* pointer, size_t size, const char* what) {
  Block* const block = find_block(pointer);
  const auto* const at = static_cast<const std::byte*>(pointer);
  if (block == nullptr) {
    problem(std::string(what) + " touches pageable host memory");
    return nullptr;
  }
  if (block->freed) {
    problem(std::string(what) + " touches " + name(block->kind) + " after it was freed");
    return nullptr;
  }
  const auto offset = static_cast<size_t>(at - block->base);
  if (offset + size > block->size) {
    problem(std::string(what) + " runs over the end of " + name(block->kind));
    return nullptr;
  }
  if (block->pages != nullptr) return block->pages + offset;
  return (block->kind == Kind::kDevice ? block->content.get() : block->base) + offset;
}

void start(const std::shared_ptr<Stream>& stream) {
  State& s = state();
  stream->random = s.seed * 1000 + ++s.streams_made;
  std::thread([stream] { work(stream); }).detach();  // the thread ends when the stream is destroyed and empty
}

std::shared_ptr<Stream> find_stream(cudaStream_t handle, const char* call) {
  State& s = state();
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
    std::shared_ptr<Stream>& legacy = s.legacy[current_device()];
    if (!legacy) {
      legacy = std::make_shared<Stream>();
      legacy->device = current_device();
      start(legacy);
    }
    return legacy;
  }
  const auto it = s.streams.find(handle);
  if (it != s.streams.end()) return it->second;
  problem(std::string(call) + (s.dead.count(handle) != 0 ? " of a destroyed stream" : " of no stream"));
  return nullptr;
}

// Queues an operation. Work on the legacy default stream follows all earlier work on the device's blocking
// streams, and their later work follows it.
void enqueue(const std::shared_ptr<Stream>& stream, Operation operation) {
  State& s = state();
  if (stream->capture) return capture(*stream, std::move(operation));
  const bool legacy = s.legacy.count(stream->device) != 0 && s.legacy[stream->device] == stream;
  std::vector<std::pair<std::shared_ptr<Stream>, uint64_t>> before;
  if (legacy) {
    for (const auto& [handle, other] : s.streams) {
      if (other->blocking && other->device == stream->device && other->completed < other->enqueued)
        before.emplace_back(other, other->enqueued);
    }
  } else if (stream->blocking && s.legacy.count(stream->device) != 0) {
    const std::shared_ptr<Stream>& other = s.legacy[stream->device];
    if (other->completed < other->enqueued) before.emplace_back(other, other->enqueued);
  }
  if (!before.empty()) {
    operation.may_run = [before, own = std::move(operation.may_run)] {
      for (const auto& [other, number] : before) {
        if (other->completed < number) return false;
      }
      return !own || own();
    };
  }
  stream->queue.push_back(std::move(operation));
  stream->enqueued++;
  stream->given.notify_one();
}

bool drain(std::unique_lock<std::mutex>& lock, int device) {
  State& s = state();
  const auto idle = [&] {
    for (const auto& [handle, stream] : s.streams) {
      if ((device < 0 || stream->device == device) && stream->completed < stream->enqueued) return false;
    }
    for (const auto& [number, stream] : s.legacy) {
      if ((device < 0 || number == device) && stream->completed < stream->enqueued) return false;
    }
    return true;
  };
  return s.changed.wait_for(lock, std::chrono::seconds(20), idle);
}

}  // namespace fake
