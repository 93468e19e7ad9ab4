// Streams that wait for a reducer's results in place of the host, for one parameter or for the whole step.
// The tests check when the streams continue, also if the step fails or its objects are destroyed. Runs on the
// fake CUDA, and in tests/gpu on a real one.
#include <thread>

#include "capi/reducer_pair.h"

namespace capi_cuda_streams {

using namespace weft_test;

namespace {

constexpr uint64_t kLate = 0, kEarly = 1;  // buckets are communicated in the reverse order of the list
constexpr int64_t kCount = 5000;

// A rank's reducer of two gradients. Each is alone in its bucket and computed on a stream of its own.
class Pair {
 public:
  explicit Pair(Rank& rank, uint64_t flags = 0, int64_t timeout_ms = 0) : rank_(rank) {
    const uint64_t limit = 0;
    weft_param params[2] = {WEFT_PARAM_INIT, WEFT_PARAM_INIT};
    for (const uint64_t i : {kLate, kEarly}) {
      params[i].name = i == kLate ? "late" : "early";
      params[i].dtype = WEFT_DTYPE_F32;
      params[i].ndim = 1;
      params[i].shape = &kCount;
      params[i].device_kind = WEFT_DEVICE_CUDA;
    }
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = params;
    options.param_count = 2;
    options.bucket_limits = &limit;
    options.bucket_limit_count = 1;
    options.flags = flags;
    options.timeout_ms = timeout_ms;
    weft_error error = WEFT_ERROR_INIT;
    if (weft_reducer_create(rank.comm, &options, &reducer_, &error) != WEFT_OK) created_ = error.text;
  }
  ~Pair() { weft_reducer_destroy(&reducer_); }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  const std::string& created() const { return created_; }
  weft_reducer* get() const { return reducer_; }
  void destroy() { weft_reducer_destroy(&reducer_); }
  std::string error() const { return ReducerPair::error(reducer_); }
  Stream& stream(uint64_t param) { return streams_[param]; }
  bool begin() { return weft_reducer_begin(reducer_, nullptr) == WEFT_OK; }
  // Writes rank + 1 on the gradient's stream and calls ready.
  bool ready(uint64_t param) {
    buffers_[param].write(streams_[param], [&](size_t) { return static_cast<float>(rank_.rank + 1); });
    return weft_reducer_ready(reducer_, param, buffers_[param].get(), streams_[param].view()) == WEFT_OK;
  }
  // Runs a step, so that no later step makes allocations: they may wait for the device while a stream is
  // held.
  bool warm_up(const Stream& stream) {
    bool good = begin() && ready(kLate) && ready(kEarly);
    for (const uint64_t param : {kLate, kEarly}) good = good && wait_on(stream, param) == WEFT_OK;
    good = good && finish_on(stream) == WEFT_OK && weft_reducer_finish(reducer_, nullptr) == WEFT_OK;
    return good && cudaStreamSynchronize(stream.get()) == cudaSuccess;
  }
  weft_status wait_on(const Stream& stream, uint64_t param) {
    return weft_reducer_stream_wait_param(reducer_, param, stream.view());
  }
  weft_status finish_on(const Stream& stream) {
    weft_finish_options options = WEFT_FINISH_OPTIONS_INIT;
    options.stream = stream.view();
    return weft_reducer_finish(reducer_, &options);
  }
  // Returns true if the gradient is the mean, read in stream order.
  bool averaged(const Stream& stream, uint64_t param) {
    const float mean = static_cast<float>(rank_.size + 1) / 2;
    return buffers_[param].read(stream) == std::vector<float>(kCount, mean);
  }

