// weft bench step: one gradient step of a model, without its computation. Every gradient becomes ready at
// once, the last parameter's first, so all communication is exposed. Alternatively gradients become ready as
// in a recorded backward. The rank sleeps through it, as if an accelerator computed, or computes through it.
#include <algorithm>
#include <chrono>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <thread>

#include "computing.h"
#include "manifest.h"
#include "measure.h"
#include "names.h"
#include "pattern.h"

namespace {

class Step {
 public:
  Step(Job& job, const Manifest& manifest, const StepOptions& options)
      : job_(job),
        manifest_(manifest),
        view_mode_(options.view_mode),
        accumulate_(options.accumulate),
        mine_(Tile::of_rank(WEFT_DTYPE_F32, WEFT_OP_AVG, job.rank())),
        mean_(Tile::reduced(WEFT_DTYPE_F32, WEFT_OP_AVG, job.size(), 1)) {
    create_reducer(options);
    gradients_.resize(manifest.params.size());
    if (view_mode_) {
      look_up_views();
      return;
    }
    memory_ = Buffer(job, manifest.count * sizeof(float), false);
    std::byte* next = memory_.data();
    for (size_t i = 0; i < manifest.params.size(); ++i) {
      gradients_[i] = next;
      next += manifest.params[i].count * sizeof(float);
    }
  }
  ~Step() { weft_reducer_destroy(&reducer_); }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  void rewrite(uint64_t round) {
    for (size_t i = 0; i < gradients_.size(); ++i)
      mine_.fill(gradients_[i], manifest_.params[i].count, round + i);
  }

  // Makes gradients ready `times` times later than in the recorded backward.
  void replay(const Backward* backward, double times, bool compute) {
    backward_ = backward;
    times_ = times;
    if (compute) computing_.emplace();
  }

  // Runs the accumulating steps and the one that synchronises. A view already contains the steps' sum.
  void run() {
    weft_begin_options options = WEFT_BEGIN_OPTIONS_INIT;
    options.flags = WEFT_BEGIN_LOCAL;
    for (uint32_t i = 1; i < accumulate_; i++) run(options);
    options.flags = 0;
    options.micro_batches = view_mode_ ? 1 : accumulate_;
    run(options);
  }

  void run(const weft_begin_options& options) {
    check(weft_reducer_begin(reducer_, &options), "weft_reducer_begin");
    const auto begin = std::chrono::steady_clock::now();
    if (computing_.has_value()) computing_->begin();
    for (size_t n = 0; n < gradients_.size(); n++) {
      const size_t i = backward_ == nullptr ? gradients_.size() - 1 - n : backward_->order[n];
      if (backward_ != nullptr) compute_until(begin, when(backward_->ready_ns[i]));
      check(weft_reducer_ready(reducer_, i, gradients_[i], nullptr), "weft_reducer_ready");
    }
    check(weft_reducer_finish(reducer_, nullptr), "weft_reducer_finish");
  }
  // Computes or sleeps until `later` after the beginning of the step.
  void compute_until(std::chrono::steady_clock::time_point begin, std::chrono::nanoseconds later) {
    if (computing_.has_value()) {
      computing_->until(later);
    } else {
      std::this_thread::sleep_until(begin + later);
    }
  }
  std::chrono::nanoseconds when(uint64_t recorded_ns) const {
    return std::chrono::nanoseconds(static_cast<int64_t>(static_cast<double>(recorded_ns) * times_));
  }

  // Re-plans with the ready order of the last step. In view mode gradients move.
  void replan(const std::string& by) {
    weft_replan_options options = WEFT_REPLAN_OPTIONS_INIT;
    options.planner = by == "model" ? WEFT_PLANNER_MODEL : WEFT_PLANNER_LIMITS;
    check(weft_reducer_replan(reducer_, &options, nullptr), "weft_reducer_replan");
    if (view_mode_) look_up_views();
  }

  // part_of_largest: as in Tile::matches.
  bool holds_mean(uint64_t round, double part_of_largest) const {
    for (size_t i = 0; i < gradients_.size(); ++i) {
      if (!mean_.matches(gradients_[i], manifest_.params[i].count, round + i, part_of_largest)) return false;
    }
    return true;
  }

