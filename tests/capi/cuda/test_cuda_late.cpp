// A program starts to use CUDA long after its communicators were created. Weft has loaded nothing of CUDA's
// until then. It finds the driver that the program has loaded, and queries it. The driver is a stand-in
// (tests/capi/driver) that stays loaded to the end of the process.
#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "capi/ranks.h"
#include "support/catch.h"

using namespace weft_test;

namespace {

using Owns = void (*)(const void*, const void*);

weft_status reduce(Rank& r, float* at, size_t count) {
  return weft_all_reduce(r.comm, at, at, count, WEFT_DTYPE_F32, WEFT_OP_SUM, nullptr, nullptr);
}

std::string error_of(const weft_comm* comm) {
  weft_error error = WEFT_ERROR_INIT;
  weft_comm_error(comm, &error);
  return error.text;
}

}  // namespace

TEST_CASE(
    "a driver that the program loads late is found by the first call with memory that was not seen before") {
  // Names as the runtime a library that is already loaded, because a runtime is loaded before its driver.
  REQUIRE(setenv("WEFT_CUDA_RUNTIME", "libm.so.6", 1) == 0);
  Findings f;
  std::vector<float> memory(50'000);
  std::string text;
  weft_status taken = WEFT_OK;
  const std::string error = run("loopback", 1, WEFT_PROGRESS_CALLER, [&](Rank& small) {
    f.expect(run("loopback", 1, WEFT_PROGRESS_CALLER, [&](Rank& large) {
               for (int i = 0; i < 1000; i++) {
                 f.expect(reduce(small, memory.data(), 1) == WEFT_OK);
                 f.expect(reduce(large, memory.data(), 1) == WEFT_OK);
               }
               void* const driver = dlopen(WEFT_TEST_DRIVER, RTLD_NOW | RTLD_LOCAL);
               f.expect(driver != nullptr);
               if (driver == nullptr) return;
               const auto owns = reinterpret_cast<Owns>(dlsym(driver, "driver_owns"));
               // Memory belongs to no device before the program uses one.
               f.expect(reduce(large, memory.data(), memory.size()) == WEFT_OK);
               owns(memory.data() + 10'000, memory.data() + memory.size());
               f.expect(reduce(large, memory.data(), 10'000) == WEFT_OK);
               f.expect(reduce(large, memory.data() + 10'000, memory.size() - 10'000) == WEFT_ERR_ARG);
               f.expect(reduce(large, memory.data() + 10'000, 1) == WEFT_ERR_ARG);
               f.expect(reduce(large, memory.data(), memory.size()) == WEFT_ERR_ARG);
               text = error_of(large.comm);
               taken = reduce(small, memory.data() + 20'000, 1);
             }) == "");
  });
  CHECK(error == "");
  CHECK(f.wrong == 0);
  CHECK(text ==
        "all_reduce: src ends in memory of CUDA device 3, but no stream is given: pass one of that device "
        "(weft_coll_options.stream), or host memory");
  CHECK(taken == WEFT_ERR_ARG);
}
