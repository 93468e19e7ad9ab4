// Built-in hooks through the public header: hooks that equal other hooks, and hooks over a communicator of
// their own. The latter are saved and restored over another communicator; unsupported reducers are refused.
#include <cmath>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "capi/ranks.h"
#include "support/catch.h"

namespace capi_hook_comm {

namespace {

using weft_test::Rank;

class Report {
 public:
  void expect(bool ok, const std::string& what) {
    if (ok) return;
    const std::lock_guard lock(mutex_);
    text_ += what + "; ";
  }
  const std::string& text() const { return text_; }

 private:
  std::mutex mutex_;
  std::string text_;
};

void run(int ranks, Report* report, const std::function<void(Rank&)>& body,
         const char* backend = "loopback") {
  const std::string error = weft_test::run(backend, ranks, WEFT_PROGRESS_THREAD, body);
  CHECK(error == "");
  CHECK(report->text() == "");
}

bool has(const char* text, const char* part) {
  return std::strstr(text, part) != nullptr;
}

constexpr int64_t kRows = 24, kColumns = 31;
constexpr size_t kCount = kRows * kColumns;

float gradient_of(int step, int rank, size_t i) {
  return static_cast<float>(std::sin(static_cast<double>(step) * 7 + rank * 3 + static_cast<double>(i)));
}

weft_comm* part_of(weft_comm* comm, int color, Report* report) {
  weft_comm* part = nullptr;
  weft_error error = WEFT_ERROR_INIT;
  report->expect(weft_comm_split(comm, color, 0, &part, &error) == WEFT_OK, error.text);
  return part;
}

weft_status make_reducer(weft_comm* comm, weft_hook* hook, uint64_t flags, weft_reducer** reducer,
                         weft_error* error) {
  const int64_t shape[2] = {kRows, kColumns};
  weft_param param = WEFT_PARAM_INIT;
  param.name = "weight";
  param.dtype = WEFT_DTYPE_F32;
  param.ndim = 2;
  param.shape = shape;
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  options.params = &param;
  options.param_count = 1;
  options.hook = hook;
  options.flags = flags;
  return weft_reducer_create(comm, &options, reducer, error);
}

// Runs steps [first, end) of a new reducer and returns their results.
std::vector<std::vector<float>> train(weft_comm* comm, weft_hook* hook, int rank, int first, int end,
                                      Report* report) {
  std::vector<std::vector<float>> results;
  weft_error error = WEFT_ERROR_INIT;
  weft_reducer* reducer = nullptr;
  report->expect(make_reducer(comm, hook, 0, &reducer, &error) == WEFT_OK, error.text);
  for (int step = first; step < end && reducer != nullptr; step++) {
    std::vector<float>& gradient = results.emplace_back(kCount);
    for (size_t i = 0; i < kCount; i++) gradient[i] = gradient_of(step, rank, i);
    weft_reducer_begin(reducer, nullptr);
    weft_reducer_ready(reducer, 0, gradient.data(), nullptr);
    report->expect(weft_reducer_finish(reducer, nullptr) == WEFT_OK, "finish");
  }
  weft_reducer_destroy(&reducer);
  return results;
}

std::vector<char> save(weft_hook* hook, Report* report) {
  uint64_t size = 0;
  weft_hook_save(hook, nullptr, &size, nullptr);
  std::vector<char> blob(size);
  report->expect(weft_hook_save(hook, blob.data(), &size, nullptr) == WEFT_OK, "save");
  return blob;
}

weft_hook* make_hook(weft_context* context, const char* name, const char* options, weft_comm* comm,
                     Report* report) {
  weft_error error = WEFT_ERROR_INIT;
  weft_hook_params params = WEFT_HOOK_PARAMS_INIT;
  params.options = options;
  params.comm = comm;
  params.error = &error;
  weft_hook* hook = nullptr;
  report->expect(weft_hook_create(context, name, &params, &hook) == WEFT_OK, error.text);
  return hook;
}

// Restores the saved hook over this communicator.
weft_status make_again(weft_context* context, const char* name, const char* options,
                       const std::vector<char>& blob, weft_comm* comm, weft_hook** hook, weft_error* error) {
  weft_hook_params params = WEFT_HOOK_PARAMS_INIT;
  params.options = options;
  params.comm = comm;
  params.error = error;
  params.saved = blob.data();
  params.saved_size = blob.size();
  return weft_hook_create(context, name, &params, hook);
}

}  // namespace

TEST_CASE("no hook is allreduce, and a cast is the cast around allreduce, bit by bit") {
  Report report;
  run(3, &report, [&](Rank& r) {
    weft_hook* plain = make_hook(r.context, "allreduce", nullptr, nullptr, &report);
    report.expect(
        train(r.comm, nullptr, r.rank, 0, 3, &report) == train(r.comm, plain, r.rank, 0, 3, &report),
        "no hook differs");
    for (const char* const name : {"fp16", "bf16"}) {
      weft_hook* cast = make_hook(r.context, name, nullptr, nullptr, &report);
      weft_hook_params params = WEFT_HOOK_PARAMS_INIT;
      params.inner = plain;
      weft_hook* around = nullptr;
      report.expect(weft_hook_create(r.context, name, &params, &around) == WEFT_OK, name);
      report.expect(
          train(r.comm, cast, r.rank, 0, 3, &report) == train(r.comm, around, r.rank, 0, 3, &report), name);
      weft_hook_destroy(&around);
      weft_hook_destroy(&cast);
    }
    weft_hook_destroy(&plain);
  });
}

TEST_CASE("a cast around post_local_sgd averages over all ranks, later over the hook's own communicator") {
  Report report;
  run(4, &report, [&](Rank& r) {
    weft_comm* pair = part_of(r.comm, r.rank / 2, &report);
    weft_hook* inner = make_hook(r.context, "post_local_sgd", "start=2", pair, &report);
    weft_hook_params params = WEFT_HOOK_PARAMS_INIT;
    params.inner = inner;
    weft_hook* hook = nullptr;
    report.expect(weft_hook_create(r.context, "fp16", &params, &hook) == WEFT_OK, "fp16");
    const auto results = train(r.comm, hook, r.rank, 0, 4, &report);
    for (int step = 0; step < static_cast<int>(results.size()); step++) {
      const int first = step < 2 ? 0 : r.rank / 2 * 2, ranks = step < 2 ? 4 : 2;
      float largest = 0;
      for (size_t i = 0; i < kCount; i++) {
        float sum = 0;
        for (int rank = first; rank < first + ranks; rank++) sum += gradient_of(step, rank, i);
        const float mean = sum / static_cast<float>(ranks);
        largest = std::max(largest, std::fabs(results[static_cast<size_t>(step)][i] - mean));
      }
      report.expect(largest < 1e-3f, "step " + std::to_string(step));
    }
    weft_hook_destroy(&hook);
    weft_hook_destroy(&inner);
    weft_comm_destroy(&pair);
  });
}

TEST_CASE("a hook over its own communicator continues from its blob over another such communicator") {
  constexpr const char* kHooks[][2] = {{"powersgd", "start=2 rank=2"},
                                       {"int8", "rounding=stochastic"},
                                       {"topk", "ratio=0.1"},
                                       {"post_local_sgd", "start=6"},
                                       {"bf16", ""}};
  Report report;
  run(4, &report, [&](Rank& r) {
    for (const auto& name : kHooks) {
      weft_comm* pair = part_of(r.comm, r.rank / 2, &report);
      weft_hook* hook = make_hook(r.context, name[0], name[1], pair, &report);
      const auto whole = train(r.comm, hook, r.rank, 0, 10, &report);
      weft_hook_destroy(&hook);
      hook = make_hook(r.context, name[0], name[1], pair, &report);
      train(r.comm, hook, r.rank, 0, 5, &report);
      const std::vector<char> blob = save(hook, &report);
      weft_hook_destroy(&hook);
      weft_comm_destroy(&pair);

      pair = part_of(r.comm, r.rank / 2, &report);
      weft_error error = WEFT_ERROR_INIT;
      report.expect(make_again(r.context, nullptr, nullptr, blob, pair, &hook, &error) == WEFT_OK,
                    error.text);
      const auto rest = train(r.comm, hook, r.rank, 5, 10, &report);
      report.expect(rest == decltype(rest)(whole.begin() + 5, whole.end()),
                    std::string(name[0]) + " differs");
      weft_hook_destroy(&hook);
      weft_comm_destroy(&pair);
    }
  });
}

TEST_CASE("an invalid blob is refused with the reason, and a given name must be the saved hook's") {
  Report report;
  run(1, &report, [&](Rank& r) {
    weft_hook* hook = make_hook(r.context, "int8", "seed=3", r.comm, &report);
    const std::vector<char> blob = save(hook, &report);
    weft_hook_destroy(&hook);
    weft_error error = WEFT_ERROR_INIT;
    const auto refused = [&](weft_status status, weft_status expected, const char* text) {
      report.expect(status == expected && has(error.text, text) && hook == nullptr, error.text);
    };
    refused(weft_hook_create_saved(r.context, blob.data(), blob.size(), &hook, &error), WEFT_ERR_ARG,
            "had a communicator of its own: create it by weft_hook_create");
    refused(make_again(r.context, nullptr, "seed=3", blob, r.comm, &hook, &error), WEFT_ERR_ARG,
            "the saved hook keeps its own options");
    refused(make_again(r.context, "int8", "seed=4", blob, r.comm, &hook, &error), WEFT_ERR_MISMATCH,
            "belongs to hook 'int8(");
    const std::vector<char> cut(blob.begin(), blob.end() - 1);
    refused(make_again(r.context, nullptr, nullptr, cut, r.comm, &hook, &error), WEFT_ERR_ARG,
            "is truncated");
    weft_hook_params params = WEFT_HOOK_PARAMS_INIT;
    params.error = &error;
    params.saved_size = 5;
    refused(weft_hook_create(r.context, "int8", &params, &hook), WEFT_ERR_ARG, "saved is NULL");
    report.expect(make_again(r.context, "int8", "seed=3", blob, nullptr, &hook, &error) == WEFT_OK,
                  error.text);
    weft_hook_destroy(&hook);
  });
}

TEST_CASE("with a hook's own communicator uneven inputs and a rebind are refused, and the hook continues") {
  Report report;
  std::atomic<int> arrived{0};
  run(4, &report, [&](Rank& r) {
    weft_error error = WEFT_ERROR_INIT;
    weft_comm* pair = part_of(r.comm, r.rank / 2, &report);
    weft_hook* hook = make_hook(r.context, "post_local_sgd", "start=3", pair, &report);
    weft_reducer* reducer = nullptr;
    report.expect(
        make_reducer(r.comm, hook, WEFT_REDUCER_UNEVEN, &reducer, &error) == WEFT_ERR_UNSUPPORTED &&
            has(error.text, "over a communicator of its own' cannot be used with WEFT_REDUCER_UNEVEN"),
        error.text);
    train(r.comm, hook, r.rank, 0, 5, &report);
    const std::vector<char> blob = save(hook, &report);
    report.expect(make_reducer(r.comm, hook, 0, &reducer, &error) == WEFT_OK, error.text);
    if (r.rank != 3) arrived++;
    if (r.rank == 3) {  // leaves
      while (arrived < 3) std::this_thread::yield();
      weft_reducer_destroy(&reducer);
      weft_hook_destroy(&hook);
      weft_comm_destroy(&pair);
      weft_comm_destroy(&r.comm);
      return;
    }
    report.expect(weft_barrier(r.comm, nullptr, nullptr) != WEFT_OK, "rank 3 is gone");
    weft_comm* survivors = nullptr;
    report.expect(weft_comm_shrink(r.comm, nullptr, &survivors, &error) == WEFT_OK, error.text);
    report.expect(weft_reducer_rebind(reducer, survivors, &error) == WEFT_ERR_UNSUPPORTED &&
                      has(error.text, "create a new hook and a new reducer"),
                  error.text);
    weft_reducer_destroy(&reducer);
    weft_hook_destroy(&hook);
    weft_comm_destroy(&pair);

    // Ranks 0 and 1 remain of one pair, rank 2 of the other. Five steps were made, so averages are local by
    // now.
    pair = part_of(survivors, r.rank / 2, &report);
    report.expect(make_again(r.context, nullptr, nullptr, blob, pair, &hook, &error) == WEFT_OK, error.text);
    const auto results = train(survivors, hook, r.rank, 5, 7, &report);
    for (int step = 5; step < 5 + static_cast<int>(results.size()); step++) {
      bool right = true;
      for (size_t i = 0; i < kCount; i++) {
        const float mean =
            r.rank == 2 ? gradient_of(step, 2, i) : (gradient_of(step, 0, i) + gradient_of(step, 1, i)) / 2;
        right &= results[static_cast<size_t>(step - 5)][i] == mean;
      }
      report.expect(right, "step " + std::to_string(step));
    }
    weft_hook_destroy(&hook);
    weft_comm_destroy(&pair);
    weft_comm_destroy(&survivors);
  });
}

TEST_CASE("a hook's communicator without a free lane on some ranks is a temporary error on all ranks") {
  Report report;
  const auto create_and_end = [&](Rank& r, weft_comm* pair, const std::string& refused) {
    weft_error error = WEFT_ERROR_INIT;
    weft_hook* hook = make_hook(r.context, "post_local_sgd", "start=3", pair, &report);
    weft_reducer* reducer = nullptr;
    const weft_status made = make_reducer(r.comm, hook, 0, &reducer, &error);
    const bool right =
        refused.empty() ? made == WEFT_OK : made == WEFT_ERR_UNSUPPORTED && has(error.text, refused.c_str());
    report.expect(right, "rank " + std::to_string(r.rank) + ": " + error.text);
    weft_reducer_destroy(&reducer);
    weft_hook_destroy(&hook);
  };
  run(
      4, &report,
      [&](Rank& r) {
        weft_comm* pair = part_of(r.comm, r.rank / 2, &report);
        // Creates and destroys as many hooks as there are lanes, one after the other.
        for (int i = 0; i < 70; i++) create_and_end(r, pair, "");
        std::vector<weft_reducer*> others(r.rank < 2 ? 63 : 0);
        weft_error error = WEFT_ERROR_INIT;
        for (weft_reducer*& other : others) {
          report.expect(make_reducer(pair, nullptr, 0, &other, &error) == WEFT_OK, error.text);
        }
        const std::string why = "the communicator of hook 'post_local_sgd";
        for (int time = 0; time < 2; time++)
          create_and_end(r, pair, r.rank < 2 ? why : "rank 0 cannot create the reducer: " + why);
        for (weft_comm* comm : {r.comm, pair})
          report.expect(weft_barrier(comm, nullptr, nullptr) == WEFT_OK, "a communicator has failed");
        if (!others.empty()) weft_reducer_destroy(&others[7]);
        create_and_end(r, pair, "");
        for (weft_reducer*& other : others) weft_reducer_destroy(&other);
        weft_comm_destroy(&pair);
      },
      "shm");
}

}  // namespace capi_hook_comm
