// Reducers with gradients on CUDA devices and on the host. Each is compared with a twin in host memory, whose
// results must have the same bits. Runs on the fake CUDA, which delays all work and runs it in halves.
#include "capi/reducer_pair.h"

namespace capi_cuda_reducer {

using namespace weft_test;

namespace {

weft_begin_options begins(uint64_t flags = 0) {
  weft_begin_options options = WEFT_BEGIN_OPTIONS_INIT;
  options.flags = flags;
  return options;
}

// Runs a step in which all gradients become ready, in an order drawn from the seed.
std::string step(ReducerPair& reducers, uint64_t seed, bool on_streams,
                 weft_finish_options finish = WEFT_FINISH_OPTIONS_INIT) {
  std::string wrong = reducers.begin(begins());
  std::vector<size_t> order(reducers.tensors().size());
  for (size_t i = 0; i < order.size(); i++) order[i] = i;
  std::mt19937_64 random(seed);
  std::shuffle(order.begin(), order.end(), random);
  for (const size_t i : order) {
    if (wrong.empty()) wrong = reducers.ready(i, seed + i);
  }
  return wrong.empty() ? reducers.finish(finish, on_streams) : wrong;
}

std::string begin_error(ReducerPair& reducers) {
  const weft_begin_options options = begins();
  if (weft_reducer_begin(reducers.device(), &options) == WEFT_OK) return "";
  return ReducerPair::error(reducers.device());
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Runs a step whose other rank has given up. Its stream continues, and the next begin returns an error.
std::string step_that_fails(ReducerPair& reducers) {
  const weft_begin_options begin = begins();
  if (weft_reducer_begin(reducers.device(), &begin) != WEFT_OK)
    return "";  // the failure came before the step
  bool ready = true;
  for (size_t i = 0; i < reducers.tensors().size(); i++) {
    const Tensor& tensor = reducers.tensors()[i];
    const weft_stream* const stream =
        tensor.device == kHost ? nullptr : reducers.stream(tensor.device).view();
    ready &= weft_reducer_ready(reducers.device(), i, nullptr, stream) == WEFT_OK;
  }
  weft_finish_options finish = WEFT_FINISH_OPTIONS_INIT;
  finish.stream = reducers.stream(0).view();
  const weft_status finished = weft_reducer_finish(reducers.device(), &finish);
  if (cudaStreamSynchronize(reducers.stream(0).get()) != cudaSuccess) return "the stream hangs";
  return ready && finished == WEFT_OK && begin_error(reducers).empty() ? "the step has not failed" : "";
}

}  // namespace

TEST_CASE("gradients on two devices and on the host are averaged as those of the host alone") {
  for (const std::string backend : kBackends) {
    for (const int32_t mode : kModes) {
      for (const int32_t gradients : {WEFT_GRADIENT_COPY, WEFT_GRADIENT_VIEW}) {
        for (const bool on_streams : {false, true}) {
          INFO(backend << ", progress " << mode << ", gradients " << gradients << ", streams " << on_streams);
          const FakeCuda fake(2, 5, 60);
          RankFailures failures;
          failures.expect(run(backend.c_str(), 2, mode, [&](Rank& r) {
            ReducerPair reducers(r, mixed_tensors(), {.mode = gradients, .limit = 400});
            failures.expect(reducers.created());
            for (uint64_t seed = 1; seed < 4 && reducers.created().empty(); seed++) {
              failures.expect(step(reducers, seed * 100, on_streams));
              failures.expect(reducers.compare());
            }
          }));
          failures.check();
        }
      }
    }
  }
}

TEST_CASE("finish with streams does not wait, and later work on the streams follows the results",
          "[stream_waits]") {
  const FakeCuda fake(2, 3, 100);
  RankFailures failures;
  std::atomic<int> called{0};
  failures.expect(run("shm", 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    ReducerPair reducers(r, mixed_tensors(), {});
    // A first step makes allocations, which may wait for the device: it runs before the stream is held.
    failures.expect(step(reducers, 5, true));
    failures.expect(reducers.compare());
    int gate = 0;
    constexpr uint64_t kSeed = 7;
    // The stream that computes the step's gradients: they are queued behind this.
    reducers.stream(0, kSeed).hold(&gate);
    failures.expect(step(reducers, kSeed, true));
    called++;
    while (called < 2) std::this_thread::yield();  // no finish has waited for the held stream
    __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
    failures.expect(reducers.compare());
    failures.expect(weft_reducer_finish(reducers.device(), nullptr) == WEFT_OK,
                    "finish once more says how it went");
    failures.expect(weft_reducer_finish(reducers.device(), nullptr) == WEFT_ERR_STATE, "it says so once");
    failures.expect(step(reducers, 9, true));
    failures.expect(step(reducers, 11, false));
    failures.expect(reducers.compare());
  }));
  failures.check();
}

TEST_CASE("hooks work on buckets of devices, with the bits of their host twins") {
  const std::pair<const char*, const char*> kHooks[] = {
      {"fp16", ""},           {"bf16", ""},   {"int8", ""},     {"fp8", ""},
      {"topk", "ratio=0.25"}, {"onebit", ""}, {"powersgd", ""}, {"noop", ""}};
  for (const auto& hook : kHooks) {
    INFO(hook.first);
    const FakeCuda fake(2, 4, 30);
    RankFailures failures;
    failures.expect(run("shm", 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
      ReducerPair::Options how;
      how.hook = hook.first;
      how.hook_options = hook.second;
      ReducerPair reducers(r, mixed_tensors(), how);
      failures.expect(reducers.created());
      for (uint64_t seed = 1; seed < 4 && reducers.created().empty(); seed++) {
        failures.expect(step(reducers, seed * 100, seed == 2));
        failures.expect(reducers.compare());
      }
    }));
    failures.check();
  }
}