 private:
  const Rank& rank_;
  Stream streams_[2];
  DeviceBuffer<float> buffers_[2] = {DeviceBuffer<float>(kCount), DeviceBuffer<float>(kCount)};
  weft_reducer* reducer_ = nullptr;
  std::string created_;
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void open(int* gate) {
  __atomic_store_n(gate, 1, __ATOMIC_RELEASE);
}

bool goes_on(const Stream& stream) {
  return cudaStreamSynchronize(stream.get()) == cudaSuccess;
}

}  // namespace

TEST_CASE("a stream continues with one parameter's result before later buckets are communicated",
          "[stream_waits]") {
  const FakeCuda fake(1, 3, 50);
  RankFailures failures;
  failures.expect(run("shm", 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    int gate = 0;
    Pair pair(r);
    failures.expect(pair.created());
    const Stream optimizer;
    failures.expect(pair.warm_up(optimizer), "the first step: " + pair.error());
    for (int step = 0; step < 3; step++) {
      gate = 0;
      failures.expect(pair.begin(), "begin");
      pair.stream(kLate).hold(&gate);
      failures.expect(pair.ready(kLate) && pair.ready(kEarly), "ready");
      failures.expect(pair.wait_on(optimizer, kEarly) == WEFT_OK, "wait: " + pair.error());
      failures.expect(pair.averaged(optimizer, kEarly), "the early gradient");
      // The stream has continued although the other bucket cannot have been communicated.
      failures.expect(weft_reducer_wait_param(pair.get(), kLate, WEFT_TIMEOUT_POLL) == WEFT_ERR_NOT_DONE,
                      "the late gradient is reduced");
      failures.expect(pair.wait_on(optimizer, kLate) == WEFT_OK, "wait: " + pair.error());
      failures.expect(pair.wait_on(optimizer, kLate) == WEFT_OK, "wait once more: " + pair.error());
      if (step == 1)
        failures.expect(pair.finish_on(pair.stream(kEarly)) == WEFT_OK, "finish: " + pair.error());
      open(&gate);
      failures.expect(pair.averaged(optimizer, kLate), "the late gradient");
      failures.expect(weft_reducer_finish(pair.get(), nullptr) == WEFT_OK, "finish: " + pair.error());
      failures.expect(pair.wait_on(optimizer, kLate) == WEFT_OK, "after the step");
    }
  }));
  failures.check();
}

TEST_CASE("a stream that cannot wait for a parameter is refused, by name") {
  const FakeCuda fake;
  RankFailures failures;
  failures.expect(run("loopback", 1, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    Pair pair(r);
    const Stream stream;
    const auto refused = [&](weft_status status, weft_status expected, const std::string& why) {
      failures.expect(status == expected, why + ": " + std::to_string(status));
      failures.expect(has(pair.error(), why), "not '" + why + "': " + pair.error());
    };
    refused(pair.wait_on(stream, kEarly), WEFT_ERR_STATE, "no synchronised step");
    failures.expect(pair.begin() && pair.ready(kEarly), "ready");
    refused(pair.wait_on(stream, kEarly), WEFT_ERR_STATE,
            "parameter 1 ('early') yet: the gradients of 'late' are not ready");
    refused(pair.wait_on(stream, 9), WEFT_ERR_ARG, "parameter 9 is unknown");
    refused(weft_reducer_stream_wait_param(pair.get(), kEarly, nullptr), WEFT_ERR_ARG,
            "weft_reducer_stream_wait_param: the stream is NULL or of kind WEFT_DEVICE_HOST");
    weft_stream wrong = *stream.view();
    wrong.device = 64;
    refused(weft_reducer_stream_wait_param(pair.get(), kEarly, &wrong), WEFT_ERR_ARG,
            "weft_stream.device is 64");
    failures.expect(pair.ready(kLate), "ready");
    failures.expect(pair.wait_on(stream, kEarly) == WEFT_OK, "all are ready");
    failures.expect(weft_reducer_finish(pair.get(), nullptr) == WEFT_OK, "finish");
    failures.expect(pair.averaged(stream, kEarly), "the result");

    std::vector<float> gradient(1);
    const int64_t shape = 1;
    weft_param param = WEFT_PARAM_INIT;
    param.name = "host";
    param.dtype = WEFT_DTYPE_F32;
    param.ndim = 1;
    param.shape = &shape;
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = &param;
    options.param_count = 1;
    weft_reducer* reducer = nullptr;
    failures.expect(weft_reducer_create(r.comm, &options, &reducer, nullptr) == WEFT_OK, "create");
    failures.expect(weft_reducer_stream_wait_param(reducer, 0, stream.view()) == WEFT_ERR_UNSUPPORTED,
                    "no gradient is on a device");
    failures.expect(has(ReducerPair::error(reducer), "host memory"), ReducerPair::error(reducer));
    weft_reducer_destroy(&reducer);
  }));
  failures.check();
}

