#include "hook/stage_worker.h"

#include <algorithm>
#include <utility>

#include "base/interrupt.h"

namespace weft {
namespace {

// A helper wakes the worker thread for queued stages after this many polls in which it found other work.
constexpr uint32_t kPatience = 8;
// A stage of a user hook that has run for longer than this is treated as one that never returns.
constexpr uint64_t kLongNs = 1'000'000'000;

}  // namespace

StageWorker::StageWorker(std::shared_ptr<Clock> clock, ThreadStart on_start)
    : shared_(std::make_shared<Shared>()), on_start_(std::move(on_start)) {
  shared_->clock = std::move(clock);
}

StageWorker::~StageWorker() {
  (void)stop(0).ok();
}

Status StageWorker::start() {
  const std::lock_guard lock(shared_->mutex);
  return start_locked();
}

Status StageWorker::start_locked() {
  if (thread_.joinable() || shared_->stopping) return {};
  const uint64_t epoch = ++shared_->epoch;
  return guarded([&] {
    return start_thread(
        "weft-worker", [shared = shared_, epoch] { shared->loop(epoch); }, on_start_, &thread_);
  });
}

Status StageWorker::stop(int64_t timeout_ms) {
  Shared& s = *shared_;
  {
    const std::lock_guard lock(s.mutex);
    s.stopping = true;
  }
  s.wake();
  if (!thread_.joinable()) return {};
  const auto runs = [&] {
    const std::lock_guard lock(s.mutex);
    return s.running != nullptr;
  };
  const Deadline deadline = Deadline::after(*s.clock, timeout_ms, 1);
  bool left = thread_.get_id() == std::this_thread::get_id();  // a stage's end has dropped the last handle
  for (uint32_t round = 0; !left && runs(); round++) {
    left = deadline.expired(*s.clock) || Interrupt::poll();
    s.clock->relax(round);
  }
  left ? thread_.detach() : thread_.join();
  return left ? Status::error(Code::kTimeout,
                              "a stage of a hook has not returned; its thread continues until it does")
              : Status();
}

void StageWorker::post(std::shared_ptr<StageWork> work) {
  Shared& s = *shared_;
  {
    const std::lock_guard lock(s.mutex);
    s.queue.push_back(std::move(work));
    s.queue.back()->phase_.store(StageWork::Phase::kQueued, std::memory_order_relaxed);
    s.queued.store(static_cast<uint32_t>(s.queue.size()));
    if (s.leaves_to_helper(*s.queue.back())) return;
    // The last thread may have been left behind in a stage that does not return. If none can be started, the
    // stage stays queued and the step fails at its deadline.
    (void)start_locked().ok();
  }
  s.wake();
}

void StageWorker::cancel(StageWork& work) {
  const std::lock_guard lock(shared_->mutex);
  auto& queue = shared_->queue;
  const auto it = std::find_if(queue.begin(), queue.end(), [&](const auto& w) { return w.get() == &work; });
  if (it == queue.end()) return;
  work.phase_.store(StageWork::Phase::kIdle, std::memory_order_release);
  queue.erase(it);
  shared_->queued.store(static_cast<uint32_t>(queue.size()));
}

void StageWorker::set_aside(const StageWork& work) {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->running == &work && !shared_->stopping) set_aside_locked();
}

void StageWorker::relieve() {
  Shared& s = *shared_;
  const std::lock_guard lock(s.mutex);
  if (s.running == nullptr || !s.foreign || s.stopping) return;
  if (s.clock->now_ns() - s.running_since_ns < kLongNs) return;
  const auto other = [&](const auto& work) { return &work->hook() != s.running_of; };
  if (std::any_of(s.queue.begin(), s.queue.end(), other)) set_aside_locked();
}

void StageWorker::set_aside_locked() {
  shared_->running = nullptr;
  shared_->clock->computing(false);  // the stage may never return
  shared_->epoch++;
  thread_.detach();
  if (!shared_->queue.empty()) (void)start_locked().ok();
}

void StageWorker::turn_over() {
  if (shared_->queued.load() == 0) return;
  {
    const std::lock_guard lock(shared_->mutex);
    (void)start_locked().ok();  // there is no thread if one was set aside or did not start
  }
  shared_->wake();
}