TEST_CASE("a failed step lets the streams continue, and the next call returns the reason") {
  const FakeCuda fake(2, 6, 50);
  RankFailures failures;
  std::atomic<bool> over{false};
  failures.expect(run("shm", 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    ReducerPair reducers(r, mixed_tensors(), {});
    if (r.rank == 1) {
      weft_comm_abort(r.comm, nullptr);
      // Freeing memory waits for the device, and meanwhile a real CUDA lets no other thread of the process
      // in.
      while (!over) std::this_thread::yield();
      return;
    }
    failures.expect(step_that_fails(reducers));
    over = true;
  }));
  failures.check();
}

TEST_CASE("a stream whose capture begins inside a step fails the step by name, and the capture continues") {
  const FakeCuda fake;
  RankFailures failures;
  failures.expect(run("loopback", 1, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    ReducerPair reducers(r, {{"first", {64}}, {"last", {64}}}, {.limit = 1 << 20});
    weft_reducer* const reducer = reducers.device();
    DeviceBuffer<float> first(64), last(64);
    const Stream& stream = reducers.stream(0);
    const weft_begin_options begin = begins();
    failures.expect(weft_reducer_begin(reducer, &begin) == WEFT_OK, "begin");
    failures.expect(weft_reducer_ready(reducer, 0, first.get(), stream.view()) == WEFT_OK, "first");
    cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal);
    // The stream was noted with the first gradient. It is checked again with the bucket's last gradient.
    failures.expect(weft_reducer_ready(reducer, 1, last.get(), stream.view()) == WEFT_OK, "last");
    failures.expect(weft_reducer_finish(reducer, nullptr) != WEFT_OK, "finished");
    failures.expect(has(ReducerPair::error(reducer), "is being captured into a graph"),
                    ReducerPair::error(reducer));
    cudaGraph_t graph = nullptr;
    failures.expect(cudaStreamEndCapture(stream.get(), &graph) == cudaSuccess, "the capture is spoilt");
    cudaGraphDestroy(graph);
  }));
  failures.check();
}

