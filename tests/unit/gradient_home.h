// The memory of gradients in the hooks' tests: the host's, or (WEFT_TEST_DEVICE_GRADIENTS) a device's, on the
// fake CUDA or a real one. The same tests are compiled for both.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "reducer_rig.h"
#ifdef WEFT_TEST_DEVICE_GRADIENTS
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "runtime.h"
#ifndef WEFT_TEST_REAL_CUDA
#include "support/fake_cuda/fake_cuda.h"
#endif
#endif

namespace weft::test {

#ifdef WEFT_TEST_DEVICE_GRADIENTS

inline std::shared_ptr<Accelerator> gradient_devices() {
  static const std::shared_ptr<Accelerator> made = [] {
#ifdef WEFT_TEST_REAL_CUDA
    auto runtime = std::make_shared<cuda::Runtime>("");
#else
    fake_cuda_setup(1, 1, 0);
    Dl_info info{};
    dladdr(reinterpret_cast<const void*>(&fake_cuda_setup), &info);
    auto runtime = std::make_shared<cuda::Runtime>(info.dli_fname);
#endif
    std::string detail;
    REQUIRE(runtime->probe(&detail).ok());
    return runtime;
  }();
  return made;
}

// Gradients on device 0 for the time of a step.
class OnDevice {
 public:
  explicit OnDevice(std::vector<Bytes>* host) : host_(*host) {
    std::vector<size_t> offsets;
    size_t bytes = 1;
    for (const Bytes& gradient : host_) {
      bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
      offsets.push_back(bytes);
      bytes += gradient.size();
    }
    status_ = check("cudaSetDevice", cudaSetDevice(0));
    if (status_.ok()) status_ = check("cudaMalloc", cudaMalloc(&memory_, bytes));
    for (size_t i = 0; status_.ok() && i < host_.size(); i++) {
      places_.push_back(static_cast<std::byte*>(memory_) + offsets[i]);
      status_ = copy(i, places_[i], host_[i].data(), cudaMemcpyHostToDevice);
    }
  }
  ~OnDevice() { cudaFree(memory_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  Status ready(Reducer& reducer, uint64_t seed) const {
    WEFT_TRY(status_);
    const weft_stream usual = {sizeof usual, WEFT_DEVICE_CUDA, 0, nullptr};
    return ready_all(reducer, places_, seed, 1, &usual);
  }
  Status fetch() {
    for (size_t i = 0; i < host_.size(); i++)
      WEFT_TRY(copy(i, host_[i].data(), places_[i], cudaMemcpyDeviceToHost));
    return {};
  }

 private:
  static Status check(const std::string& call, cudaError_t error) {
    if (error == cudaSuccess) return {};
    return Status::error(Code::kSystem, cat(call, ": ", cudaGetErrorString(error)));
  }
  Status copy(size_t i, void* to, const void* from, cudaMemcpyKind kind) const {
    const uint64_t size = host_[i].size();
    return check(cat("cudaMemcpy of gradient ", i, ", ", size, " bytes"), cudaMemcpy(to, from, size, kind));
  }

  static constexpr size_t kAlignment = 256;
  std::vector<Bytes>& host_;
  std::vector<std::byte*> places_;
  void* memory_ = nullptr;
  Status status_;
};

// Runs a step in which all gradients become ready, in an order drawn from the seed.
inline Status train_step(Reducer& reducer, Gradients& gradients, uint64_t seed, uint32_t micro_batches = 1) {
  weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
  begin.micro_batches = micro_batches;
  OnDevice there(&gradients.memory());
  WEFT_TRY(reducer.begin(&begin));
  WEFT_TRY(there.ready(reducer, seed));
  WEFT_TRY(reducer.finish({}));
  return there.fetch();
}

inline std::vector<std::string> run_ranks(int size, const RankBody& body) {
  RanksOptions options;
  options.accelerator = gradient_devices();
  std::vector<std::string> failures = run_threads(size, body, options);
#ifndef WEFT_TEST_REAL_CUDA
  const std::string problems = fake_cuda_problems(), live = fake_cuda_live();
  for (const std::string& wrong : {problems, live}) {
    if (!wrong.empty()) failures.push_back(wrong);
  }
#endif
  return failures;
}

#else

inline Status train_step(Reducer& reducer, Gradients& gradients, uint64_t seed, uint32_t micro_batches = 1) {
  weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
  begin.micro_batches = micro_batches;
  WEFT_TRY(reducer.begin(&begin));
  WEFT_TRY(ready_all(reducer, pointers(gradients), seed));
  return reducer.finish({});
}

inline std::vector<std::string> run_ranks(int size, const RankBody& body) {
  return run_threads(size, body);
}

#endif

}  // namespace weft::test
