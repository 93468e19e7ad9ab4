// CUDA buffers over nccl inside hosts and ucx between them (nccl+ucx), on the fake NCCL, the fake CUDA and
// simulated hosts.
#include <memory>
#include <string>

#include "capi/fake_nccl.h"
#include "capi/programs.h"

namespace capi_nccl_hosts {

using namespace weft_test;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Runs ranks over nccl+ucx on hosts ("0,0,1,1"); rank r uses device r.
std::string run_on_hosts(
    const char* hosts, const std::function<void(Rank&)>& body,
    const std::function<int(int)>& device_of = [](int rank) { return rank; }) {
  setenv("WEFT_HOSTS", hosts, 1);
  const int size = static_cast<int>((std::strlen(hosts) + 1) / 2);
  std::string error = run("nccl+ucx", size, WEFT_PROGRESS_THREAD, nullptr, body,
                          [&](Rank& r) { cudaSetDevice(device_of(r.rank)); });
  unsetenv("WEFT_HOSTS");
  return error;
}

bool here() {
  weft_context* context = nullptr;
  REQUIRE(weft_context_create(nullptr, &context, nullptr) == WEFT_OK);
  uint64_t count = 0;
  REQUIRE(weft_backend_count(context, &count) == WEFT_OK);
  bool found = false;
  for (uint64_t i = 0; i < count; i++) {
    weft_backend_info info{};
    info.struct_size = sizeof info;
    REQUIRE(weft_backend_query(context, i, &info) == WEFT_OK);
    found = found || (std::string(info.name) == "nccl+ucx" && info.available == 1);
  }
  weft_context_destroy(&context);
  if (!found) WARN("left out: nccl+ucx is not available");
  return found;
}

}  // namespace

TEST_CASE("sums over hosts use NCCL inside each host and pinned memory between them") {
  for (const char* hosts : {"0,0,1,1", "0,1,0,1", "0,0,1", "0,0"}) {
    for (const size_t count : {size_t{1}, size_t{5000}, size_t{1'000'003}}) {
      INFO(hosts << " x " << count);
      const FakeNccl fake(count, 60);
      if (!here()) return;
      RankFailures failures;
      const std::string error = run_on_hosts(hosts, [&](Rank& r) {
        Stream stream(r.rank);
        DeviceBuffer<float> src(count, r.rank), dst(count, r.rank);
        const weft_coll_options options = on(stream);
        const auto n = static_cast<size_t>(r.size);
        const auto compare = [&](const char* what, weft_status status, bool mine, auto&& expected) {
          failures.expect(status == WEFT_OK, std::string(what) + ": " + error_of(r.comm));
          const std::vector<float> got = dst.read(stream);
          size_t wrong = 0;
          for (size_t i = 0; i < count && mine; i++) wrong += got[i] != expected(i);
          failures.expect(wrong == 0, std::string(what) + ": " + std::to_string(wrong) + " wrong");
        };
        for (int root = 0; root < r.size; root++) {
          src.write(stream, [&](size_t i) { return static_cast<float>(i % 1000 + size_t(r.rank)); });
          const auto sum = [&](size_t i) { return static_cast<float>(n * (i % 1000) + n * (n - 1) / 2); };
          const auto mean = [&](size_t i) { return sum(i) / static_cast<float>(n); };
          compare("all_reduce",
                  weft_all_reduce(r.comm, src.get(), dst.get(), count, WEFT_DTYPE_F32, WEFT_OP_SUM, &options,
                                  nullptr),
                  true, sum);
          compare("reduce",
                  weft_reduce(r.comm, src.get(), dst.get(), count, WEFT_DTYPE_F32, WEFT_OP_SUM, root,
                              &options, nullptr),
                  r.rank == root, sum);
          compare("mean",
                  weft_all_reduce(r.comm, src.get(), dst.get(), count, WEFT_DTYPE_F32, WEFT_OP_AVG, &options,
                                  nullptr),
                  r.size != 3, mean);
          dst.write(stream, [&](size_t i) { return static_cast<float>(i % 7 + size_t(r.rank)); });
          compare("broadcast",
                  weft_broadcast(r.comm, dst.get(), count, WEFT_DTYPE_F32, root, &options, nullptr), true,
                  [&](size_t i) { return static_cast<float>(i % 7 + size_t(root)); });
        }
        // Host memory over the same communicator, and operations that NCCL lacks.
        int64_t one = 1;
        weft_all_reduce(r.comm, &one, &one, 1, WEFT_DTYPE_I64, WEFT_OP_SUM, nullptr, nullptr);
        failures.expect(one == r.size, "host memory");
        DeviceBuffer<int16_t> small(count, r.rank);
        small.write(stream, [](size_t) { return int16_t{3}; });
        weft_all_reduce(r.comm, small.get(), small.get(), count, WEFT_DTYPE_I16, WEFT_OP_SUM, &options,
                        nullptr);
        failures.expect(small.read(stream)[count - 1] == 3 * r.size, "i16");
      });
      CHECK(error == "");
      failures.check();
      CHECK(fake_nccl_calls("ncclReduce") > 0);
      const bool spreads = std::string(hosts) != "0,0,1" && count > 1;
      CHECK((fake_nccl_calls("ncclReduceScatter") > 0) == spreads);
      CHECK((fake_nccl_calls("ncclAllGather") > 0) == spreads);
      CHECK(fake_nccl_calls("ncclAllReduce") == 0);
    }
  }
}