TEST_CASE("a stream that hangs fails the step at its deadline, by name", "[stream_waits]") {
  const FakeCuda fake(2, 6, 50);
  RankFailures failures;
  failures.expect(run("loopback", 1, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    int gate = 0;
    {
      ReducerPair reducers(r, {{"late", {5}}}, {});
      weft_reducer* reducer = nullptr;
      const std::vector<weft_param> params = reducers.params(true);
      weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
      options.params = params.data();
      options.param_count = 1;
      options.timeout_ms = 1000;
      failures.expect(weft_reducer_create(r.comm, &options, &reducer, nullptr) == WEFT_OK, "create");
      weft_finish_options finish = WEFT_FINISH_OPTIONS_INIT;
      finish.stream = reducers.stream(0, 1).view();
      // A first step makes allocations, which may wait for the device: it runs before the stream is held.
      weft_reducer_begin(reducer, nullptr);
      failures.expect(weft_reducer_ready(reducer, 0, nullptr, reducers.stream(0).view()) == WEFT_OK, "ready");
      failures.expect(weft_reducer_finish(reducer, &finish) == WEFT_OK, "finish");
      weft_reducer_begin(reducer, nullptr);
      reducers.stream(0).hold(&gate);
      failures.expect(weft_reducer_ready(reducer, 0, nullptr, reducers.stream(0).view()) == WEFT_OK, "ready");
      failures.expect(weft_reducer_finish(reducer, &finish) == WEFT_OK, "finish");
      failures.expect(cudaStreamSynchronize(reducers.stream(0, 1).get()) == cudaSuccess,
                      "the other stream hangs");
      failures.expect(weft_reducer_finish(reducer, nullptr) == WEFT_ERR_TIMEOUT, "finish once more");
      const std::string text = ReducerPair::error(reducer);
      failures.expect(has(text, "gradients of bucket 0 ['late'] are not complete on the program's streams"),
                      text);
      __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
      weft_reducer_destroy(&reducer);
    }
  }));
  failures.check();
}

#ifndef WEFT_TEST_REAL_CUDA  // needs two devices
TEST_CASE("a gradient that is not on the declared device is refused by the parameter's name") {
  const FakeCuda fake(2);
  RankFailures failures;
  failures.expect(run("loopback", 1, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    ReducerPair reducers(
        r, {{"here", {64}}, {"there", {64}, WEFT_DTYPE_F32, 1}, {"host", {64}, WEFT_DTYPE_F32, kHost}}, {});
    DeviceBuffer<float> first(64, 0), second(64, 1), gone(64, 0);
    void* freed = nullptr;
    cudaSetDevice(0);
    cudaMalloc(&freed, 256);
    cudaFree(freed);
    std::vector<float> memory(64);
    weft_reducer* const reducer = reducers.device();
    const weft_begin_options begin = begins();
    failures.expect(weft_reducer_begin(reducer, &begin) == WEFT_OK, "begin");
    const auto refused = [&](uint64_t param, void* gradient, const weft_stream* stream, const char* why) {
      const weft_status status = weft_reducer_ready(reducer, param, gradient, stream);
      failures.expect(status == WEFT_ERR_ARG || status == WEFT_ERR_UNSUPPORTED, std::string(why) + ": taken");
      failures.expect(has(ReducerPair::error(reducer), why),
                      "not '" + std::string(why) + "': " + ReducerPair::error(reducer));
      failures.expect(has(ReducerPair::error(reducer), reducers.tensors()[param].name),
                      "no name: " + ReducerPair::error(reducer));
    };
    const weft_stream* const on = reducers.stream(0).view();
    refused(0, memory.data(), on, "is in host memory, or freed, but weft_param declares CUDA device 0");
    refused(0, freed, on, "is in host memory, or freed");
    refused(0, second.get(), on, "is in the memory of another device");
    refused(0, first.get() + 32, on, "ends in host memory");
    refused(0, reinterpret_cast<char*>(first.get()) + 1, on, "not aligned");
    refused(0, first.get(), nullptr, "pass the weft_stream");
    refused(0, first.get(), reducers.stream(1).view(),
            "the stream is of CUDA device 1, and the gradient is on device 0");
    weft_stream wrong = *reducers.stream(1).view();
    wrong.device = 0;
    refused(0, first.get(), &wrong, "the stream belongs to device 1");
    const weft_stream of_thread = {sizeof of_thread, WEFT_DEVICE_CUDA, 0, cudaStreamPerThread};
    refused(0, first.get(), &of_thread, "the calling thread's default stream");
    refused(2, first.get(), nullptr,
            "is in memory of CUDA device 0, but weft_param.device_kind declares host memory");
    refused(2, memory.data(), on, "the stream belongs to a device");
    // Correct calls are accepted after all these errors.
    failures.expect(weft_reducer_ready(reducer, 0, first.get(), on) == WEFT_OK, "here");
    failures.expect(weft_reducer_ready(reducer, 1, second.get(), reducers.stream(1).view()) == WEFT_OK,
                    "there");
    failures.expect(weft_reducer_ready(reducer, 2, memory.data(), nullptr) == WEFT_OK, "host");
    failures.expect(weft_reducer_ready(reducer, 0, first.get(), on) == WEFT_ERR_STATE, "twice");
    failures.expect(weft_reducer_finish(reducer, nullptr) == WEFT_OK, "finish");
    weft_error error = WEFT_ERROR_INIT;
    failures.expect(
        weft_reducer_broadcast(reducer, nullptr, &error) != WEFT_OK && has(error.text, "is on a CUDA device"),
        error.text);
  }));
  failures.check();
}

