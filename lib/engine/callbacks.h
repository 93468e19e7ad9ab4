// Runs the program's callbacks, one at a time, never under a lock of the library and never on the progress or
// control thread. In `thread` mode they run on a thread that starts with the first callback, in `caller` mode
// inside Weft calls.
#pragma once

#include <weft/weft.h>

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/callback_mark.h"
#include "base/clock.h"
#include "base/thread.h"
#include "engine/engine.h"

namespace weft {

// A callable whose captures are a few words of trivially copyable data, stored inline: it allocates nothing.
class Callback {
 public:
  template <class Call>  // NOLINTNEXTLINE(google-explicit-constructor): a lambda converts implicitly
  Callback(const Call& call) : run_([](const void* memory) { (*static_cast<const Call*>(memory))(); }) {
    static_assert(sizeof(Call) <= kBytes && alignof(Call) <= alignof(void*));
    static_assert(std::is_trivially_copyable_v<Call> && std::is_trivially_destructible_v<Call>);
    new (memory_) Call(call);
  }
  void operator()() const { run_(memory_); }

 private:
  static constexpr size_t kBytes = 40;
  alignas(void*) std::byte memory_[kBytes];
  void (*run_)(const void* memory);
};

// Threads: any thread.
class Callbacks {
 public:
  Callbacks(Engine::Mode mode, ThreadStart on_start) : mode_(mode), on_start_(std::move(on_start)) {}
  ~Callbacks();

  // Reserves room for a callback that will be posted, so that post needs no memory: no callback is lost.
  void promise();
  // Posts a callback that was promised.
  void post(const Callback& callback) noexcept;
  // In caller mode: runs the posted callbacks on this thread.
  void run_posted();
  // Waits until everything posted so far has run; returns at once when called from a callback. kTimeout,
  // kInterrupted: the program's code did not return in time, and continues to run on its thread.
  Status drain(Clock& clock, int64_t timeout_ms = WEFT_DEFAULT_DESTROY_TIMEOUT_MS);
  // Runs one callback now on this thread, marked as a callback.
  static void run(const Callback& callback);
  // Returns true if this thread is inside a callback of any context.
  static bool inside() { return CallbackMark::inside(); }
  // For user code that is called directly (a hook's stage).
  using Mark = CallbackMark;

 private:
  // Outlives this object while a callback of the program has not returned.
  struct Queue {
    void run_posted();
    void loop();
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<Callback> posted;  // guarded by mutex; empty when none waits
    size_t next = 0;               // guarded by mutex: callbacks before it have been run
    size_t promised = 0;           // guarded by mutex; posted has capacity for them
    bool running = false;          // guarded by mutex
    bool stopping = false;         // guarded by mutex
  };

  const Engine::Mode mode_;
  const ThreadStart on_start_;
  const std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
  std::thread thread_;  // guarded by queue_->mutex until stopping
};

}  // namespace weft
