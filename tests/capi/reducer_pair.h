// A reducer of gradients on devices and its twin in host memory, which make the same steps with the same
// gradients. Their results must have the same bits. For tests of CUDA reducers on the fake.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "capi/cuda.h"
#include "capi/ranks.h"

namespace weft_test {

inline constexpr int kHost = -1;

struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
  int32_t dtype = WEFT_DTYPE_F32;
  int device = 0;                     // or kHost
  std::vector<int64_t> strides = {};  // default row-major

  size_t element() const { return dtype == WEFT_DTYPE_F64 ? 8 : dtype == WEFT_DTYPE_BF16 ? 2 : 4; }
  uint64_t count() const {
    uint64_t n = 1;
    for (const int64_t extent : shape) n *= static_cast<uint64_t>(extent);
    return n;
  }
  size_t bytes() const {
    if (count() == 0) return 0;
    if (strides.empty()) return count() * element();
    uint64_t last = 0;
    for (size_t d = 0; d < shape.size(); d++) last += static_cast<uint64_t>((shape[d] - 1) * strides[d]);
    return (last + 1) * element();
  }
};

// Tensors of various types and shapes, on the host and on two devices.
inline std::vector<Tensor> mixed_tensors() {
  return {{"conv", {8, 3, 3, 3}, WEFT_DTYPE_F32, 0},  {"bias", {7}, WEFT_DTYPE_F32, 0},
          {"host", {37}, WEFT_DTYPE_F32, kHost},      {"brain", {129}, WEFT_DTYPE_BF16, 1},
          {"nothing", {4, 0}, WEFT_DTYPE_F32, 0},     {"transposed", {5, 7}, WEFT_DTYPE_F32, 1, {1, 5}},
          {"double", {11, 3}, WEFT_DTYPE_F64, 0},     {"padded", {6, 5}, WEFT_DTYPE_F32, 0, {9, 1}},
          {"large", {20'001}, WEFT_DTYPE_F32, 1},     {"scale", {}, WEFT_DTYPE_BF16, 0},
          {"host.double", {5}, WEFT_DTYPE_F64, kHost}};
}

// Returns small whole numbers as bytes; they are the same on every run.
inline std::vector<char> values_of(const Tensor& tensor, uint64_t seed, int rank) {
  std::vector<char> bytes(tensor.bytes(), 0x5a);
  std::mt19937_64 random(seed * 1000 + static_cast<uint64_t>(rank));
  const size_t element = tensor.element();
  for (size_t at = 0; at + element <= bytes.size(); at += element) {
    const double value = static_cast<double>(random() % 17) - 8.0;
    const auto single = static_cast<float>(value);
    if (element == 8) std::memcpy(&bytes[at], &value, 8);
    if (element == 4) std::memcpy(&bytes[at], &single, 4);
    uint32_t bits = 0;
    std::memcpy(&bits, &single, 4);
    const auto high = static_cast<uint16_t>(bits >> 16);
    if (element == 2) std::memcpy(&bytes[at], &high, 2);
  }
  return bytes;
}

// A rank's part of the two reducers.
class ReducerPair {
 public:
  struct Options {
    uint64_t flags = 0;
    int32_t mode = WEFT_GRADIENT_COPY;
    int32_t divide_by = WEFT_DIVIDE_WORLD;
    int32_t reduce_dtype = 0;
    uint64_t limit = 0;  // of buckets
    std::string hook = "allreduce";
    std::string hook_options;
    weft_planner replan = WEFT_PLANNER_DEFAULT;
    weft_accumulation accumulation = WEFT_ACCUMULATION_UNSET;
  };

  ReducerPair(Rank& rank, const std::vector<Tensor>& tensors, const Options& options)
      : rank_(rank), tensors_(there(tensors)), options_(options) {
    int most = 2;
    for (const Tensor& tensor : tensors_) most = std::max(most, tensor.device + 1);
    for (int device = 0; device < most; device++) {
      for (int i = 0; i < 2; i++) streams_.push_back(std::make_unique<Stream>(device % devices()));
    }
    for (const Tensor& tensor : tensors_) {
      host_.push_back(values_of(tensor, 0, rank.rank));
      beside_.push_back(host_.back());
      const size_t bytes = std::max<size_t>(tensor.bytes(), 1);
      device_.push_back(tensor.device == kHost ? nullptr
                                               : std::make_unique<DeviceBuffer<char>>(bytes, tensor.device));
    }
    for (size_t i = 0; i < tensors_.size(); i++) {
      if (tensors_[i].device != kHost) write(stream(tensors_[i].device), device_[i]->get(), host_[i]);
    }
    for (const auto& stream : streams_) cudaStreamSynchronize(stream->get());
    created_ = make(false, &on_host_);
    if (created_.empty()) created_ = make(true, &on_device_);
  }
  ~ReducerPair() {
    weft_reducer_destroy(&on_host_);
    weft_reducer_destroy(&on_device_);
    weft_hook_destroy(&hooks_[0]);
    weft_hook_destroy(&hooks_[1]);
  }
  ReducerPair(const ReducerPair&) = delete;
  ReducerPair& operator=(const ReducerPair&) = delete;

  const std::string& created() const { return created_; }  // the error of the creation
  weft_reducer* device() { return on_device_; }
  weft_reducer* host() { return on_host_; }
  Stream& stream(int device, uint64_t i = 0) { return *streams_[static_cast<size_t>(device) * 2 + i % 2]; }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  bool views() const { return options_.mode == WEFT_GRADIENT_VIEW; }
  // Returns the bytes of a gradient. Views have no gaps.
  size_t bytes(const Tensor& tensor) const {
    return views() ? tensor.count() * tensor.element() : tensor.bytes();
  }

  std::string begin(const weft_begin_options& options) {
    if (weft_reducer_begin(on_host_, &options) != WEFT_OK) return "host begin: " + error(on_host_);
    if (weft_reducer_begin(on_device_, &options) != WEFT_OK) return "device begin: " + error(on_device_);
    return "";
  }
  // Computes gradient i of this seed, on one of its device's streams, and calls ready. `add` adds it to the
  // existing value, as a program does.
  std::string ready(size_t i, uint64_t seed, bool add = false) {
    const Tensor& tensor = tensors_[i];
    std::vector<char> values = values_of(tensor, seed, rank_.rank);
    values.resize(bytes(tensor));
    void* host = host_[i].data();
    if (views() && weft_reducer_grad_view(on_host_, i, &host) != WEFT_OK) return "host view";
    if (add) add_to(tensor, static_cast<const char*>(host), &values);
    if (!values.empty()) std::memcpy(host, values.data(), values.size());
    if (weft_reducer_ready(on_host_, i, host, nullptr) != WEFT_OK) return "host ready: " + error(on_host_);
    if (tensor.device == kHost) {
      void* beside = beside_[i].data();
      if (views() && weft_reducer_grad_view(on_device_, i, &beside) != WEFT_OK) return "view beside";
      if (!values.empty()) std::memcpy(beside, values.data(), values.size());
      return weft_reducer_ready(on_device_, i, beside, nullptr) == WEFT_OK ? ""
                                                                           : "beside: " + error(on_device_);
    }
    Stream& on = stream(tensor.device, seed + i);
    void* gradient = device_[i]->get();
    if (views() && weft_reducer_grad_view(on_device_, i, &gradient) != WEFT_OK) return "device view";
    write(on, gradient, values);
    if (weft_reducer_ready(on_device_, i, gradient, on.view()) != WEFT_OK)
      return "device ready: " + error(on_device_);
    return "";
  }
  std::string absent(uint64_t i) {
    if (weft_reducer_absent(on_host_, &i, 1) != WEFT_OK) return "host absent: " + error(on_host_);
    if (weft_reducer_absent(on_device_, &i, 1) != WEFT_OK) return "device absent: " + error(on_device_);
    return "";
  }
  // on_streams: streams wait instead of the host.
  std::string finish(weft_finish_options options, bool on_streams) {
    return finish(options, on_streams ? Waits::kStreams : Waits::kHost);
  }
  enum class Waits {
    kHost,
    kStreams,  // each stream waits for the whole step
    kParams,   // compare's stream of each gradient waits for it; another stream waits for the step
  };
  std::string finish(weft_finish_options options, Waits waits) {
    if (weft_reducer_finish(on_host_, &options) != WEFT_OK) return "host finish: " + error(on_host_);
    std::vector<weft_stream> waiting;
    for (const auto& stream : streams_) waiting.push_back(*stream->view());
    for (size_t i = 0; waits == Waits::kParams && i < tensors_.size(); i++) {
      if (tensors_[i].device == kHost) continue;
      const Stream& reads = stream(tensors_[i].device, i);
      if (weft_reducer_stream_wait_param(on_device_, i, reads.view()) != WEFT_OK)
        return "wait on a stream: " + error(on_device_);
    }
    if (waits == Waits::kParams) waiting = {*idle_.view()};
    if (waits != Waits::kHost) {
      options.stream = waiting.data();
      options.stream_count = waiting.size();
    }
    if (weft_reducer_finish(on_device_, &options) != WEFT_OK) return "device finish: " + error(on_device_);
    return "";
  }
  // Compares the bits in stream order. Returns the first parameter that differs.
  std::string compare() {
    for (size_t i = 0; i < tensors_.size(); i++) {
      const Tensor& tensor = tensors_[i];
      void* host = host_[i].data();
      if (views()) weft_reducer_grad_view(on_host_, i, &host);
      std::vector<char> expected(static_cast<char*>(host), static_cast<char*>(host) + bytes(tensor));
      std::vector<char> got;
      if (tensor.device == kHost) {
        // finish may have left the wait to streams.
        if (weft_reducer_wait_param(on_device_, i, 10'000) != WEFT_OK) return "wait: " + error(on_device_);
        void* beside = beside_[i].data();
        if (views()) weft_reducer_grad_view(on_device_, i, &beside);
        got.assign(static_cast<char*>(beside), static_cast<char*>(beside) + bytes(tensor));
      } else {
        void* gradient = device_[i]->get();
        if (views()) weft_reducer_grad_view(on_device_, i, &gradient);
        got = read(stream(tensor.device, i), i, gradient);
      }
      got.resize(expected.size());
      if (got != expected) return "'" + tensor.name + "' differs";
    }
    return "";
  }
  std::string replan(uint64_t limit) {
    weft_replan_options options = WEFT_REPLAN_OPTIONS_INIT;
    options.bucket_limits = &limit;
    options.bucket_limit_count = 1;
    if (weft_reducer_replan(on_host_, &options, nullptr) != WEFT_OK)
      return "host re-plan: " + error(on_host_);
    if (weft_reducer_replan(on_device_, &options, nullptr) != WEFT_OK)
      return "device re-plan: " + error(on_device_);
    return "";
  }
  // Compares the norms that both reducers report for the last step.
  std::string compare_norms() {
    weft_norms host{}, device{};
    host.struct_size = device.struct_size = sizeof host;
    if (weft_reducer_norms(on_host_, &host, nullptr) != WEFT_OK) return "host norms: " + error(on_host_);
    if (weft_reducer_norms(on_device_, &device, nullptr) != WEFT_OK)
      return "device norms: " + error(on_device_);
    return host.skipped == device.skipped && host.nonfinite_params == device.nonfinite_params
               ? ""
               : "norms differ";
  }
  static std::string error(weft_reducer* reducer) {
    weft_error error = WEFT_ERROR_INIT;
    weft_reducer_error(reducer, &error);
    return error.text;
  }
  // Returns the parameters for weft_reducer_create.
  std::vector<weft_param> params(bool device) const {
    std::vector<weft_param> params;
    for (size_t i = 0; i < tensors_.size(); i++) {
      const Tensor& tensor = tensors_[i];
      weft_param param = WEFT_PARAM_INIT;
      param.name = tensor.name.c_str();
      param.dtype = tensor.dtype;
      param.ndim = static_cast<int32_t>(tensor.shape.size());
      param.shape = tensor.shape.data();
      param.strides = tensor.strides.empty() ? nullptr : tensor.strides.data();
      const bool there = device && tensor.device != kHost;
      if (there) {
        param.device_kind = WEFT_DEVICE_CUDA;
        param.device = tensor.device;
      }
      if (options_.mode == WEFT_GRADIENT_COPY) {
        char* const at = there ? device_[i]->get() : const_cast<char*>((device ? beside_ : host_)[i].data());
        param.gradient = tensor.count() > 0 ? at : nullptr;
      }
      params.push_back(param);
    }
    return params;
  }

 private:
  static int devices() {
    int count = 1;
    cudaGetDeviceCount(&count);
    return count;
  }
  // Moves the tensors to devices that exist.
  static std::vector<Tensor> there(std::vector<Tensor> tensors) {
    for (Tensor& tensor : tensors) {
      if (tensor.device != kHost) tensor.device %= devices();
    }
    return tensors;
  }
  std::string make(bool device, weft_reducer** reducer) {
    const std::vector<weft_param> list = params(device);
    weft_error error = WEFT_ERROR_INIT;
    weft_hook_params hook = WEFT_HOOK_PARAMS_INIT;
    hook.options = options_.hook_options.c_str();
    hook.error = &error;
    if (weft_hook_create(rank_.context, options_.hook.c_str(), &hook, &hooks_[device ? 1 : 0]) != WEFT_OK)
      return error.text;
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = list.data();
    options.param_count = list.size();
    options.mode = options_.mode;
    options.bucket_limits = &options_.limit;
    options.bucket_limit_count = 1;
    options.hook = hooks_[device ? 1 : 0];
    options.flags = options_.flags;
    options.replan = options_.replan;
    options.accumulation = options_.accumulation;
    options.divide_by = options_.divide_by;
    options.reduce_dtype = options_.reduce_dtype;
    return weft_reducer_create(rank_.comm, &options, reducer, &error) == WEFT_OK ? "" : error.text;
  }
  static void add_to(const Tensor& tensor, const char* sum, std::vector<char>* values) {
    const size_t element = tensor.element();
    for (size_t at = 0; at + element <= values->size(); at += element) {
      char* const to = values->data() + at;
      if (element == 8) {
        double a = 0, b = 0;
        std::memcpy(&a, sum + at, 8);
        std::memcpy(&b, to, 8);
        a += b;
        std::memcpy(to, &a, 8);
        continue;
      }
      uint32_t bits[2] = {0, 0};
      const size_t shift = 4 - element;
      std::memcpy(reinterpret_cast<char*>(&bits[0]) + shift, sum + at, element);
      std::memcpy(reinterpret_cast<char*>(&bits[1]) + shift, to, element);
      float f[2];
      std::memcpy(f, bits, 8);
      f[0] += f[1];
      std::memcpy(to, reinterpret_cast<char*>(&f[0]) + shift, element);
    }
  }
  void write(const Stream& on, void* to, const std::vector<char>& values) {
    if (values.empty()) return;
    void* const from = pinned(values);
    cudaSetDevice(on.device());
    cudaMemcpyAsync(to, from, values.size(), cudaMemcpyHostToDevice, on.get());
  }
  // Returns pinned memory that asynchronous copies use later. It is not freed before the end, because freeing
  // waits for devices.
  void* pinned(const std::vector<char>& bytes) {
    pinned_.push_back(std::make_unique<Pinned>(bytes));
    return pinned_.back()->get();
  }
  std::vector<char> read(const Stream& on, size_t i, void* from) {
    std::vector<char> got(bytes(tensors_[i]));
    if (got.empty()) return got;
    void* const to = pinned(got);
    cudaSetDevice(on.device());
    cudaMemcpyAsync(to, from, got.size(), cudaMemcpyDeviceToHost, on.get());
    cudaStreamSynchronize(on.get());
    std::memcpy(got.data(), to, got.size());
    return got;
  }
  class Pinned {
   public:
    explicit Pinned(const std::vector<char>& bytes) {
      cudaHostAlloc(&memory_, bytes.size(), 0);
      std::memcpy(memory_, bytes.data(), bytes.size());
    }
    ~Pinned() { cudaFreeHost(memory_); }
    Pinned(const Pinned&) = delete;
    Pinned& operator=(const Pinned&) = delete;
    void* get() const { return memory_; }

   private:
    void* memory_ = nullptr;
  };

  Rank& rank_;
  const std::vector<Tensor> tensors_;
  const Options options_;
  std::vector<std::unique_ptr<Stream>> streams_;  // two a device
  const Stream idle_;
  std::vector<std::vector<char>> host_;    // gradients of the host reducer
  std::vector<std::vector<char>> beside_;  // host gradients of the device reducer
  std::vector<std::unique_ptr<DeviceBuffer<char>>> device_;
  std::vector<std::unique_ptr<Pinned>> pinned_;
  weft_hook* hooks_[2] = {};
  weft_reducer* on_host_ = nullptr;
  weft_reducer* on_device_ = nullptr;
  std::string created_;
};

}  // namespace weft_test
