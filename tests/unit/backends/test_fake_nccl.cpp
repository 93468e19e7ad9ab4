// Tests of the fake NCCL: it executes operations asynchronously, and reports misuse.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.h"
#include "support/fake_cuda/fake_cuda.h"
#include "support/fake_nccl/fake_nccl.h"

namespace {

struct Peer {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  float* memory = nullptr;
};

ncclResult_t settle(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    std::this_thread::yield();
    if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) return ncclInternalError;
  }
  return state;
}

// Two non-blocking ranks on devices of their own, with four floats each.
class Pair {
 public:
  Pair() {
    fake_cuda_setup(2, 3, 100);
    fake_nccl_setup(3, 100);
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    for (int rank = 0; rank < 2; rank++) {
      Peer& peer = peers[rank];
      cudaSetDevice(rank);
      cudaStreamCreateWithFlags(&peer.stream, cudaStreamNonBlocking);
      void* memory = nullptr;
      cudaMalloc(&memory, 4 * sizeof(float));
      peer.memory = static_cast<float*>(memory);
      const std::vector<float> values(4, static_cast<float>(rank + 1));
      cudaMemcpy(memory, values.data(), 4 * sizeof(float), cudaMemcpyHostToDevice);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      ncclCommInitRankConfig(&peer.comm, 2, id, rank, &config);
    }
    for (Peer& peer : peers) REQUIRE(settle(peer.comm) == ncclSuccess);
  }
  ~Pair() {
    for (int rank = 0; rank < 2; rank++) {
      cudaSetDevice(rank);
      CHECK(ncclCommAbort(peers[rank].comm) == ncclSuccess);
      cudaFree(peers[rank].memory);
      cudaStreamDestroy(peers[rank].stream);
    }
    CHECK(std::string(fake_nccl_live()).empty());
    CHECK(std::string(fake_cuda_live()).empty());
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  ncclResult_t add(int rank, size_t count = 4, cudaStream_t stream = nullptr) {
    Peer& peer = peers[rank];
    return ncclAllReduce(peer.memory, peer.memory, count, ncclFloat32, ncclSum, peer.comm,
                         stream != nullptr ? stream : peer.stream);
  }
  float value(int rank) {
    float first = 0;
    cudaSetDevice(rank);
    cudaStreamSynchronize(peers[rank].stream);
    cudaMemcpy(&first, peers[rank].memory, sizeof first, cudaMemcpyDeviceToHost);
    return first;
  }

  Peer peers[2];
};

bool told(const char* part) {
  return std::string(fake_nccl_problems()).find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a sum runs when both ranks' streams have reached it") {
  Pair pair;
  for (const int rank : {0, 1}) {
    pair.add(rank);
    CHECK(settle(pair.peers[rank].comm) == ncclSuccess);
  }
  CHECK(pair.value(0) == 3.f);
  CHECK(pair.value(1) == 3.f);
  CHECK(std::string(fake_nccl_problems()).empty());
}

TEST_CASE("memory is registered on all ranks alike, and not freed before that ends") {
  Pair pair;
  void* memory[2] = {};
  void* handles[2] = {};
  const auto sum = [&](int rank) {
    Peer& peer = pair.peers[rank];
    ncclAllReduce(memory[rank], memory[rank], 4, ncclFloat32, ncclSum, peer.comm, peer.stream);
    CHECK(settle(peer.comm) == ncclSuccess);
  };
  for (const int rank : {0, 1}) {
    cudaSetDevice(rank);
    REQUIRE(ncclMemAlloc(&memory[rank], 4 * sizeof(float)) == ncclSuccess);
    REQUIRE(ncclCommRegister(pair.peers[rank].comm, memory[rank], 4 * sizeof(float), &handles[rank]) ==
            ncclSuccess);
  }
  sum(0);
  sum(1);
  for (const int rank : {0, 1}) cudaStreamSynchronize(pair.peers[rank].stream);
  CHECK(std::string(fake_nccl_problems()).empty());
  CHECK(ncclCommDeregister(pair.peers[1].comm, handles[1]) == ncclSuccess);
  CHECK(ncclCommDeregister(pair.peers[1].comm, handles[1]) == ncclInvalidArgument);
  CHECK(told("ncclCommDeregister of what is not registered"));
  sum(0);
  sum(1);
  for (const int rank : {0, 1}) cudaStreamSynchronize(pair.peers[rank].stream);
  CHECK(told("ncclAllReduce of memory that ranks have registered differently"));
  for (void* block : memory) CHECK(ncclMemFree(block) == ncclSuccess);
  CHECK(told("ncclMemFree of registered memory"));
  CHECK(ncclMemFree(memory[0]) == ncclInvalidArgument);
  CHECK(told("ncclMemFree of what ncclMemAlloc did not give"));
}

TEST_CASE("messages of a group match in any order") {
  Pair pair;
  for (const int rank : {0, 1}) {
    Peer& peer = pair.peers[rank];
    ncclGroupStart();
    ncclRecv(peer.memory + 2, 1, ncclFloat32, 1 - rank, peer.comm, peer.stream);
    ncclSend(peer.memory, 1, ncclFloat32, 1 - rank, peer.comm, peer.stream);
    ncclGroupEnd();
    CHECK(settle(peer.comm) == ncclSuccess);
  }
  for (const int rank : {0, 1}) {
    (void)pair.value(rank);
    float third = 0;
    cudaMemcpy(&third, pair.peers[rank].memory + 2, sizeof third, cudaMemcpyDeviceToHost);
    CHECK(third == static_cast<float>(2 - rank));
  }
  CHECK(std::string(fake_nccl_problems()).empty());
}

TEST_CASE("the fake reports misuse, and an abort ends waiting operations") {
  Pair pair;
  SECTION("ranks that call different things") {
    for (const int rank : {0, 1}) {
      pair.add(rank, rank == 0 ? 4 : 3);
      CHECK(settle(pair.peers[rank].comm) == ncclSuccess);
    }
    while (!told("different collectives")) std::this_thread::yield();
  }
  SECTION("a stream of another device") {
    CHECK(pair.add(0, 4, pair.peers[1].stream) == ncclInvalidArgument);
    CHECK(told("a stream of another device"));
  }
  SECTION("more than there is") {
    CHECK(pair.add(0, 5) == ncclInvalidArgument);
    CHECK(std::string(fake_cuda_problems()).find("runs over the end") != std::string::npos);
  }
  SECTION("a call while the one before goes on") {
    for (int i = 0; i < 64 && !told("while the call before goes on"); i++) pair.add(0);
    CHECK(told("while the call before goes on"));
  }
  SECTION("a rank that never comes") {
    pair.add(0);
    CHECK(settle(pair.peers[0].comm) == ncclSuccess);
    CHECK(std::string(fake_nccl_problems()).empty());
  }
}

TEST_CASE("a sum that is captured runs with every launch, and its communicator ends after its graph") {
  Pair pair;
  cudaGraphExec_t executables[2] = {};
  for (const int rank : {0, 1}) {
    Peer& peer = pair.peers[rank];
    cudaGraph_t graph = nullptr;
    cudaSetDevice(rank);
    REQUIRE(cudaStreamBeginCapture(peer.stream, cudaStreamCaptureModeRelaxed) == cudaSuccess);
    pair.add(rank);
    CHECK(settle(peer.comm) == ncclSuccess);
    REQUIRE(cudaStreamEndCapture(peer.stream, &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&executables[rank], graph, 0) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  }
  CHECK(pair.value(0) == 1.f);
  for (const float sum : {3.f, 6.f}) {
    for (const int rank : {0, 1}) {
      cudaSetDevice(rank);
      CHECK(cudaGraphLaunch(executables[rank], pair.peers[rank].stream) == cudaSuccess);
    }
    CHECK(pair.value(0) == sum);
    CHECK(pair.value(1) == sum);
  }
  std::atomic<bool> over{false};
  std::thread end([&] {
    (void)ncclCommFinalize(pair.peers[0].comm);
    (void)settle(pair.peers[0].comm);
    over = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(!over);
  for (cudaGraphExec_t executable : executables) CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
  end.join();
  CHECK(std::string(fake_nccl_problems()).empty());
}
