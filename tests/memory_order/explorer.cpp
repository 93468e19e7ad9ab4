#include "explorer.h"

#include <link.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/single_threaded.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>

#include "machine.h"

namespace weft::model {
namespace {

constexpr size_t kStackBytes = 512 << 10;
constexpr int kIdlePolls = 200;  // without a store: the threads wait for each other

struct Choice {
  int taken;
  int options;
};

struct Region {
  std::byte* base;
  size_t bytes;
};

// The executable's thread-local variables. Fibers share the thread, so each keeps a copy while it does not
// run.
struct Locals {
  std::byte* at = nullptr;
  size_t bytes = 0;
};

Locals find_locals() {
  Locals found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        for (int i = 0; i < info->dlpi_phnum; i++) {
          if (info->dlpi_phdr[i].p_type != PT_TLS) continue;
          *static_cast<Locals*>(out) = {static_cast<std::byte*>(info->dlpi_tls_data),
                                        info->dlpi_phdr[i].p_memsz};
        }
        return 1;  // the first object is the executable
      },
      &found);
  return found;
}

enum class State : uint8_t { kUnused, kReady, kYielded, kLocking, kJoining, kSleeping, kFinished };

struct Thread {
  State state = State::kUnused;
  const void* awaited = nullptr;  // the mutex, or the word of a sleeping thread
  int joined = -1;                // the thread that it waits for
  uint64_t stores = 0;            // number of stores when it yielded
  bool stale = false;             // it has read an old store since it last yielded
  ucontext_t context;
  std::byte* stack = nullptr;
  std::function<void()> body;
  std::vector<std::byte> locals;
};

struct Call {
  Kind kind;
  Order order;
};

class Explorer {
 public:
  Result explore(const std::function<void()>& program, const Limits& limits, const Mutant* mutant);
  std::vector<Site> take_sites();

  bool active() const { return current_ >= 0 && !inside_; }
  int current() const { return current_; }
  void set_inside(bool inside) { inside_ = inside; }
  Machine& machine() { return machine_; }

  int choose(int options);
  // A point at which another thread may continue. call: the operation that follows.
  void point();
  void point_before(uintptr_t call) {
    if (budget_ > 0 && shared_.count(call) > 0) point();
  }
  void yield();
  void sleep(const void* word);
  void wake(const void* word);
  int start(std::function<void()> body);
  void join(int thread);
  void lock(const void* mutex);
  bool try_lock(const void* mutex);
  void unlock(const void* mutex);
  [[noreturn]] void fail(const std::string& why);
  // Returns the order in which the operation at this call is executed.
  Order order(uintptr_t call, Kind kind, int given);
  void count_store() {
    stores_++;
    idle_polls_ = 0;
  }
  void read_old() { threads_[static_cast<size_t>(current_)].stale = true; }
  std::byte* memory(size_t bytes);
  bool tracing() const { return tracing_; }

 private:
  bool execute(const std::function<void()>& program);
  bool enabled(const Thread& thread) const;
  void wait(State state);
  void switch_to(int next);
  static void enter();

  Machine machine_;
  std::array<Thread, kThreads> threads_;
  std::map<const void*, MutexState> mutexes_;
  ucontext_t outside_;
  Locals locals_ = find_locals();
  std::vector<std::byte> first_locals_;
  std::vector<Region> regions_;
  size_t used_regions_ = 0;
  std::vector<Choice> path_;
  size_t depth_ = 0;
  int budget_ = 0;
  uint64_t stores_ = 0;
  int idle_polls_ = 0;  // since the last store
  int current_ = -1;
  bool inside_ = false;
  bool tracing_ = false;
  std::string failure_;
  Limits limits_;
  const Mutant* mutant_ = nullptr;
  std::map<std::pair<uintptr_t, Kind>, Order> calls_;
  std::set<uintptr_t> shared_;  // calls that use words of several threads
};

Explorer* only = nullptr;  // null until the first exploration

Explorer& explorer() {
  return *only;
}
Explorer& made() {
  if (only == nullptr) only = new Explorer;
  return *only;
}

// Returns a choice between options 0 (the default) to options - 1. Repeats the path of the last execution,
// and takes the next option at its end.
int Explorer::choose(int options) {
  if (options == 1 || budget_ == 0) return 0;
  if (depth_ == path_.size()) path_.push_back({0, options});
  const Choice choice = path_[depth_++];
  if (choice.options != options) fail("the program is not deterministic");
  if (choice.taken != 0) budget_--;
  return choice.taken;
}

