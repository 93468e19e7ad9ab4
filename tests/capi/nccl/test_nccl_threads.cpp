// The nccl backend when the system can create no more threads. The program's own pthread_create replaces the
// system's here.
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "capi/fake_nccl.h"

using namespace weft_test;

namespace {

std::atomic<int> g_refuse{0};

using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);

// For a scope, every pthread_create of the process fails.
struct NoThreads {
  NoThreads() { g_refuse++; }
  ~NoThreads() { g_refuse--; }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) int pthread_create(pthread_t* thread,
                                                                     const pthread_attr_t* attributes,
                                                                     void* (*body)(void*), void* argument) {
  static const auto real = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  if (g_refuse == 0) return real(thread, attributes, body, argument);
  return EAGAIN;
}

TEST_CASE(
    "NCCL's operations are aborted on a thread of their own, even if no thread can be created any more") {
  constexpr int kDelayUs = 200'000;  // of an operation on its stream: long enough to let it fail
  const FakeNccl fake(1, kDelayUs);
  RankFailures failures;
  const std::string error = run_nccl(2, [&](Rank& r) {
    const Stream stream(r.rank);
    DeviceBuffer<float> values(1000, r.rank);
    const weft_coll_options options = on(stream);
    weft_request* request = nullptr;
    const weft_status begun = weft_all_reduce(r.comm, values.get(), values.get(), 1000, WEFT_DTYPE_F32,
                                              WEFT_OP_SUM, &options, &request);
    failures.expect(begun == WEFT_OK, error_of(r.comm));
    if (begun != WEFT_OK) return;
    for (int i = 0; i < 10'000 && fake_nccl_calls("ncclAllReduce") < 2; i++)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    {
      const NoThreads none;
      if (r.rank == 0) fake_nccl_break(0, ncclInternalError);
      failures.expect(weft_request_wait(request, 10'000) != WEFT_OK, "NCCL's error is lost");
    }
    weft_request_release(&request);
    cudaStreamSynchronize(stream.get());
  });
  CHECK(error == "");
  failures.check();
  CHECK(std::string(fake_nccl_aborted_on()) == "weft-nccl-end");
}