  // Returns the compression ratio: bytes of uncompressed gradients over sent bytes.
  double ratio() const {
    const weft_reducer_stats stats = query();
    return static_cast<double>(stats.plain_bytes) /
           static_cast<double>(std::max<uint64_t>(stats.sent_bytes, 1));
  }

  StepMemory memory() const {
    const weft_reducer_stats stats = query();
    return {stats.param_bytes, stats.bucket_bytes,
            stats.scratch_bytes + stats.other_bytes + stats.hook_bytes + stats.retained_bytes};
  }

  HeldUp held_up() const {
    uint64_t size = 0;
    weft_reducer_report(reducer_, nullptr, &size);
    std::string text(size, '\0');
    check(weft_reducer_report(reducer_, text.data(), &size), "weft_reducer_report");
    const auto report = nlohmann::json::parse(text.c_str());
    HeldUp found;
    found.of_steps = report["steps"]["synchronised"];
    for (const nlohmann::json& rank : report["ranks"]) {
      const uint64_t steps = rank["steps_last"];
      if (steps <= found.steps) continue;
      found.rank = rank["rank"];
      found.steps = steps;
      found.mean_us = rank["steps_last_ns"].get<double>() / 1e3 / static_cast<double>(steps);
    }
    return found;
  }

  bool has_another_plan() const { return query().plan_generation > 0; }

  uint32_t bucket_count() const {
    uint32_t count = 0;
    check(weft_reducer_bucket_count(reducer_, &count), "weft_reducer_bucket_count");
    return count;
  }

 private:
  weft_reducer_stats query() const {
    weft_reducer_stats stats = WEFT_REDUCER_STATS_INIT;
    check(weft_reducer_query(reducer_, &stats), "weft_reducer_query");
    return stats;
  }

  void look_up_views() {
    for (size_t i = 0; i < gradients_.size(); ++i) {
      void* view = nullptr;
      check(weft_reducer_grad_view(reducer_, i, &view), "weft_reducer_grad_view");
      gradients_[i] = static_cast<std::byte*>(view);
    }
  }

  void create_reducer(const StepOptions& how) {
    std::vector<weft_param> params;
    for (const ManifestParam& param : manifest_.params) {
      weft_param entry = WEFT_PARAM_INIT;
      entry.name = param.name.c_str();
      entry.dtype = WEFT_DTYPE_F32;
      entry.ndim = static_cast<int32_t>(param.shape.size());
      entry.shape = param.shape.data();
      params.push_back(entry);
    }
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = params.data();
    options.param_count = params.size();
    options.mode = view_mode_ ? WEFT_GRADIENT_VIEW : WEFT_GRADIENT_COPY;
    if (!view_mode_) options.accumulation = WEFT_ACCUMULATION_REDUCER;
    std::vector<uint64_t> limits;
    limits.reserve(how.bucket_limits.size());
    for (const std::string& limit : how.bucket_limits) limits.push_back(parse_bytes(limit));
    options.bucket_limits = limits.data();
    options.bucket_limit_count = static_cast<uint32_t>(limits.size());
    if (!how.reduce_dtype.empty()) options.reduce_dtype = parse_dtype(how.reduce_dtype);
    weft_error error = WEFT_ERROR_INIT;
    if (!how.hook.empty()) options.hook = make_hook(how.hook);
    const weft_status status = weft_reducer_create(job_.comm(), &options, &reducer_, &error);
    weft_hook_destroy(&options.hook);  // the reducer keeps what it uses
    if (status != WEFT_OK) throw std::runtime_error(std::string("weft_reducer_create: ") + error.text);
  }

  weft_hook* make_hook(const std::string& hook) const {
    const size_t end = std::min(hook.find(' '), hook.size());
    const std::string of_hook = hook.substr(end);
    weft_error error = WEFT_ERROR_INIT;
    weft_hook_params params = WEFT_HOOK_PARAMS_INIT;
    params.options = of_hook.c_str();
    params.error = &error;
    weft_hook* made = nullptr;
    if (weft_hook_create(job_.context(), hook.substr(0, end).c_str(), &params, &made) != WEFT_OK) {
      throw std::runtime_error(std::string("weft_hook_create: ") + error.text);
    }
    return made;
  }

