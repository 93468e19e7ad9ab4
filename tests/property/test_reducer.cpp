// Compares the reducer with a serial reference, on random programs under random schedules of the ranks.
// Programs vary models, orders of readiness, repeated uses, absences, ranks without data, weights,
// accumulation, and ranks that run out of data. A failure prints a seed; `--rng-seed` repeats it.
#include <atomic>
#include <cmath>
#include <cstdio>

#include "reducer/manifest/manifest.h"
#include "reducer_cases.h"
#include "support/sampling.h"
#include "support/seed.h"
#include "tally.h"

using namespace weft;
using namespace weft::test;

namespace {

const uint64_t kSimulations = sampling(600, 60, 30);
constexpr uint64_t kCases = 20;  // run in one simulation, one after the other

// The allreduce hook, which doubles the entries of sparse gradients before they are communicated, and halves
// the sums. The bits are those of allreduce.
class Asks final : public Hook {
 public:
  std::string name() const override { return "asks"; }
  bool takes_sparse() const override { return true; }
  Status plan(const weft_bucket& bucket, weft_hook_plan* plan) override {
    plan->collective_count = 1;
    weft_hook_collective& c = plan->collectives[0];
    c.coll = WEFT_COLL_ALL_REDUCE;
    c.dtype = bucket.dtype;
    c.op = WEFT_OP_AVG;
    c.count = bucket.count;
    return {};
  }
  Status stage(const weft_bucket& bucket, weft_stage* stage) override {
    if (bucket.entries == nullptr) return {};
    CopyArgs args;
    args.src = args.dst = static_cast<std::byte*>(bucket.entries->values);
    args.count = bucket.entries->count * bucket.entries->row_elements;
    args.src_dtype = args.dst_dtype = static_cast<Dtype>(bucket.dtype);
    args.scale = stage->index == 0 ? 2.0 : 0.5;
    if (args.count > 0) host_ops().copy(args);
    return {};
  }
};

// One rank's run of one program.
class Run {
 public:
  Run(const ReducerCase& program, Rank& self, Simulation& simulation)
      : program_(program),
        self_(self),
        simulation_(simulation),
        model_(program.params),
        memory_(model_),
        shadow_(model_),
        values_(model_) {
    params_ = model_.c();
    values_.fill(program.seed, 0);  // equal on all ranks
    for (size_t i = 0; i < params_.size(); i++) {
      if (program.homes && !sparse(i)) params_[i].gradient = memory_[i];
      if (program.check_interval > 0) params_[i].parameter = values_[i];
      if (!program.learns()) params_[i].uses = uses(i);
    }
    list_ = params_;
    if (program.buffers()) add_buffers();
  }

  void run() {
    if (!create()) return;
    size_t window = 0;
    for (; window < program_.windows.size(); window++) {
      if (part(window).joined) break;
      if (!step(window)) return;
    }
    if (program_.uneven()) join(window);
  }

 private:
  const RankPart& part(size_t window) const {
    return program_.windows[window].ranks[static_cast<size_t>(self_.rank)];
  }
  bool expect(bool ok, const std::string& what) {
    self_.expect(ok, cat(program_.text(), ": ", what));
    return ok;
  }
  bool expect(const Status& status, const std::string& what) {
    return expect(status.ok(), status.ok() ? "" : cat(what, ": ", status.text()));
  }

  void add_buffers() {
    static const int64_t two[] = {2};
    weft_param seen = WEFT_PARAM_INIT, tick = WEFT_PARAM_INIT;
    seen.name = "seen";
    seen.dtype = WEFT_DTYPE_I64;
    seen.ndim = 1;
    seen.shape = seen.strides = two;  // with a gap
    seen.parameter = seen_;
    tick.name = "tick";
    tick.dtype = WEFT_DTYPE_U8;
    tick.parameter = &tick_;
    seen.flags = tick.flags = WEFT_PARAM_BUFFER;
    list_.push_back(seen);
    list_.push_back(tick);
  }
  static int64_t mark(size_t window, int rank) { return static_cast<int64_t>(window * 8) + rank + 1; }
  void change_buffers(size_t window) {
    seen_[0] = seen_[2] = mark(window, self_.rank);
    tick_ = static_cast<uint8_t>(mark(window, self_.rank));
  }
  void note_buffers(size_t window) {
    size_t changed = 0;
    const int root =
        program_.buffers_source(window, Expected(model_, program_, window).last_active(), &changed);
    if (root >= 0) buffers_ = mark(changed, root);
  }
  // Checks the buffers after a synchronised step has begun.
  bool check_buffers(size_t window) {
    if (!program_.buffers()) return true;
    note_buffers(window);
    const bool right = seen_[0] == buffers_ && seen_[2] == buffers_ && tick_ == buffers_ && seen_[1] == -1;
    return expect(right,
                  cat("window ", window, ": buffers ", seen_[0], " and ", int{tick_}, ", not ", buffers_));
  }

