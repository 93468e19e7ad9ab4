#include "engine/callbacks.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/interrupt.h"
#include "base/text.h"

namespace weft {

void Callbacks::run(const Callback& callback) {
  const Mark mark;
  callback();
}

Callbacks::~Callbacks() {
  bool running = false;
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->stopping = true;
    running = queue_->running;
  }
  queue_->changed.notify_all();
  if (!thread_.joinable()) return;
  // A callback that did not return in time, or that is dropping the last handle just now, cannot be waited
  // for.
  running ? thread_.detach() : thread_.join();
}

void Callbacks::promise() {
  const std::lock_guard lock(queue_->mutex);
  std::vector<Callback>& posted = queue_->posted;
  const auto needed = [&] { return posted.size() + queue_->promised + 1; };
  if (needed() > posted.capacity() && queue_->next > 0) {
    posted.erase(posted.begin(), posted.begin() + static_cast<ptrdiff_t>(std::exchange(queue_->next, 0)));
  }
  if (needed() > posted.capacity()) posted.reserve(std::max(needed(), 2 * posted.capacity()));
  queue_->promised++;
}

void Callbacks::post(const Callback& callback) noexcept {
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->promised--;
    queue_->posted.push_back(callback);
    if (mode_ == Engine::Mode::kCaller) return;
    if (!thread_.joinable() && !queue_->stopping) {
      const auto start = [&] {
        return start_thread("weft-callback", [queue = queue_] { queue->loop(); }, on_start_, &thread_);
      };
      if (!guarded(start).ok()) return;  // without a thread they run in run_posted() or drain()
    }
  }
  queue_->changed.notify_all();
}

void Callbacks::run_posted() {
  queue_->run_posted();
}

void Callbacks::Queue::run_posted() {
  std::unique_lock lock(mutex);
  if (running || posted.empty()) return;
  running = true;
  while (!posted.empty() && !stopping) {
    const Callback callback = posted[next++];
    if (next == posted.size()) {
      posted.clear();
      next = 0;
    }
    lock.unlock();
    run(callback);
    lock.lock();
  }
  running = false;
  lock.unlock();
  changed.notify_all();
}

Status Callbacks::drain(Clock& clock, int64_t timeout_ms) {
  if (inside()) return {};
  bool own_thread = false;
  {
    const std::lock_guard lock(queue_->mutex);
    if (queue_->posted.empty() && !queue_->running) return {};
    own_thread = thread_.joinable();
  }
  if (!own_thread) run_posted();
  const Deadline deadline = Deadline::after(clock, timeout_ms, 0);
  const auto idle = [&] { return queue_->posted.empty() && !queue_->running; };
  for (;;) {
    const int wait_ms = deadline.earlier(Interrupt::next()).remaining_ms(clock);
    {
      std::unique_lock lock(queue_->mutex);
      if (queue_->changed.wait_for(lock, std::chrono::milliseconds(wait_ms), idle)) return {};
    }
    WEFT_TRY(Interrupt::check().with_prefix("a completion callback of the program has not returned: "));
    if (deadline.expired(clock)) break;
  }
  return Status::error(
      Code::kTimeout, cat("a completion callback of the program has not returned after ", timeout_ms, " ms"));
}

void Callbacks::Queue::loop() {
  for (;;) {
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [this] { return stopping || !posted.empty(); });
      if (stopping) return;
    }
    run_posted();
  }
}

}  // namespace weft
