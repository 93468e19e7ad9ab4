// Measures the machine's limits, which hold for every library: the bytes that all cores move together, and
// the latency of a flag between two cores. bench/peers.py runs it with the systems, to compare times with
// their lower bounds.
//
// usage: machine_limits [--threads N] BYTES...     N: default 2, one for each core
//
// Uses the protocol of `weft bench`: before each timed pass every thread rewrites its buffer, then all
// threads meet; a time is the slowest thread's. Prints a JSON line for each size and kind of pass. In a
// "copy" pass each thread copies its whole buffer into another one of its own. In an "arena" pass each thread
// owns a slice, reads it from all threads' buffers, and writes the sums to all. Both read N times the bytes
// and write as many; gb_s counts both. The last line is half the round trip of a flag between two cores.
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/host_ops.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kPage = 4096, kLine = 64;
constexpr size_t kWarmup = 3;

struct Options {
  size_t threads = 2;
  std::vector<size_t> sizes;
};

size_t number(std::string_view text) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value == 0) {
    throw std::invalid_argument("'" + std::string(text) + "' is not a number of 1 or more");
  }
  return value;
}

std::vector<int> own_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0)
    throw std::runtime_error("cannot get the cores that this process may use: sched_getaffinity failed");
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; core++) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

void bind_to(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

// A barrier of all threads. Each has a core of its own, so it spins.
class ThreadBarrier {
 public:
  explicit ThreadBarrier(size_t threads) : threads_(threads) {}
  void wait() {
    const size_t round = round_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    while (round_.load(std::memory_order_acquire) == round) {
    }
  }

 private:
  const size_t threads_;
  alignas(kLine) std::atomic<size_t> arrived_{0};
  alignas(kLine) std::atomic<size_t> round_{0};
};

struct Free {
  void operator()(float* data) const { std::free(data); }
};
using Floats = std::unique_ptr<float[], Free>;

// Allocates untouched buffers, so that each page belongs to its first writer.
std::vector<Floats> allocate(size_t buffers, size_t count) {
  const size_t bytes = (count * sizeof(float) + kPage - 1) / kPage * kPage;
  std::vector<Floats> all;
  all.reserve(buffers);
  for (size_t b = 0; b < buffers; b++) {
    all.emplace_back(static_cast<float*>(std::aligned_alloc(kPage, bytes)));
    if (all.back() == nullptr) throw std::bad_alloc();
  }
  return all;
}

// Returns the elements of a thread's slice, in whole cache lines.
std::pair<size_t, size_t> slice(size_t count, size_t thread, size_t threads) {
  constexpr size_t step = kLine / sizeof(float);
  const size_t each = (count / threads + step - 1) / step * step;
  const size_t begin = std::min(count, thread * each);
  return {begin, thread + 1 == threads ? count : std::min(count, begin + each)};
}

// Sums elements [begin, end) of all buffers into all of them. It uses the library's kernel, so that the
// kernel does not contribute to the difference between a time and its bound.
class Sum {
 public:
  Sum(const std::vector<Floats>& buffers, size_t begin, size_t end) {
    for (const Floats& buffer : buffers) {
      outputs_.push_back(reinterpret_cast<std::byte*>(buffer.get() + begin));
      inputs_.push_back(outputs_.back());
    }
    args_.inputs = inputs_.data();
    args_.outputs = outputs_.data();
    args_.input_count = args_.output_count = static_cast<int>(buffers.size());
    args_.count = end - begin;
  }
  void run() const { weft::host_ops().fold(args_); }

 private:
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
  weft::FoldArgs args_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Runs `work` on one thread for each core.
void on_all(const std::vector<int>& cores, const std::function<void(size_t)>& work) {
  std::vector<std::thread> threads;
  threads.reserve(cores.size());
  for (size_t t = 0; t < cores.size(); t++) {
    threads.emplace_back([&, t] {
      bind_to(cores[t]);
      work(t);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Returns the median of the slowest thread's passes over buffers of `count` floats, in microseconds.
double measure(const std::vector<int>& cores, size_t count, bool copies) {
  const size_t threads = cores.size();
  const size_t passes = std::clamp<size_t>((size_t{64} << 20) / (count * sizeof(float)), 15, 1000);
  const std::vector<Floats> buffers = allocate(threads, count), others = allocate(threads, count);
  std::vector<std::vector<double>> times(threads, std::vector<double>(passes));
  std::vector<char> right(threads, 0);
  ThreadBarrier barrier(threads);
  on_all(cores, [&](size_t t) {
    const auto [begin, end] = slice(count, t, threads);
    const Sum sum(buffers, begin, end);
    std::fill_n(others[t].get(), count, 0.0F);
    for (size_t pass = 0; pass < kWarmup + passes; pass++) {
      std::fill_n(buffers[t].get(), count, static_cast<float>(pass % 7));
      barrier.wait();
      const Clock::time_point start = Clock::now();
      if (copies) {
        std::memcpy(others[t].get(), buffers[t].get(), count * sizeof(float));
      } else {
        sum.run();
      }
      const std::chrono::duration<double, std::micro> took = Clock::now() - start;
      if (pass >= kWarmup) times[t][pass - kWarmup] = took.count();
      barrier.wait();
    }
    const float last = static_cast<float>((kWarmup + passes - 1) % 7);
    const float* const result = copies ? others[t].get() : buffers[t].get();
    const float wanted = copies ? last : last * static_cast<float>(threads);
    right[t] = std::count(result, result + count, wanted) == static_cast<ptrdiff_t>(count) ? 1 : 0;
  });
  if (std::count(right.begin(), right.end(), 0) != 0)
    throw std::runtime_error("the last pass left wrong numbers in a buffer");
  std::vector<double> slowest = times[0];
  for (const std::vector<double>& of_thread : times) {
    for (size_t i = 0; i < passes; i++) slowest[i] = std::max(slowest[i], of_thread[i]);
  }
  return median(slowest);
}

// Returns the median time of a flag from the first core to the second, in nanoseconds.
double flag_ns(const std::vector<int>& cores) {
  constexpr uint64_t kBatches = 50, kRoundTrips = 2000;
  alignas(kLine) std::atomic<uint64_t> there{0};
  alignas(kLine) std::atomic<uint64_t> back{0};
  std::vector<double> times;
  on_all({cores[0], cores[1]}, [&](size_t t) {
    uint64_t value = 0;
    for (uint64_t batch = 0; batch < kBatches; batch++) {
      const Clock::time_point start = Clock::now();
      for (uint64_t n = 0; n < kRoundTrips; n++) {
        value++;
        (t == 0 ? there : back).store(value, std::memory_order_release);
        while ((t == 0 ? back : there).load(std::memory_order_acquire) < value) {
        }
      }
      const std::chrono::duration<double, std::nano> took = Clock::now() - start;
      if (t == 0) times.push_back(took.count() / (2.0 * kRoundTrips));
    }
  });
  return median(times);
}

Options parse(const std::vector<std::string_view>& words) {
  Options options;
  for (size_t i = 0; i < words.size(); i++) {
    if (words[i] == "--threads" && i + 1 < words.size()) {
      options.threads = number(words[++i]);
    } else {
      options.sizes.push_back(number(words[i]));
    }
  }
  return options;
}

void run(const Options& options) {
  std::vector<int> cores = own_cores();
  if (cores.size() < std::max<size_t>(options.threads, 2)) {
    throw std::runtime_error("each of " + std::to_string(std::max<size_t>(options.threads, 2)) +
                             " threads needs a core, but there are " + std::to_string(cores.size()) +
                             " that this process may use");
  }
  const double flag = flag_ns(cores);
  cores.resize(options.threads);
  for (const size_t bytes : options.sizes) {
    for (const bool copies : {true, false}) {
      const double us = measure(cores, std::max<size_t>(bytes / sizeof(float), 1), copies);
      const double moved = 2.0 * static_cast<double>(bytes) * static_cast<double>(options.threads);
      std::printf(R"({"limit": "%s", "bytes": %zu, "threads": %zu, "median_us": %.3f, "gb_s": %.2f})"
                  "\n",
                  copies ? "copy" : "arena", bytes, options.threads, us, moved / us * 1e-3);
    }
  }
  std::printf(R"({"limit": "flag", "bytes": 8, "threads": 2, "median_us": %.4f})"
              "\n",
              flag * 1e-3);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse({argv + 1, argv + argc}));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "machine_limits: %s\n", error.what());
    return 1;
  }
}
