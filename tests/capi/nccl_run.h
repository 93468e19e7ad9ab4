// Ranks over nccl for tests that a real NCCL runs as well: the fakes, a device for each rank; or, in
// tests/gpu (WEFT_TEST_REAL_NCCL), the devices that there are.
#pragma once

#include "capi/cuda.h"
#include "capi/ranks.h"
#ifdef WEFT_TEST_REAL_NCCL
#include <algorithm>
#else
#include "capi/fake_nccl.h"
#endif

namespace weft_test {

// For the time of a test.
class NcclRun {
 public:
  explicit NcclRun(uint64_t seed = 1, int delay_us = 200) : fake_(seed, delay_us) {}
#ifdef WEFT_TEST_REAL_NCCL
  // So many ranks as there may be, each on a device of its own: a power of two.
  int ranks(int wanted) const {
    int devices = 0;
    cudaGetDeviceCount(&devices);
    while (wanted > devices) wanted /= 2;
    return wanted;
  }
  int other(int rank) const { return rank == 0 ? 1 : 0; }
#else
  int ranks(int wanted) const { return wanted; }
  int other(int rank) const { return rank + 4; }
#endif
  std::string run(int size, const std::function<void(Rank&)>& body) const {
    return weft_test::run("nccl", size, WEFT_PROGRESS_THREAD, nullptr, body,
                          [](Rank& r) { cudaSetDevice(r.rank); });
  }

 private:
#ifdef WEFT_TEST_REAL_NCCL
  struct Nothing {
    Nothing(uint64_t, int) {}
  };
  const Nothing fake_;
#else
  const FakeNccl fake_;
#endif
};

}  // namespace weft_test
