// Runs ranks over nccl in tests that also run with a real NCCL. By default they use the fakes, with one
// device a rank. In tests/gpu (WEFT_TEST_REAL_NCCL) they use the machine's devices.
#pragma once

#include "capi/cuda.h"
#include "capi/ranks.h"
#ifdef WEFT_TEST_REAL_NCCL
#include <algorithm>
#else
#include "capi/fake_nccl.h"
#endif

namespace weft_test {

// Installs the fakes for a test, where they are used.
class NcclRun {
 public:
  explicit NcclRun(uint64_t seed = 1, int delay_us = 200) : fake_(seed, delay_us) {}
#ifdef WEFT_TEST_REAL_NCCL
  // Returns the number of ranks that can have a device each: a power of two, at most `wanted`.
  int ranks(int wanted) const { return at_most(wanted, devices()); }
  // Allows two ranks on each device if NCCL_MULTI_RANK_GPU_ENABLE=1 is set, which NCCL must support.
  int ranks_sharing(int wanted) const {
    const char* const told = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    return at_most(wanted, told != nullptr && std::string(told) == "1" ? 2 * devices() : devices());
  }
  static int device(int rank) { return rank % devices(); }
  int other(int rank) const { return rank == 0 ? 1 : 0; }
#else
  int ranks(int wanted) const { return wanted; }
  int ranks_sharing(int wanted) const { return wanted; }
  static int device(int rank) { return rank; }
  int other(int rank) const { return rank + 4; }
#endif
  std::string run(int size, const std::function<void(Rank&)>& body) const {
    return weft_test::run("nccl", size, WEFT_PROGRESS_THREAD, nullptr, body,
                          [](Rank& r) { cudaSetDevice(device(r.rank)); });
  }

 private:
#ifdef WEFT_TEST_REAL_NCCL
  static int devices() {
    int count = 0;
    cudaGetDeviceCount(&count);
    return std::max(count, 1);
  }
  static int at_most(int wanted, int most) {
    while (wanted > most) wanted /= 2;
    return wanted;
  }
  struct Nothing {
    Nothing(uint64_t, int) {}
  };
  const Nothing fake_;
#else
  const FakeNccl fake_;
#endif
};

}  // namespace weft_test
