// The model's state through the C ABI, as a framework uses it for a model with running statistics.
#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "capi/ranks.h"
#include "support/catch.h"

namespace capi_values {

using weft_test::kBackends;
using weft_test::Rank;

namespace {

// A weight, a running mean, a counter, and memory that belongs to neither.
struct Model {
  explicit Model(int rank) : mean{rank * 1.0, rank * 2.0}, batches(rank) {
    for (size_t i = 0; i < 6; i++) weight[i] = gradient[i] = static_cast<float>(rank + static_cast<int>(i));
    const auto set = [](weft_param* p, const char* name, int32_t dtype, int32_t ndim, const int64_t* shape,
                        uint64_t flags, void* value) {
      *p = weft_param WEFT_PARAM_INIT;
      p->name = name;
      p->dtype = dtype;
      p->ndim = ndim;
      p->shape = shape;
      p->flags = flags;
      p->parameter = value;
    };
    set(&params[0], "weight", WEFT_DTYPE_F32, 2, shape, 0, weight);
    set(&params[1], nullptr, 0, 0, nullptr, WEFT_PARAM_IGNORED, nullptr);
    set(&params[2], "mean", WEFT_DTYPE_F64, 1, shape, WEFT_PARAM_BUFFER, mean);
    set(&params[3], "batches", WEFT_DTYPE_I64, 0, nullptr, WEFT_PARAM_BUFFER, &batches);
    options.params = params;
    options.param_count = 4;
    options.flags = WEFT_REDUCER_BUFFERS | WEFT_REDUCER_UNEVEN | WEFT_REDUCER_KEEP_VALUES;
    options.buffers_root = WEFT_ROOT_LAST_ACTIVE;
    options.check_interval = 1;
  }
  const int64_t shape[2] = {2, 3};
  float weight[6], gradient[6];
  double mean[2];
  int64_t batches;
  weft_param params[4];
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
};

}  // namespace

TEST_CASE("a model's state is broadcast, checked, and its buffers follow the last rank with data") {
  for (const char* backend : kBackends) {
    for (const int32_t progress : {WEFT_PROGRESS_THREAD, WEFT_PROGRESS_CALLER}) {
      std::atomic<int> wrong{0};
      const auto expect = [&](bool ok) { wrong += ok ? 0 : 1; };
      const std::string error = weft_test::run(backend, 3, progress, [&](Rank& r) {
        Model model(r.rank);
        weft_error details = WEFT_ERROR_INIT;
        weft_reducer* reducer = nullptr;
        expect(weft_reducer_create(r.comm, &model.options, &reducer, &details) == WEFT_OK);
        if (reducer == nullptr) return;
        expect(weft_reducer_check(reducer, &details) == WEFT_ERR_MISMATCH);
        expect(std::strstr(details.text, "'weight'") != nullptr);
        expect(weft_reducer_begin(reducer, nullptr) == WEFT_ERR_MISMATCH);
        weft_broadcast_options how = WEFT_BROADCAST_OPTIONS_INIT;
        how.root = 1;
        how.chunk_bytes = 16;
        expect(weft_reducer_broadcast(reducer, &how, &details) == WEFT_OK);
        expect(model.weight[5] == 6 && model.mean[1] == 2 && model.batches == 1);
        expect(weft_reducer_check(reducer, nullptr) == WEFT_OK);
        model.batches = 10 + r.rank;
        weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
        begin.flags = r.rank == 2 ? WEFT_BEGIN_NO_DATA : 0;
        expect(weft_reducer_begin(reducer, &begin) == WEFT_OK);
        expect(model.batches == 11);
        expect(weft_reducer_ready(reducer, 1, nullptr, nullptr) == WEFT_ERR_ARG);
        if (r.rank < 2) expect(weft_reducer_ready(reducer, 0, model.gradient, nullptr) == WEFT_OK);
        expect(weft_reducer_finish(reducer, nullptr) == WEFT_OK);
        if (r.rank < 2) expect(model.gradient[0] == 1.0f / 3);
        weft_param_info info{};
        info.struct_size = sizeof info;
        expect(weft_reducer_param(reducer, 2, &info) == WEFT_OK && info.bucket == UINT32_MAX);
        expect(weft_reducer_join(reducer, nullptr, nullptr) == WEFT_OK);
        how.root = WEFT_ROOT_LAST_ACTIVE;
        model.weight[0] = static_cast<float>(r.rank);
        expect(weft_reducer_broadcast(reducer, &how, nullptr) == WEFT_OK && model.weight[0] == 1);
        expect(weft_reducer_broadcast(nullptr, nullptr, nullptr) == WEFT_ERR_ARG);
        expect(weft_reducer_check(nullptr, nullptr) == WEFT_ERR_ARG);
        weft_broadcast_options unreadable = how;
        unreadable.struct_size = r.rank == 0 ? 3 : sizeof unreadable;
        expect(weft_reducer_broadcast(reducer, &unreadable, &details) ==
               (r.rank == 0 ? WEFT_ERR_ARG : WEFT_ERR_MISMATCH));
        how.flags = 8;
        expect(weft_reducer_broadcast(reducer, &how, &details) == WEFT_ERR_ARG);
        expect(weft_reducer_destroy(&reducer) == WEFT_OK);
      });
      INFO(backend << " progress " << progress << " " << error);
      CHECK(error.empty());
      CHECK(wrong == 0);
    }
  }
}

}  // namespace capi_values
