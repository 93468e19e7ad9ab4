// Complex parameters under a hook of the program's own: the buckets that it sees, and its results, in every
// layout.
#include <complex>

#include "reducer_rig.h"

namespace unit_reducer_complex {

using namespace weft;
using namespace weft::test;

namespace {

// Records what a hook sees of complex parameters. The hook multiplies them by i, element by element.
struct Seen {
  std::vector<std::string> params;  // of each bucket: "name dtype [shape] [strides] offset count"
};

template <class Float>
void times_i(const weft_bucket& bucket, const weft_bucket_param& param) {
  Float* const pairs = static_cast<Float*>(bucket.buffer) + param.offset;
  for (uint64_t k = 0; k + 1 < param.count; k += 2) {
    const Float real = pairs[k];
    pairs[k] = -pairs[k + 1];
    pairs[k + 1] = real;
  }
}

std::shared_ptr<Hook> hook_that_turns(Seen* seen) {
  weft_hook_table table{};
  table.struct_size = sizeof table;
  table.name = "times_i";
  table.plan = [](void* data, const weft_bucket* bucket, weft_hook_plan* plan, char*) {
    for (uint64_t p = 0; p < bucket->param_count; p++) {
      const weft_bucket_param& param = bucket->params[p];
      const std::vector<int64_t> shape(param.shape, param.shape + param.ndim);
      const std::vector<int64_t> strides(param.strides, param.strides + param.ndim);
      static_cast<Seen*>(data)->params.push_back(cat(param.name, " ", name(static_cast<Dtype>(param.dtype)),
                                                     " ", list_text(shape), " by ", list_text(strides),
                                                     " at ", param.offset, ", ", param.count));
    }
    plan->collective_count = 1;
    plan->collectives[0].coll = WEFT_COLL_ALL_REDUCE;
    plan->collectives[0].dtype = bucket->dtype;
    plan->collectives[0].op = WEFT_OP_AVG;
    plan->collectives[0].count = bucket->count;
    return WEFT_OK;
  };
  table.stage = [](void*, const weft_bucket* bucket, weft_stage* stage, char*) {
    for (uint64_t p = 0; stage->index == 0 && p < bucket->param_count; p++) {
      const weft_bucket_param& param = bucket->params[p];
      if (param.name[0] != 'z') continue;
      bucket->dtype == WEFT_DTYPE_F32 ? times_i<float>(*bucket, param) : times_i<double>(*bucket, param);
    }
    return WEFT_OK;
  };
  std::shared_ptr<Hook> hook;
  if (!make_hook_table(table, seen, &hook).ok()) return nullptr;
  return hook;
}

}  // namespace

TEST_CASE("a hook of the program's own computes with complex gradients as pairs, in their strides") {
  using Single = std::complex<float>;
  using Double = std::complex<double>;
  // "turned" is column-major. "gaps" has no consecutive elements, so its bucket is row-major.
  const int64_t turned[] = {3, 2}, by_columns[] = {1, 3}, scalar[] = {1}, eight[] = {8}, apart[] = {2},
                real[] = {5};
  const int64_t one[] = {1};
  weft_param params[5] = {};
  params[0] = {sizeof params[0], "z.turned", WEFT_DTYPE_C64, 2, turned, by_columns};
  params[1] = {sizeof params[1], "real", WEFT_DTYPE_F32, 1, real, one};
  params[2] = {sizeof params[2], "z.gaps", WEFT_DTYPE_C64, 1, eight, apart};
  params[3] = {sizeof params[3], "z.double", WEFT_DTYPE_C128, 1, eight, one};
  params[4] = {sizeof params[4], "z.scalar", WEFT_DTYPE_C64, 0, scalar, one};
  for (const int32_t mode : {WEFT_GRADIENT_COPY, WEFT_GRADIENT_VIEW}) {
    check(run_threads(2, [&](Rank& self) {
      Seen seen;
      weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
      options.params = params;
      options.param_count = mode == WEFT_GRADIENT_VIEW ? 2 : 5;  // gaps are only possible in copy mode
      options.mode = mode;
      std::unique_ptr<Reducer> reducer;
      self.expect(Reducer::create(self.comm, options, hook_that_turns(&seen), &reducer), "create");
      if (!reducer) return;
      std::vector<Single> a(6), c(16, Single(99)), e(1);
      std::vector<Double> d(8);
      std::vector<float> b(5);
      std::vector<void*> places = {a.data(), b.data(), c.data(), d.data(), e.data()};
      for (uint64_t i = 0; mode == WEFT_GRADIENT_VIEW && i < 2; i++) {
        self.expect(reducer->grad_view(i, &places[i]), "view");
      }
      auto* const first = static_cast<Single*>(places[0]);
      auto* const plain = static_cast<float*>(places[1]);
      for (int step = 0; step < 2; step++) {
        const auto mine = static_cast<float>(1 + self.rank + step);  // the mean is 1.5 + step
        for (int k = 0; k < 6; k++) first[k] = Single(mine * static_cast<float>(k), mine);
        for (int k = 0; k < 8; k++) c[static_cast<size_t>(2 * k)] = Single(mine, static_cast<float>(k));
        for (int k = 0; k < 8; k++) d[static_cast<size_t>(k)] = Double(k, double{mine} + k);
        e[0] = Single(0, mine);
        std::fill_n(plain, 5, mine);
        self.expect(reducer->begin(nullptr), "begin");
        for (uint64_t i = 0; i < options.param_count; i++) {
          self.expect(reducer->ready(i, static_cast<std::byte*>(places[i]), nullptr), "ready");
        }
        self.expect(reducer->finish({}), "finish");
        const float mean = 1.5f + static_cast<float>(step);
        for (int k = 0; k < 6; k++) {
          self.expect(first[k] == Single(-mean, mean * static_cast<float>(k)), cat("turned ", k));
        }
        self.expect(plain[0] == mean && plain[4] == mean, "what is real stays so");
        if (mode == WEFT_GRADIENT_VIEW) continue;
        for (int k = 0; k < 8; k++) {
          const auto at = static_cast<size_t>(k);
          self.expect(c[2 * at] == Single(-static_cast<float>(k), mean), cat("gaps ", k));
          self.expect(c[2 * at + 1] == Single(99), "the gap");
          self.expect(d[at] == Double(-(double{mean} + k), k), cat("double ", k));
        }
        self.expect(e[0] == Single(-mean, 0), "scalar");
      }
      const auto saw = [&](const std::string& text) {
        self.expect(std::find(seen.params.begin(), seen.params.end(), text) != seen.params.end(),
                    cat(text, " of: ", seen.params.front()));
      };
      saw("z.turned f32 3, 2, 2 by 2, 6, 1 at 0, 12");
      saw("real f32 5 by 1 at 0, 5");
      if (mode == WEFT_GRADIENT_VIEW) return;
      saw("z.gaps f32 8, 2 by 2, 1 at 12, 16");
      saw("z.scalar f32 2 by 1 at 28, 2");
      saw("z.double f64 8, 2 by 2, 1 at 0, 16");
    }));
  }
}

}  // namespace unit_reducer_complex
