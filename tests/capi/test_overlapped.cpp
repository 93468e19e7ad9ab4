// The optimizer steps as each bucket completes, by weft_reducer_wait_param and inside on_bucket. The weights
// equal those of stepping after finish, bit by bit.
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <string>
#include <vector>

#include "capi/ranks.h"
#include "support/catch.h"

namespace capi_overlapped {

namespace {

using weft_test::Rank;

constexpr int kSteps = 12;
constexpr size_t kSizes[] = {700, 3, 1200, 1, 2500, 64};
constexpr size_t kParams = std::size(kSizes);

enum class When { kAfterFinish, kWhenWaitedFor, kInCallback };

// A model whose loss couples its parameters, trained by SGD with momentum.
struct Training {
  std::vector<std::vector<float>> weights, momentum, gradients;
  weft_reducer* reducer = nullptr;
  uint32_t buckets = 0;
  // Buckets whose optimizer step was made in the callback.
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t stepped = 0;  // guarded by mutex
  std::atomic<int> failed{0};
  std::vector<std::vector<uint64_t>> params_of;

  Training() {
    for (const size_t size : kSizes) {
      weights.emplace_back(size, 0.5f);
      momentum.emplace_back(size, 0.0f);
      gradients.emplace_back(size);
    }
  }
  void backward(size_t p, int rank, int step) {
    const std::vector<float>& before = weights[(p + 1) % kParams];
    for (size_t i = 0; i < gradients[p].size(); i++) {
      const float other = before[i % before.size()];
      gradients[p][i] = weights[p][i] * 0.3f + other * 0.1f -
                        std::sin(static_cast<float>(i) * 0.1f + static_cast<float>(rank + step));
    }
  }
  void update(size_t p) {
    for (size_t i = 0; i < weights[p].size(); i++) {
      momentum[p][i] = 0.9f * momentum[p][i] + gradients[p][i];
      weights[p][i] -= 0.01f * momentum[p][i];
    }
  }
  static void on_bucket(void* self, uint64_t, uint32_t bucket, weft_status status) {
    auto& t = *static_cast<Training*>(self);
    if (status != WEFT_OK) t.failed++;
    for (const uint64_t p : t.params_of[bucket]) t.update(p);
    const std::lock_guard lock(t.mutex);
    t.stepped++;
    t.changed.notify_all();
  }
};

std::vector<std::vector<float>> train(Rank& r, When when, std::string* wrong) {
  Training t;
  std::vector<std::string> names;
  std::vector<int64_t> shapes(std::begin(kSizes), std::end(kSizes));
  for (size_t p = 0; p < kParams; p++) names.push_back("p" + std::to_string(p));
  std::vector<weft_param> params(kParams, weft_param WEFT_PARAM_INIT);
  for (size_t p = 0; p < kParams; p++) {
    params[p].name = names[p].c_str();
    params[p].dtype = WEFT_DTYPE_F32;
    params[p].ndim = 1;
    params[p].shape = &shapes[p];
  }
  const uint64_t limit = 3000;
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  options.params = params.data();
  options.param_count = kParams;
  options.bucket_limits = &limit;
  options.bucket_limit_count = 1;
  if (when == When::kInCallback) {
    options.on_bucket = Training::on_bucket;
    options.on_bucket_user_data = &t;
  }
  weft_error error = WEFT_ERROR_INIT;
  if (weft_reducer_create(r.comm, &options, &t.reducer, &error) != WEFT_OK) *wrong += error.text;
  weft_reducer_bucket_count(t.reducer, &t.buckets);
  for (uint32_t b = 0; b < t.buckets; b++) {
    weft_bucket_info info{};
    info.struct_size = sizeof info;
    std::vector<uint64_t> members(kParams);
    weft_reducer_bucket(t.reducer, b, &info, members.data(), kParams);
    members.resize(info.param_count);
    t.params_of.push_back(members);
  }
  for (int step = 0; step < kSteps; step++) {
    // All gradients are computed first, because they use the weights of other parameters.
    for (size_t p = 0; p < kParams; p++) t.backward(p, r.rank, step);
    weft_status status = weft_reducer_begin(t.reducer, nullptr);
    for (size_t p = kParams; p-- > 0;) {
      if (status == WEFT_OK) status = weft_reducer_ready(t.reducer, p, t.gradients[p].data(), nullptr);
    }
    for (uint32_t b = 0; b < t.buckets && when == When::kWhenWaitedFor; b++) {
      for (const uint64_t p : t.params_of[b]) {
        if (status == WEFT_OK) status = weft_reducer_wait_param(t.reducer, p, 10'000);
        t.update(p);
      }
    }
    if (status == WEFT_OK) status = weft_reducer_finish(t.reducer, nullptr);
    if (status != WEFT_OK) {
      weft_reducer_error(t.reducer, &error);
      *wrong += error.text;
      break;
    }
    if (when == When::kAfterFinish) {
      for (size_t p = 0; p < kParams; p++) t.update(p);
    } else if (when == When::kInCallback) {
      std::unique_lock lock(t.mutex);
      const uint64_t expected = static_cast<uint64_t>(step + 1) * t.buckets;
      if (!t.changed.wait_for(lock, std::chrono::seconds(10), [&] { return t.stepped == expected; })) {
        *wrong += "callbacks are missing";
        break;
      }
    }
  }
  weft_reducer_destroy(&t.reducer);
  if (t.failed != 0) *wrong += "a bucket failed";
  return t.weights;
}

}  // namespace

TEST_CASE("weights that are stepped as each bucket completes equal those stepped after finish, bit by bit") {
  for (const int32_t progress : {WEFT_PROGRESS_THREAD, WEFT_PROGRESS_CALLER}) {
    INFO("progress mode " << progress);
    std::string wrong[2];
    bool equal[2] = {};
    const std::string error = weft_test::run("loopback", 2, progress, [&](Rank& r) {
      std::string& mine = wrong[r.rank];
      const auto after = train(r, When::kAfterFinish, &mine);
      equal[r.rank] =
          train(r, When::kWhenWaitedFor, &mine) == after && train(r, When::kInCallback, &mine) == after;
    });
    CHECK(error == "");
    for (int rank = 0; rank < 2; rank++) {
      CHECK(wrong[rank] == "");
      CHECK(equal[rank]);
    }
  }
}

}  // namespace capi_overlapped
