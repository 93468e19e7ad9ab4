#include "support/simulation.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/splitmix.h"
#include "base/text.h"
#include "coll/over_transport.h"
#include "kernels/host_ops.h"
#include "loopback/transport.h"

namespace weft::test {
namespace {

// The rank of the calling thread.
thread_local int this_rank = 0;

}  // namespace

uint64_t Random::next() {
  return scramble(state_ += kSplitMixStep);
}

// Only the token's holder accesses the state, except for the mutex and the token itself.
class Simulation::Core final : public Clock, public loopback::Delays {
 public:
  Core(uint64_t seed, int size, SimulationOptions options)
      : seed_(seed),
        options_(std::move(options)),
        schedule_(seed),
        delays_(seed ^ 0xde1a75),
        group_(nullptr) {
    for (int r = 0; r < size; r++) {
      ranks_.push_back(std::make_unique<State>(seed + 0x5eed * (static_cast<uint64_t>(r) + 1)));
    }
  }

  // Clock
  uint64_t now_ns() override { return now_; }
  void relax(uint32_t round) override {
    // Virtual time passes faster while nothing happens, so that deadlines come soon.
    pass((1 + schedule_.below(1000)) << std::min<uint32_t>(round / 64, 24));
    hand_over();
    arrive();
  }
  void sleep(const std::atomic<uint32_t>&, uint32_t, uint64_t) override { relax(0); }
  void wake_all(const std::atomic<uint32_t>&) override {}

  // Delays
  uint64_t visible_ns(int from, int to) override {
    const uint64_t most = delays_.chance(8) ? 200'000 : 3'000;
    const uint64_t delay = delays_.chance(3) ? 0 : delays_.below(most);
    mix(static_cast<uint64_t>(from) << 32 | static_cast<uint64_t>(to));
    mix(delay);
    uint64_t& settled = settled_[{from, to}];
    settled = std::max(settled, now_ + delay);
    return now_ + delay;
  }
  uint64_t settled_ns(int from, int to) override { return settled_[{from, to}]; }

  SimulationReport run(const std::shared_ptr<Core>& self, const RankBody& body);
  void kill(int rank, uint64_t after_ns) { ranks_[index(rank)]->dies_ns = now_ + after_ns; }
  void stop(int rank, uint64_t after_ns) {
    State& state = *ranks_[index(rank)];
    const uint64_t budget_ns = static_cast<uint64_t>(options_.comm.heartbeat_timeout_ms) * 1'000'000u;
    state.stops_ns = now_ + after_ns;
    state.missed_ns = state.stops_ns + budget_ns;
    state.wakes_ns = state.missed_ns + budget_ns;
  }
  Random& random() { return ranks_[index(this_rank)]->random; }

 private:
  struct State {
    explicit State(uint64_t seed) : random(seed) {}
    Random random;
    std::condition_variable turn;
    bool finished = false;
    bool dead = false;
    uint64_t dies_ns = UINT64_MAX;
    uint64_t stops_ns = UINT64_MAX, missed_ns = UINT64_MAX, wakes_ns = UINT64_MAX;
    bool missed = false;
    std::shared_ptr<Comm> comm;
    std::vector<std::string> failures;
  };

  static size_t index(int rank) { return static_cast<size_t>(rank); }
  void mix(uint64_t value) { hash_ = Random(hash_ ^ value).next(); }
  void run_rank(const std::shared_ptr<Core>& self, int rank, const RankBody& body);
  void pass(uint64_t ns);
  void stuck();
  void hand_over();
  void arrive();
  void miss();
  int draw();
  void wait_for_turn(std::unique_lock<std::mutex>& lock, int rank) {
    ranks_[index(rank)]->turn.wait(lock, [&] { return holder_ == rank; });
  }