TEST_CASE("means of f16 over hosts do not overflow") {
  const FakeNccl fake(5);
  if (!here()) return;
  RankFailures failures;
  const std::string error = run_on_hosts("0,0,1,1", [&](Rank& r) {
    Stream stream(r.rank);
    constexpr uint16_t kF16Big = 0x7a00;  // 49152: twice that overflows f16
    for (const size_t count : {size_t{100}, size_t{50'000}}) {
      DeviceBuffer<uint16_t> buffer(count, r.rank);
      const weft_coll_options options = on(stream);
      buffer.write(stream, [](size_t) { return kF16Big; });
      failures.expect(weft_all_reduce(r.comm, buffer.get(), buffer.get(), count, WEFT_DTYPE_F16, WEFT_OP_AVG,
                                      &options, nullptr) == WEFT_OK,
                      error_of(r.comm));
      const std::vector<uint16_t> got = buffer.read(stream);
      failures.expect(got == std::vector<uint16_t>(count, kF16Big), "mean of " + std::to_string(count));
    }
  });
  CHECK(error == "");
  failures.check();
  CHECK(fake_nccl_calls("ncclReduceScatter") > 0);
}

TEST_CASE("gradients stay on their devices inside hosts, and have the bits of their twins in host memory") {
  for (const char* hosts : {"0,0,1,1", "0,0,1"}) {
    INFO(hosts);
    const FakeNccl fake(8, 60);
    if (!here()) return;
    RankFailures failures;
    failures.expect(run_on_hosts(hosts, [&](Rank& r) {
      const std::vector<Tensor> tensors = {{"conv", {8, 3, 3, 3}, WEFT_DTYPE_F32, r.rank},
                                           {"host", {37}, WEFT_DTYPE_F32, kHost},
                                           {"narrow", {40'000}, WEFT_DTYPE_BF16, r.rank},
                                           {"large", {20'001}, WEFT_DTYPE_F32, r.rank}};
      ReducerPair reducers(r, tensors, {.mode = WEFT_GRADIENT_COPY, .limit = 1u << 20});
      failures.expect(reducers.created());
      for (uint64_t seed = 1; seed < 4 && reducers.created().empty(); seed++) {
        failures.expect(reducers.begin(WEFT_BEGIN_OPTIONS_INIT));
        for (size_t i = 0; i < tensors.size(); i++) failures.expect(reducers.ready(i, seed * 100 + i));
        failures.expect(reducers.finish(WEFT_FINISH_OPTIONS_INIT, seed % 2 == 0));
        failures.expect(reducers.compare());
      }
    }));
    failures.check();
    CHECK(fake_nccl_calls("ncclReduceScatter") + fake_nccl_calls("ncclReduce") > 0);
  }
}

TEST_CASE("a call that NCCL refuses inside one host ends the operation on all hosts") {
  for (const char* call : {"ncclReduceScatter", "ncclAllGather"}) {
    for (const uint64_t seed : {1u, 2u, 3u}) {
      const FakeNccl fake(seed, 500);
      if (!here()) return;
      RankFailures failures;
      const std::string error = run_on_hosts("0,0,1,1", [&](Rank& r) {
        constexpr size_t kCount = 3'000'000;  // several pieces
        Stream stream(r.rank);
        DeviceBuffer<float> buffer(kCount, r.rank);
        const weft_coll_options options = on(stream);
        weft_barrier(r.comm, nullptr, nullptr);
        if (r.rank == 3) fake_nccl_fail(call, ncclInternalError);
        weft_barrier(r.comm, nullptr, nullptr);
        weft_request* request = nullptr;
        weft_all_reduce(r.comm, buffer.get(), buffer.get(), kCount, WEFT_DTYPE_F32, WEFT_OP_SUM, &options,
                        &request);
        failures.expect(cudaStreamSynchronize(stream.get()) == cudaSuccess, "the stream hangs");
        const weft_status status = weft_request_wait(request, 10'000);
        weft_request_release(&request);
        failures.expect(status == WEFT_ERR_SYSTEM || status == WEFT_ERR_PEER_FAILED, std::to_string(status));
        failures.expect(contains(error_of(r.comm), "internal error"), error_of(r.comm));
      });
      CHECK(error == "");
      failures.check();
      CHECK(fake_nccl_calls("ncclCommAbort") >= 1);
    }
  }
}

TEST_CASE("over hosts, missing ranks and ranks that make another call are named") {
  for (const bool differs : {false, true}) {
    const FakeNccl fake;
    if (!here()) return;
    RankFailures failures;
    const std::string error = run_on_hosts("0,0,1,1", [&](Rank& r) {
      Stream stream(r.rank);
      DeviceBuffer<float> buffer(100'000, r.rank);
      weft_coll_options options = on(stream);
      options.timeout_ms = 3000;
      const size_t count = differs && r.rank == 2 ? 50'000 : 100'000;
      weft_status status = WEFT_OK;
      if (differs || r.rank != 2)
        status = weft_all_reduce(r.comm, buffer.get(), buffer.get(), count, WEFT_DTYPE_F32, WEFT_OP_SUM,
                                 &options, nullptr);
      weft_error failure = WEFT_ERROR_INIT;
      while (weft_comm_error(r.comm, &failure) == WEFT_OK && failure.code == WEFT_OK)
        std::this_thread::yield();
      const weft_status expected = differs ? WEFT_ERR_MISMATCH : WEFT_ERR_TIMEOUT;
      failures.expect(failure.code == expected, error_of(r.comm));
      failures.expect(differs || r.rank == 2 || status == WEFT_ERR_TIMEOUT, std::to_string(status));
      const char* const text =
          differs ? "rank 2 calls all_reduce sum f32 x 50000 of CUDA memory" : "waiting for rank 2";
      failures.expect(contains(error_of(r.comm), text), error_of(r.comm));
    });
    CHECK(error == "");
    failures.check();
  }
}

TEST_CASE("two ranks of one host on one device are refused, of two hosts they are not") {
  const FakeNccl fake;
  if (!here()) return;
  const std::string error = run_on_hosts("0,0,1", [](Rank&) {}, [](int) { return 3; });
  INFO(error);
  CHECK(contains(error, "Duplicate GPU"));
  CHECK(run_on_hosts("0,1", [](Rank&) {}, [](int) { return 3; }) == "");
}

TEST_CASE("splits of a communicator over hosts have NCCL communicators of their own") {
  const FakeNccl fake(4, 60);
  if (!here()) return;
  RankFailures failures;
  const std::string error = run_on_hosts("0,0,1,1,1", [&](Rank& r) {
    constexpr size_t kCount = 40'000;
    weft_comm* part = nullptr;
    const int color = r.rank < 3 ? 0 : 1;  // one part spans two hosts, the other lies on one
    failures.expect(weft_comm_split(r.comm, color, -r.rank, &part, nullptr) == WEFT_OK, error_of(r.comm));
    Stream stream(r.rank);
    DeviceBuffer<int32_t> buffer(kCount, r.rank);
    const weft_coll_options options = on(stream);
    for (weft_comm* comm : {part, r.comm, part}) {
      buffer.write(stream, [](size_t i) { return static_cast<int32_t>(i); });
      failures.expect(weft_all_reduce(comm, buffer.get(), buffer.get(), kCount, WEFT_DTYPE_I32, WEFT_OP_SUM,
                                      &options, nullptr) == WEFT_OK,
                      error_of(comm));
      const int ranks = comm == r.comm ? 5 : color == 0 ? 3 : 2;
      failures.expect(buffer.read(stream)[kCount - 1] == ranks * static_cast<int32_t>(kCount - 1), "sum");
    }
    weft_comm_destroy(&part);
  });
  CHECK(error == "");
  failures.check();
}

TEST_CASE("an abort during an NCCL operation inside hosts releases the program's stream") {
  for (const uint64_t seed : {1u, 2u, 3u, 4u}) {
    const FakeNccl fake(seed, 2000);
    if (!here()) return;
    RankFailures failures;
    const std::string error = run_on_hosts("0,0,1,1", [&](Rank& r) {
      constexpr size_t kCount = 3'000'000;
      Stream stream(r.rank);
      DeviceBuffer<float> buffer(kCount, r.rank);
      const weft_coll_options options = on(stream);
      weft_request* request = nullptr;
      weft_all_reduce(r.comm, buffer.get(), buffer.get(), kCount, WEFT_DTYPE_F32, WEFT_OP_SUM, &options,
                      &request);
      while (r.rank == 1 && fake_nccl_calls("ncclReduceScatter") < 2 * seed) std::this_thread::yield();
      if (r.rank == 1) weft_comm_abort(r.comm, "enough");
      failures.expect(cudaStreamSynchronize(stream.get()) == cudaSuccess, "the stream hangs");
      const weft_status status = weft_request_wait(request, 10'000);
      failures.expect(status == WEFT_OK || status == WEFT_ERR_ABORTED, std::to_string(status));
      weft_request_release(&request);
    });
    CHECK(error == "");
    failures.check();
  }
}

}  // namespace capi_nccl_hosts
