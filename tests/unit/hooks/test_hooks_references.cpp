// Lossy hooks, compared with plain references in f64 that follow the publications: the codes of int8, fp8 and
// onebit, topk, quantize, the casts and batched_powersgd, over several steps with feedback.
// powersgd's is in test_hooks_powersgd.cpp.
#include "hook_simulation.h"
#include "powersgd_reference.h"

namespace unit_hooks_references {

using namespace weft;
using namespace weft::test;

namespace {

using Values = std::vector<double>;

// Returns the nearest float with `mantissa` bits behind the point and exponents from `least`; ties to even.
double rounded(double value, int mantissa, int least) {
  if (value == 0) return value;
  const double quantum = std::ldexp(1.0, std::max(std::ilogb(value), least) - mantissa);
  return std::nearbyint(value / quantum) * quantum;
}

double largest_of(const Values& values, size_t begin, size_t end) {
  double largest = 0;
  for (size_t i = begin; i < end; i++) largest = std::max(largest, std::fabs(values[i]));
  return largest;
}

// Encodes the values [begin, end), a slice of `slice` values or its beginning, and leaves the residual in
// them.
using Code = std::function<void(Values& values, size_t begin, size_t end, size_t slice)>;

// Blocks with a scale: the largest magnitude becomes the largest code.
Code blocks(size_t block, double largest_code, const std::function<double(double)>& nearest) {
  return [=](Values& values, size_t begin, size_t end, size_t) {
    for (size_t at = begin; at < end; at += block) {
      const size_t stop = std::min(at + block, end);
      const double scale = largest_of(values, at, stop) / largest_code;
      for (size_t i = at; i < stop && scale > 0; i++) values[i] = scale * nearest(values[i] / scale);
    }
  };
}

// Seide et al. 2014, with the mean of magnitudes for both signs.
void signs(Values& values, size_t begin, size_t end, size_t) {
  for (size_t at = begin; at < end; at += 64) {
    const size_t stop = std::min<size_t>(at + 64, end);
    double sum = 0;
    for (size_t i = at; i < stop; i++) sum += std::fabs(values[i]);
    const double mean = sum / static_cast<double>(stop - at);
    for (size_t i = at; i < stop; i++) values[i] = values[i] < 0 ? -mean : mean;
  }
}

Code largest(double ratio) {
  return [=](Values& values, size_t begin, size_t end, size_t slice) {
    const auto most = [&](size_t n) {
      return std::min(std::max<size_t>(static_cast<size_t>(std::ceil(ratio * static_cast<double>(n))), 1), n);
    };
    std::vector<size_t> order(end - begin);
    std::iota(order.begin(), order.end(), begin);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return std::fabs(values[a]) > std::fabs(values[b]); });
    for (size_t k = std::min(most(end - begin), most(slice)); k < order.size(); k++) values[order[k]] = 0;
  };
}

// A parameter alone in its bucket: encoded slice by slice, added by the slice's owner, encoded again.
class Reduction {
 public:
  Reduction(int ranks, size_t count, size_t unit, bool feedback, Code code)
      : ranks_(static_cast<size_t>(ranks)), count_(count), feedback_(feedback), code_(std::move(code)) {
    slice_ = ((count_ + ranks_ - 1) / ranks_ + unit - 1) / unit * unit;
    errors_.assign(ranks_, Values(count_));
  }

  Values step(const std::vector<Values>& gradients) {
    Values sum(count_);
    for (size_t w = 0; w < ranks_; w++) {
      Values sent = gradients[w];
      for (size_t i = 0; i < count_ && feedback_; i++) sent[i] += errors_[w][i];
      errors_[w] = sent;
      encode(sent);
      for (size_t i = 0; i < count_; i++) {
        errors_[w][i] -= sent[i];
        sum[i] += sent[i];
      }
    }
    for (double& v : sum) v /= static_cast<double>(ranks_);
    Values out = sum;
    encode(out);
    for (size_t i = 0; i < count_; i++) {
      errors_[i / slice_][i] += (sum[i] - out[i]) * static_cast<double>(ranks_);
    }
    return out;
  }