  const uint64_t seed_;
  const SimulationOptions options_;
  Random schedule_;
  Random delays_;
  std::vector<std::unique_ptr<State>> ranks_;
  std::unique_ptr<ThreadGroup> group_;
  std::shared_ptr<loopback::Fabric> fabric_;
  std::mutex mutex_;
  int holder_ = -1;  // the rank that holds the token; guarded by mutex_
  uint64_t now_ = 1'000'000;
  uint64_t hash_ = 0;
  uint64_t switches_ = 0;
  bool stuck_ = false;
  std::map<std::pair<int, int>, uint64_t> settled_;  // (from, to)
};

void Simulation::Core::pass(uint64_t ns) {
  now_ += ns;
  if (now_ > options_.limit_ns && !stuck_) stuck();
  if (now_ > 2 * options_.limit_ns && now_ - ns <= 2 * options_.limit_ns) {
    std::fprintf(stderr, "simulation: seed %llu hangs, and failing its communicators does not help\n",
                 static_cast<unsigned long long>(seed_));
    std::abort();
  }
}

// Every rank waits for an event that never comes. The test fails; failing all communicators ends the run.
void Simulation::Core::stuck() {
  stuck_ = true;
  std::vector<int> waiting;
  for (size_t r = 0; r < ranks_.size(); r++) {
    if (!ranks_[r]->finished) waiting.push_back(static_cast<int>(r));
  }
  const std::string text = cat("the simulation is stuck: rank ", list_text(waiting), " waits");
  ranks_[index(this_rank)]->failures.push_back(text);
  for (const auto& rank : ranks_) {
    if (rank->comm) rank->comm->fail(Status::error(Code::kAborted, text), false);
  }
}

// Draws a rank that has neither finished nor stopped; -1 if there is none. If all other ranks have finished,
// virtual time passes until the stopped rank continues.
int Simulation::Core::draw() {
  std::vector<int> candidates;
  int stopped = -1;
  for (size_t r = 0; r < ranks_.size(); r++) {
    const State& state = *ranks_[r];
    if (state.finished) continue;
    if (now_ >= state.stops_ns && now_ < state.wakes_ns) {
      stopped = static_cast<int>(r);
    } else {
      candidates.push_back(static_cast<int>(r));
    }
  }
  if (!candidates.empty()) return candidates[schedule_.below(candidates.size())];
  if (stopped >= 0) now_ = ranks_[index(stopped)]->wakes_ns;
  return stopped;
}

// Hands the token to another rank, and returns when this rank has it again.
void Simulation::Core::hand_over() {
  const int me = this_rank;
  const int next = draw();
  switches_++;
  mix(static_cast<uint64_t>(next));
  mix(now_);
  if (next == me) return;
  std::unique_lock lock(mutex_);
  holder_ = next;
  if (next >= 0) ranks_[index(next)]->turn.notify_one();
  if (!ranks_[index(me)]->finished) wait_for_turn(lock, me);
}

// Reports a rank as lost to the others once it has been stopped for long enough.
void Simulation::Core::miss() {
  for (size_t r = 0; r < ranks_.size(); r++) {
    State& state = *ranks_[r];
    if (now_ < state.missed_ns || std::exchange(state.missed, true)) continue;
    group_->hub().kill(static_cast<int>(r), Evidence::kHeartbeat,
                       cat("nothing was received from rank ", r, " (simulated)"));
  }
}

// Delivers events to a rank that waits: control messages, and death.
void Simulation::Core::arrive() {
  miss();
  State& me = *ranks_[index(this_rank)];
  if (!me.dead && now_ >= me.dies_ns) {
    me.dead = true;
    group_->hub().kill(this_rank, Evidence::kProcess, cat("rank ", this_rank, " was killed (simulated)"));
    if (me.comm) me.comm->fail(Status::error(Code::kCancelled, "this rank is dead"), false);
  }
  if (me.missed && me.comm) {
    me.comm->fail(Status::error(Code::kPeerFailed, cat("rank ", this_rank, " was given up (simulated)"),
                                Evidence::kConnection)
                      .with_ranks({this_rank}),
                  false);
  }
  group_->hub().poll(this_rank);
}

void Simulation::Core::run_rank(const std::shared_ptr<Core>& self, int rank, const RankBody& body) {
  this_rank = rank;
  State& state = *ranks_[index(rank)];
  {
    std::unique_lock lock(mutex_);
    wait_for_turn(lock, rank);
  }
  {
    Rank me;
    me.rank = rank;
    me.size = static_cast<int>(ranks_.size());
    me.group = group_.get();
    ContextOptions options;
    options.mode = Engine::Mode::kCaller;
    options.host = &host_ops();
    options.clock = self;
    std::shared_ptr<Context> context;
    me.expect(Context::create(options, &context), "context");
    const auto make = [&](const BackendArgs& args, std::unique_ptr<Collectives>* collectives) {
      *collectives = over_transport(std::make_unique<loopback::LoopbackTransport>(fabric_, rank), rank,
                                    me.size, args.host, args.clock, options_.forced);
      return Status();
    };
    me.expect(form(*group_, rank, context, make, options_.comm, &me.comm), "forming");
    state.comm = me.comm;
    if (me.comm) body(me);
    if (me.comm) (void)me.comm->close().ok();
    me.comm.reset();
    state.comm.reset();
    (void)context->close().ok();
    if (!state.dead) state.failures.insert(state.failures.end(), me.failures.begin(), me.failures.end());
  }
  state.finished = true;
  hand_over();
}

SimulationReport Simulation::Core::run(const std::shared_ptr<Core>& self, const RankBody& body) {
  const int size = static_cast<int>(ranks_.size());
  const std::shared_ptr<loopback::Delays> delays = self;
  group_ = std::make_unique<ThreadGroup>(size, *this, delays);
  fabric_ = std::make_shared<loopback::Fabric>(size, delays);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; r++) threads.emplace_back([&, r] { run_rank(self, r, body); });
  {
    const std::lock_guard lock(mutex_);
    holder_ = draw();
    ranks_[index(holder_)]->turn.notify_one();
  }
  for (std::thread& thread : threads) thread.join();
  SimulationReport report{hash_, switches_, now_, {}};
  for (const auto& rank : ranks_) {
    for (const std::string& failure : rank->failures) {
      report.failures.push_back(cat("simulation seed ", seed_, ": ", failure));
    }
  }
  fabric_.reset();  // both refer to the clock, which is this object
  group_.reset();
  return report;
}

Simulation::Simulation(uint64_t seed, int size, SimulationOptions options)
    : core_(std::make_shared<Core>(seed, size, std::move(options))) {}

Simulation::~Simulation() = default;

SimulationReport Simulation::run(const RankBody& body) {
  return core_->run(core_, body);
}

Random& Simulation::random() {
  return core_->random();
}

void Simulation::pause() {
  core_->relax(0);
}

void Simulation::kill(int rank, uint64_t after_ns) {
  core_->kill(rank, after_ns);
}

void Simulation::stop(int rank, uint64_t after_ns) {
  core_->stop(rank, after_ns);
}

}  // namespace weft::test