void StageWorker::run(StageWork& work) {
  Hook& hook = work.hook();
  work.run();
  hook.turn().give();
  work.phase_.store(StageWork::Phase::kIdle, std::memory_order_release);
}

void StageWorker::Shared::wake() {
  wake_word.fetch_add(1);
  if (sleeping.load()) clock->wake_all(wake_word);
}

bool StageWorker::Shared::leaves_to_helper(const StageWork& work) const {
  return std::find(helped.begin(), helped.end(), work.owner_) != helped.end();
}

// Called with mutex held. Takes the first stage, of `owner` or else of the owner that has waited longest,
// whose hook is free; its turn is taken.
std::shared_ptr<StageWork> StageWorker::Shared::take(const void* owner) {
  if (stopping) return nullptr;
  for (size_t first = 0; first < queue.size(); first++) {
    const void* const of = queue[first]->owner_;
    if (owner != nullptr && of != owner) continue;
    size_t best = first;
    for (size_t i = first + 1; i < queue.size(); i++) {
      if (queue[i]->owner_ == of && queue[i]->place_ < queue[best]->place_) best = i;
    }
    if (!queue[best]->hook().turn().try_take()) continue;
    std::shared_ptr<StageWork> work = std::move(queue[best]);
    queue.erase(queue.begin() + static_cast<ptrdiff_t>(best));
    queued.store(static_cast<uint32_t>(queue.size()));
    work->phase_.store(StageWork::Phase::kRunning, std::memory_order_relaxed);
    return work;
  }
  return nullptr;
}

void StageWorker::Shared::loop(uint64_t mine) {
  for (;;) {
    const uint32_t seen = wake_word.load();
    std::shared_ptr<StageWork> work;
    {
      const std::lock_guard lock(mutex);
      if (stopping || epoch != mine) return;
      work = take(nullptr);
      running = work.get();
      if (work) {
        clock->computing(true);
        running_of = &work->hook();
        foreign = running_of->stage_kind() == StageKind::kForeign;
        if (foreign) running_since_ns = clock->now_ns();
      }
    }
    if (!work) {
      sleeping.store(true);
      if (wake_word.load() == seen) clock->sleep(wake_word, seen, UINT64_MAX);
      sleeping.store(false);
      continue;
    }
    StageWorker::run(*work);
    work->engine().notify();
    work.reset();  // may drop the last reference to the context
    const std::lock_guard lock(mutex);
    if (epoch == mine) {
      running = nullptr;
      clock->computing(false);
      continue;
    }
    if (!queue.empty()) wake();  // queued stages may have waited for the hook
    return;
  }
}

StageWorker::Helper::Helper(StageWorker& worker, const void* owner) : worker_(worker), owner_(owner) {
  const std::lock_guard lock(worker_.shared_->mutex);
  worker_.shared_->helped.push_back(owner_);
}

StageWorker::Helper::~Helper() {
  Shared& s = *worker_.shared_;
  {
    const std::lock_guard lock(s.mutex);
    s.helped.erase(std::find(s.helped.begin(), s.helped.end(), owner_));
  }
  worker_.turn_over();
}

bool StageWorker::Helper::wanted(Poll last) {
  if (worker_.shared_->queued.load(std::memory_order_relaxed) == 0) {
    rounds_ = 0;
    return false;
  }
  if (++rounds_ % kPatience == 0) worker_.turn_over();
  return last == Poll::kParked || last == Poll::kLater;
}

bool StageWorker::Helper::help() {
  Shared& s = *worker_.shared_;
  std::shared_ptr<StageWork> work;
  {
    const std::lock_guard lock(s.mutex);
    work = s.take(owner_);
    // The worker thread takes stages that arrive meanwhile.
    if (work) s.helped.erase(std::find(s.helped.begin(), s.helped.end(), owner_));
  }
  if (!work) return false;
  run(*work);
  rounds_ = 0;
  const std::lock_guard lock(s.mutex);
  s.helped.push_back(owner_);
  return true;
}

}  // namespace weft