TEST_CASE("a host reducer detects a gradient on a device") {
  const FakeCuda fake;
  RankFailures failures;
  DeviceBuffer<float> device(64);
  failures.expect(run("loopback", 1, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    const int64_t shape = 64;
    std::vector<float> host(64);
    weft_param params[2] = {WEFT_PARAM_INIT, WEFT_PARAM_INIT};
    for (weft_param& param : params) {
      param.name = &param == params ? "w" : "embedding";
      param.dtype = WEFT_DTYPE_F32;
      param.ndim = 1;
      param.shape = &shape;
    }
    params[1].flags = WEFT_PARAM_SPARSE;
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = params;
    options.param_count = 2;
    weft_reducer* reducer = nullptr;
    failures.expect(weft_reducer_create(r.comm, &options, &reducer, nullptr) == WEFT_OK, "create");
    failures.expect(weft_reducer_begin(reducer, nullptr) == WEFT_OK, "begin");
    failures.expect(weft_reducer_ready(reducer, 0, device.get(), nullptr) == WEFT_ERR_ARG, "taken");
    failures.expect(has(ReducerPair::error(reducer), "'w'") &&
                        has(ReducerPair::error(reducer),
                            "is in memory of CUDA device 0, but weft_param.device_kind declares host memory"),
                    ReducerPair::error(reducer));
    failures.expect(weft_reducer_ready(reducer, 0, host.data(), nullptr) == WEFT_OK, "host");
    const int64_t index = 3;
    weft_sparse entries = {sizeof entries, 1, &index, device.get()};
    failures.expect(weft_reducer_ready_sparse(reducer, 1, &entries, nullptr) == WEFT_ERR_ARG,
                    "sparse: taken");
    failures.expect(has(ReducerPair::error(reducer), "'embedding'") &&
                        has(ReducerPair::error(reducer), "its values are in memory of CUDA device 0"),
                    ReducerPair::error(reducer));
    entries.values = host.data();
    failures.expect(weft_reducer_ready_sparse(reducer, 1, &entries, nullptr) == WEFT_OK, "sparse");
    failures.expect(weft_reducer_finish(reducer, nullptr) == WEFT_OK, "finish");
    weft_reducer_destroy(&reducer);
  }));
  failures.check();
}