bool Explorer::enabled(const Thread& thread) const {
  switch (thread.state) {
    case State::kReady:
      return true;
    case State::kYielded:
      return thread.stale || thread.stores != stores_;
    case State::kLocking: {
      const auto it = mutexes_.find(thread.awaited);
      return it == mutexes_.end() || it->second.holder < 0;
    }
    case State::kJoining:
      return threads_[static_cast<size_t>(thread.joined)].state == State::kFinished;
    default:
      return false;
  }
}

void Explorer::point() {
  if (budget_ == 0) return;
  std::array<int, kThreads> others;
  int count = 0;
  for (int t = 0; t < kThreads; t++) {
    if (t != current_ && enabled(threads_[static_cast<size_t>(t)])) others[static_cast<size_t>(count++)] = t;
  }
  const int taken = choose(count + 1);
  if (taken > 0) switch_to(others[static_cast<size_t>(taken - 1)]);
}

// The running thread cannot continue: another one does, or this one if its reason ends.
void Explorer::wait(State state) {
  Thread& self = threads_[static_cast<size_t>(current_)];
  self.state = state;
  std::array<int, kThreads> ready;
  int count = 0, polling = -1;
  for (int i = 1; i <= kThreads; i++) {
    const int t = (current_ + i) % kThreads;
    const Thread& thread = threads_[static_cast<size_t>(t)];
    if (enabled(thread)) ready[static_cast<size_t>(count++)] = t;
    if (polling < 0 && thread.state == State::kYielded) polling = t;
  }
  if (count == 0) {
    // A thread that polls may poll again, and count its rounds.
    if (polling < 0 || idle_polls_++ == kIdlePolls) fail("no thread can continue");
    ready[static_cast<size_t>(count++)] = polling;
  }
  const int next = ready[static_cast<size_t>(choose(count))];
  if (next != current_) switch_to(next);
  self.state = State::kReady;
}

void Explorer::switch_to(int next) {
  Thread& from = threads_[static_cast<size_t>(current_)];
  Thread& to = threads_[static_cast<size_t>(next)];
  if (locals_.bytes > 0) {
    std::memcpy(from.locals.data(), locals_.at, locals_.bytes);
    std::memcpy(locals_.at, to.locals.data(), locals_.bytes);
  }
  current_ = next;
  to.state = State::kReady;
  machine_.set_current(next);
  swapcontext(&from.context, &to.context);
}

void Explorer::yield() {
  Thread& self = threads_[static_cast<size_t>(current_)];
  self.stores = stores_;
  if (tracing_) std::fprintf(stderr, "  %d waits\n", current_);
  wait(State::kYielded);
  self.stale = false;
}

void Explorer::sleep(const void* word) {
  threads_[static_cast<size_t>(current_)].awaited = word;
  if (tracing_) std::fprintf(stderr, "  %d sleeps\n", current_);
  wait(State::kSleeping);
}

void Explorer::wake(const void* word) {
  point();
  for (Thread& thread : threads_) {
    if (thread.state == State::kSleeping && thread.awaited == word) thread.state = State::kReady;
  }
}

