#include "core/callbacks.h"

#include <utility>

namespace weft {
namespace {

// Depth of callbacks on this thread; says nothing about any object, so it is no state of the library.
thread_local int callback_depth = 0;

}  // namespace

bool Callbacks::inside() {
  return callback_depth > 0;
}

Callbacks::Mark::Mark() {
  callback_depth++;
}

Callbacks::Mark::~Mark() {
  callback_depth--;
}

void Callbacks::run(const std::function<void()>& callback) {
  const Mark mark;
  callback();
}

Callbacks::~Callbacks() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Callbacks::post(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(callback));
    if (mode_ == Engine::Mode::kCaller) return;
    if (!thread_.joinable() && !stopping_) {
      // Without a thread the callbacks wait for run_posted() or drain().
      if (!start_thread("weft-callback", [this] { loop(); }, on_start_, &thread_).ok()) return;
    }
  }
  changed_.notify_all();
}

void Callbacks::run_posted() {
  std::unique_lock lock(mutex_);
  if (running_ || posted_.empty()) return;
  running_ = true;
  while (!posted_.empty()) {
    const std::vector<std::function<void()>> batch = std::exchange(posted_, {});
    lock.unlock();
    for (const auto& callback : batch) run(callback);
    lock.lock();
  }
  running_ = false;
  lock.unlock();
  changed_.notify_all();
}

void Callbacks::drain() {
  if (inside()) return;
  {
    const std::lock_guard lock(mutex_);
    if (posted_.empty() && !running_) return;
  }
  bool own_thread = false;
  {
    const std::lock_guard lock(mutex_);
    own_thread = thread_.joinable();
  }
  if (!own_thread) run_posted();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return posted_.empty() && !running_; });
}

void Callbacks::loop() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !posted_.empty(); });
      if (posted_.empty()) return;
    }
    run_posted();
  }
}

}  // namespace weft