  bool create() {
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = list_.data();
    options.param_count = list_.size();
    options.buffers_root = program_.buffers_root;
    options.check_interval = program_.check_interval;
    options.mode = program_.rig.mode;
    options.bucket_limits = program_.rig.limits.data();
    options.bucket_limit_count = 1;
    options.flags = program_.rig.flags;
    options.accumulation = program_.rig.accumulation;
    options.divide_by = program_.rig.divide_by;
    options.reduce_dtype = program_.rig.reduce_dtype;
    const std::shared_ptr<Hook> hook = program_.asks ? std::make_shared<Asks>() : allreduce_hook();
    if (!expect(Reducer::create(self_.comm, options, hook, &reducer_), "create")) return false;
    Manifest manifest;
    expect(make_manifest(params_.data(), params_.size(), sizeof(weft_param), &manifest), "manifest");
    for (const Param& p : manifest.params) dense_.push_back(p.dense);
    handed_.assign(params_.size(), {});
    return !view() || look_up_views();
  }

  uint32_t uses(size_t i) const { return program_.uses[static_cast<size_t>(self_.rank)][i]; }
  bool view() const { return program_.view(); }
  uint64_t at(size_t i, uint64_t k) const {
    return (view() && !dense_[i] ? k : model_.offset(i, k)) * dtype_size(model_[i].dtype);
  }
  bool sparse(size_t i) const { return model_[i].sparse_ndim > 0; }
  std::byte* gradient(size_t i) { return view() ? views_[i] : memory_[i]; }

  // Computes a gradient: the sum of this window's micro-batches, if the program adds up. `stray`: outside its
  // view.
  void compute(size_t i, uint64_t seed, bool stray) {
    for (uint64_t k = 0; k < model_.count(i); k++) {
      double sum = 0;
      for (const uint64_t each : batches(i, seed)) sum += value(each, self_.rank, i, k);
      if (stray) {
        store_as(model_[i].dtype, sum, memory_[i] + model_.offset(i, k) * dtype_size(model_[i].dtype));
      } else {
        store_as(model_[i].dtype, sum, gradient(i) + at(i, k));
      }
    }
  }
  // Returns the seeds of the micro-batches that are part of a gradient.
  std::vector<uint64_t> batches(size_t i, uint64_t seed) const {
    std::vector<uint64_t> all = program_.adds() ? handed_[i] : std::vector<uint64_t>();
    all.push_back(seed);
    return all;
  }

  // Stores an incomplete value, as before the last use of a gradient in a step.
  void compute_part(size_t i, uint64_t seed, bool stray) {
    std::byte* const from = stray ? memory_[i] : gradient(i);
    for (uint64_t k = 0; k < model_.count(i); k++) {
      const uint64_t place = stray ? model_.offset(i, k) * dtype_size(model_[i].dtype) : at(i, k);
      store_as(model_[i].dtype, 1 + value(seed, self_.rank, i, k), from + place);
    }
  }

  Status ready(size_t i, uint64_t seed, bool last) {
    const bool stray = program_.strays() && (seed + i) % 2 == 0;
    if (!sparse(i) && last) {
      compute(i, seed, stray);
    } else if (!sparse(i)) {
      compute_part(i, seed, stray);
    }
    const Status status =
        sparse(i) ? ready_sparse(i, batches(i, last ? seed : seed + 50)) : ready_dense(i, stray);
    if (last) handed_[i].push_back(seed);
    return status;
  }
  Status ready_dense(size_t i, bool stray) {
    return reducer_->ready(i, stray ? memory_[i] : gradient(i), nullptr);
  }
  // Passes the entries in descending order, some of them in two parts.
  Status ready_sparse(size_t i, const std::vector<uint64_t>& seeds) {
    std::vector<uint64_t> rows, parts, from;
    for (const uint64_t seed : seeds) {
      Random random(seed + i);
      for (uint64_t row = row_count(model_[i]); row-- > 0;) {
        if (!has_row(seed, self_.rank, i, row)) continue;
        const uint64_t count = 1 + random.below(2);
        for (uint64_t part = 0; part < count; part++) {
          rows.push_back(row);
          parts.push_back(count == 1 ? 2 : part);
          from.push_back(seed);
        }
      }
    }
    const uint64_t elements = row_elements(model_[i]);
    const Coo coo = make_coo(model_[i], rows, [&](uint64_t e, uint64_t k) {
      const double whole = value(from[e], self_.rank, i, rows[e] * elements + k);
      return parts[e] == 2 ? whole : parts[e] == 1 ? 3 : whole - 3;
    });
    return reducer_->ready_sparse(i, coo.c(), nullptr);
  }

