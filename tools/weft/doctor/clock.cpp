// Clocks: how long a reading takes, and how far the hosts' times of day are apart.
#include <time.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "finding.h"

namespace doctor {
namespace {

using weft::cat;

double now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e9 * static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec);
}

}  // namespace

void read(ClockFacts* clock) {
  clock->source = first_line("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  constexpr int kBatches = 20, kReadings = 200;
  clock->read_ns = 1e9;
  for (int batch = 0; batch < kBatches; ++batch) {
    const double begin = now_ns();
    for (int i = 0; i < kReadings; ++i) now_ns();
    clock->read_ns = std::min(clock->read_ns, (now_ns() - begin) / kReadings);
  }
}

void clock_source(const Inspection& inspection, std::vector<Finding>* found) {
  constexpr double kSlowNs = 250;  // a reading without a system call takes 20 to 60
  for (const Facts& rank : inspection.ranks) {
    if (rank.clock.read_ns < kSlowNs) continue;
    const int64_t rounded = std::llround(rank.clock.read_ns / 50) * 50;
    found->push_back({Severity::kWarning,
                      {rank.rank},
                      cat("reading the clock takes ", rounded, " ns (clock source ", rank.clock.source,
                          "), and waiting ranks read it all the time")});
  }
}

void clock_offset(const Inspection& inspection, std::vector<Finding>* found) {
  constexpr double kFarS = 0.1;
  for (size_t r = 0; r < inspection.clock_offsets_s.size(); ++r) {
    const double offset = inspection.clock_offsets_s[r];
    if (std::abs(offset) < kFarS + inspection.clock_precision_s) continue;
    const double rounded = std::round(std::abs(offset) * 10) / 10;
    found->push_back({Severity::kNote,
                      {static_cast<int>(r)},
                      cat("the time of day is ", rounded, " s ", offset > 0 ? "ahead of" : "behind",
                          " rank 0's: only the times in logs and traces depend on it")});
  }
}

}  // namespace doctor
