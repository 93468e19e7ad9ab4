// Ends of captured steps: NCCL failures, and reducers that are destroyed while the program still has their
// graphs. Runs on the fakes.
#include <atomic>
#include <chrono>
#include <string>

#include "capi/fake_nccl.h"

namespace capi_nccl_graph_ends {

using namespace weft_test;

namespace {

// A rank's reducer of one parameter, and a graph of one captured step.
struct Captured {
  Captured(Rank& rank, RankFailures* failures) : stream(rank.rank), gradient(1000, rank.rank) {
    const int64_t shape = 1000;
    weft_param param = WEFT_PARAM_INIT;
    param.name = "weight";
    param.dtype = WEFT_DTYPE_F32;
    param.ndim = 1;
    param.shape = &shape;
    param.device_kind = WEFT_DEVICE_CUDA;
    param.device = rank.rank;
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = &param;
    options.param_count = 1;
    options.flags = WEFT_REDUCER_GRAPH;
    weft_error error = WEFT_ERROR_INIT;
    failures->expect(weft_reducer_create(rank.comm, &options, &reducer, &error) == WEFT_OK, error.text);
    if (reducer == nullptr) return;
    capture(rank, failures);
  }
  void capture(const Rank& rank, RankFailures* failures) {
    weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
    begin.flags = WEFT_BEGIN_CAPTURE;
    weft_finish_options finish = WEFT_FINISH_OPTIONS_INIT;
    finish.stream = stream.view();
    cudaSetDevice(rank.rank);
    cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeRelaxed);
    failures->expect(weft_reducer_begin(reducer, &begin) == WEFT_OK, "begin");
    failures->expect(weft_reducer_ready(reducer, 0, gradient.get(), stream.view()) == WEFT_OK, "ready");
    failures->expect(weft_reducer_finish(reducer, &finish) == WEFT_OK, "finish");
    cudaGraph_t graph = nullptr;
    failures->expect(cudaStreamEndCapture(stream.get(), &graph) == cudaSuccess, "the capture is spoilt");
    cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphDestroy(graph);
  }
  // Launches the graph with gradients of rank + 1.
  float launched(const Rank& rank) {
    gradient.write(stream, [&](size_t) { return static_cast<float>(rank.rank + 1); });
    cudaGraphLaunch(executable, stream.get());
    return gradient.read(stream)[7];
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  ~Captured() {
    cudaGraphExecDestroy(executable);
    weft_reducer_destroy(&reducer);
  }

  const Stream stream;
  DeviceBuffer<float> gradient;
  weft_reducer* reducer = nullptr;
  cudaGraphExec_t executable = nullptr;
};

}  // namespace

TEST_CASE("a reducer can be destroyed before its graph, whose end releases NCCL's communicator") {
  const FakeNccl fake;
  RankFailures failures;
  failures.expect(run_nccl(2, [&](Rank& r) {
    Captured captured(r, &failures);
    failures.expect(captured.launched(r) == 1.5f, "not averaged");
    const auto began = std::chrono::steady_clock::now();
    failures.expect(weft_reducer_destroy(&captured.reducer) == WEFT_OK, "destroy");
    failures.expect(std::chrono::steady_clock::now() - began < std::chrono::seconds(8),
                    "it waits for the graph");
    weft_barrier(r.comm, nullptr, nullptr);
  }));
  for (int i = 0; i < 1000 && *fake_nccl_live() != '\0'; i++)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  failures.check();
}

TEST_CASE("an NCCL error in a launch fails the communicator") {
  const FakeNccl fake;
  RankFailures failures;
  failures.expect(run_nccl(2, [&](Rank& r) {
    Captured captured(r, &failures);
    weft_barrier(r.comm, nullptr, nullptr);
    if (r.rank == 0)
      cudaGraphLaunch(captured.executable, captured.stream.get());  // the other rank never launches
    if (r.rank == 1) fake_nccl_break(1, ncclRemoteError);
    weft_error failure = WEFT_ERROR_INIT;
    while (weft_comm_error(r.comm, &failure) == WEFT_OK && failure.code == WEFT_OK) std::this_thread::yield();
    failures.expect(std::string(failure.text).find("of a captured step: NCCL: ") != std::string::npos,
                    failure.text);
    failures.expect(std::string(failure.text).find("remote process exited") != std::string::npos,
                    failure.text);
    failures.expect(cudaStreamSynchronize(captured.stream.get()) == cudaSuccess, "the stream hangs");
  }));
  failures.check();
}

TEST_CASE("an NCCL failure in a capture fails the communicator, also while an older graph exists") {
  const FakeNccl fake;
  RankFailures failures;
  failures.expect(run_nccl(2, [&](Rank& r) {
    Captured captured(r, &failures);
    failures.expect(captured.launched(r) == 1.5f, "not averaged");
    weft_barrier(r.comm, nullptr, nullptr);
    const auto refused = [&] {
      weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
      begin.flags = WEFT_BEGIN_CAPTURE;
      weft_finish_options finish = WEFT_FINISH_OPTIONS_INIT;
      finish.stream = captured.stream.view();
      cudaStreamBeginCapture(captured.stream.get(), cudaStreamCaptureModeRelaxed);
      const bool failed =
          weft_reducer_begin(captured.reducer, &begin) != WEFT_OK ||
          weft_reducer_ready(captured.reducer, 0, captured.gradient.get(), captured.stream.view()) != WEFT_OK;
      weft_reducer_finish(captured.reducer, &finish);
      cudaGraph_t graph = nullptr;
      cudaStreamEndCapture(captured.stream.get(), &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      return failed;
    };
    if (r.rank == 0) {
      fake_nccl_fail("ncclAllReduce", ncclSystemError);  // its next call
      failures.expect(refused(), "the failed capture passes");
      failures.expect(refused(), "the one after it passes");
    }
    weft_error failure = WEFT_ERROR_INIT;
    while (weft_comm_error(r.comm, &failure) == WEFT_OK && failure.code == WEFT_OK) std::this_thread::yield();
    failures.expect(std::string(failure.text).find("of a captured step: ") != std::string::npos,
                    failure.text);
  }));
  failures.check();
}

TEST_CASE("a failure to create the communicator for graphs is reported, and another reducer can be created") {
  for (const char* call : {"ncclGetUniqueId", "ncclCommInitRankConfig", "ncclMemAlloc", "cudaHostAlloc"}) {
    INFO(call);
    const FakeNccl fake;
    RankFailures failures;
    failures.expect(run_nccl(2, [&](Rank& r) {
      const int64_t shape = 10;
      weft_param param = WEFT_PARAM_INIT;
      param.name = "weight";
      param.dtype = WEFT_DTYPE_F32;
      param.ndim = 1;
      param.shape = &shape;
      param.device_kind = WEFT_DEVICE_CUDA;
      param.device = r.rank;
      weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
      options.params = &param;
      options.param_count = 1;
      options.flags = WEFT_REDUCER_GRAPH;
      weft_barrier(r.comm, nullptr, nullptr);
      if (r.rank == 0) fake_nccl_fail(call, ncclSystemError);
      if (r.rank == 0) fake_cuda_fail(call, cudaErrorMemoryAllocation);
      weft_barrier(r.comm, nullptr, nullptr);
      weft_reducer* reducer = nullptr;
      weft_error error = WEFT_ERROR_INIT;
      failures.expect(weft_reducer_create(r.comm, &options, &reducer, &error) != WEFT_OK, "created");
      fake_nccl_fail(call, 0);
      fake_cuda_fail(call, 0);
      weft_barrier(r.comm, nullptr, nullptr);
      failures.expect(weft_reducer_create(r.comm, &options, &reducer, &error) == WEFT_OK, error.text);
      weft_reducer_destroy(&reducer);
    }));
    failures.check();
  }
}

TEST_CASE("ranks that continue without a lost rank capture their steps anew") {
  const FakeNccl fake(12, 100);
  RankFailures failures;
  std::atomic<bool> left{false};
  failures.expect(run_nccl(3, [&](Rank& r) {
    Captured captured(r, &failures);
    failures.expect(captured.launched(r) == 2.f, "not averaged");
    weft_barrier(r.comm, nullptr, nullptr);
    if (r.rank == 2) {
      weft_comm_abort(r.comm, "it leaves");
      left = true;
      return;
    }
    while (!left) std::this_thread::yield();
    cudaGraphLaunch(captured.executable, captured.stream.get());  // the launch completes all the same
    weft_comm* survivors = nullptr;
    weft_error error = WEFT_ERROR_INIT;
    while (weft_comm_error(r.comm, &error) == WEFT_OK && error.code == WEFT_OK) std::this_thread::yield();
    failures.expect(weft_comm_shrink(r.comm, nullptr, &survivors, &error) == WEFT_OK, error.text);
    if (survivors == nullptr) return;
    failures.expect(cudaStreamSynchronize(captured.stream.get()) == cudaSuccess, "the stream hangs");
    cudaGraphExecDestroy(captured.executable);
    failures.expect(weft_reducer_rebind(captured.reducer, survivors, &error) == WEFT_OK, error.text);
    captured.capture(r, &failures);
    // Needed because both ranks are in one process: freeing pinned memory waits for all devices.
    weft_barrier(survivors, nullptr, nullptr);
    failures.expect(captured.launched(r) == 1.5f, "not averaged anew");
    weft_comm_destroy(&r.comm);
    r.comm = survivors;
  }));
  failures.check();
}

}  // namespace capi_nccl_graph_ends
