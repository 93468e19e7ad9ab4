// NCCL ranks on one thread, for tests of NCCL itself: over the fake, or over the real NCCL
// (WEFT_TEST_REAL_NCCL), which is found as Weft finds it.
#pragma once

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "library.h"
#include "support/catch.h"
#ifndef WEFT_TEST_REAL_NCCL
#include "support/fake_cuda/fake_cuda.h"
#include "support/fake_nccl/fake_nccl.h"
#endif

namespace weft_test {

// Waits until the communicator's call has finished. Returns ncclInProgress if it exceeds the limit.
inline ncclResult_t settle(const weft::nccl::Library& nccl, ncclComm_t comm) {
  const auto most = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress && std::chrono::steady_clock::now() < most) {
    std::this_thread::yield();
    if (nccl.ncclCommGetAsyncError(comm, &state) != ncclSuccess) return ncclInternalError;
  }
  return state;
}

struct Member {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  int device = 0;
  char* src = nullptr;
  char* dst = nullptr;
};

inline constexpr size_t kCount = 1000;
inline constexpr size_t kBytes = 2 * kCount * sizeof(double);

// Non-blocking communicators, each with a stream and memory on its rank's device. This thread makes all
// calls: first every rank's, then it waits for all of them.
class Clique {
 public:
  Clique(const weft::nccl::Library& nccl, const std::vector<int>& devices)
      : nccl_(nccl), members(devices.size()) {
    ncclUniqueId id;
    REQUIRE(nccl_.ncclGetUniqueId(&id) == ncclSuccess);
    for (size_t r = 0; r < members.size(); r++) {
      Member& member = members[r];
      member.device = devices[r];
      REQUIRE(cudaSetDevice(member.device) == cudaSuccess);
      REQUIRE(cudaStreamCreateWithFlags(&member.stream, cudaStreamNonBlocking) == cudaSuccess);
      for (char** memory : {&member.src, &member.dst}) {
        void* made = nullptr;
        REQUIRE(cudaMalloc(&made, kBytes) == cudaSuccess);
        *memory = static_cast<char*>(made);
      }
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      const ncclResult_t begun = nccl_.ncclCommInitRankConfig(&member.comm, static_cast<int>(devices.size()),
                                                              id, static_cast<int>(r), &config);
      REQUIRE((begun == ncclInProgress || begun == ncclSuccess));
    }
    for (const Member& member : members) {
      const ncclResult_t state = settle(nccl_, member.comm);
      if (state != ncclSuccess) made = state;
    }
    if (made != ncclSuccess) why = nccl_.ncclGetLastError(members.front().comm);
  }
  ~Clique() {
    for (const Member& member : members) {
      cudaSetDevice(member.device);
      if (member.comm != nullptr) CHECK(nccl_.ncclCommAbort(member.comm) == ncclSuccess);
    }
    for (const Member& member : members) {
      cudaSetDevice(member.device);
      CHECK(cudaStreamSynchronize(member.stream) == cudaSuccess);
      CHECK(cudaStreamDestroy(member.stream) == cudaSuccess);
      CHECK(cudaFree(member.src) == cudaSuccess);
      CHECK(cudaFree(member.dst) == cudaSuccess);
    }
  }
  Clique(const Clique&) = delete;
  Clique& operator=(const Clique&) = delete;

  // Makes every rank's call, with the rank's device as the current one.
  void all(const std::function<ncclResult_t(int, Member&)>& call) {
    for (size_t r = 0; r < members.size(); r++) {
      cudaSetDevice(members[r].device);
      const ncclResult_t result = call(static_cast<int>(r), members[r]);
      CHECK((result == ncclSuccess || result == ncclInProgress));
    }
    for (const Member& member : members) CHECK(settle(nccl_, member.comm) == ncclSuccess);
  }
  void write(int rank, const std::vector<char>& bytes) {
    const Member& member = members[static_cast<size_t>(rank)];
    cudaSetDevice(member.device);
    REQUIRE(cudaMemcpy(member.src, bytes.data(), bytes.size(), cudaMemcpyHostToDevice) == cudaSuccess);
    const std::vector<char> nothing(kBytes, 0x7b);
    REQUIRE(cudaMemcpy(member.dst, nothing.data(), kBytes, cudaMemcpyHostToDevice) == cudaSuccess);
  }
  std::vector<char> read(int rank, size_t bytes) {
    const Member& member = members[static_cast<size_t>(rank)];
    cudaSetDevice(member.device);
    CHECK(cudaStreamSynchronize(member.stream) == cudaSuccess);
    std::vector<char> read(bytes);
    CHECK(cudaMemcpy(read.data(), member.dst, bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
    return read;
  }
  int size() const { return static_cast<int>(members.size()); }

 private:
  const weft::nccl::Library& nccl_;

 public:
  std::vector<Member> members;
  ncclResult_t made = ncclSuccess;
  std::string why;
};

// Loads NCCL for a test.
class Nccl {
 public:
#ifdef WEFT_TEST_REAL_NCCL
  Nccl() {
    const char* const file = std::getenv("WEFT_NCCL_LIBRARY");
    const weft::Status status = weft::nccl::load(file == nullptr ? "" : file, &library_);
    if (!status.ok()) WEFT_SKIP("there is no NCCL " + status.text());
  }
  void forgive() {}
  std::vector<int> devices() const {
    int count = 0;
    cudaGetDeviceCount(&count);
    if (count >= 2) return {0, 1};
    static const bool kShared = Clique(*library_, {0, 0}).made == ncclSuccess;
    return kShared ? std::vector<int>{0, 0} : std::vector<int>{0};
  }
#else
  Nccl() {
    fake_cuda_setup(2, 3, 50);
    fake_nccl_setup(3, 50);
    Dl_info info{};
    dladdr(reinterpret_cast<const void*>(&fake_nccl_setup), &info);
    REQUIRE(weft::nccl::load(info.dli_fname, &library_).ok());
  }
  ~Nccl() {
    CHECK(std::string(fake_nccl_problems()).empty());
    CHECK(std::string(fake_nccl_live()).empty());
    CHECK(std::string(fake_cuda_live()).empty());
  }
  // Clears recorded misuses, which the test caused on purpose.
  void forgive() { fake_nccl_setup(3, 50); }
  std::vector<int> devices() const { return {0, 1}; }
#endif
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;
  const weft::nccl::Library& operator*() const { return *library_; }
  const weft::nccl::Library* operator->() const { return library_.get(); }

 private:
  std::shared_ptr<const weft::nccl::Library> library_;
};

}  // namespace weft_test
