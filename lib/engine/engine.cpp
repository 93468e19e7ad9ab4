#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "engine/patience.h"

namespace weft {
namespace {

// Pauses between polls that nobody waits for: from 10 us to 10 ms.
constexpr uint64_t kShortestPauseNs = 10'000;
constexpr uint32_t kPauseDoublings = 10;

}  // namespace

Engine::~Engine() {
  stop();
}

Status Engine::start(const ThreadStart& on_start) {
  if (mode_ == Mode::kCaller) return {};
  return start_thread("weft-progress", [this] { run(); }, on_start, &thread_);
}

void Engine::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true);
  wake_.fetch_add(1);
  clock_.wake_all(wake_);
  thread_.join();
}

void Engine::add(std::shared_ptr<Task> task) {
  {
    const std::lock_guard lock(progress_mutex_);
    tasks_.push_back(std::move(task));
  }
  notify();
}

void Engine::remove(const Task* task) {
  std::shared_ptr<Task> removed;  // destroyed after the lock is released
  locked([&] {
    const auto it =
        std::find_if(tasks_.begin(), tasks_.end(), [&](const auto& t) { return t.get() == task; });
    if (it == tasks_.end()) return;
    removed = std::move(*it);
    tasks_.erase(it);
  });
}

void Engine::notify() {
  if (waiters_.load() > 0) {
    held_back_.store(true);
    if (waiters_.load() > 0) return;  // the last of them sees held_back_
  }
  wake_.fetch_add(1);
  if (sleeping_.load()) clock_.wake_all(wake_);
}

Poll Engine::poll_tasks(bool* had_lock) {
  std::unique_lock lock(progress_mutex_, std::try_to_lock);
  *had_lock = lock.owns_lock();
  if (!lock.owns_lock()) return Poll::kParked;
  if (missed_.load()) missed_.store(false);  // this round polls what the progress thread missed
  bool waiting = false, advanced = false, later = false;
  for (size_t i = 0; i < tasks_.size();) {
    const Poll poll = Engine::poll(*tasks_[i]);
    if (poll == Poll::kFinished) {
      tasks_.erase(tasks_.begin() + static_cast<ptrdiff_t>(i));
      continue;
    }
    waiting |= poll == Poll::kWaiting;
    advanced |= poll == Poll::kAdvanced;
    later |= poll == Poll::kLater;
    i++;
  }
  lock.unlock();
  if (advanced) return Poll::kAdvanced;
  // A notification that woke the progress thread during this round may concern a task that was already
  // polled.
  if (waiting || missed_.load()) return Poll::kWaiting;
  return later ? Poll::kLater : Poll::kParked;
}

bool Engine::yields_to_waiters(Poll last) {
  if (waiters_.load() == 0) return false;
  if (last == Poll::kParked) return true;
  held_back_.store(true);  // the last waiter may have polled before this work arrived
  return waiters_.load() > 0;
}

// Sets missed_ before the second attempt, so a thread that holds the lock then sees missed_ when it releases
// it.
Poll Engine::poll_tasks_or_miss() {
  bool had_lock = false;
  Poll poll = poll_tasks(&had_lock);
  if (had_lock) return poll;
  missed_.store(true);
  return poll_tasks(&had_lock);
}

void Engine::sleep(uint32_t seen, uint64_t until_ns) {
  sleeping_.store(true);
  if (wake_.load() == seen && !stopping_.load()) clock_.sleep(wake_, seen, until_ns);
  sleeping_.store(false);
}

void Engine::run() {
  Patience patience;
  uint32_t round = 0;  // polls since something advanced
  Poll poll = Poll::kParked;
  while (!stopping_.load()) {
    const uint32_t seen = wake_.load();
    poll = yields_to_waiters(poll) ? Poll::kParked : poll_tasks_or_miss();
    switch (poll) {
      case Poll::kAdvanced:
        patience.advanced(clock_.now_ns());
        round = 0;
        break;
      case Poll::kWaiting: {
        const uint64_t now_ns = clock_.now_ns();
        const uint64_t pause_ns = patience.waiting(now_ns);
        if (pause_ns == 0) {
          clock_.relax(round++);
        } else {
          sleep(seen, now_ns + pause_ns);
        }
        break;
      }
      case Poll::kLater:
        sleep(seen, clock_.now_ns() + (kShortestPauseNs << std::min(round++ / 4, kPauseDoublings)));
        break;
      default:
        // There is nothing to do, or a waiter polls and will hand over.
        round = 0;
        sleep(seen, UINT64_MAX);
    }
  }
}

}  // namespace weft
