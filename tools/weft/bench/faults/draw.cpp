#include "draw.h"

#include <algorithm>
#include <stdexcept>

#include "base/splitmix.h"

namespace faults {
namespace {

class Random {
 public:
  explicit Random(uint64_t seed) : bits_(seed) {}
  uint64_t next() { return bits_.next(); }
  uint64_t below(uint64_t bound) { return next() % bound; }
  uint64_t between(uint64_t low, uint64_t high) { return low + below(high - low + 1); }
  bool one_in(uint64_t n) { return below(n) == 0; }
  template <class T>
  T one_of(std::initializer_list<T> choices) {
    return choices.begin()[below(choices.size())];
  }

 private:
  weft::SplitMix64 bits_;
};

// Returns a random time for which short times are as likely as long ones.
uint64_t log_uniform(Random& random, uint64_t most) {
  uint64_t value = random.below(most);
  for (uint64_t shift = random.below(12); shift > 0; shift--) value /= 2;
  return value;
}

std::string at(const char* place, uint64_t number) {
  return place + ("@" + std::to_string(number));
}

// Returns a fail point in the work, where the library itself makes the fault.
std::string place_in_work(Random& random, const Draw& draw) {
  if (draw.work == Phase::kReducer && random.one_in(2)) {
    return at("stage", random.below(static_cast<uint64_t>(draw.params))) + "." +
           std::to_string(random.below(2));
  }
  // The work has more operations than these, also after a shrink, where they count from 0 again.
  return at("operation", random.between(20, 60));
}

// Draws the first fault in the middle of the work.
Fault fault_in_work(Random& random, const Draw& draw, int victim, bool must_leave) {
  Fault fault;
  fault.victim = victim;
  fault.after_us = log_uniform(random, 40'000);
  fault.iteration = random.between(1, 60);
  fault.delay_ms = random.between(1, 300);
  const bool idle = draw.work == Phase::kIdle;
  fault.wakes = random.one_in(2);
  switch (random.below(must_leave ? 10 : 16)) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
      return fault;  // by a signal
    case 5:
      fault.trigger = Trigger::kIteration;
      fault.action = Action::kExit;
      return fault;
    case 6:
      if (idle) return fault;  // idle ranks execute no rounds
      fault.trigger = Trigger::kIteration;
      fault.action = Action::kLeave;
      return fault;
    case 7:
    case 8:
      if (idle) return fault;
      fault.trigger = Trigger::kFailpoint;
      fault.failpoint = place_in_work(random, draw) + "=kill";
      return fault;
    case 9:
      fault.action = Action::kStop;
      if (idle || random.one_in(2)) return fault;  // by a signal
      fault.trigger = Trigger::kFailpoint;
      fault.failpoint = place_in_work(random, draw) + "=stop";
      return fault;
    case 10:
      fault.trigger = Trigger::kIteration;
      fault.action = Action::kAbort;
      return fault;
    case 11:
      if (idle) return fault;
      fault.trigger = Trigger::kFailpoint;
      fault.action = Action::kFail;
      fault.failpoint = place_in_work(random, draw) + "=fail";
      return fault;
    case 12:
      if (draw.work != Phase::kReducer) return fault;
      fault.trigger = Trigger::kIteration;
      fault.action = Action::kHook;
      return fault;
    default:
      fault.action = Action::kDelay;
      if (!idle && random.one_in(2)) {
        fault.trigger = Trigger::kFailpoint;
        fault.failpoint =
            at("operation", random.between(20, 60)) + "=delay:" + std::to_string(fault.delay_ms);
      }
      return fault;
  }
}

Fault fault_while_forming(Random& random, int victim) {
  Fault fault;
  fault.victim = victim;
  fault.wakes = random.one_in(2);
  switch (random.below(12)) {
    case 0:
    case 1:
    case 2:
    case 3:
      fault.trigger = Trigger::kFailpoint;
      fault.failpoint = "forming=kill";
      break;
    case 4:
    case 5:
      fault.trigger = Trigger::kFailpoint;
      fault.action = Action::kFail;
      fault.failpoint = "forming=fail";
      break;
    case 6:
      fault.trigger = Trigger::kFailpoint;
      fault.action = Action::kStop;
      fault.failpoint = "forming=stop";
      break;
    case 7:
      fault.trigger = Trigger::kFailpoint;
      fault.action = Action::kDelay;
      fault.delay_ms = random.between(1, 500);
      fault.failpoint = "forming=delay:" + std::to_string(fault.delay_ms);
      break;
    default:
      fault.trigger = Trigger::kStarted;
      fault.after_us = random.below(80'000);
  }
  return fault;
}

Fault fault_while_leaving(Random& random, int victim) {
  Fault fault;
  fault.victim = victim;
  fault.wakes = random.one_in(2);
  if (random.one_in(4)) fault.action = Action::kStop;
  if (random.one_in(2)) {
    fault.trigger = Trigger::kFailpoint;
    fault.failpoint = fault.action == Action::kStop ? "leaving=stop" : "leaving=kill";
  } else {
    fault.trigger = Trigger::kStopping;
    fault.after_us = log_uniform(random, 10'000);
  }
  return fault;
}

Fault second_fault(Random& random, Phase phase, int victim) {
  Fault fault;
  fault.victim = victim;
  if (phase == Phase::kShrink && random.one_in(2)) {
    fault.trigger = Trigger::kFailpoint;
    fault.failpoint = "forming@1=kill";
  } else if (phase == Phase::kTwice && random.one_in(2)) {
    fault.trigger = Trigger::kRecovered;
    fault.after_us = log_uniform(random, 20'000);
  } else {
    fault.trigger = Trigger::kFailed;
    fault.after_us = log_uniform(random, phase == Phase::kShrink ? 20'000 : 3'000);
  }
  return fault;
}

}  // namespace

const char* name(Phase phase) {
  constexpr const char* kNames[] = {"forming", "idle",    "small",  "private", "arena",
                                    "reducer", "leaving", "shrink", "twice"};
  return kNames[static_cast<size_t>(phase)];
}

Phase parse_phase(const std::string& text) {
  for (const Phase phase : kPhases) {
    if (text == name(phase)) return phase;
  }
  std::string all;
  for (const Phase phase : kPhases) all += std::string(all.empty() ? "" : ", ") + name(phase);
  throw std::invalid_argument("unknown phase '" + text + "', expected one of: " + all);
}

const char* name(Action action) {
  constexpr const char* kNames[] = {"kill", "exit", "leave", "abort", "fail", "hook", "stop", "delay"};
  return kNames[static_cast<size_t>(action)];
}

const Fault* Draw::of(int rank) const {
  for (const Fault& fault : faults) {
    if (fault.victim == rank) return &fault;
  }
  return nullptr;
}

std::string Draw::text() const {
  std::string line = "run " + std::to_string(number) + ": " + backend + ", " + std::to_string(ranks) +
                     " ranks, " + name(phase);
  if (phase != work) line += std::string(" (") + name(work) + ")";
  line += " x " + std::to_string(count);
  for (const Fault& fault : faults) {
    line += std::string(", ") + name(fault.action) + " of " + std::to_string(fault.victim);
    constexpr const char* kWhen[] = {"the start", "work began", "the first failed", "the first continued",
                                     "the end"};
    if (fault.trigger == Trigger::kFailpoint) {
      line += " at " + fault.failpoint;
    } else if (fault.trigger == Trigger::kIteration) {
      line += " in round " + std::to_string(fault.iteration);
    } else {
      line += " " + std::to_string(fault.after_us) + " us after " + kWhen[static_cast<size_t>(fault.trigger)];
    }
    if (fault.wakes && fault.action == Action::kStop) line += ", which wakes up";
    if (fault.action == Action::kDelay) line += " for " + std::to_string(fault.delay_ms) + " ms";
  }
  if (!hosts.empty()) line += ", hosts " + hosts;
  if (work == Phase::kReducer) {
    line += std::string(view_mode ? ", view" : ", copy") + (rebind ? ", rebound" : "") +
            (retain ? ", retained" : "") + (commit ? ", committed" : "");
  }
  if (caller_mode) line += ", caller mode";
  if (last_of_two) line += ", last of two";
  if (keep_old) line += ", the old communicators kept";
  return line;
}

Draw draw(const Range& range, uint64_t seed, uint64_t number) {
  // The seed plus a multiple of the generator's step would give the same sequence, shifted.
  Random random(Random(seed).next() ^ Random(~number).next());
  Draw drawn;
  drawn.seed = seed;
  drawn.number = number;
  drawn.backend = range.backends[random.below(range.backends.size())];
  drawn.phase = range.phases[random.below(range.phases.size())];
  const bool two_faults = drawn.phase == Phase::kShrink || drawn.phase == Phase::kTwice;
  const int least = std::min(std::max(range.least_ranks, two_faults ? 3 : 2), range.most_ranks);
  drawn.ranks =
      static_cast<int>(random.between(static_cast<uint64_t>(least), static_cast<uint64_t>(range.most_ranks)));
  drawn.work = drawn.phase;
  if (drawn.backend == "shm+ucx") {
    const uint64_t hosts = random.between(1, 3);
    for (int r = 0; r < drawn.ranks; r++)
      drawn.hosts += (r > 0 ? "," : "") + std::to_string(random.below(hosts));
  }
  if (drawn.phase == Phase::kForming || drawn.phase == Phase::kLeaving || two_faults) {
    drawn.work =
        random.one_of({Phase::kIdle, Phase::kSmall, Phase::kPrivate, Phase::kArena, Phase::kReducer});
  }
  drawn.heartbeat_ms = static_cast<int64_t>(random.between(1000, 2500));
  drawn.caller_mode = random.one_in(4);
  drawn.secret = random.one_in(2);
  drawn.last_of_two = random.one_in(2);
  drawn.keep_old = random.one_in(2);
  drawn.view_mode = random.one_in(2);
  drawn.rebind = !random.one_in(4);
  drawn.retain = random.one_in(2);
  drawn.commit = random.one_in(2);
  drawn.params = static_cast<int>(random.between(1, 6));
  const bool small = drawn.work == Phase::kSmall || drawn.work == Phase::kIdle;
  drawn.count = small ? random.between(1, 2000) : random.between(20'000, 2'000'000);
  if (drawn.work == Phase::kReducer) drawn.count = random.between(1, 200'000);

  const int first = static_cast<int>(random.below(static_cast<uint64_t>(drawn.ranks)));
  switch (drawn.phase) {
    case Phase::kForming:
      drawn.faults.push_back(fault_while_forming(random, first));
      break;
    case Phase::kLeaving:
      drawn.faults.push_back(fault_while_leaving(random, first));
      break;
    default:
      drawn.faults.push_back(fault_in_work(random, drawn, first, two_faults));
  }
  // A stage that fails in every step would also fail in every retry.
  if (drawn.faults[0].failpoint.ends_with("=fail")) drawn.retain = false;
  if (two_faults) {
    const uint64_t step = random.between(1, static_cast<uint64_t>(drawn.ranks) - 1);
    const int second =
        static_cast<int>((static_cast<uint64_t>(first) + step) % static_cast<uint64_t>(drawn.ranks));
    drawn.faults.push_back(second_fault(random, drawn.phase, second));
  }
  return drawn;
}

}  // namespace faults