  // Returns a random order in which each parameter appears as often as it is used, or once.
  std::vector<size_t> order(uint64_t seed) const {
    std::vector<size_t> out;
    for (size_t i = 0; i < params_.size(); i++) out.insert(out.end(), std::max<uint32_t>(uses(i), 1), i);
    Random random(seed);
    for (size_t i = out.size(); i > 1; i--) std::swap(out[i - 1], out[random.below(i)]);
    return out;
  }

  bool local(size_t window, size_t number) {
    weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
    begin.flags = WEFT_BEGIN_LOCAL;
    if (!expect(reducer_->begin(&begin), "begin local")) return false;
    std::vector<uint32_t> used(params_.size());
    for (const size_t i : order(part(window).order + number)) {
      if (!part(window).locals[number][i]) continue;
      const bool last = ++used[i] == uses(i);
      if (!expect(ready(i, step_seed(program_, window, number), last), "ready in a local step")) return false;
    }
    return expect(reducer_->finish({}), "finish local");
  }

  bool step(size_t window) {
    const RankPart& mine = part(window);
    for (size_t l = 0; l < mine.locals.size(); l++) {
      if (!local(window, l)) return false;
    }
    if (program_.windows[window].replan && !replan(window)) return false;
    std::vector<void*> places;
    for (size_t i = 0; i < params_.size(); i++) places.push_back(memory_[i]);
    places.resize(list_.size());
    change_buffers(window);
    buffers_ = mark(window, self_.rank);
    weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
    begin.micro_batches = program_.windows[window].micro_batches;
    begin.weight = mine.weight;
    if (mine.places) begin.gradients = places.data();
    if (!mine.data) begin.flags |= WEFT_BEGIN_NO_DATA;
    if (program_.windows[window].fixed && mine.data) begin.flags |= WEFT_BEGIN_FIXED;
    if (program_.windows[window].record) begin.flags |= WEFT_BEGIN_RECORD;
    if (!expect(reducer_->begin(&begin), "begin")) return false;
    if (!check_buffers(window)) return false;
    if (view() && !look_up_views()) return false;  // begin may have re-planned
    std::vector<uint32_t> used(params_.size());
    for (const size_t i : order(mine.order)) {
      if (!mine.data) break;
      if (simulation_.random().chance(4)) simulation_.pause();
      used[i]++;
      if (mine.ready[i]) {
        const uint64_t seed = step_seed(program_, window, mine.locals.size());
        if (!expect(ready(i, seed, used[i] == uses(i)), "ready")) return false;
      } else if (!mine.rest && !program_.learns() && used[i] == 1) {
        const uint64_t param = i;
        if (!expect(reducer_->absent(&param, 1), "absent")) return false;
      }
    }
    // Saves the gradients of the step before results replace them.
    for (size_t i = 0; i < params_.size(); i++) shadow_.memory()[i] = memory_.memory()[i];
    weft_finish_options finish = WEFT_FINISH_OPTIONS_INIT;
    if (mine.rest) finish.flags |= WEFT_FINISH_REST_ABSENT;
    if (mine.skip) finish.flags |= WEFT_FINISH_SKIP;
    if (!expect(reducer_->finish(finish), "finish")) return false;
    return check_window(window);
  }

  // Re-plans to other buckets. Accumulated gradients of local steps must be kept.
  bool replan(size_t window) {
    const Window& w = program_.windows[window];
    std::vector<uint64_t> sizes, params;
    for (const auto& bucket : w.plan) {
      sizes.push_back(bucket.size());
      params.insert(params.end(), bucket.begin(), bucket.end());
    }
    const weft_plan plan = {sizeof plan, sizes.size(), sizes.data(), params.data()};
    weft_replan_options options = WEFT_REPLAN_OPTIONS_INIT;
    if (!w.plan.empty()) options.plan = &plan;
    options.bucket_limits = &w.limit;
    options.bucket_limit_count = 1;
    const Status status = reducer_->replan(options);
    const bool unknown = w.plan.empty() && has(status.text(), "no rank has recorded the order");
    if (!expect(status.ok() || unknown, "replan: " + status.text())) return false;
    if (!w.plan.empty()) expect(reducer_->bucket_count() == sizes.size(), "the buckets of the plan");
    return !view() || look_up_views();
  }

