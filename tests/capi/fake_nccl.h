// The fake NCCL in tests of the C ABI, together with the fake CUDA. Each rank has a device of its own.
#pragma once

#include <dlfcn.h>
#include <nccl.h>

#include <cstdlib>
#include <string>

#include "capi/cuda.h"
#include "capi/ranks.h"
#include "support/catch.h"
#include "support/fake_nccl/fake_nccl.h"

namespace weft_test {

// Installs the fake NCCL for a test, as FakeCuda does for CUDA.
class FakeNccl {
 public:
  explicit FakeNccl(uint64_t seed = 1, int delay_us = 200) : cuda_(8, seed, delay_us) {
    Dl_info info{};
    dladdr(reinterpret_cast<const void*>(&fake_nccl_setup), &info);
    setenv("WEFT_NCCL_LIBRARY", info.dli_fname, 1);
    fake_nccl_setup(seed, delay_us);
  }
  ~FakeNccl() {
    INFO(std::string(fake_nccl_problems()) + std::string(fake_nccl_live()));
    CHECK(std::string(fake_nccl_problems()).empty());
    CHECK(std::string(fake_nccl_live()).empty());
    CHECK(unsetenv("WEFT_NCCL_LIBRARY") == 0);
  }
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

 private:
  const FakeCuda cuda_;  // destroyed last, because NCCL's work ran on it
};

// Runs ranks over nccl; rank r uses device r.
inline std::string run_nccl(
    int size, const std::function<void(Rank&)>& body,
    const std::function<int(int)>& device_of = [](int rank) { return rank; }) {
  return run("nccl", size, WEFT_PROGRESS_THREAD, nullptr, body,
             [&](Rank& r) { cudaSetDevice(device_of(r.rank)); });
}

}  // namespace weft_test
