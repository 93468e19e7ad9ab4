// Reducer steps that are captured into CUDA graphs, over the nccl backend. The results of each launch are
// compared with averages that are computed one rank after the other.
#include <chrono>
#include <string>

#include "capi/nccl_run.h"
#include "capi/reducer_pair.h"

namespace capi_nccl_graph {

using namespace weft_test;

namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::vector<Tensor> own_tensors(int rank) {
  return {{"conv", {8, 3, 3, 3}, WEFT_DTYPE_F32, rank},     {"brain", {129}, WEFT_DTYPE_BF16, rank},
          {"padded", {6, 5}, WEFT_DTYPE_F32, rank, {9, 1}}, {"nothing", {4, 0}, WEFT_DTYPE_F32, rank},
          {"double", {11, 3}, WEFT_DTYPE_F64, rank},        {"large", {20'001}, WEFT_DTYPE_F32, rank}};
}

struct How {
  uint64_t flags = WEFT_REDUCER_GRAPH;
  int32_t mode = WEFT_GRADIENT_COPY;
  int32_t reduce_dtype = 0;
  int64_t timeout_ms = 0;
  uint32_t micro_batches = 0;
  const char* hook = nullptr;
  uint32_t check_interval = 0;
  std::vector<Tensor> tensors = {};  // default: own_tensors
  uint64_t limit = 3000;             // of buckets
  weft_planner replan = WEFT_PLANNER_DEFAULT;
};

// A rank's reducer, the buffers from which its gradients are computed, and the buffers to which the program
// copies the results.
class Trained {
 public:
  Trained(Rank& rank, const How& how) : rank_(rank), how_(how), main_(rank.rank), side_(rank.rank) {
    tensors_ = how.tensors.empty() ? own_tensors(rank.rank) : how.tensors;
    std::vector<weft_param> params;
    for (const Tensor& tensor : tensors_) {
      const size_t bytes = std::max<size_t>(tensor.bytes(), 1);
      const int device = tensor.device == kHost ? rank.rank : tensor.device;
      for (auto* list : {&sources_, &gradients_, &results_})
        list->push_back(std::make_unique<DeviceBuffer<char>>(bytes, device));
      weft_param param = WEFT_PARAM_INIT;
      param.name = tensor.name.c_str();
      param.dtype = tensor.dtype;
      param.ndim = static_cast<int32_t>(tensor.shape.size());
      param.shape = tensor.shape.data();
      param.strides = tensor.strides.empty() ? nullptr : tensor.strides.data();
      if (tensor.device != kHost) {
        param.device_kind = WEFT_DEVICE_CUDA;
        param.device = tensor.device;
      }
      params.push_back(param);
    }
    cudaSetDevice(rank.rank);
    cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
    weft_error error = WEFT_ERROR_INIT;
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = params.data();
    options.param_count = params.size();
    options.mode = how.mode;
    if (how.mode != WEFT_GRADIENT_VIEW) options.accumulation = WEFT_ACCUMULATION_REDUCER;
    options.flags = how.flags;
    options.replan = how.replan;
    options.reduce_dtype = how.reduce_dtype;
    options.timeout_ms = how.timeout_ms;
    options.check_interval = how.check_interval;
    options.bucket_limits = &how.limit;
    options.bucket_limit_count = 1;
    if (how.hook != nullptr && weft_hook_create(rank.context, how.hook, nullptr, &hook_) != WEFT_OK)
      created_ = "hook";
    options.hook = hook_;
    if (weft_reducer_create(rank.comm, &options, &reducer_, &error) != WEFT_OK) created_ = error.text;
  }
  ~Trained() {
    forget();
    weft_reducer_destroy(&reducer_);
    weft_hook_destroy(&hook_);
    cudaEventDestroy(event_);
  }
  Trained(const Trained&) = delete;
  Trained& operator=(const Trained&) = delete;

  const std::string& created() const { return created_; }
  weft_reducer* reducer() const { return reducer_; }
  const Stream& main() const { return main_; }
  const Stream& side() const { return side_; }
  std::string error() const { return ReducerPair::error(reducer_); }
  void* gradient(size_t i) const {
    void* view = gradients_[i]->get();
    if (how_.mode == WEFT_GRADIENT_VIEW) weft_reducer_grad_view(reducer_, i, &view);
    return view;
  }

  // Runs the program's step. Gradients are computed from the sources, on two streams, and become ready in an
  // order of the rank's own; then the results are copied. If captured, it runs with each launch.
  std::string step(uint64_t begin_flags) {
    weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
    begin.flags = begin_flags;
    begin.micro_batches = how_.micro_batches;
    if (weft_reducer_begin(reducer_, &begin) != WEFT_OK) return "begin: " + error();
    cudaSetDevice(rank_.rank);
    follow(side_, main_);
    for (size_t k = 0; k < tensors_.size(); k++) {
      const size_t i = (k * 5 + static_cast<size_t>(rank_.rank)) % tensors_.size();  // coprime
      const Stream& on = i == 3 || i == 5 ? side_ : main_;  // two streams compute gradients of one bucket
      move(gradient(i), sources_[i]->get(), i, on);
      if (weft_reducer_ready(reducer_, i, gradient(i), on.view()) != WEFT_OK) return "ready: " + error();
    }
    weft_finish_options finish = WEFT_FINISH_OPTIONS_INIT;
    finish.stream = main_.view();
    if (weft_reducer_finish(reducer_, &finish) != WEFT_OK) return "finish: " + error();
    for (size_t i = 0; i < tensors_.size(); i++) move(results_[i]->get(), gradient(i), i, main_);
    return "";
  }
  std::string capture(cudaStreamCaptureMode mode, size_t* number = nullptr) {
    cudaSetDevice(rank_.rank);
    if (cudaStreamBeginCapture(main_.get(), mode) != cudaSuccess) return "no capture";
    std::string wrong = step(WEFT_BEGIN_CAPTURE);
    cudaGraph_t graph = nullptr;
    if (cudaStreamEndCapture(main_.get(), &graph) != cudaSuccess) return wrong + "the capture is spoilt";
    cudaGraphExec_t executable = nullptr;
    if (cudaGraphInstantiate(&executable, graph, 0) != cudaSuccess) return wrong + "no executable graph";
    if (number != nullptr) *number = graphs_.size();
    graphs_.emplace_back(graph, executable);
    return wrong;
  }
  std::string launch(size_t number = 0) {
    if (number >= graphs_.size()) return "no graph was captured";
    cudaSetDevice(rank_.rank);
    return cudaGraphLaunch(graphs_[number].second, main_.get()) == cudaSuccess ? "" : "no launch";
  }
  void forget() {
    for (const auto& [graph, executable] : graphs_) {
      cudaGraphExecDestroy(executable);
      cudaGraphDestroy(graph);
    }
    graphs_.clear();
  }
  std::vector<std::pair<cudaGraph_t, cudaGraphExec_t>> take_graphs() { return std::exchange(graphs_, {}); }

  // Writes the sources of this seed, in the order of the main stream.
  void write(uint64_t seed) {
    for (size_t i = 0; i < tensors_.size(); i++) {
      std::vector<char> values = values_of(tensors_[i], seed + i, rank_.rank);
      values.resize(std::max<size_t>(values.size(), 1));
      sources_[i]->write(main_, [&](size_t at) { return values[at]; });
    }
    cudaStreamSynchronize(main_.get());
  }
  // Waits for the main stream and checks that the results are the averages of this seed's sources.
  std::string compare(uint64_t seed, double divisor) {
    for (size_t i = 0; i < tensors_.size(); i++) {
      if (tensors_[i].count() == 0) continue;
      std::vector<char> got = results_[i]->read(main_);
      const std::vector<char> expected = average(tensors_[i], seed + i, divisor);
      got.resize(expected.size());
      if (got != expected) return "'" + tensors_[i].name + "' differs";
    }
    return "";
  }
  weft_reducer_stats stats() const {
    weft_reducer_stats stats{};
    stats.struct_size = sizeof stats;
    weft_reducer_query(reducer_, &stats);
    return stats;
  }

 private:
  static double value_at(const Tensor& tensor, const std::vector<char>& bytes, size_t at) {
    double wide = 0;
    float single = 0;
    uint32_t bits = 0;
    if (tensor.element() == 8) std::memcpy(&wide, &bytes[at], 8);
    if (tensor.element() == 4) std::memcpy(&bits, &bytes[at], 4);
    if (tensor.element() == 2) std::memcpy(reinterpret_cast<char*>(&bits) + 2, &bytes[at], 2);
    std::memcpy(&single, &bits, 4);
    return tensor.element() == 8 ? wide : static_cast<double>(single);
  }
  // Exact: sums of small whole numbers, divided by powers of two. Gaps keep this rank's bytes.
  std::vector<char> average(const Tensor& tensor, uint64_t seed, double divisor) const {
    std::vector<std::vector<char>> all;
    all.reserve(static_cast<size_t>(rank_.size));
    for (int r = 0; r < rank_.size; r++) all.push_back(values_of(tensor, seed, r));
    std::vector<char> out = all[static_cast<size_t>(rank_.rank)];
    const auto put = [&](size_t at) {
      double sum = 0;
      for (const std::vector<char>& bytes : all) sum += value_at(tensor, bytes, at);
      const double mean = sum / divisor;
      const auto single = static_cast<float>(mean);
      const char* const from = tensor.element() == 8 ? reinterpret_cast<const char*>(&mean)
                                                     : reinterpret_cast<const char*>(&single);
      std::memcpy(&out[at], from + (tensor.element() == 2 ? 2 : 0), tensor.element());
    };
    const bool gaps = !tensor.strides.empty() && how_.mode == WEFT_GRADIENT_COPY;
    if (!gaps) {
      for (uint64_t i = 0; i < tensor.bytes() / tensor.element(); i++) put(i * tensor.element());
      return out;
    }
    for (int64_t row = 0; row < tensor.shape[0]; row++) {
      for (int64_t column = 0; column < tensor.shape[1]; column++)
        put(static_cast<size_t>(row * tensor.strides[0] + column * tensor.strides[1]) * tensor.element());
    }
    return out;
  }
  void follow(const Stream& later, const Stream& earlier) {
    cudaEventRecord(event_, earlier.get());
    cudaStreamWaitEvent(later.get(), event_, 0);
  }
  void move(void* to, const void* from, size_t i, const Stream& on) {
    const size_t bytes = tensors_[i].bytes();
    if (bytes > 0) cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, on.get());
  }

  Rank& rank_;
  const How how_;
  const Stream main_, side_;
  cudaEvent_t event_ = nullptr;
  std::vector<Tensor> tensors_;
  std::vector<std::unique_ptr<DeviceBuffer<char>>> sources_, gradients_, results_;
  weft_hook* hook_ = nullptr;
  weft_reducer* reducer_ = nullptr;
  std::string created_;
  std::vector<std::pair<cudaGraph_t, cudaGraphExec_t>> graphs_;
};

// Tensors without gaps, because gradients in a view have none.
std::vector<Tensor> dense_tensors(int rank) {
  std::vector<Tensor> tensors = own_tensors(rank);
  tensors[2].strides.clear();
  return tensors;
}

bool waits_for(const Trained& trained, uint64_t replays) {
  for (int i = 0; i < 2000 && trained.stats().replays < replays; i++)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return trained.stats().replays == replays;
}

}  // namespace

TEST_CASE("a captured step averages new gradients with every launch, between ordinary steps") {
  for (const int32_t gradients : {WEFT_GRADIENT_COPY, WEFT_GRADIENT_VIEW}) {
    for (const cudaStreamCaptureMode mode :
         {cudaStreamCaptureModeRelaxed, cudaStreamCaptureModeThreadLocal}) {
      INFO("gradients " << gradients << ", capture " << mode);
      const NcclRun nccl(3, 60);
      RankFailures failures;
      const int size = nccl.ranks(2);
      failures.expect(nccl.run(size, [&](Rank& r) {
        How how;
        how.mode = gradients;
        if (gradients == WEFT_GRADIENT_VIEW) how.tensors = dense_tensors(r.rank);
        Trained trained(r, how);
        failures.expect(trained.created());
        if (!trained.created().empty()) return;
        trained.write(50);
        failures.expect(trained.step(0));
        failures.expect(trained.compare(50, size));
        failures.expect(trained.capture(mode));
        const weft_reducer_stats captured = trained.stats();
        failures.expect(captured.captures == 1 && captured.launches == 0 && captured.steps == 1,
                        "the capture ran");
        for (uint64_t seed = 1; seed < 6; seed++) {
          trained.write(seed * 100);
          failures.expect(trained.launch());
          failures.expect(trained.compare(seed * 100, size));
        }
        failures.expect(waits_for(trained, 5) && trained.stats().launches == 5, "launches are not counted");
        failures.expect(trained.stats().steps == 1, "launches are counted as steps");
        trained.write(70);
        failures.expect(trained.step(0));
        failures.expect(trained.compare(70, size));
        trained.write(80);
        failures.expect(trained.launch());
        failures.expect(trained.compare(80, size));
      }));
      failures.check();
    }
  }
}

TEST_CASE(
    "captured gradients are communicated in a narrower type, divided by micro-batches, in several graphs") {
  for (const int32_t travels : {WEFT_DTYPE_BF16, WEFT_DTYPE_F16}) {
    INFO("type " << travels);
    const NcclRun nccl(7, 60);
    RankFailures failures;
    const int size = nccl.ranks(4);
    failures.expect(nccl.run(size, [&](Rank& r) {
      How how;
      how.reduce_dtype = travels;
      how.micro_batches = 2;
      Trained trained(r, how);
      failures.expect(trained.created());
      if (!trained.created().empty()) return;
      size_t one = 0, two = 0;
      failures.expect(trained.capture(cudaStreamCaptureModeRelaxed, &one));
      failures.expect(trained.capture(cudaStreamCaptureModeRelaxed, &two));
      for (const size_t number : {two, one, one, two}) {
        trained.write(10 * number);
        failures.expect(trained.launch(number));
        failures.expect(trained.compare(10 * number, 2.0 * size));
      }
      failures.expect(trained.stats().captures == 2 && waits_for(trained, 4), "not counted");
    }));
    failures.check();
  }
}

TEST_CASE("a captured step with fp16 or bf16 divides first, then rounds") {
  for (const char* const hook : {"fp16", "bf16"}) {
    INFO(hook);
    const NcclRun nccl(9, 60);
    RankFailures failures;
    const int size = nccl.ranks(2);
    failures.expect(nccl.run(size, [&](Rank& r) {
      How how;
      how.hook = hook;
      how.micro_batches = 2;
      Trained trained(r, how);
      failures.expect(trained.created());
      if (!trained.created().empty()) return;
      failures.expect(trained.capture(cudaStreamCaptureModeRelaxed));
      for (uint64_t seed = 1; seed < 4; seed++) {
        trained.write(seed * 10);
        failures.expect(trained.launch());
        failures.expect(trained.compare(seed * 10, 2.0 * size));
      }
    }));
    failures.check();
  }
}

TEST_CASE("options that cannot be captured are refused by name at the reducer's creation") {
  const NcclRun nccl;
  if (nccl.ranks(2) < 2) WEFT_SKIP("it needs two devices");
  RankFailures failures;
  const auto refuses = [&](const std::string& part, const std::function<How(int)>& how) {
    failures.expect(nccl.run(2, [&](Rank& r) {
      const Trained trained(r, how(r.rank));
      failures.expect(has(trained.created(), part), "'" + trained.created() + "' and not '" + part + "'");
    }));
  };
  const auto with = [](uint64_t flags) {
    return [=](int) { return How{.flags = flags | WEFT_REDUCER_GRAPH}; };
  };
  refuses("it excludes WEFT_REDUCER_RETAIN", with(WEFT_REDUCER_RETAIN));
  refuses("it excludes WEFT_REDUCER_ABSENT", with(WEFT_REDUCER_ABSENT));
  refuses("it excludes WEFT_REDUCER_UNEVEN", with(WEFT_REDUCER_UNEVEN));
  refuses("it excludes WEFT_REDUCER_NORMS", with(WEFT_REDUCER_NORMS));
  refuses("replan is WEFT_PLANNER_MODEL, which WEFT_REDUCER_GRAPH excludes",
          [](int) { return How{.flags = WEFT_REDUCER_GRAPH, .replan = WEFT_PLANNER_MODEL}; });
  refuses("it excludes WEFT_REDUCER_SHARDED", with(WEFT_REDUCER_SHARDED));
  refuses("it excludes WEFT_REDUCER_DETERMINISTIC", with(WEFT_REDUCER_DETERMINISTIC));
  refuses("check_interval is 3, but must be 0", [](int) { return How{.check_interval = 3}; });
  refuses("cannot be captured: it computes on the host",
          [](int) { return How{.hook = "int8", .tensors = {{"a", {5}, WEFT_DTYPE_F32, 0}}}; });
  refuses("reduce_dtype rounds its gradients before the hook 'fp16",
          [](int) { return How{.reduce_dtype = WEFT_DTYPE_BF16, .hook = "fp16"}; });
  refuses("parameter 1 ('b') is in host memory", [](int rank) {
    return How{.tensors = {{"a", {5}, WEFT_DTYPE_F32, rank}, {"b", {5}, WEFT_DTYPE_F32, kHost}}};
  });
  refuses("parameter 1 ('b') is on another CUDA device", [&](int rank) {
    return How{.tensors = {{"a", {5}, WEFT_DTYPE_F32, rank}, {"b", {5}, WEFT_DTYPE_F32, nccl.other(rank)}}};
  });
  refuses("backend 'nccl' does not support graphs of CUDA device",
          [&](int rank) { return How{.tensors = {{"a", {5}, WEFT_DTYPE_F32, nccl.other(rank)}}}; });
  failures.check();
}

TEST_CASE("calls that a captured step does not allow are refused by name, and later steps work") {
  const NcclRun nccl;
  RankFailures failures;
  const int size = nccl.ranks(2);
  failures.expect(nccl.run(size, [&](Rank& r) {
    Trained trained(r, {});
    failures.expect(trained.created());
    if (!trained.created().empty()) return;
    weft_reducer* const reducer = trained.reducer();
    const auto refused = [&](weft_status status, weft_status code, const std::string& part) {
      failures.expect(status == code && has(trained.error(), part),
                      std::to_string(status) + ": " + trained.error() + ", not " + part);
    };
    weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
    begin.flags = WEFT_BEGIN_CAPTURE | WEFT_BEGIN_LOCAL;
    refused(weft_reducer_begin(reducer, &begin), WEFT_ERR_ARG, "WEFT_BEGIN_CAPTURE excludes");
    begin.flags = WEFT_BEGIN_LOCAL;
    failures.expect(weft_reducer_begin(reducer, &begin) == WEFT_OK, "local");
    failures.expect(weft_reducer_finish(reducer, nullptr) == WEFT_OK, "local");
    begin.flags = WEFT_BEGIN_CAPTURE;
    refused(weft_reducer_begin(reducer, &begin), WEFT_ERR_STATE,
            "the gradients that local steps have accumulated");
    trained.write(1);
    failures.expect(trained.step(0));

    // Streams that are not captured.
    failures.expect(weft_reducer_begin(reducer, &begin) == WEFT_OK, trained.error());
    refused(weft_reducer_begin(reducer, &begin), WEFT_ERR_STATE, "begin inside a captured step");
    refused(weft_reducer_ready(reducer, 0, trained.gradient(0), trained.main().view()), WEFT_ERR_STATE,
            "but this stream is not: begin the capture first");
    refused(weft_reducer_ready(reducer, 0, trained.gradient(0), nullptr), WEFT_ERR_ARG,
            "pass the weft_stream");
    const uint64_t first = 0;
    refused(weft_reducer_absent(reducer, &first, 1), WEFT_ERR_UNSUPPORTED, "absent from a captured step");
    refused(weft_reducer_broadcast(reducer, nullptr, nullptr), WEFT_ERR_STATE, "inside a captured step");
    refused(weft_reducer_replan(reducer, nullptr, nullptr), WEFT_ERR_UNSUPPORTED,
            "WEFT_REDUCER_GRAPH is fixed");
    refused(weft_reducer_finish(reducer, nullptr), WEFT_ERR_ARG,
            "it must name CUDA streams that are being captured");

    // A capture in which a gradient is missing.
    cudaSetDevice(r.rank);
    cudaGraph_t graph = nullptr;
    failures.expect(cudaStreamBeginCapture(trained.main().get(), cudaStreamCaptureModeRelaxed) == cudaSuccess,
                    "");
    failures.expect(weft_reducer_begin(reducer, &begin) == WEFT_OK, trained.error());
    failures.expect(weft_reducer_ready(reducer, 1, trained.gradient(1), trained.main().view()) == WEFT_OK,
                    trained.error());
    refused(weft_reducer_ready(reducer, 1, trained.gradient(1), trained.main().view()), WEFT_ERR_STATE,
            "became ready twice");
    weft_finish_options finish = WEFT_FINISH_OPTIONS_INIT;
    finish.stream = trained.main().view();
    refused(weft_reducer_finish(reducer, &finish), WEFT_ERR_STATE,
            "never became ready in a captured step: 'conv'");
    if (cudaStreamEndCapture(trained.main().get(), &graph) == cudaSuccess) cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    failures.expect(trained.stats().captures == 0, "it counts as captured");

    // Both kinds of steps work after these errors.
    trained.write(2);
    failures.expect(trained.step(0));
    failures.expect(trained.compare(2, size));
    failures.expect(trained.capture(cudaStreamCaptureModeThreadLocal));
    trained.write(3);
    failures.expect(trained.launch());
    failures.expect(trained.compare(3, size));
  }));
  failures.check();
}

TEST_CASE("a captured step without WEFT_REDUCER_GRAPH is refused") {
  const NcclRun nccl;
  RankFailures failures;
  failures.expect(nccl.run(1, [&](Rank& r) {
    Trained trained(r, {.flags = 0});
    failures.expect(trained.created());
    const std::string wrong = trained.step(WEFT_BEGIN_CAPTURE);
    failures.expect(has(wrong, "needs a reducer that was created with WEFT_REDUCER_GRAPH"), wrong);
  }));
  failures.check();
}

TEST_CASE("a launch that one rank does not make fails the communicator at the reducer's deadline") {
  const NcclRun nccl;
  if (nccl.ranks(2) < 2) WEFT_SKIP("it needs two devices");
  RankFailures failures;
  failures.expect(nccl.run(2, [&](Rank& r) {
    Trained trained(r, {.timeout_ms = 500});
    failures.expect(trained.created());
    if (!trained.created().empty()) return;
    failures.expect(trained.capture(cudaStreamCaptureModeRelaxed));
    trained.write(1);
    if (r.rank == 0) failures.expect(trained.launch());
    weft_error failure = WEFT_ERROR_INIT;
    while (weft_comm_error(r.comm, &failure) == WEFT_OK && failure.code == WEFT_OK) std::this_thread::yield();
    failures.expect(failure.code == WEFT_ERR_TIMEOUT &&
                        has(failure.text, "rank 0, launch 1 of a captured step: it does not end"),
                    failure.text);
    failures.expect(cudaStreamSynchronize(trained.main().get()) == cudaSuccess, "the stream hangs");
    failures.expect(!trained.step(WEFT_BEGIN_CAPTURE).empty(), "it goes on");
  }));
  failures.check();
}

}  // namespace capi_nccl_graph