  bool look_up_views() {
    views_.clear();
    for (size_t i = 0; i < params_.size(); i++) {
      void* at = nullptr;
      if (!sparse(i) && !expect(reducer_->grad_view(i, &at), "grad_view")) return false;
      views_.push_back(static_cast<std::byte*>(at));
    }
    return true;
  }

  // Returns true if this rank receives the result of element k, in row-major order.
  bool owned(size_t i, uint64_t k) const {
    return !program_.sharded() || owned_[i][dense_[i] ? model_.offset(i, k) : k];
  }
  void look_up_owned() {
    owned_.clear();
    for (size_t i = 0; i < params_.size(); i++) owned_.emplace_back(model_.count(i), false);
    if (!program_.sharded()) return;
    uint64_t count = 0;
    expect(reducer_->owned(self_.rank, nullptr, &count), "owned");
    std::vector<weft_slice> slices(count + 1);
    expect(reducer_->owned(self_.rank, slices.data(), &count), "owned");
    slices.resize(count);
    for (const weft_slice& slice : slices) {
      for (uint64_t k = 0; k < slice.count; k++) owned_[slice.param][slice.offset + k] = true;
    }
  }

  bool check_norms(size_t window, const Expected& expected) {
    if (!program_.norms()) return true;
    double squares = 0;
    for (size_t i = 0; i < params_.size(); i++) {
      std::vector<double> values(expected.absent_everywhere(i) ? 0 : model_.count(i));
      if (values.empty()) continue;
      host_ops().copy({expected.result(i).data(), reinterpret_cast<std::byte*>(values.data()), values.size(),
                       model_[i].dtype, Dtype::kF64, 1.0});
      for (const double value : values) squares += value * value;
    }
    weft_norms norms{};
    bool ok = expect(reducer_->norms(&norms, nullptr), "norms");
    ok &= expect(std::abs(norms.total - std::sqrt(squares)) <= 1e-9 * norms.total,
                 cat("window ", window, ": the norm is ", norms.total, ", not ", std::sqrt(squares)));
    return ok & expect((norms.skipped != 0) == program_.windows[window].skipped(), "skipped");
  }

  // Applies the expected results of a window to the shadow of this rank's memory. reached: this rank receives
  // the parameter's result.
  void apply(size_t window, const Expected& expected) {
    const RankPart& mine = part(window);
    for (size_t i = 0; i < params_.size(); i++) {
      const bool reached = mine.ready[i] || mine.places || program_.homes;
      if (view() || sparse(i) || !reached || expected.absent_everywhere(i)) continue;
      if (program_.windows[window].skipped()) continue;
      const uint32_t size = dtype_size(model_[i].dtype);
      for (uint64_t k = 0; k < model_.count(i); k++) {
        if (!owned(i, k)) continue;
        std::copy_n(expected.result(i).data() + k * size, size, shadow_[i] + at(i, k));
      }
    }
  }

  bool check_window(size_t window) {
    const Expected expected(model_, program_, window);
    look_up_owned();
    apply(window, expected);
    handed_.assign(params_.size(), {});
    bool ok = true;
    for (size_t i = 0; i < params_.size(); i++) ok &= check_param(window, expected, i);
    weft_reducer_stats stats{};
    reducer_->query(&stats);
    ok &= expect(stats.divisor == expected.divisor(),
                 cat("divisor ", stats.divisor, ", not ", expected.divisor()));
    ok &= expect(stats.steps == window + 1, "steps");
    ok &= check_norms(window, expected);
    return ok;
  }

  bool check_param(size_t window, const Expected& expected, size_t i) {
    const std::string where = cat("window ", window, ", parameter ", i, ": ");
    const bool has_result = !expected.absent_everywhere(i) && !program_.windows[window].skipped();
    bool ok = true;
    if (sparse(i)) {
      weft_sparse result{};
      const Status got = reducer_->sparse_result(i, &result);
      ok &= expect(got.ok() == has_result, where + "sparse_result() " + got.text());
      if (got.ok()) ok &= expect(whole(i, result) == expected.result(i), where + "wrong sparse result");
    } else if (view()) {
      ok &= expect(view_has(expected, i), where + "wrong result in the view");
      ok &= expect(memory_.memory()[i] == shadow_.memory()[i], where + "a stray gradient is written to");
    } else {
      ok &= expect(memory_.memory()[i] == shadow_.memory()[i], where + "wrong result");
      Gradients out(model_);
      const Status got = reducer_->result(i, out[i]);
      ok &= expect(got.ok() == has_result, where + "result() " + got.text());
    }
    weft_param_info info{};
    ok &= expect(reducer_->param(i, &info), "param");
    const bool tracked = program_.mapped() || program_.windows[window].fixed;
    ok &= expect((info.absent != 0) == (tracked && expected.absent(self_.rank, i)) || !part(window).data,
                 where + "absent");
    ok &= expect((info.absent_everywhere != 0) == expected.absent_everywhere(i) || !part(window).data,
                 where + "absent everywhere");
    return ok;
  }