 private:
  void encode(Values& values) const {
    for (size_t begin = 0; begin < count_; begin += slice_) {
      code_(values, begin, std::min(begin + slice_, count_), slice_);
    }
  }

  const size_t ranks_, count_;
  const bool feedback_;
  const Code code_;
  size_t slice_ = 0;
  std::vector<Values> errors_;
};

std::vector<Values> gradients_of(const Training& training, uint64_t step, size_t param, uint64_t count) {
  std::vector<Values> out(static_cast<size_t>(training.ranks));
  for (int r = 0; r < training.ranks; r++) {
    for (uint64_t e = 0; e < count; e++) {
      const auto value = static_cast<float>(training.value(step, r, param, e));
      out[static_cast<size_t>(r)].push_back(double{value});
    }
  }
  return out;
}

// Returns the difference of one parameter in one step.
double difference(const Values& got, const Values& expected) {
  if (got.size() != expected.size()) return INFINITY;
  double largest = 0;
  for (size_t e = 0; e < got.size(); e++) largest = std::max(largest, std::fabs(got[e] - expected[e]));
  return largest;
}

// Odd sizes, one, none, and more than one block for each rank.
const std::vector<TestParam>& odd_params() {
  static const std::vector<TestParam> params = {{"a", {31, 23}}, {"one", {}},     {"none", {0}},
                                                {"b", {7}},      {"c", {9, 421}}, {"zeros", {300}}};
  return params;
}

Training odd_training(int ranks) {
  Training training;
  training.ranks = ranks;
  training.steps = 5;
  training.rig.limits = {0};  // each parameter alone in its bucket
  training.value = [](uint64_t step, int rank, size_t param, uint64_t element) {
    return param == 5 ? 0.0 : noise(step, rank, param, element);
  };
  return training;
}

MakeHook made(const std::string& name, const std::string& options) {
  return [=](std::shared_ptr<Hook>* hook) { return built_in(name, options, hook); };
}

struct Published {
  const char* name;
  const char* options;
  size_t unit;
  bool feedback;
  Code code;
};

std::vector<Published> published() {
  const Code int8 = blocks(256, 127, [](double v) { return std::nearbyint(v); });
  const Code e4m3 = blocks(256, 448, [](double v) { return rounded(v, 3, -6); });
  const Code e5m2 = blocks(256, 57344, [](double v) { return rounded(v, 2, -14); });
  return {{"int8", "", 256, true, int8},
          {"int8", "feedback=0", 256, false, int8},
          {"fp8", "", 256, true, e4m3},
          {"fp8", "format=e5m2", 256, true, e5m2},
          {"onebit", "", 64, true, signs},
          {"topk", "ratio=0.1", 1, true, largest(0.1)},
          {"topk", "ratio=0.01 feedback=0", 1, false, largest(0.01)}};
}

}  // namespace

TEST_CASE("codes with feedback give the results of their published algorithms in f64, step after step") {
  const Model model(odd_params());
  for (const int ranks : {1, 2, 3, 4}) {
    for (const Published& hook : published()) {
      INFO(hook.name << " " << hook.options << ", " << ranks << " ranks");
      const Training training = odd_training(ranks);
      const Results results = train(model, made(hook.name, hook.options), training);
      CHECK(replicas_identical(results));
      uint64_t others = 0;
      for (size_t i = 0; i < model.size(); i++) {
        Reduction reference(ranks, model.count(i), hook.unit, hook.feedback, hook.code);
        for (uint64_t step = 0; step < training.steps; step++) {
          const Values expected = reference.step(gradients_of(training, step, i, model.count(i)));
          const Values& got = results[step][0][i];
          REQUIRE(got.size() == expected.size());
          for (size_t e = 0; e < got.size(); e++) others += std::fabs(got[e] - expected[e]) < 1e-5 ? 0 : 1;
        }
      }
      // A few of some 24,000 values lie just between two codes, and f32 may round them to the other one.
      CHECK(others <= 8);
    }
  }
}