  void check(weft_status status, const char* call) const {
    if (status == WEFT_OK) return;
    weft_error error = WEFT_ERROR_INIT;
    weft_reducer_error(reducer_, &error);
    throw std::runtime_error(std::string(call) + ": " + weft_status_string(status) + ": " + error.text);
  }

  Job& job_;
  const Manifest& manifest_;
  const bool view_mode_;
  const uint32_t accumulate_;
  const Backward* backward_ = nullptr;  // null: all gradients are ready at once
  double times_ = 1;
  std::optional<Computing> computing_;
  const Tile mine_, mean_;
  weft_reducer* reducer_ = nullptr;
  Buffer memory_;
  std::vector<std::byte*> gradients_;
};

// Names the slowest rank if it matters: in other steps the slowest rank is random.
std::string text_of(const HeldUp& held_up, double step_us) {
  if (held_up.steps * 2 <= held_up.of_steps || held_up.mean_us * 10 < step_us) return "";
  std::ostringstream text;
  text << "rank " << held_up.rank << " held up " << held_up.steps << " of " << held_up.of_steps
       << " steps, waited for " << std::fixed << std::setprecision(1) << held_up.mean_us / 1e3 << " ms each";
  return text.str();
}

// Returns how far a hook's results may be from the mean, as a part of the largest gradient. nullopt: the
// hook's results are not means of one step.
std::optional<double> inexactness(const std::string& hook) {
  struct Row {
    std::string_view name;
    double part;
  };
  constexpr Row kRows[] = {{"", 0},          {"allreduce", 0}, {"fp16", 0x1p-9},
                           {"bf16", 0x1p-6}, {"int8", 0x1p-5}, {"fp8", 0x1p-3}};
  const std::string_view name = std::string_view(hook).substr(0, hook.find(' '));
  for (const Row& row : kRows) {
    if (row.name == name) return row.part;
  }
  return std::nullopt;
}

}  // namespace

Result bench_step(Job& job, const BenchOptions& options, const std::string& manifest_path) {
  const Manifest manifest = read_manifest(manifest_path);
  const StepOptions& how = options.step;
  Step step(job, manifest, how);
  std::optional<Backward> backward;
  if (how.replay > 0) {
    backward = read_backward(manifest_path, manifest);
    step.replay(&*backward, how.replay, how.compute);
  }
  if (!how.replan.empty()) {
    step.rewrite(0);
    step.run();
    step.replan(how.replan);
  }
  const std::optional<double> inexact = inexactness(how.hook);
  const Subject subject{
      [&](uint64_t round) { step.rewrite(round); }, [&] { step.run(); },
      [&](uint64_t round) { return !inexact.has_value() || step.holds_mean(round, *inexact); },
      shown_name(job, options, "step of " + manifest.name)};
  Result result;
  result.work = "step " + manifest.name;
  result.details = std::to_string(manifest.params.size()) + " f32 gradients in " +
                   std::to_string(step.bucket_count()) + " buckets, " + how.details(step.has_another_plan());
  result.checked = inexact.has_value();
  result.bytes = manifest.count * sizeof(float);
  result.count = manifest.count;
  const double ranks = job.size();
  result.bus_factor = 2 * (ranks - 1) / ranks;
  result.times = measure(job, subject, options.iterations != 0 ? options.iterations : 30, options.warmup);
  result.memory = step.memory();
  if (backward.has_value()) {
    const double backward_us =
        std::chrono::duration<double, std::micro>(step.when(backward->ns)).count() * how.accumulate;
    result.exposed_us = std::max(0.0, result.times.median_us - backward_us);
    std::ostringstream times;
    times << std::fixed << std::setprecision(1) << result.exposed_us / 1e3 << " ms behind a backward of "
          << backward_us / 1e3 << " ms";
    result.remarks = times.str();
  }
  if (!how.hook.empty() && job.size() > 1) {
    std::ostringstream sent;
    sent << (result.remarks.empty() ? "" : ", ") << std::setprecision(3) << step.ratio() << " times less sent"
         << (result.checked ? "" : ", results unchecked");
    result.remarks += sent.str();
  }
  result.held_up = step.held_up();
  const std::string slow = text_of(*result.held_up, result.times.median_us);
  if (!slow.empty()) result.remarks += (result.remarks.empty() ? "" : ", ") + slow;
  return result;
}
