// weft bench ready: the cost of a gradient besides its copy. It measures a call of ready in view mode,
// compared with an uncontended atomic decrement. It also measures the creation and a step of a reducer of
// many tiny parameters, and whether both grow no faster than their number.
#include <atomic>
#include <iomanip>
#include <sstream>
#include <stdexcept>

#include "measure.h"

namespace {

constexpr uint64_t kCalls = 1000;
constexpr uint64_t kCounts[] = {1'000, 10'000, 100'000};  // numbers of tiny parameters
constexpr int64_t kElements = 4;                          // of each parameter

// A reducer of many tiny gradients in view mode, so that nothing is copied.
class Tiny {
 public:
  Tiny(Job& job, uint64_t count) : count_(count) {
    for (uint64_t i = 0; i < count; i++) names_.push_back("tiny." + std::to_string(i));
    for (const std::string& name : names_) {
      weft_param param = WEFT_PARAM_INIT;
      param.name = name.c_str();
      param.dtype = WEFT_DTYPE_F32;
      param.ndim = 1;
      param.shape = &kElements;
      params_.push_back(param);
    }
    options_.params = params_.data();
    options_.param_count = count;
    options_.mode = WEFT_GRADIENT_VIEW;
    comm_ = job.comm();
  }
  ~Tiny() { destroy(); }
  Tiny(const Tiny&) = delete;
  Tiny& operator=(const Tiny&) = delete;

  void create() {
    weft_error error = WEFT_ERROR_INIT;
    if (weft_reducer_create(comm_, &options_, &reducer_, &error) != WEFT_OK) {
      throw std::runtime_error(std::string("weft_reducer_create: ") + error.text);
    }
  }
  void destroy() { weft_reducer_destroy(&reducer_); }

  // Begins a step in which all gradients but the first are ready, so it is not launched before close_step.
  void open_step() {
    close_step();
    check(weft_reducer_begin(reducer_, nullptr), "weft_reducer_begin");
    open_ = true;
  }
  void ready() {
    weft_status status = WEFT_OK;
    for (uint64_t i = count_; i-- > 1;) status |= weft_reducer_ready(reducer_, i, nullptr, nullptr);
    check(status, "weft_reducer_ready");
  }
  void close_step() {
    if (!open_) return;
    open_ = false;
    check(weft_reducer_ready(reducer_, 0, nullptr, nullptr), "weft_reducer_ready");
    check(weft_reducer_finish(reducer_, nullptr), "weft_reducer_finish");
  }
  void step() {
    open_step();
    ready();
    close_step();
  }

 private:
  static void check(weft_status status, const char* call) {
    if (status != WEFT_OK) throw std::runtime_error(std::string(call) + ": " + weft_status_string(status));
  }

  const uint64_t count_;
  weft_comm* comm_ = nullptr;
  std::vector<std::string> names_;
  std::vector<weft_param> params_;
  weft_reducer_options options_ = WEFT_REDUCER_OPTIONS_INIT;
  weft_reducer* reducer_ = nullptr;
  bool open_ = false;
};

bool right(uint64_t) {
  return true;
}

std::string fixed(double value) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(value < 10 ? 2 : 1) << value;
  return out.str();
}

Result row(const std::string& work, uint64_t count, const Times& times) {
  Result result;
  result.work = work;
  result.count = count;
  result.bytes = count * kElements * sizeof(float);
  result.times = times;
  return result;
}

Result atomic_decrement(Job& job, uint64_t iterations) {
  std::atomic<uint32_t> counter{0};
  const Subject subject{[&](uint64_t) { counter.store(kCalls); },
                        [&] {
                          for (uint64_t i = 0; i < kCalls; i++)
                            counter.fetch_sub(1, std::memory_order_acq_rel);
                        },
                        [&](uint64_t) { return counter.load() == 0; }};
  Result result = row("atomic_decrement", kCalls, measure(job, subject, iterations, 3));
  result.bytes = kCalls * sizeof counter;
  return result;
}

Result ready_call(Job& job, uint64_t iterations, const Result& decrement) {
  Tiny tiny(job, kCalls + 1);
  tiny.create();
  const Subject subject{[&](uint64_t) { tiny.open_step(); }, [&] { tiny.ready(); }, right};
  Result result = row("ready", kCalls, measure(job, subject, iterations, 3));
  tiny.close_step();
  const double each_ns = result.times.median_us * 1e3 / kCalls;
  result.remarks = fixed(each_ns) + " ns a call, " +
                   fixed(result.times.median_us / decrement.times.median_us) +
                   " uncontended atomic decrements";
  return result;
}

}  // namespace

std::vector<Result> bench_ready(Job& job, const BenchOptions& options) {
  std::vector<Result> results;
  const uint64_t iterations = options.iterations != 0 ? options.iterations : 500;
  results.push_back(atomic_decrement(job, iterations));
  results.push_back(ready_call(job, iterations, results.back()));
  for (const bool creates : {true, false}) {
    double first_ns = 0;  // per parameter, with the fewest parameters
    for (const uint64_t count : kCounts) {
      Tiny tiny(job, count);
      if (!creates) tiny.create();
      const Subject subject{[&](uint64_t) {
                              if (creates) tiny.destroy();
                            },
                            [&] { creates ? tiny.create() : tiny.step(); }, right,
                            shown_name(job, options, "ready")};
      // Creating a reducer of 100,000 parameters takes long.
      const uint64_t most = creates ? 5 : 30;
      Result result =
          row(creates ? "create" : "step_tiny", count, measure(job, subject, std::min(iterations, most), 1));
      const double each_ns = result.times.median_us * 1e3 / static_cast<double>(count);
      if (first_ns == 0) first_ns = each_ns;
      result.remarks = fixed(each_ns) + " ns a parameter, " + fixed(each_ns / first_ns) + " of " +
                       std::to_string(kCounts[0]) + "'s";
      results.push_back(result);
    }
  }
  return results;
}