TEST_CASE("quantize is DistributedDataParallel's, with a scale and a zero for a tensor or 512 values") {
  const Model model(odd_params());
  for (const int ranks : {1, 2, 3, 4}) {
    for (const bool channels : {false, true}) {
      INFO(ranks << " ranks, channels " << channels);
      const Training training = odd_training(ranks);
      const Results results = train(model, made("quantize", channels ? "per=channel" : ""), training);
      CHECK(replicas_identical(results));
      for (size_t i = 0; i < model.size(); i++) {
        const size_t count = model.count(i), channel = channels ? 512 : std::max<size_t>(count, 1);
        for (uint64_t step = 0; step < training.steps; step++) {
          Values expected(count);
          for (const Values& x : gradients_of(training, step, i, count)) {
            for (size_t begin = 0; begin < count; begin += channel) {
              const size_t end = std::min(begin + channel, count);
              double low = 0, high = 0;
              for (size_t e = begin; e < end; e++) low = std::min(low, x[e]), high = std::max(high, x[e]);
              const double scale = (high - low) / 255;
              if (scale == 0) continue;
              const double zero = std::clamp(std::nearbyint(-low / scale), 0.0, 255.0);
              for (size_t e = begin; e < end; e++) {
                const double code = std::clamp(std::nearbyint(x[e] / scale) + zero, 0.0, 255.0);
                expected[e] += scale * (code - zero) / ranks;
              }
            }
          }
          CHECK(difference(results[step][0][i], expected) < 1e-5);
        }
      }
    }
  }
}

