#include "analysis.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <map>
#include <tuple>
#include <utility>

#include "base/text.h"

namespace report {
namespace {

using weft::cat;

using LaneId = std::pair<uint64_t, uint32_t>;             // communicator and lane
using StepId = std::tuple<uint64_t, uint32_t, uint64_t>;  // and the step
using CallId = std::tuple<uint64_t, uint32_t, uint64_t>;  // and the slot
using Spans = std::vector<std::pair<int64_t, int64_t>>;

// The events of a step of one process.
struct StepEvents {
  const Event* step = nullptr;
  const Event* finish = nullptr;
  std::vector<const Event*> collectives, stages, launches, dones, readies;
};

struct ProcessEvents {
  std::map<StepId, StepEvents> steps;
  std::map<CallId, const Event*> calls;
  int64_t first_ns = INT64_MAX, last_ns = INT64_MIN;  // what it recorded
};

// Adds times; the largest one if they are impossible ones of a damaged file.
int64_t sum(int64_t a, int64_t b) {
  int64_t result = 0;
  return __builtin_add_overflow(a, b, &result) ? INT64_MAX : result;
}

// True if the collective ends only after every rank has started it.
bool needs_all(const std::string& name) {
  for (const char* start : {"all_", "reduce_scatter", "barrier"}) {
    if (name.rfind(start, 0) == 0) return true;
  }
  return false;
}

// Sorts and merges overlapping spans.
Spans merged(Spans spans) {
  std::sort(spans.begin(), spans.end());
  Spans out;
  for (const auto& [begin, end] : spans) {
    if (!out.empty() && begin <= out.back().second) {
      out.back().second = std::max(out.back().second, end);
    } else {
      out.emplace_back(begin, end);
    }
  }
  return out;
}

// Returns how much of [begin, end] merged spans cover.
int64_t covered(const Spans& spans, int64_t begin, int64_t end) {
  int64_t ns = 0;
  for (const auto& [from, to] : spans) ns += std::max<int64_t>(0, std::min(to, end) - std::max(from, begin));
  return ns;
}

Spans spans_of(const std::vector<const Event*>& events) {
  Spans spans;
  for (const Event* event : events) spans.emplace_back(event->begin_ns, event->end_ns);
  return merged(std::move(spans));
}

template <class Values>
auto median(Values values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Sorts the events of a process into its steps. A gradient belongs to the step during which it became ready.
ProcessEvents sorted(const TraceFile& file) {
  ProcessEvents out;
  std::map<LaneId, std::vector<const Event*>> begun;
  const auto comm_id = [&](const Event& event) { return file.comms[event.comm].id; };
  for (const Event& event : file.events) {
    out.first_ns = std::min(out.first_ns, event.begin_ns);
    out.last_ns = std::max(out.last_ns, event.end_ns);
    if (event.kind == Kind::kStep) begun[{comm_id(event), event.lane}].push_back(&event);
    if (event.kind == Kind::kCollective && event.slot != kNone64)
      out.calls[{comm_id(event), event.lane, event.slot}] = &event;
    if (event.step == kNone64) continue;
    StepEvents& step = out.steps[{comm_id(event), event.lane, event.step}];
    switch (event.kind) {
      case Kind::kStep:
        step.step = &event;
        break;
      case Kind::kFinish:
        step.finish = &event;
        break;
      case Kind::kCollective:
        step.collectives.push_back(&event);
        break;
      case Kind::kStage:
        step.stages.push_back(&event);
        break;
      case Kind::kLaunch:
        step.launches.push_back(&event);
        break;
      case Kind::kDone:
        step.dones.push_back(&event);
        break;
      case Kind::kReady:
        break;
    }
  }
  for (auto& [lane, steps] : begun) {
    std::sort(steps.begin(), steps.end(),
              [](const Event* a, const Event* b) { return a->begin_ns < b->begin_ns; });
  }
  for (const Event& event : file.events) {
    if (event.kind != Kind::kReady) continue;
    const auto found = begun.find({comm_id(event), event.lane});
    if (found == begun.end()) continue;
    const auto after = std::upper_bound(found->second.begin(), found->second.end(), event.begin_ns,
                                        [](int64_t ns, const Event* step) { return ns < step->begin_ns; });
    if (after == found->second.begin()) continue;
    const Event& step = **std::prev(after);
    if (event.begin_ns <= step.end_ns)
      out.steps[{comm_id(event), event.lane, step.step}].readies.push_back(&event);
  }
  return out;
}

StepOfRank step_of(size_t process, const StepEvents& events) {
  StepOfRank out;
  out.process = process;
  out.begin_ns = events.step->begin_ns;
  out.end_ns = events.step->end_ns;
  out.finish_ns = events.finish != nullptr ? events.finish->begin_ns : out.end_ns;
  const Spans spans = spans_of(events.collectives);
  out.communication_ns = covered(spans, INT64_MIN / 2, INT64_MAX / 2);
  out.overlap_ns = covered(spans, out.begin_ns, out.finish_ns);
  std::map<uint32_t, BucketTimes> buckets;
  for (const Event* launch : events.launches) {
    BucketTimes& times = buckets[launch->bucket];
    times.bucket = launch->bucket;
    times.launch_ns = launch->begin_ns;
  }
  const auto with = [&](const Event* event, auto&& set) {
    const auto found = buckets.find(event->bucket);
    if (found != buckets.end()) set(found->second);
  };
  for (const Event* ready : events.readies)
    with(ready, [&](BucketTimes& times) { times.ready_ns = std::max(times.ready_ns, ready->begin_ns); });
  for (const Event* done : events.dones)
    with(done, [&](BucketTimes& times) { times.done_ns = done->begin_ns; });
  for (const Event* collective : events.collectives) {
    with(collective, [&](BucketTimes& times) {
      times.begin_ns =
          times.begin_ns == 0 ? collective->begin_ns : std::min(times.begin_ns, collective->begin_ns);
      times.end_ns = std::max(times.end_ns, collective->end_ns);
    });
  }
  for (const auto& [bucket, times] : buckets) out.buckets.push_back(times);
  return out;
}

// Divides the time from `from` to the start of a collective into what the process did.
void add_phases(const StepOfRank& step, const StepEvents& events, const Event& collective, int64_t from,
                Lateness* late) {
  const int64_t to = collective.begin_ns;
  const auto overlap = [&](int64_t begin, int64_t end) {
    return std::max<int64_t>(0, std::min(to, end) - std::max(from, begin));
  };
  const auto add = [&](Phase phase, int64_t ns) {
    int64_t& phase_ns = late->phases[static_cast<size_t>(phase)];
    phase_ns = sum(phase_ns, ns);
  };
  int64_t computed_ns = step.begin_ns;
  for (const BucketTimes& bucket : step.buckets) {
    if (bucket.bucket != collective.bucket) continue;
    computed_ns = std::max(computed_ns, bucket.ready_ns != 0 ? bucket.ready_ns : bucket.launch_ns);
  }
  add(Phase::kBefore, overlap(INT64_MIN, step.begin_ns));
  add(Phase::kBackward, overlap(step.begin_ns, computed_ns));
  const int64_t rest_from = std::max(from, computed_ns);
  if (rest_from >= to) return;
  Spans hook, earlier;
  for (const Event* stage : events.stages) {
    if (stage->bucket == collective.bucket) hook.emplace_back(stage->begin_ns, stage->end_ns);
  }
  for (const Event* one : events.collectives) {
    if (one->begin_ns < to) earlier.emplace_back(one->begin_ns, one->end_ns);
  }
  hook = merged(std::move(hook));
  const int64_t hook_ns = covered(hook, rest_from, to);
  Spans both = hook;
  both.insert(both.end(), earlier.begin(), earlier.end());
  both = merged(std::move(both));
  const int64_t busy_ns = covered(both, rest_from, to);
  // A collective that starts before finish does not wait for it.
  const int64_t finish_ns = step.finish_ns <= to ? step.finish_ns : rest_from;
  const int64_t unfinished_ns =
      finish_ns > rest_from ? finish_ns - rest_from - covered(both, rest_from, finish_ns) : 0;
  add(Phase::kHook, hook_ns);
  add(Phase::kEarlier, busy_ns - hook_ns);
  add(Phase::kFinish, unfinished_ns);
  add(Phase::kLibrary, to - rest_from - busy_ns - unfinished_ns);
}

// The last two starts of a collective.
struct Starts {
  size_t ranks = 0;
  size_t last = 0;  // process
  const Event* last_event = nullptr;
  int64_t second_ns = INT64_MIN;
  int64_t end_ns = INT64_MIN;  // the latest

  void add(size_t process, const Event& event) {
    if (ranks++ == 0 || event.begin_ns > last_event->begin_ns) {
      if (last_event != nullptr) second_ns = last_event->begin_ns;
      last = process;
      last_event = &event;
    } else {
      second_ns = std::max(second_ns, event.begin_ns);
    }
    end_ns = std::max(end_ns, event.end_ns);
  }
  int64_t gap_ns() const { return ranks < 2 ? 0 : last_event->begin_ns - second_ns; }
};

class Analyser {
 public:
  explicit Analyser(const RunFiles& run) : run_(run) {
    for (const Process& process : run.processes) processes_.push_back(sorted(process.file));
  }

  Analysis result() {
    add_steps();
    add_calls();
    std::vector<const Lateness*> units;
    for (const Step& step : out_.steps) {
      if (!step.complete) continue;
      units.push_back(&step.late);
      out_.compared_ns = sum(out_.compared_ns, step.end_ns - step.begin_ns);
    }
    if (units.empty()) {
      out_.in_steps = out_.calls.empty();
      for (const Lateness& call : out_.calls) units.push_back(&call);
    }
    out_.compared = units.size();
    out_.straggler = straggler_of(units);
    add_algorithms();
    add_bytes();
    return std::move(out_);
  }

 private:
  // True if the process recorded events at the time of the step.
  bool recorded(size_t process, const Step& step) const {
    const ProcessEvents& events = processes_[process];
    return events.first_ns <= step.begin_ns && events.last_ns >= step.end_ns;
  }

  void add_steps() {
    std::map<StepId, Step> steps;
    for (size_t p = 0; p < processes_.size(); p++) {
      for (const auto& [id, events] : processes_[p].steps) {
        if (events.step == nullptr) continue;
        Step& step = steps[id];
        std::tie(step.comm, step.lane, step.number) = id;
        step.ranks.push_back(step_of(p, events));
      }
    }
    for (auto& [id, step] : steps) {
      step.begin_ns = step.ranks.front().begin_ns;
      for (const StepOfRank& rank : step.ranks) {
        step.begin_ns = std::min(step.begin_ns, rank.begin_ns);
        step.end_ns = std::max(step.end_ns, rank.end_ns);
      }
      size_t expected = 0;
      for (size_t p = 0; p < processes_.size(); p++) {
        const bool has = processes_[p].steps.contains(id);
        expected += has || (has_comm(p, step.comm) && recorded(p, step)) ? 1 : 0;
      }
      step.complete = step.ranks.size() > 1 && step.ranks.size() == expected && comparable();
      if (step.complete) find_late(id, &step);
      out_.steps.push_back(std::move(step));
    }
    std::sort(out_.steps.begin(), out_.steps.end(),
              [](const Step& a, const Step& b) { return a.begin_ns < b.begin_ns; });
  }

  // False if clocks of some processes could not be compared.
  bool comparable() const {
    return std::all_of(run_.processes.begin(), run_.processes.end(),
                       [](const Process& process) { return process.clock_error_ns.has_value(); });
  }
  bool has_comm(size_t process, uint64_t comm) const {
    const auto& comms = run_.processes[process].file.comms;
    return std::any_of(comms.begin(), comms.end(), [&](const auto& one) { return one.id == comm; });
  }

  void find_late(const StepId& id, Step* step) const {
    std::map<std::pair<uint64_t, uint32_t>, Starts> starts;  // by slot and bucket
    for (const StepOfRank& rank : step->ranks) {
      for (const Event* event : processes_[rank.process].steps.at(id).collectives) {
        if (needs_all(event->name)) starts[{event->slot, event->bucket}].add(rank.process, *event);
      }
    }
    // Collectives of pipelined lanes wait at the same time: no time counts twice.
    std::vector<Starts> ordered;
    for (const auto& [key, start] : starts) {
      if (start.ranks == step->ranks.size()) ordered.push_back(start);
    }
    std::sort(ordered.begin(), ordered.end(),
              [](const Starts& a, const Starts& b) { return a.second_ns < b.second_ns; });
    std::map<size_t, Lateness> by_process;
    std::map<size_t, int64_t> counted_ns;  // up to this time, by process
    for (const Starts& start : ordered) {
      const int64_t to_ns = start.last_event->begin_ns;
      int64_t& counted = counted_ns.try_emplace(start.last, INT64_MIN).first->second;
      const int64_t from_ns = std::max(start.second_ns, counted);
      if (from_ns >= to_ns) continue;
      counted = to_ns;
      Lateness& late = by_process[start.last];
      late.rank = run_.processes[start.last].rank;
      late.ns = sum(late.ns, to_ns - from_ns);
      const auto of = std::find_if(step->ranks.begin(), step->ranks.end(),
                                   [&](const StepOfRank& rank) { return rank.process == start.last; });
      add_phases(*of, processes_[start.last].steps.at(id), *start.last_event, from_ns, &late);
    }
    for (const auto& [process, late] : by_process) {
      if (late.ns > step->late.ns) step->late = late;
    }
  }

  // Calls fn(id, starts) for each collective that at least one process has recorded.
  template <class Fn>
  void for_each_call(Fn&& fn) const {
    std::map<CallId, Starts> starts;
    for (size_t p = 0; p < processes_.size(); p++) {
      for (const auto& [id, event] : processes_[p].calls) starts[id].add(p, *event);
    }
    for (const auto& [id, start] : starts) fn(id, start);
  }

  void add_calls() {
    if (!comparable()) return;
    std::vector<std::pair<int64_t, Lateness>> found;
    for_each_call([&](const CallId& id, const Starts& starts) {
      const Event& event = *starts.last_event;
      size_t members = 0;
      for (size_t p = 0; p < processes_.size(); p++) members += has_comm(p, std::get<0>(id)) ? 1 : 0;
      if (event.step != kNone64 || !needs_all(event.name) || members < 2 || starts.ranks != members) return;
      Lateness late{run_.processes[starts.last].rank, starts.gap_ns(), {}};
      late.phases[static_cast<size_t>(Phase::kBefore)] = late.ns;
      found.emplace_back(event.begin_ns, late);
    });
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (auto& [ns, late] : found) out_.calls.push_back(late);
  }

  void add_algorithms() {
    struct Times {
      std::vector<int64_t> ns;
      std::vector<double> rates;
    };
    std::map<std::tuple<std::string, uint64_t, std::string>, Times> rows;
    const bool exact = comparable();
    for_each_call([&](const CallId&, const Starts& starts) {
      const Event& event = *starts.last_event;
      const int64_t from_ns = event.begin_ns;
      const int64_t ns = std::max<int64_t>(1, (exact ? starts.end_ns : event.end_ns) - from_ns);
      Times& times = rows[{event.name, event.bytes == 0 ? 0 : std::bit_floor(event.bytes), event.algorithm}];
      times.ns.push_back(ns);
      times.rates.push_back(static_cast<double>(event.bytes) * 1e9 / static_cast<double>(ns));
    });
    for (auto& [key, times] : rows) {
      AlgorithmRow row;
      row.name = std::get<0>(key);
      row.from_bytes = std::get<1>(key);
      row.algorithm = std::get<2>(key);
      row.count = times.ns.size();
      row.median_ns = median(times.ns);
      row.bytes_per_s = median(times.rates);
      out_.algorithms.push_back(std::move(row));
    }
  }

  void add_bytes() {
    if (processes_.empty()) return;
    struct Sums {
      double steps = 0, gradient = 0, payload = 0, sent = 0;
      bool counted = true;
    };
    std::map<std::pair<uint32_t, uint32_t>, Sums> sums;  // by lane and bucket
    for (const auto& [id, events] : processes_.front().steps) {
      const uint32_t lane = std::get<1>(id);
      for (const Event* launch : events.launches) {
        Sums& sum = sums[{lane, launch->bucket}];
        sum.steps++;
        sum.gradient += static_cast<double>(launch->bytes);
      }
      for (const Event* collective : events.collectives) {
        const auto found = sums.find({lane, collective->bucket});
        if (found == sums.end()) continue;
        found->second.payload += static_cast<double>(collective->bytes);
        found->second.counted &= collective->sent_bytes != kNone64;
        if (collective->sent_bytes != kNone64)
          found->second.sent += static_cast<double>(collective->sent_bytes);
      }
    }
    for (const auto& [key, sum] : sums) {
      out_.buckets.push_back({key.first, key.second, sum.gradient / sum.steps, sum.payload / sum.steps,
                              sum.counted ? sum.sent / sum.steps : -1});
    }
  }

  const RunFiles& run_;
  std::vector<ProcessEvents> processes_;
  Analysis out_;
};

}  // namespace

const char* phase_text(Phase phase, bool in_steps) {
  static constexpr const char* kTexts[kPhases] = {
      "before its steps",
      "in its backward",
      "in its communication hook",
      "between its backward and finish",
      "in the communication of earlier buckets",
      "in the library",
  };
  return in_steps ? kTexts[static_cast<size_t>(phase)] : "before its calls";
}

void Lateness::add(const Lateness& other) {
  ns = sum(ns, other.ns);
  for (size_t i = 0; i < kPhases; i++) phases[i] = sum(phases[i], other.phases[i]);
}

Phase Lateness::phase() const {
  return static_cast<Phase>(std::max_element(phases.begin(), phases.end()) - phases.begin());
}

Straggler straggler_of(const std::vector<const Lateness*>& units) {
  struct Sums {
    std::vector<int64_t> each;
    Lateness phases;
  };
  std::map<int, Sums> by_rank;
  for (const Lateness* late : units) {
    if (late->rank < 0) continue;
    Sums& sums = by_rank[late->rank];
    sums.phases.add(*late);
    sums.each.push_back(late->ns);
  }
  Straggler out;
  for (auto& [rank, sums] : by_rank) {
    if (out.rank >= 0 && sums.phases.ns <= out.total_ns) continue;
    out.rank = rank;
    out.total_ns = sums.phases.ns;
    out.share = static_cast<double>(sums.each.size()) / static_cast<double>(units.size());
    out.median_ns = median(sums.each);
    out.phase = sums.phases.phase();
  }
  return out;
}

Analysis analyse(const RunFiles& run) {
  return Analyser(run).result();
}

std::string duration_text(int64_t ns) {
  struct Unit {
    double ns;
    const char* name;
  };
  static constexpr Unit kUnits[] = {{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}, {1, "ns"}};
  const auto value = static_cast<double>(ns);
  for (const Unit& unit : kUnits) {
    const double in_units = value / unit.ns;
    if (std::abs(in_units) < 1 && unit.ns > 1) continue;
    char text[32];
    std::snprintf(text, sizeof text, std::abs(in_units) < 9.95 && unit.ns > 1 ? "%.1f %s" : "%.0f %s",
                  in_units, unit.name);
    return text;
  }
  return "0 ns";
}

std::string straggler_text(const Analysis& analysis) {
  const Straggler& last = analysis.straggler;
  if (last.rank < 0) return "no rank can be named as the straggler";
  return cat("rank ", last.rank, " was last in ", std::lround(last.share * 100), " % of ", analysis.compared,
             analysis.in_steps ? " steps" : " collectives", ", by ", duration_text(last.median_ns), ", ",
             phase_text(last.phase, analysis.in_steps));
}

}  // namespace report
