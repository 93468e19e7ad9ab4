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
  int ranks(int wanted) const { return at_most(wanted, devices()); }
  // Two on each device where NCCL is told to take them (NCCL_MULTI_RANK_GPU_ENABLE=1: it has to be able to).
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