TEST_CASE("casts round once on the way there and once on the way back, scaled first or as DDP does") {
  const Model model(odd_params());
  for (const int ranks : {1, 2, 3, 4}) {
    for (const bool half : {true, false}) {
      for (const bool ddp : {false, true}) {
        INFO(ranks << " ranks, fp16 " << half << ", ddp " << ddp);
        const auto narrow = [&](double v) { return half ? rounded(v, 10, -14) : rounded(v, 7, -126); };
        const Training training = odd_training(ranks);
        const auto scaled = [&](double v) {
          return double{static_cast<float>(v * double{static_cast<float>(1.0 / ranks)})};
        };
        const Results results = train(model, made(half ? "fp16" : "bf16", ddp ? "order=ddp" : ""), training);
        CHECK(replicas_identical(results));
        uint64_t wrong = 0;
        for (size_t i = 0; i < model.size(); i++) {
          for (uint64_t step = 0; step < training.steps; step++) {
            Values expected(model.count(i));
            for (const Values& x : gradients_of(training, step, i, expected.size())) {
              for (size_t e = 0; e < expected.size(); e++) {
                expected[e] += ddp ? narrow(scaled(narrow(x[e]))) : narrow(scaled(x[e]));
              }
            }
            for (size_t e = 0; e < expected.size(); e++) {
              wrong += results[step][0][i][e] == narrow(expected[e]) ? 0 : 1;
            }
          }
        }
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("batched_powersgd is the published algorithm on a bucket as one square matrix") {
  const Model model({{"a", {31, 23}}, {"b", {40}}, {"c", {17, 9}}});  // 906 values, a matrix of 31 x 31
  constexpr size_t kSide = 31;
  constexpr uint64_t kFirst = 3, kSteps = 7;
  for (const int ranks : {1, 2, 3, 4}) {
    INFO(ranks << " ranks");
    std::vector<Bytes> states(static_cast<size_t>(ranks));  // after step kFirst - 1, the first compressed one
    std::vector<Values> buckets(kSteps);                    // rank 0's results, in the bucket's order
    std::vector<std::pair<uint64_t, size_t>> order;         // offset and index of each parameter
    const auto failures = run_ranks(ranks, [&](Rank& self) {
      std::shared_ptr<Hook> hook;
      self.expect(built_in("batched_powersgd", "start=2 rank=2", &hook), "hook");
      std::unique_ptr<Reducer> reducer;
      self.expect(make_reducer(self.comm, model, hook, &reducer, {.limits = {1 << 20}}), "create");
      if (!reducer) return;
      Gradients gradients(model);
      if (self.rank == 0) {
        for (size_t i = 0; i < model.size(); i++) {
          weft_param_info info{};
          self.expect(reducer->param(i, &info), "param");
          order.emplace_back(info.offset, i);
        }
        std::sort(order.begin(), order.end());
      }
      for (uint64_t step = 0; step < kSteps; step++) {
        for (size_t i = 0; i < model.size(); i++) {
          for (uint64_t k = 0; k < model.count(i); k++) {
            store_as(Dtype::kF32, noise(step, self.rank, i, k), gradients[i] + gradients.at(i, k));
          }
        }
        self.expect(train_step(*reducer, gradients, step), "step");
        if (step + 1 == kFirst) self.expect(hook->save(&states[static_cast<size_t>(self.rank)]), "save");
        if (self.rank != 0) continue;
        for (const auto& [offset, i] : order) {
          const Values values = as_f64(model, gradients, i);
          buckets[step].insert(buckets[step].end(), values.begin(), values.end());
        }
      }
    });
    check(failures);
    // Starts from the Q and the errors that the first compressed step left.
    PowerSgdReference reference{kSide, kSide, {}, {}, {}, 0};
    const auto factors = arrays_in(states[0], "q");
    REQUIRE(factors.size() == 1);
    const std::vector<float>& q = factors.begin()->second;
    REQUIRE(q.size() == 2 * kSide);
    for (size_t k = 0; k < 2; k++) {
      reference.q.emplace_back(q.begin() + static_cast<ptrdiff_t>(k * kSide),
                               q.begin() + static_cast<ptrdiff_t>((k + 1) * kSide));
    }
    const auto square = [&](const auto& value) {
      Values out;
      for (const auto& [offset, i] : order) {
        for (uint64_t e = 0; e < model.count(i); e++) out.push_back(value(i, e));
      }
      out.resize(kSide * kSide);
      return out;
    };
    for (const Bytes& state : states) {
      const auto errors = arrays_in(state, "error");
      reference.errors.push_back(
          square([&](size_t i, uint64_t e) { return double{errors.at(model[i].name)[e]}; }));
    }
    for (uint64_t step = kFirst; step < kSteps; step++) {
      std::vector<Values> gradients;
      for (int r = 0; r < ranks; r++) {
        gradients.push_back(
            square([&](size_t i, uint64_t e) { return double{static_cast<float>(noise(step, r, i, e))}; }));
      }
      Values expected = reference.step(gradients);
      // Values beyond the bucket's end are not part of the error memory.
      for (Values& error : reference.errors) std::fill(error.begin() + 906, error.end(), 0.0);
      expected.resize(906);
      CHECK(difference(buckets[step], expected) < 1e-4);
    }
  }
}

TEST_CASE("over 100,000 steps the error memory of codes stays bounded", "[host]") {
  constexpr size_t kCount = 33;
  std::vector<float> base[2], more[2];
  for (int r = 0; r < 2; r++) {
    for (uint64_t k = 0; k < kCount; k++) base[r].push_back(static_cast<float>(noise(0, r, 0, k)));
    for (uint64_t k = 0; k < kCount * 64; k++) more[r].push_back(static_cast<float>(noise(0, r, 1, k)));
  }
  struct Drift {
    const char* name;
    const char* options;
  };
  constexpr uint64_t kSteps = 100'000;
  constexpr Drift kHooks[] = {{"int8", ""}, {"fp8", ""}, {"onebit", ""}, {"topk", "ratio=0.1"}};
  for (const auto& [name, options] : kHooks) {
    INFO(name << " " << options);
    SimulatedHook ranks(name, options, {kCount});
    double early = 0, late = 0;  // the largest norm in the first tenth of the steps, and after it
    for (uint64_t step = 0; step < kSteps; step++) {
      for (int r = 0; r < 2; r++) {
        const size_t from = (step * 37 % 64) * kCount;
        for (size_t k = 0; k < kCount; k++) ranks.values(r)[k] = base[r][k] + more[r][from + k];
      }
      ranks.step();
      if (step % 50 != 49) continue;
      double& largest = step < kSteps / 10 ? early : late;
      largest = std::max(largest, ranks.error_norm());
    }
    CHECK(early > 0);
    CHECK(late < 2 * early);
  }
}

}  // namespace unit_hooks_references
