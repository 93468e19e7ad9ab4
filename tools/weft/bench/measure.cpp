#include "measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "counters.h"
#include "syscalls.h"

namespace {

// Number of calls with counters, which follow the timed calls. Reading the counters takes a system call.
// Between two timed calls, it would leave the processor's predictors and caches to the kernel.
constexpr uint64_t kCounted = 20;

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

// Returns the q-quantile by nearest rank, in microseconds.
double quantile_us(const std::vector<uint64_t>& sorted, double q) {
  const auto index = static_cast<size_t>(std::lround(q * static_cast<double>(sorted.size() - 1)));
  return static_cast<double>(sorted[index]) * 1e-3;
}

// Returns the largest time over the ranks for each iteration; sorted.
std::vector<uint64_t> slowest(Job& job, const std::vector<uint64_t>& mine) {
  const std::vector<uint64_t> all = job.all_gather(mine);
  std::vector<uint64_t> worst = mine;
  for (size_t i = 0; i < all.size(); ++i) worst[i % mine.size()] = std::max(worst[i % mine.size()], all[i]);
  std::sort(worst.begin(), worst.end());
  return worst;
}

// Returns the indices of the sorted values that enclose the population's median with 99 % probability.
// Approximates the binomial distribution by a normal one.
std::pair<size_t, size_t> around_median(size_t count) {
  const double half = 0.5 * static_cast<double>(count),
               wide = 2.576 * 0.5 * std::sqrt(static_cast<double>(count));
  const auto low = static_cast<size_t>(std::max(0.0, std::floor(half - wide)));
  const auto high = static_cast<size_t>(std::ceil(half + wide));
  return {low, std::min(high, count - 1)};
}

// Returns a count per call, on the rank that has most.
double most(Job& job, uint64_t count, uint64_t calls) {
  const std::vector<uint64_t> all = job.all_gather({count});
  return static_cast<double>(*std::max_element(all.begin(), all.end())) / static_cast<double>(calls);
}

uint64_t moved_bytes(const Job& job) {
  const weft_comm_info info = job.info();
  return info.bytes_shared + info.bytes_direct + info.bytes_sent;
}

// Says every few seconds how many calls are done.
class Progress {
 public:
  Progress(const std::string& name, uint64_t calls)
      : name_(name), calls_(calls), next_ns_(now_ns() + kEachNs) {}
  void done(uint64_t calls) {
    if (name_.empty() || now_ns() < next_ns_) return;
    next_ns_ = now_ns() + kEachNs;
    std::fprintf(stderr, "weft bench: %s: %llu of %llu calls\n", name_.c_str(),
                 static_cast<unsigned long long>(calls), static_cast<unsigned long long>(calls_));
  }

 private:
  static constexpr uint64_t kEachNs = 2'000'000'000;
  const std::string& name_;
  const uint64_t calls_;
  uint64_t next_ns_;
};

}  // namespace

std::string shown_name(const Job& job, const BenchOptions& options, const std::string& name) {
  return options.progress && job.rank() == 0 ? name : "";
}

Times measure(Job& job, const Subject& subject, uint64_t iterations, uint64_t warmup) {
  std::vector<uint64_t> run_ns(iterations), wall_ns(iterations);
  uint64_t moved_before = 0;
  bool correct = true;
  Progress progress(subject.name, warmup + iterations);
  for (uint64_t round = 0; round < warmup + iterations; ++round) {
    if (round == warmup) moved_before = moved_bytes(job);
    const uint64_t t0 = now_ns();
    subject.rewrite(round);
    const uint64_t t1 = now_ns();
    job.barrier();
    const uint64_t t2 = now_ns();
    subject.run();
    const uint64_t t3 = now_ns();
    if (round == 0 || round + 1 == warmup + iterations) correct = subject.check(round) && correct;
    progress.done(round + 1);
    if (round < warmup) continue;
    run_ns[round - warmup] = t3 - t2;
    wall_ns[round - warmup] = t3 - t2 + t1 - t0;
  }
  const uint64_t moved = moved_bytes(job) - moved_before;
  const uint64_t counted = std::min(iterations, kCounted);
  Counts sum;
  for (uint64_t round = 0; round < counted; ++round) {
    subject.rewrite(warmup + iterations + round);
    const Counts before = count_before();  // before the barrier: nothing comes between it and the operation
    job.barrier();
    subject.run();
    const Counts after = count_after();
    sum.page_faults += after.page_faults - before.page_faults;
    sum.allocations += after.allocations - before.allocations;
    sum.system_calls += after.system_calls - before.system_calls;
  }
  Times times;
  times.correct = job.all(correct);
  times.iterations = iterations;
  times.calls = warmup + iterations + counted;
  const std::vector<uint64_t> run = slowest(job, run_ns), wall = slowest(job, wall_ns);
  times.least_us = quantile_us(run, 0);
  times.median_us = quantile_us(run, 0.5);
  const auto [low, high] = around_median(run.size());
  times.median_low_us = static_cast<double>(run[low]) * 1e-3;
  times.median_high_us = static_cast<double>(run[high]) * 1e-3;
  times.p99_us = quantile_us(run, 0.99);
  times.wall_median_us = quantile_us(wall, 0.5);
  times.page_faults = most(job, sum.page_faults, counted);
  times.allocations = most(job, sum.allocations, counted);
  if (system_calls_are_counted()) times.system_calls = most(job, sum.system_calls, counted);
  times.moved_bytes = most(job, moved, iterations);
  return times;
}