int Explorer::start(std::function<void()> body) {
  int t = 0;
  while (t < kThreads && threads_[static_cast<size_t>(t)].state != State::kUnused) t++;
  if (t == kThreads) fail("the program starts too many threads");
  Thread& thread = threads_[static_cast<size_t>(t)];
  thread.state = State::kReady;
  thread.body = std::move(body);
  thread.stale = false;
  if (thread.stack == nullptr) {
    thread.stack = static_cast<std::byte*>(
        mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  thread.locals = first_locals_;
  getcontext(&thread.context);
  thread.context.uc_stack.ss_sp = thread.stack;
  thread.context.uc_stack.ss_size = kStackBytes;
  thread.context.uc_link = nullptr;
  makecontext(&thread.context, &Explorer::enter, 0);
  machine_.start(t, current_);
  return t;
}

void Explorer::enter() {
  Explorer& self = explorer();
  self.inside_ = false;
  self.threads_[static_cast<size_t>(self.current_)].body();
  self.inside_ = true;
  if (self.current_ == 0) {
    self.current_ = -1;
    setcontext(&self.outside_);
  }
  self.wait(State::kFinished);
}

void Explorer::join(int thread) {
  threads_[static_cast<size_t>(current_)].joined = thread;
  wait(State::kJoining);
  machine_.join(thread);
}

void Explorer::lock(const void* mutex) {
  point();
  MutexState& state = mutexes_[mutex];
  threads_[static_cast<size_t>(current_)].awaited = mutex;
  if (state.holder == current_) fail("a thread locks a mutex twice");
  if (state.holder >= 0) wait(State::kLocking);
  state.holder = current_;
  machine_.acquire(state);
  if (tracing_) std::fprintf(stderr, "  %d locks %p\n", current_, mutex);
}

bool Explorer::try_lock(const void* mutex) {
  point();
  MutexState& state = mutexes_[mutex];
  bool got = state.holder < 0;
  if (got && limits_.weak_try_lock && !machine_.has_seen(state)) got = choose(2) == 0;
  if (tracing_) std::fprintf(stderr, "  %d tries %p: %d\n", current_, mutex, got);
  if (!got) return false;
  state.holder = current_;
  machine_.acquire(state);
  return true;
}

void Explorer::unlock(const void* mutex) {
  point();
  MutexState& state = mutexes_[mutex];
  state.holder = -1;
  machine_.release(state);
  count_store();
  if (tracing_) std::fprintf(stderr, "  %d unlocks %p\n", current_, mutex);
}

void Explorer::fail(const std::string& why) {
  if (failure_.empty()) failure_ = why;
  if (tracing_) std::fprintf(stderr, "  %d fails: %s\n", current_, why.c_str());
  current_ = -1;
  setcontext(&outside_);
  std::abort();
}

Order Explorer::order(uintptr_t call, Kind kind, int given) {
  const auto order = static_cast<Order>(given & 0xff);
  if (mutant_ == nullptr) {
    calls_.emplace(std::pair(call, kind), order);
    return order;
  }
  const std::vector<uintptr_t>& changed = mutant_->site.calls;
  if (mutant_->site.kind != kind || std::find(changed.begin(), changed.end(), call) == changed.end())
    return order;
  return mutant_->order;
}

std::byte* Explorer::memory(size_t bytes) {
  if (used_regions_ == regions_.size()) {
    void* const base =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    regions_.push_back({static_cast<std::byte*>(base), bytes});
  }
  Region& region = regions_[used_regions_++];
  if (region.bytes != bytes) fail("the program is not deterministic");
  return region.base;
}

bool Explorer::execute(const std::function<void()>& program) {
  for (const Region& region : regions_) machine_.zero_accessed(region.base, region.bytes);
  machine_.reset();
  mutexes_.clear();
  used_regions_ = 0;
  depth_ = 0;
  budget_ = limits_.deviations;
  stores_ = 0;
  idle_polls_ = 0;
  failure_.clear();
  for (Thread& thread : threads_) thread.state = State::kUnused;
  const std::vector<std::byte> outer(locals_.at, locals_.at + locals_.bytes);
  first_locals_ = outer;
  inside_ = true;
  current_ = -1;
  start(program);
  current_ = 0;
  machine_.set_current(0);
  swapcontext(&outside_, &threads_[0].context);
  current_ = -1;
  if (locals_.bytes > 0) std::memcpy(locals_.at, outer.data(), locals_.bytes);
  return failure_.empty();
}

Result Explorer::explore(const std::function<void()>& program, const Limits& limits, const Mutant* mutant) {
  __libc_single_threaded = 0;  // the standard library counts references with atomic operations
  limits_ = limits;
  mutant_ = mutant;
  path_.clear();
  // Function-local statics are initialised here.
  limits_.deviations = 0;
  shared_.clear();
  Result result;
  result.passed = execute(program);
  limits_.deviations = limits.deviations;
  path_.clear();
  while (result.passed) {
    result.passed = execute(program);
    result.executions++;
    if (!result.passed) break;
    if (machine_.add_shared(&shared_)) {
      path_.clear();  // begins again, with more points
      continue;
    }
    path_.resize(depth_);
    while (!path_.empty() && path_.back().taken + 1 == path_.back().options) path_.pop_back();
    if (path_.empty()) break;
    path_.back().taken++;
    if (result.executions == limits.executions) {
      result.complete = false;
      break;
    }
  }
  result.failure = failure_;
  if (!result.passed && mutant == nullptr && std::getenv("WEFT_MODEL_TRACE") != nullptr) {
    tracing_ = true;
    execute(program);
    tracing_ = false;
  }
  for (const Region& region : regions_) munmap(region.base, region.bytes);
  regions_.clear();
  machine_.reset();
  return result;
}

std::vector<Site> Explorer::take_sites() {
  std::vector<uintptr_t> addresses;
  for (const auto& [call, order] : calls_) addresses.push_back(call.first);
  const std::map<uintptr_t, SourceLine> lines = source_lines(addresses);
  std::map<std::tuple<std::string, int, Kind>, Site> found;
  for (const auto& [call, order] : calls_) {
    const SourceLine& line = lines.at(call.first);
    Site& site = found[{line.file, line.line, call.second}];
    site.file = line.file;
    site.line = line.line;
    site.text = line.text;
    site.counts_references = line.counts_references;
    site.kind = call.second;
    site.order = std::max(site.order, order);
    site.calls.push_back(call.first);
  }
  calls_.clear();
  std::vector<Site> sites;
  for (auto& [key, site] : found) sites.push_back(std::move(site));
  return sites;
}

class ModelClock final : public Clock {
 public:
  uint64_t now_ns() override { return 1'000'000; }
  void relax(uint32_t) override {
    const Inside inside;
    explorer().yield();
  }
  void sleep(const std::atomic<uint32_t>& word, uint32_t expected, uint64_t until_ns) override {
    const Inside inside;
    if (until_ns != UINT64_MAX) return explorer().yield();
    explorer().point();
    // The kernel compares with the newest value, and queues the thread at once.
    uint32_t value = 0;
    std::memcpy(&value, &word, sizeof value);
    if (value == expected) explorer().sleep(&word);
  }
  void wake_all(const std::atomic<uint32_t>& word) override {
    const Inside inside;
    explorer().wake(&word);
  }
};

}  // namespace

std::string Site::name() const {
  static constexpr const char* kKinds[] = {"load", "store", "update", "failed update", "fence"};
  static constexpr const char* kOrders[] = {"relaxed", "consume", "acquire", "release", "acq_rel", "seq_cst"};
  return file + ": " + text + " (" + kKinds[static_cast<int>(kind)] + " " + kOrders[static_cast<int>(order)] +
         ")";
}

// ---- what instrumentation.cpp calls
Inside::Inside() {
  explorer().set_inside(true);
}
Inside::~Inside() {
  explorer().set_inside(false);
}
bool active() {
  return only != nullptr && only->active();
}
Machine& machine() {
  return explorer().machine();
}
Order order_at(uintptr_t call, Kind kind, int order) {
  return explorer().order(call, kind, order);
}
void fail(const std::string& why) {
  explorer().fail(why);
}
int choose(int options) {
  const int taken = explorer().choose(options);
  if (taken > 0) explorer().read_old();
  return taken;
}
void point_before(uintptr_t call) {
  explorer().point_before(call);
}
void point() {
  explorer().point();
}
void count_store() {
  explorer().count_store();
}
bool tracing() {
  return explorer().tracing();
}
int current_thread() {
  return only == nullptr ? -1 : only->current();
}
int start_thread(std::function<void()> body) {
  return explorer().start(std::move(body));
}
void join_thread(int thread) {
  explorer().join(thread);
}
void lock_mutex(const void* mutex) {
  explorer().lock(mutex);
}
bool try_lock_mutex(const void* mutex) {
  return explorer().try_lock(mutex);
}
void unlock_mutex(const void* mutex) {
  explorer().unlock(mutex);
}

// ---- for programs
Result explore(const std::function<void()>& program, const Limits& limits, const Mutant* mutant) {
  return made().explore(program, limits, mutant);
}
std::vector<Site> sites() {
  return made().take_sites();
}
void run(const std::vector<std::function<void()>>& bodies) {
  const Inside inside;
  std::array<int, kThreads> threads;
  size_t count = 0;
  for (const std::function<void()>& body : bodies) threads[count++] = explorer().start(body);
  for (size_t i = 0; i < count; i++) explorer().join(threads[i]);
}
void require(bool condition, const char* what) {
  if (condition) return;
  const Inside inside;
  explorer().fail(what);
}
Clock& clock() {
  static ModelClock* const only = new ModelClock;
  return *only;
}
std::byte* memory(size_t bytes) {
  const Inside inside;
  return explorer().memory(bytes);
}

}  // namespace weft::model