TEST_CASE("in caller mode, waiting for a parameter on a stream blocks the calling thread") {
  const FakeCuda fake(1, 4, 50);
  RankFailures failures;
  failures.expect(run("loopback", 2, WEFT_PROGRESS_CALLER, [&](Rank& r) {
    const Stream stream;
    {
      Pair pair(r);
      failures.expect(pair.begin() && pair.ready(kLate) && pair.ready(kEarly), "ready");
      failures.expect(pair.wait_on(stream, kEarly) == WEFT_OK, "wait: " + pair.error());
      failures.expect(weft_reducer_wait_param(pair.get(), kEarly, WEFT_TIMEOUT_POLL) == WEFT_OK, "not done");
      failures.expect(pair.averaged(stream, kEarly), "the result");
      failures.expect(weft_reducer_finish(pair.get(), nullptr) == WEFT_OK, "finish: " + pair.error());
    }
    Pair pair(r, WEFT_REDUCER_NORMS);
    failures.expect(pair.begin() && pair.ready(kLate) && pair.ready(kEarly), "ready");
    failures.expect(pair.wait_on(stream, kEarly) == WEFT_ERR_STATE, "results come with finish");
    failures.expect(has(pair.error(), "has its results only after finish"), pair.error());
    failures.expect(weft_reducer_finish(pair.get(), nullptr) == WEFT_OK, "finish: " + pair.error());
    failures.expect(pair.wait_on(stream, kEarly) == WEFT_OK, "after finish");
  }));
  failures.check();
}

TEST_CASE("a stream that waits for a parameter continues when the step fails, by its deadline at the latest",
          "[stream_waits]") {
  const FakeCuda fake(1, 6, 50);
  RankFailures failures;
  failures.expect(run("shm", 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    Pair pair(r);
    const Stream stream;
    if (r.rank == 1) {
      weft_comm_abort(r.comm, "enough");
      return;
    }
    // The failure may come before the step.
    if (!pair.begin() || !pair.ready(kLate) || !pair.ready(kEarly)) return;
    const weft_status status = pair.wait_on(stream, kEarly);
    failures.expect(status == WEFT_OK || has(pair.error(), "enough"), pair.error());
    failures.expect(goes_on(stream), "the stream hangs");
    failures.expect(weft_reducer_finish(pair.get(), nullptr) == WEFT_ERR_ABORTED, "finish: " + pair.error());
    failures.expect(pair.wait_on(stream, kEarly) == WEFT_ERR_ABORTED, "the result is no mean");
  }));
  failures.expect(run("loopback", 1, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    int gate = 0;
    Pair pair(r, 0, 1000);
    const Stream stream;
    failures.expect(pair.warm_up(stream), "the first step: " + pair.error());
    failures.expect(pair.begin(), "begin");
    pair.stream(kLate).hold(&gate);
    failures.expect(pair.ready(kLate) && pair.ready(kEarly), "ready");
    failures.expect(pair.wait_on(stream, kLate) == WEFT_OK, "wait: " + pair.error());
    failures.expect(goes_on(stream), "the stream hangs");  // before finish
    failures.expect(weft_reducer_finish(pair.get(), nullptr) == WEFT_ERR_TIMEOUT, "finish: " + pair.error());
    failures.expect(has(pair.error(), "['late'] are not complete on the program's streams"), pair.error());
    open(&gate);
  }));
  failures.check();
}