TEST_CASE("options that device reducers do not support are refused at creation") {
  const FakeCuda fake(2);
  RankFailures failures;
  failures.expect(run("loopback", 1, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    const auto refused = [&](std::vector<Tensor> tensors, ReducerPair::Options how, const char* why) {
      ReducerPair reducers(r, tensors, how);
      failures.expect(has(reducers.created(), why), "not '" + std::string(why) + "': " + reducers.created());
    };
    refused({{"far", {4}, WEFT_DTYPE_F32, 0}},
            {.flags = WEFT_REDUCER_COPY_STRAYS, .mode = WEFT_GRADIENT_VIEW}, "COPY_STRAYS");
    refused({{"gaps", {100'000, 1}, WEFT_DTYPE_F32, 0, {2, 1}}}, {}, "'gaps'");
    const int64_t shape = 4;
    weft_param param = WEFT_PARAM_INIT;
    param.name = "far";
    param.dtype = WEFT_DTYPE_F32;
    param.ndim = 1;
    param.shape = &shape;
    param.device_kind = WEFT_DEVICE_CUDA;
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = &param;
    options.param_count = 1;
    weft_reducer* reducer = nullptr;
    weft_error error = WEFT_ERROR_INIT;
    const auto create = [&] { return weft_reducer_create(r.comm, &options, &reducer, &error); };
    param.device = 2;
    failures.expect(create() == WEFT_ERR_ARG && has(error.text, "its device is 2; there are 2"), error.text);
    param.device = 0;
    param.flags = WEFT_PARAM_SPARSE;
    failures.expect(create() == WEFT_ERR_UNSUPPORTED && has(error.text, "'far'"), error.text);
  }));
  failures.check();
}

TEST_CASE("ranks may number their devices differently, and agree on which ranks share one") {
  const FakeCuda fake(2, 8, 30);
  RankFailures failures;
  failures.expect(run("shm", 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    // Rank 1 has on device 1 what rank 0 has on device 0.
    const auto tensors = [&](bool alike) {
      const int other = alike ? 1 - r.rank : 1;
      return std::vector<Tensor>{{"a", {3}, WEFT_DTYPE_F32, r.rank}, {"b", {5}, WEFT_DTYPE_F32, other}};
    };
    {
      ReducerPair reducers(r, tensors(true), {});
      failures.expect(reducers.created());
      failures.expect(step(reducers, 3, false));
      failures.expect(reducers.compare());
    }
    ReducerPair reducers(r, tensors(false), {});
    failures.expect(has(reducers.created(), "parameter 1 'b'"), "not named: " + reducers.created());
  }));
  failures.check();
}

#endif

TEST_CASE("after a rank has left the others sum retained device gradients again") {
  const FakeCuda fake(2, 9, 60);
  RankFailures failures;
  std::atomic<int> begun{0};
  failures.expect(run("shm", 3, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    constexpr int64_t kCount = 5000;
    int devices = 1;
    cudaGetDeviceCount(&devices);
    Stream stream(r.rank % std::min(devices, 2));
    DeviceBuffer<float> first(kCount, stream.device()), second(kCount, stream.device());
    weft_param params[2] = {WEFT_PARAM_INIT, WEFT_PARAM_INIT};
    const char* const names[] = {"a", "b"};
    for (int p = 0; p < 2; p++) {
      params[p] = {sizeof(weft_param), names[p], WEFT_DTYPE_F32, 1, &kCount, nullptr, WEFT_DEVICE_CUDA,
                   stream.device(),    0};
    }
    const uint64_t limit = 0;
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = params;
    options.param_count = 2;
    options.bucket_limits = &limit;
    options.bucket_limit_count = 1;
    options.flags = WEFT_REDUCER_RETAIN;
    weft_reducer* reducer = nullptr;
    weft_error details = WEFT_ERROR_INIT;
    const weft_status created = weft_reducer_create(r.comm, &options, &reducer, &details);
    failures.expect(created == WEFT_OK, details.text);
    if (created != WEFT_OK) return;
    const auto mine = static_cast<float>(1 << r.rank);
    const auto ready = [&](uint64_t p) {
      DeviceBuffer<float>& gradient = p == 0 ? first : second;
      gradient.write(stream, [&](size_t) { return mine; });
      return weft_reducer_ready(reducer, p, gradient.get(), stream.view()) == WEFT_OK;
    };
    failures.expect(weft_reducer_begin(reducer, nullptr) == WEFT_OK, "begin");
    if (r.rank == 1) {
      while (begun != 2) std::this_thread::yield();
      ready(1);
      weft_reducer_destroy(&reducer);
      return;
    }
    begun++;
    failures.expect(ready(0) && ready(1), "ready");
    failures.expect(weft_reducer_finish(reducer, nullptr) != WEFT_OK, "the step has to fail");
    weft_comm* next = nullptr;
    failures.expect(weft_comm_shrink(r.comm, nullptr, &next, &details) == WEFT_OK, details.text);
    if (next == nullptr) return;
    const weft_status bound = weft_reducer_rebind(reducer, next, &details);
    failures.expect(bound == WEFT_OK, details.text);
    weft_comm_destroy(&r.comm);
    r.comm = next;
    failures.expect(weft_reducer_retry(reducer, nullptr) == WEFT_OK, ReducerPair::error(reducer));
    failures.expect(first.read(stream) == std::vector<float>(kCount, 2.5f), "the first gradient");
    failures.expect(second.read(stream) == std::vector<float>(kCount, 2.5f), "the second gradient");
    failures.expect(weft_reducer_begin(reducer, nullptr) == WEFT_OK && ready(1) && ready(0), "once more");
    failures.expect(weft_reducer_finish(reducer, nullptr) == WEFT_OK, "finish");
    failures.expect(first.read(stream) == std::vector<float>(kCount, 2.5f), "the next step");
    weft_reducer_destroy(&reducer);
  }));
  failures.check();
}

}  // namespace capi_cuda_reducer
