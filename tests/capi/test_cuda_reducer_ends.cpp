// Steps of gradients on devices in bad company: a device that copies results beyond the deadline. On the fake
// CUDA.
#include <atomic>
#include <chrono>
#include <thread>

#include "capi/twin.h"

using namespace weft_test;

namespace {

constexpr int64_t kCount = 5000;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A reducer of two gradients in one bucket.
class Pair {
 public:
  explicit Pair(Rank& rank, int64_t timeout_ms = 0) {
    const uint64_t limit = 1 << 20;
    weft_param params[2] = {WEFT_PARAM_INIT, WEFT_PARAM_INIT};
    for (weft_param& param : params) {
      param.name = &param == params ? "first" : "last";
      param.dtype = WEFT_DTYPE_F32;
      param.ndim = 1;
      param.shape = &kCount;
      param.device_kind = WEFT_DEVICE_CUDA;
    }
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = params;
    options.param_count = 2;
    options.bucket_limits = &limit;
    options.bucket_limit_count = 1;
    options.timeout_ms = timeout_ms;
    weft_error error = WEFT_ERROR_INIT;
    if (weft_reducer_create(rank.comm, &options, &reducer_, &error) != WEFT_OK) created_ = error.text;
  }
  ~Pair() { weft_reducer_destroy(&reducer_); }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  const std::string& created() const { return created_; }
  std::string error() const { return Twins::error(reducer_); }
  bool begin() { return weft_reducer_begin(reducer_, nullptr) == WEFT_OK; }
  weft_status ready(uint64_t param, const weft_stream* stream) {
    return weft_reducer_ready(reducer_, param, buffers_[param].get(), stream);
  }
  weft_status finish() { return weft_reducer_finish(reducer_, nullptr); }
  DeviceBuffer<float>& buffer(uint64_t param) { return buffers_[param]; }

 private:
  weft_reducer* reducer_ = nullptr;
  std::string created_;
  DeviceBuffer<float> buffers_[2] = {DeviceBuffer<float>(kCount), DeviceBuffer<float>(kCount)};
};

}  // namespace

TEST_CASE(
    "finish does not say that gradients are the program's again while a device writes results into them") {
  const FakeCuda fake;
  Notes notes;
  notes.expect(run("loopback", 1, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    const Stream stream;
    Pair pair(r, 300);
    notes.expect(pair.created());
    const auto step = [&] {
      const bool good =
          pair.begin() && pair.ready(0, stream.view()) == WEFT_OK && pair.ready(1, stream.view()) == WEFT_OK;
      return good ? pair.finish() : WEFT_ERR_INTERNAL;
    };
    notes.expect(step() == WEFT_OK, pair.error());
    // The gradients' way into the bucket is free, the results' way back is not.
    fake_cuda_stall("weft_copy_pieces", 1);
    notes.expect(step() == WEFT_ERR_TIMEOUT, "the step does not fail");
    notes.expect(has(pair.error(), "or copies results into them, has not returned, and may still do so"),
                 pair.error());
    fake_cuda_stall("", 0);
  }));
  notes.check();
}

TEST_CASE("finish that gives up waits for the results that a device is writing") {
  const FakeCuda fake;
  Notes notes;
  notes.expect(run("loopback", 1, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    const Stream stream;
    Pair pair(r, 300);
    notes.expect(pair.created());
    fake_cuda_stall("weft_copy_pieces", 1);
    std::atomic<bool> goes_on{false};
    // Beyond the deadline and what is allowed for noticing it.
    std::thread later([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(3000));
      goes_on = true;
      fake_cuda_stall("", 0);
    });
    notes.expect(
        pair.begin() && pair.ready(0, stream.view()) == WEFT_OK && pair.ready(1, stream.view()) == WEFT_OK,
        pair.error());
    pair.finish();
    // On a machine that is too busy it says at least that it has not waited long enough.
    notes.expect(goes_on || has(pair.error(), "and may still do so"), pair.error());
    later.join();
  }));
  notes.check();
}