TEST_CASE("streams continue when the objects of their step are destroyed, in any order", "[stream_waits]") {
  enum class First { kReducer, kComm, kContext };
  for (const First first : {First::kReducer, First::kComm, First::kContext}) {
    for (const bool param : {false, true}) {
      INFO("destroyed first: " << static_cast<int>(first) << ", a parameter's: " << param);
      // Delays that are long enough for a gradient to be on its way at that moment.
      const FakeCuda fake(1, 5, 20'000);
      RankFailures failures;
      std::atomic<bool> over{false};
      failures.expect(run("shm", 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
        Pair pair(r, 0, first == First::kReducer ? 500 : 0);
        failures.expect(pair.created());
        if (r.rank == 1) {  // rank 1 never begins the step
          while (!over) std::this_thread::yield();
          return;
        }
        const Stream stream;
        failures.expect(pair.begin() && pair.ready(kLate) && pair.ready(kEarly), "ready");
        failures.expect((param ? pair.wait_on(stream, kLate) : pair.finish_on(stream)) == WEFT_OK,
                        "wait: " + pair.error());
        failures.expect(goes_on(pair.stream(kLate)) && goes_on(pair.stream(kEarly)), "gradients are made");
        failures.expect(cudaStreamQuery(stream.get()) == cudaErrorNotReady, "the stream does not wait");
        if (first == First::kReducer) pair.destroy();
        if (first == First::kComm) weft_comm_destroy(&r.comm);
        if (first == First::kContext) weft_context_destroy(&r.context);
        failures.expect(goes_on(stream), "the stream hangs");
        over = true;
      }));
      failures.check();
    }
  }
}

TEST_CASE("requests on a stream end and the stream continues when their communicator or context is destroyed",
          "[stream_waits]") {
  for (const bool context : {false, true}) {
    for (const std::string backend : kBackends) {
      INFO(backend << (context ? ", context" : ", communicator"));
      const FakeCuda fake(1, 9, 5000);
      RankFailures failures;
      std::atomic<bool> over{false};
      failures.expect(run(backend.c_str(), 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
        if (r.rank == 1) {  // rank 1 makes no call
          while (!over) std::this_thread::yield();
          return;
        }
        const Stream stream;
        DeviceBuffer<float> buffer(kCount);
        buffer.write(stream, [](size_t) { return 1.f; });
        const weft_coll_options options = on(stream);
        weft_request* requests[3] = {};
        for (weft_request*& request : requests) {
          failures.expect(weft_all_reduce(r.comm, buffer.get(), buffer.get(), kCount, WEFT_DTYPE_F32,
                                          WEFT_OP_SUM, &options, &request) == WEFT_OK,
                          error_of(r.comm));
        }
        if (context) weft_context_destroy(&r.context);
        if (!context) weft_comm_destroy(&r.comm);
        failures.expect(goes_on(stream), "the stream hangs");
        for (weft_request*& request : requests) {
          failures.expect(weft_request_wait(request, 10'000) == WEFT_ERR_CANCELLED, "not cancelled");
          weft_request_release(&request);
        }
        over = true;
      }));
      failures.check();
    }
  }
}

#ifndef WEFT_TEST_REAL_CUDA  // needs a driver that is slow on demand
TEST_CASE("a stream does not wait for a gradient whose call of ready follows it on that stream") {
  for (const bool param : {false, true}) {
    INFO("a parameter's: " << param);
    const FakeCuda fake;
    RankFailures failures;
    failures.expect(run("loopback", 1, WEFT_PROGRESS_THREAD, [&](Rank& r) {
      Pair pair(r, 0, 3000);
      failures.expect(pair.begin() && pair.ready(kEarly), "ready");
      Stream& stream = pair.stream(kLate);
      std::thread other([&] {
        fake_cuda_slow("cudaEventRecord", 200'000);
        failures.expect(pair.ready(kLate), "ready");
      });
      // Waits until the gradient is claimed, that is until the call has started.
      weft_status status = WEFT_ERR_STATE;
      while (status == WEFT_ERR_STATE) {
        status = param ? pair.wait_on(stream, kLate) : pair.finish_on(stream);
        std::this_thread::yield();
      }
      failures.expect(status == WEFT_OK, pair.error());
      other.join();
      failures.expect(goes_on(stream), "the stream hangs");
      failures.expect(weft_reducer_finish(pair.get(), nullptr) == WEFT_OK, "finish: " + pair.error());
    }));
    failures.check();
  }
}
#endif

}  // namespace capi_cuda_streams
