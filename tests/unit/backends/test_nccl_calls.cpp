// Behaviour of NCCL on which Weft and its tests rely. Here it is checked on the fake, in tests/gpu on a real
// NCCL (WEFT_TEST_REAL_NCCL), which is found as Weft finds it. If they differ, the fake is wrong. Uses two
// ranks if there are two devices, or if NCCL accepts two ranks on one (later versions with
// NCCL_MULTI_RANK_GPU_ENABLE=1).
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "library.h"
#include "support/catch.h"
#include "unit/nccl_clique.h"

using namespace weft;
using weft_test::Clique;
using weft_test::kBytes;
using weft_test::kCount;
using weft_test::Member;
using weft_test::Nccl;
using weft_test::settle;

namespace {

struct Type {
  const char* name;
  ncclDataType_t type;
  size_t size;
};
constexpr Type kTypes[] = {{"i8", ncclInt8, 1},     {"u8", ncclUint8, 1},      {"i32", ncclInt32, 4},
                           {"u32", ncclUint32, 4},  {"i64", ncclInt64, 8},     {"u64", ncclUint64, 8},
                           {"f16", ncclFloat16, 2}, {"bf16", ncclBfloat16, 2}, {"f32", ncclFloat32, 4},
                           {"f64", ncclFloat64, 8}};

// Encodes whole numbers from 0 to 100.
std::vector<char> encode(const Type& type, const std::vector<double>& values) {
  std::vector<char> bytes(values.size() * type.size);
  for (size_t i = 0; i < values.size(); i++) {
    uint64_t bits = static_cast<uint64_t>(values[i]);
    int exponent = 0;
    const double part = std::frexp(values[i], &exponent);  // 0.5 to 1
    const auto single = static_cast<float>(values[i]);
    uint32_t word = 0;
    std::memcpy(&word, &single, sizeof word);
    if (type.type == ncclFloat64) std::memcpy(&bits, &values[i], sizeof bits);
    if (type.type == ncclFloat32) bits = word;
    if (type.type == ncclBfloat16) bits = word >> 16;
    if (type.type == ncclFloat16 && part > 0) {
      bits = static_cast<uint64_t>(exponent + 14) << 10 | static_cast<uint64_t>((part * 2 - 1) * 1024);
    }
    std::memcpy(&bytes[i * type.size], &bits, type.size);
  }
  return bytes;
}

double value(int rank, size_t i) {
  return static_cast<double>(i % 3 + 2 * static_cast<size_t>(rank) + 1);
}
// Returns f(i) for each of count elements.
template <class Make>
std::vector<char> filled(const Type& type, size_t count, Make&& make) {
  std::vector<double> values(count);
  for (size_t i = 0; i < count; i++) values[i] = make(i);
  return encode(type, values);
}
std::vector<char> given(const Type& type, int rank, size_t count = kCount) {
  return filled(type, count, [&](size_t i) { return value(rank, i); });
}
constexpr Type kFloat = {"f32", ncclFloat32, 4};

// The inputs and results of ranks in collectives of blocks.
struct Blocks {
  explicit Blocks(Clique& ranks) : clique(ranks), size(ranks.size()), n(static_cast<size_t>(ranks.size())) {}
  void start() const {
    for (int r = 0; r < size; r++) clique.write(r, given(kFloat, r, n * block));
  }
  std::vector<char> bytes(int rank, size_t from, size_t count) const {
    const auto whole = given(kFloat, rank, n * block);
    return std::vector<char>(whole.begin() + static_cast<ptrdiff_t>(4 * from),
                             whole.begin() + static_cast<ptrdiff_t>(4 * (from + count)));
  }
  // Returns the blocks at this place of every rank.
  std::vector<char> joined(size_t at) const {
    std::vector<char> all;
    for (int r = 0; r < size; r++) {
      const auto part = bytes(r, at, block);
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
  std::vector<char> sum(size_t from) const {
    return filled(kFloat, block, [&](size_t i) {
      double total = 0;
      for (int r = 0; r < size; r++) total += value(r, from + i);
      return total;
    });
  }
  Clique& clique;
  const int size;
  const size_t n;
  const size_t block = kCount / 2;
};

}  // namespace

TEST_CASE("NCCL reports its version, and the text of a result") {
  const Nccl nccl;
  CHECK(nccl->version >= nccl::kMinVersion);
  for (int result = ncclSuccess; result < ncclNumResults; result++)
    CHECK(std::strlen(nccl->ncclGetErrorString(static_cast<ncclResult_t>(result))) > 0);
}

TEST_CASE("non-blocking communicators can be created and ended") {
  const Nccl nccl;
  Clique clique(*nccl, nccl.devices());
  INFO(clique.why);
  REQUIRE(clique.made == ncclSuccess);
  clique.all([&](int, Member& m) { return nccl->ncclCommFinalize(m.comm); });
  for (Member& member : clique.members) {
    CHECK(nccl->ncclCommDestroy(member.comm) == ncclSuccess);
    member.comm = nullptr;
  }
}

TEST_CASE("all-reduce has every type and operation, in place too") {
  const Nccl nccl;
  Clique clique(*nccl, nccl.devices());
  REQUIRE(clique.made == ncclSuccess);
  const int size = clique.size();
  for (const Type& type : kTypes) {
    for (const ncclRedOp_t op : {ncclSum, ncclProd, ncclMin, ncclMax}) {
      INFO(type.name << ", operation " << op);
      for (int r = 0; r < size; r++) clique.write(r, given(type, r));
      clique.all([&](int, Member& m) {
        return nccl->ncclAllReduce(m.src, m.dst, kCount, type.type, op, m.comm, m.stream);
      });
      const auto wanted = filled(type, kCount, [&](size_t i) {
        double result = value(0, i);
        for (int r = 1; r < size; r++) {
          const double next = value(r, i);
          result = op == ncclSum    ? result + next
                   : op == ncclProd ? result * next
                   : op == ncclMin  ? std::min(result, next)
                                    : std::max(result, next);
        }
        return result;
      });
      for (int r = 0; r < size; r++) CHECK(clique.read(r, wanted.size()) == wanted);
      clique.all([&](int, Member& m) {
        return nccl->ncclAllReduce(m.dst, m.dst, kCount, type.type, ncclMax, m.comm, m.stream);
      });
      for (int r = 0; r < size; r++) CHECK(clique.read(r, wanted.size()) == wanted);
    }
  }
}

TEST_CASE("the other collectives store every block at its place") {
  const Nccl nccl;
  Clique clique(*nccl, nccl.devices());
  REQUIRE(clique.made == ncclSuccess);
  const Blocks blocks(clique);
  const int size = clique.size(), last = size - 1;
  const size_t block = blocks.block;
  blocks.start();
  clique.all([&](int, Member& m) {
    return nccl->ncclReduce(m.src, m.dst, block, ncclFloat32, ncclSum, last, m.comm, m.stream);
  });
  CHECK(clique.read(last, 4 * block) == blocks.sum(0));
  blocks.start();
  clique.all([&](int, Member& m) {
    return nccl->ncclReduceScatter(m.src, m.dst, block, ncclFloat32, ncclSum, m.comm, m.stream);
  });
  for (int r = 0; r < size; r++)
    CHECK(clique.read(r, 4 * block) == blocks.sum(static_cast<size_t>(r) * block));
  blocks.start();
  clique.all([&](int, Member& m) {
    return nccl->ncclBroadcast(m.src, m.dst, block, ncclFloat32, last, m.comm, m.stream);
  });
  for (int r = 0; r < size; r++) CHECK(clique.read(r, 4 * block) == blocks.bytes(last, 0, block));
  blocks.start();
  clique.all([&](int, Member& m) {
    return nccl->ncclAllGather(m.src, m.dst, block, ncclFloat32, m.comm, m.stream);
  });
  for (int r = 0; r < size; r++) CHECK(clique.read(r, 4 * blocks.n * block) == blocks.joined(0));
}

TEST_CASE("collectives of later versions store every block at its place") {
  const Nccl nccl;
  if (nccl->all_to_all == nullptr) WEFT_SKIP("NCCL has them from 2.28 on");
  Clique clique(*nccl, nccl.devices());
  REQUIRE(clique.made == ncclSuccess);
  const Blocks blocks(clique);
  const int size = clique.size(), last = size - 1;
  const size_t block = blocks.block;
  blocks.start();
  clique.all(
      [&](int, Member& m) { return nccl->all_to_all(m.src, m.dst, block, ncclFloat32, m.comm, m.stream); });
  for (int r = 0; r < size; r++)
    CHECK(clique.read(r, 4 * blocks.n * block) == blocks.joined(static_cast<size_t>(r) * block));
  blocks.start();
  clique.all(
      [&](int, Member& m) { return nccl->gather(m.src, m.dst, block, ncclFloat32, last, m.comm, m.stream); });
  CHECK(clique.read(last, 4 * blocks.n * block) == blocks.joined(0));
  blocks.start();
  clique.all([&](int, Member& m) {
    return nccl->scatter(m.src, m.dst, block, ncclFloat32, last, m.comm, m.stream);
  });
  for (int r = 0; r < size; r++)
    CHECK(clique.read(r, 4 * block) == blocks.bytes(last, static_cast<size_t>(r) * block, block));
}

TEST_CASE("messages of a group match in any order, also a rank's messages to itself") {
  const Nccl nccl;
  Clique clique(*nccl, nccl.devices());
  REQUIRE(clique.made == ncclSuccess);
  const int size = clique.size();
  for (int r = 0; r < size; r++) clique.write(r, given(kFloat, r));
  clique.all([&](int rank, Member& m) {
    const int peer = (rank + 1) % size;
    CHECK(nccl->ncclGroupStart() == ncclSuccess);
    const ncclResult_t receives = nccl->ncclRecv(m.dst, kCount, ncclFloat32, peer, m.comm, m.stream);
    const ncclResult_t sends = nccl->ncclSend(m.src, kCount, ncclFloat32, peer, m.comm, m.stream);
    CHECK((receives == ncclSuccess || receives == ncclInProgress));
    CHECK((sends == ncclSuccess || sends == ncclInProgress));
    return nccl->ncclGroupEnd();
  });
  for (int r = 0; r < size; r++) {
    const auto wanted = given(kFloat, (r + 1) % size);
    CHECK(clique.read(r, wanted.size()) == wanted);
  }
}

TEST_CASE("a sum of f16 accepts a factor") {
  const Nccl nccl;
  Clique clique(*nccl, nccl.devices());
  REQUIRE(clique.made == ncclSuccess);
  constexpr Type kHalf = {"f16", ncclFloat16, 2};
  const uint16_t two = 0x4000;
  std::vector<ncclRedOp_t> ops(clique.members.size());
  for (int r = 0; r < clique.size(); r++) clique.write(r, given(kHalf, r));
  clique.all([&](int rank, Member& m) {
    uint16_t factor = two;
    return nccl->ncclRedOpCreatePreMulSum(&ops[static_cast<size_t>(rank)], &factor, ncclFloat16,
                                          ncclScalarHostImmediate, m.comm);
  });
  clique.all([&](int rank, Member& m) {
    return nccl->ncclReduce(m.src, m.dst, kCount, ncclFloat16, ops[static_cast<size_t>(rank)], 0, m.comm,
                            m.stream);
  });
  clique.all(
      [&](int rank, Member& m) { return nccl->ncclRedOpDestroy(ops[static_cast<size_t>(rank)], m.comm); });
  const auto wanted = filled(kHalf, kCount, [&](size_t i) {
    double total = 0;
    for (int r = 0; r < clique.size(); r++) total += 2 * value(r, i);
    return total;
  });
  CHECK(clique.read(0, wanted.size()) == wanted);
}

TEST_CASE("operations run in stream order, and empty ones do nothing") {
  const Nccl nccl;
  Clique clique(*nccl, nccl.devices());
  REQUIRE(clique.made == ncclSuccess);
  const auto sum = [&](size_t count) {
    clique.all([&](int, Member& m) {
      return nccl->ncclAllReduce(m.src, m.dst, count, ncclFloat32, ncclMax, m.comm, m.stream);
    });
  };
  for (int r = 0; r < clique.size(); r++) clique.write(r, given(kFloat, r));
  sum(kCount);  // connects
  for (int r = 0; r < clique.size(); r++) clique.read(r, 1);
  const std::vector<char> before(4, 0x7b);
  for (int r = 0; r < clique.size(); r++) clique.write(r, given(kFloat, r));
  sum(0);
  CHECK(clique.read(0, 4) == before);
  std::atomic<bool> open{false};
  cudaSetDevice(clique.members[0].device);
  const auto wait = [](void* gate) {
    while (!static_cast<std::atomic<bool>*>(gate)->load()) std::this_thread::yield();
  };
  REQUIRE(cudaLaunchHostFunc(clique.members[0].stream, wait, &open) == cudaSuccess);
  sum(kCount);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(cudaStreamQuery(clique.members[0].stream) == cudaErrorNotReady);
  open = true;
  const auto wanted = given(kFloat, clique.size() - 1);
  for (int r = 0; r < clique.size(); r++) CHECK(clique.read(r, wanted.size()) == wanted);
}

TEST_CASE("memory that NCCL allocates can be registered, used and freed") {
  const Nccl nccl;
  if (!nccl->registers()) WEFT_SKIP("NCCL registers memory from 2.19 on");
  Clique clique(*nccl, nccl.devices());
  REQUIRE(clique.made == ncclSuccess);
  std::vector<void*> memory(clique.members.size()), handles(clique.members.size());
  for (size_t r = 0; r < memory.size(); r++) {
    cudaSetDevice(clique.members[r].device);
    REQUIRE(nccl->mem_alloc(&memory[r], kBytes) == ncclSuccess);
    const auto values = given(kFloat, static_cast<int>(r));
    CHECK(cudaMemcpy(memory[r], values.data(), values.size(), cudaMemcpyHostToDevice) == cudaSuccess);
  }
  clique.all([&](int rank, Member& m) {
    const auto r = static_cast<size_t>(rank);
    return nccl->comm_register(m.comm, memory[r], kBytes, &handles[r]);
  });
  clique.all([&](int rank, Member& m) {
    return nccl->ncclAllReduce(memory[static_cast<size_t>(rank)], m.dst, kCount, ncclFloat32, ncclMax, m.comm,
                               m.stream);
  });
  const auto wanted = given(kFloat, clique.size() - 1);
  for (int r = 0; r < clique.size(); r++) CHECK(clique.read(r, wanted.size()) == wanted);
  clique.all(
      [&](int rank, Member& m) { return nccl->comm_deregister(m.comm, handles[static_cast<size_t>(rank)]); });
  for (size_t r = 0; r < memory.size(); r++) {
    cudaSetDevice(clique.members[r].device);
    CHECK(nccl->mem_free(memory[r]) == ncclSuccess);
  }
}

TEST_CASE("a sum that is captured runs with every launch") {
  const Nccl nccl;
  Clique clique(*nccl, nccl.devices());
  REQUIRE(clique.made == ncclSuccess);
  std::vector<cudaGraphExec_t> executables(clique.members.size());
  for (int r = 0; r < clique.size(); r++) clique.write(r, given(kFloat, r));
  for (const Member& m : clique.members) {
    cudaSetDevice(m.device);
    REQUIRE(cudaStreamBeginCapture(m.stream, cudaStreamCaptureModeRelaxed) == cudaSuccess);
  }
  clique.all([&](int, Member& m) {
    return nccl->ncclAllReduce(m.src, m.dst, kCount, ncclFloat32, ncclMax, m.comm, m.stream);
  });
  for (size_t r = 0; r < executables.size(); r++) {
    cudaGraph_t graph = nullptr;
    cudaSetDevice(clique.members[r].device);
    REQUIRE(cudaStreamEndCapture(clique.members[r].stream, &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&executables[r], graph, 0) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  }
  CHECK(clique.read(0, 1) == std::vector<char>{0x7b});
  for (int launch = 0; launch < 3; launch++) {
    for (int r = 0; r < clique.size(); r++) clique.write(r, given(kFloat, r + launch));
    for (size_t r = 0; r < executables.size(); r++) {
      cudaSetDevice(clique.members[r].device);
      CHECK(cudaGraphLaunch(executables[r], clique.members[r].stream) == cudaSuccess);
    }
    const auto wanted = given(kFloat, clique.size() - 1 + launch);
    for (int r = 0; r < clique.size(); r++) CHECK(clique.read(r, wanted.size()) == wanted);
  }
  for (cudaGraphExec_t executable : executables) CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
}

TEST_CASE("an operation waits for a missing rank until an abort") {
  const Nccl nccl;
  Clique clique(*nccl, nccl.devices());
  REQUIRE(clique.made == ncclSuccess);
  if (clique.size() < 2) WEFT_SKIP("a rank alone waits for nobody: it needs two devices");
  const auto sum = [&](Member& m) {
    return nccl->ncclAllReduce(m.src, m.dst, kCount, ncclFloat32, ncclSum, m.comm, m.stream);
  };
  for (int r = 0; r < 2; r++) clique.write(r, given(kFloat, r));
  clique.all([&](int, Member& m) { return sum(m); });  // connects
  for (int r = 0; r < 2; r++) clique.read(r, 1);
  Member& first = clique.members[0];
  cudaSetDevice(first.device);
  const ncclResult_t begun = sum(first);
  CHECK((begun == ncclSuccess || begun == ncclInProgress));
  CHECK(settle(*nccl, first.comm) == ncclSuccess);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(cudaStreamQuery(first.stream) == cudaErrorNotReady);
  CHECK(nccl->ncclCommAbort(first.comm) == ncclSuccess);
  first.comm = nullptr;
  CHECK(cudaStreamSynchronize(first.stream) == cudaSuccess);
}

TEST_CASE("invalid arguments are refused, and end a non-blocking communicator") {
  Nccl nccl;
  using Call = std::function<ncclResult_t(const Member&)>;
  const std::vector<std::pair<const char*, Call>> calls = {
      {"a type",
       [&](const Member& m) {
         return nccl->ncclAllReduce(m.src, m.dst, 1, ncclNumTypes, ncclSum, m.comm, m.stream);
       }},
      {"an operation",
       [&](const Member& m) {
         return nccl->ncclAllReduce(m.src, m.dst, 1, ncclFloat32, static_cast<ncclRedOp_t>(ncclNumOps + 9),
                                    m.comm, m.stream);
       }},
      {"a root",
       [&](const Member& m) {
         return nccl->ncclBroadcast(m.src, m.dst, 1, ncclFloat32, 7, m.comm, m.stream);
       }},
      {"a peer",
       [&](const Member& m) { return nccl->ncclSend(m.src, 1, ncclFloat32, -1, m.comm, m.stream); }},
  };
  for (const auto& [name, call] : calls) {
    INFO(name);
    Clique clique(*nccl, {0});
    REQUIRE(clique.made == ncclSuccess);
    CHECK(call(clique.members[0]) == ncclInvalidArgument);
    ncclResult_t state = ncclSuccess;
    CHECK(nccl->ncclCommGetAsyncError(clique.members[0].comm, &state) == ncclSuccess);
    CHECK(state == ncclInvalidArgument);
  }
  ncclUniqueId id;
  REQUIRE(nccl->ncclGetUniqueId(&id) == ncclSuccess);
  ncclComm_t comm = nullptr;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  for (const int rank : {-1, 2})
    CHECK(nccl->ncclCommInitRankConfig(&comm, 2, id, rank, &config) == ncclInvalidArgument);
  ncclResult_t state = ncclSuccess;
  CHECK(nccl->ncclCommGetAsyncError(nullptr, &state) == ncclInvalidArgument);
  CHECK(nccl->ncclAllReduce(nullptr, nullptr, 0, ncclFloat32, ncclSum, nullptr, nullptr) ==
        ncclInvalidArgument);
  CHECK(nccl->ncclGroupEnd() == ncclInvalidUsage);
  nccl.forgive();
}

TEST_CASE("two ranks on one device are refused, unless NCCL is configured to accept them and can") {
  const Nccl nccl;
  const char* const asked = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  const bool allowed = asked != nullptr && std::string(asked) == "1";
  Clique clique(*nccl, {0, 0});
  INFO(clique.why);
  if (!allowed || clique.made != ncclSuccess) {
    CHECK(clique.made == ncclInvalidUsage);
    CHECK(clique.why.find("GPU") != std::string::npos);
  }
  if (!allowed) return;
  WARN("NCCL " << nccl::version_text(nccl->version)
               << (clique.made == ncclSuccess
                       ? " takes two ranks on one device (the other cases had two)"
                       : " refuses two ranks on one device, though told to take them"));
}