  // Returns the dense array for a sparse result.
  Bytes whole(size_t i, const weft_sparse& result) const {
    const uint64_t bytes = row_elements(model_[i]) * dtype_size(model_[i].dtype);
    Bytes out(model_.count(i) * dtype_size(model_[i].dtype));
    const std::vector<uint64_t> rows = rows_of(model_[i], result);
    for (uint64_t e = 0; e < rows.size(); e++) {
      const auto* from = static_cast<const std::byte*>(result.values) + e * bytes;
      if (bytes > 0) std::copy_n(from, bytes, out.data() + rows[e] * bytes);
    }
    return out;
  }

  bool view_has(const Expected& expected, size_t i) {
    const uint32_t size = dtype_size(model_[i].dtype);
    const Bytes zero(size);
    for (uint64_t k = 0; k < model_.count(i); k++) {
      if (!owned(i, k)) continue;
      const std::byte* wanted =
          expected.absent_everywhere(i) ? zero.data() : expected.result(i).data() + k * size;
      if (!std::equal(wanted, wanted + size, views_[i] + at(i, k))) return false;
    }
    return true;
  }

  // From this window on the rank has no data.
  void join(size_t window) {
    for (size_t i = 0; i < params_.size(); i++) shadow_.memory()[i] = memory_.memory()[i];
    weft_join_result result{};
    if (!expect(reducer_->join({}, &result), "join")) return;
    if (view() && !look_up_views()) return;
    expect(result.steps == program_.windows.size() - window, cat("joined for ", result.steps, " steps"));
    look_up_owned();
    const bool moved = std::any_of(program_.windows.begin() + static_cast<ptrdiff_t>(window),
                                   program_.windows.end(), [](const Window& w) { return w.replan; });
    if (program_.sharded() && moved) return;  // an earlier plan decided where results are stored
    for (; window < program_.windows.size(); window++) {
      const Expected expected(model_, program_, window);
      apply(window, expected);
      if (window + 1 < program_.windows.size()) {
        note_buffers(window);
        continue;
      }
      check_buffers(window);
      expect(result.last_active == expected.last_active(), "last_active");
      for (size_t i = 0; i < params_.size(); i++) {
        if (sparse(i)) continue;  // sparse results are those of the last step, and join has begun others
        const bool right = view() ? view_has(expected, i) : memory_.memory()[i] == shadow_.memory()[i];
        expect(right, cat("joined, parameter ", i, ": wrong result"));
      }
    }
  }

  const ReducerCase& program_;
  Rank& self_;
  Simulation& simulation_;
  const Model model_;
  Gradients memory_;
  Gradients shadow_;
  Gradients values_;
  std::vector<weft_param> params_;
  std::vector<weft_param> list_;  // the parameters, followed by the buffers
  int64_t seen_[3] = {0, -1, 0};
  uint8_t tick_ = 0;
  int64_t buffers_ = 0;  // the expected value of the buffers
  std::unique_ptr<Reducer> reducer_;
  std::vector<bool> dense_;
  std::vector<std::vector<bool>> owned_;  // by parameter, in the order of memory
  // The micro-batches of this window that have become ready, by parameter.
  std::vector<std::vector<uint64_t>> handed_;
  std::vector<std::byte*> views_;
};

}  // namespace

TEST_CASE("random steps of a reducer give what a serial reference gives") {
  Tally tally;
  for (uint64_t i = 0; i < kSimulations; i++) {
    const uint64_t seed = base_seed() * 1'000'003 + i;
    Random random(seed);
    const int size = 2 + static_cast<int>(random.below(3));
    std::vector<ReducerCase> programs;
    for (uint64_t c = 0; c < kCases; c++)
      programs.push_back(ReducerCase::draw(seed * kCases + c, size, random));
    for (const ReducerCase& program : programs) tally.count(program);
    Simulation simulation(seed, size);
    const SimulationReport report = simulation.run([&](Rank& self) {
      for (const ReducerCase& program : programs) {
        Run(program, self, simulation).run();
        if (!self.failures.empty()) return;
      }
    });
    check(report.failures);
    if (!report.failures.empty()) break;
  }
  std::printf("%s\n", tally.text().c_str());
  CHECK(tally.fewer_than(kSimulations * kCases / 6) == "");
}
