// Reducers over the nccl backend: buckets on the communicator's device are communicated from device to
// device. They are compared with twins in host memory of the same communicator, whose results must have the
// same bits if sums are exact.
#include <atomic>
#include <string>

#include "capi/fake_nccl.h"
#include "capi/programs.h"
#include "support/seed.h"

namespace capi_nccl_reducer {

using namespace weft_test;

namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Gradients of three types on the rank's own device, which make three buckets, and on another device and the
// host, which make two more.
std::vector<Tensor> own_tensors(int rank) {
  return {{"conv", {8, 3, 3, 3}, WEFT_DTYPE_F32, rank}, {"brain", {129}, WEFT_DTYPE_BF16, rank},
          {"host", {37}, WEFT_DTYPE_F32, kHost},        {"padded", {6, 5}, WEFT_DTYPE_F32, rank, {9, 1}},
          {"double", {11, 3}, WEFT_DTYPE_F64, rank},    {"elsewhere", {50}, WEFT_DTYPE_F32, rank + 4},
          {"large", {20'001}, WEFT_DTYPE_F32, rank}};
}
constexpr uint64_t kOwnBuckets = 3;
constexpr uint64_t kWhole = 1u << 20;  // bucket limit: one bucket for each type and device

// Begins a step, whose gradients become ready in an order of the rank's own.
std::string begin_step(ReducerPair& reducers, uint64_t seed, int rank,
                       const weft_begin_options& begin = WEFT_BEGIN_OPTIONS_INIT) {
  std::string wrong = reducers.begin(begin);
  std::vector<size_t> order(reducers.tensors().size());
  for (size_t i = 0; i < order.size(); i++) order[i] = i;
  Random random(seed + static_cast<uint64_t>(rank));
  std::shuffle(order.begin(), order.end(), random);
  for (const size_t i : order) {
    if (wrong.empty()) wrong = reducers.ready(i, seed + i);
  }
  return wrong;
}

std::string step(ReducerPair& reducers, uint64_t seed, int rank, bool on_streams,
                 const weft_begin_options& begin = WEFT_BEGIN_OPTIONS_INIT,
                 const weft_finish_options& finish = WEFT_FINISH_OPTIONS_INIT) {
  const std::string wrong = begin_step(reducers, seed, rank, begin);
  return wrong.empty() ? reducers.finish(finish, on_streams) : wrong;
}

uint64_t all_reduces() {
  return fake_nccl_calls("ncclAllReduce");
}

}  // namespace

TEST_CASE("buckets of the communicator's device are averaged by NCCL, others through host memory") {
  for (const int32_t gradients : {WEFT_GRADIENT_COPY, WEFT_GRADIENT_VIEW}) {
    for (const bool on_streams : {false, true}) {
      INFO("gradients " << gradients << ", streams " << on_streams);
      const FakeNccl fake(3, 60);
      RankFailures failures;
      failures.expect(run_nccl(2, [&](Rank& r) {
        ReducerPair reducers(r, own_tensors(r.rank), {.mode = gradients, .limit = kWhole});
        failures.expect(reducers.created());
        for (uint64_t seed = 1; seed < 4 && reducers.created().empty(); seed++) {
          failures.expect(step(reducers, seed * 100, r.rank, on_streams));
          failures.expect(reducers.compare());
        }
      }));
      failures.check();
      CHECK(all_reduces() == 3 * 2 * kOwnBuckets);
      CHECK(fake_nccl_calls("ncclCommRegister") == 2);
      CHECK(fake_nccl_calls("ncclCommDeregister") == 2);
    }
  }
}

TEST_CASE("random programs over nccl give the bits of their twins in host memory") {
  uint64_t travelled = 0;
  for (uint64_t round = 0; round < 24; round++) {
    const uint64_t seed = weft::test::base_seed() + round;
    Random random(seed);
    Program program = draw(random);
    // Weights make the factors and sums inexact, and NCCL's order of addition differs.
    if (program.how.divide_by == WEFT_DIVIDE_WEIGHTS) program.how.divide_by = WEFT_DIVIDE_WORLD;
    const uint64_t common_seed = random();
    const FakeNccl fake(seed, 1 + static_cast<int>(random() % 80));
    RankFailures failures;
    INFO(text_of(program, seed));
    failures.expect(run_nccl(program.ranks, [&](Rank& r) {
      std::vector<Tensor> tensors = mixed_tensors();
      for (Tensor& tensor : tensors) {
        if (tensor.device != kHost) tensor.device = (tensor.device + r.rank) % 8;
      }
      failures.expect(run_program(r, tensors, program, common_seed));
    }));
    failures.check();
    if (!failures.empty()) return;
    travelled += all_reduces();
  }
  CHECK(travelled > 0);
}

TEST_CASE("a rank's weight counts in a bucket that stays on its device") {
  const FakeNccl fake(4, 40);
  RankFailures failures;
  failures.expect(run_nccl(2, [&](Rank& r) {
    ReducerPair::Options how;
    how.flags = WEFT_REDUCER_UNEVEN;
    how.divide_by = WEFT_DIVIDE_WEIGHTS;
    ReducerPair reducers(r, own_tensors(r.rank), how);
    failures.expect(reducers.created());
    weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
    begin.weight = r.rank == 0 ? 1.0 : 3.0;  // factors of 0.5 and 1.5
    failures.expect(step(reducers, 5, r.rank, false, begin));
    failures.expect(reducers.compare());
  }));
  failures.check();
  CHECK(all_reduces() > 0);
}

TEST_CASE("norms of buckets that stay on their device have the bits of the host's, and clip alike") {
  for (const int32_t gradients : {WEFT_GRADIENT_COPY, WEFT_GRADIENT_VIEW}) {
    INFO("gradients " << gradients);
    const FakeNccl fake(21, 40);
    RankFailures failures;
    failures.expect(run_nccl(2, [&](Rank& r) {
      ReducerPair::Options how;
      how.flags = WEFT_REDUCER_NORMS;
      how.mode = gradients;
      how.limit = kWhole;
      std::vector<Tensor> tensors = own_tensors(r.rank);
      tensors.push_back({"long", {150'000}, WEFT_DTYPE_F32, r.rank});  // has pieces of its own
      ReducerPair reducers(r, tensors, how);
      failures.expect(reducers.created());
      for (const double clip : {0.0, 10.0}) {
        weft_finish_options finish = WEFT_FINISH_OPTIONS_INIT;
        finish.clip_norm = clip;
        failures.expect(
            step(reducers, 40 + static_cast<uint64_t>(clip), r.rank, true, WEFT_BEGIN_OPTIONS_INIT, finish));
        failures.expect(reducers.compare());
        failures.expect(reducers.compare_norms());
        weft_norms norms{}, host{};
        norms.struct_size = host.struct_size = sizeof norms;
        failures.expect(weft_reducer_norms(reducers.device(), &norms, nullptr) == WEFT_OK, "norms");
        failures.expect(weft_reducer_norms(reducers.host(), &host, nullptr) == WEFT_OK, "the host's norms");
        failures.expect(norms.total == host.total, "another norm");
        failures.expect(norms.total > 10 && (clip == 0) == (norms.clip_factor == 1), "it did not clip");
      }
    }));
    failures.check();
    CHECK(all_reduces() > 0);
  }
}

TEST_CASE("gradients are communicated in a narrower type, and cast on their device") {
  const FakeNccl fake(8, 40);
  RankFailures failures;
  failures.expect(run_nccl(2, [&](Rank& r) {
    ReducerPair::Options how;
    how.reduce_dtype = WEFT_DTYPE_BF16;
    how.limit = kWhole;
    ReducerPair reducers(r, own_tensors(r.rank), how);
    failures.expect(reducers.created());
    for (uint64_t seed = 1; seed < 3; seed++) {
      failures.expect(step(reducers, seed * 100, r.rank, true));
      failures.expect(reducers.compare());
    }
  }));
  failures.check();
  CHECK(all_reduces() > 0);
}

TEST_CASE("options that need host memory keep the buckets there") {
  const auto travels = [](const ReducerPair::Options& how) {
    const FakeNccl fake(5, 20);
    RankFailures failures;
    failures.expect(run_nccl(2, [&](Rank& r) {
      ReducerPair reducers(r, own_tensors(r.rank), how);
      failures.expect(reducers.created());
      failures.expect(step(reducers, 9, r.rank, false));
      failures.expect(reducers.compare());
    }));
    failures.check();
    return all_reduces() > 0;
  };
  CHECK(travels({}));
  CHECK(!travels({.flags = WEFT_REDUCER_DETERMINISTIC}));
  CHECK(travels({.flags = WEFT_REDUCER_NORMS}));
  CHECK(!travels({.flags = WEFT_REDUCER_RETAIN}));
  CHECK(!travels({.flags = WEFT_REDUCER_SHARDED}));
  CHECK(!travels({.hook = "int8"}));
  CHECK(!travels({.hook = "bf16", .hook_options = "order=ddp"}));
  CHECK(travels({.hook = "bf16"}));
}

TEST_CASE("fp16 and bf16 round on the device, with the bits of their host twins") {
  for (const char* const hook : {"fp16", "bf16"}) {
    for (const int32_t gradients : {WEFT_GRADIENT_COPY, WEFT_GRADIENT_VIEW}) {
      INFO(hook << ", gradients " << gradients);
      const FakeNccl fake(13, 60);
      RankFailures failures;
      failures.expect(run_nccl(2, [&](Rank& r) {
        ReducerPair::Options how{.mode = gradients, .limit = kWhole, .hook = hook};
        ReducerPair reducers(r, own_tensors(r.rank), how);
        failures.expect(reducers.created());
        for (uint64_t seed = 1; seed < 4 && reducers.created().empty(); seed++) {
          failures.expect(step(reducers, seed * 100, r.rank, seed == 2));
          failures.expect(reducers.compare());
        }
        if (!reducers.created().empty()) return;
        // Also fetches the results from the buckets.
        for (size_t i = 0; i < reducers.tensors().size(); i++) {
          const Tensor& tensor = reducers.tensors()[i];
          if (tensor.device != r.rank) continue;
          std::vector<char> expected(tensor.bytes());
          DeviceBuffer<char> result(tensor.bytes(), tensor.device);
          const Stream& stream = reducers.stream(tensor.device);
          result.write(stream, [](size_t) { return 0; });
          cudaStreamSynchronize(stream.get());
          failures.expect(weft_reducer_result(reducers.host(), i, expected.data()) == WEFT_OK,
                          "the host's result");
          failures.expect(weft_reducer_result(reducers.device(), i, result.get()) == WEFT_OK,
                          "the device's result");
          failures.expect(result.read(stream) == expected, "'" + tensor.name + "': another result");
        }
      }));
      failures.check();
      CHECK(all_reduces() == 3 * 2 * kOwnBuckets);
    }
  }
}

TEST_CASE("two reducers and the program's own calls share NCCL, in any order on each rank") {
  const FakeNccl fake(11, 60);
  RankFailures failures;
  failures.expect(run_nccl(3, [&](Rank& r) {
    Stream stream(r.rank);
    DeviceBuffer<float> buffer(3000, r.rank);
    const weft_coll_options options = on(stream);
    // Both are created in the same order on all ranks and used in an order of each rank's own. A begin that
    // re-plans waits for all ranks.
    ReducerPair one(r, own_tensors(r.rank), {.limit = 300, .replan = WEFT_PLANNER_NONE});
    ReducerPair two(r, own_tensors(r.rank), {.limit = kWhole, .replan = WEFT_PLANNER_NONE});
    failures.expect(one.created() + two.created());
    for (uint64_t seed = 1; seed < 4 && one.created().empty(); seed++) {
      buffer.write(stream, [&](size_t i) { return static_cast<float>(i % 7); });
      weft_request* request = nullptr;
      const auto own_call = [&] {
        failures.expect(weft_all_reduce(r.comm, buffer.get(), buffer.get(), 3000, WEFT_DTYPE_F32, WEFT_OP_SUM,
                                        &options, &request) == WEFT_OK,
                        "all_reduce");
      };
      if (r.rank != 1) own_call();
      ReducerPair& first = r.rank == 0 ? one : two;
      ReducerPair& second = r.rank == 0 ? two : one;
      failures.expect(begin_step(first, seed * 100, r.rank) + begin_step(second, seed * 200, r.rank));
      if (r.rank == 1) own_call();
      for (ReducerPair* reducers : {&second, &first})
        failures.expect(reducers->finish(WEFT_FINISH_OPTIONS_INIT, true));
      failures.expect(weft_request_wait(request, 20'000) == WEFT_OK, "request");
      weft_request_release(&request);
      failures.expect(buffer.read(stream)[5] == 15.f, "the program's sum");
      failures.expect(one.compare() + two.compare());
    }
  }));
  failures.check();
}

TEST_CASE("an NCCL without memory registration works on plain device memory") {
  const FakeNccl fake(14, 30);
  fake_nccl_version(21805);
  RankFailures failures;
  failures.expect(run_nccl(2, [&](Rank& r) {
    ReducerPair reducers(r, own_tensors(r.rank), {.limit = kWhole});
    failures.expect(reducers.created());
    failures.expect(step(reducers, 3, r.rank, true));
    failures.expect(reducers.compare());
  }));
  failures.check();
  CHECK(all_reduces() > 0);
  CHECK(fake_nccl_calls("ncclMemAlloc") + fake_nccl_calls("ncclCommRegister") == 0);
}

TEST_CASE("memory that NCCL cannot allocate or register fails the reducer's creation on all ranks") {
  for (const char* const call : {"ncclMemAlloc", "ncclCommRegister"}) {
    const FakeNccl fake(15, 30);
    fake_nccl_fail(call, ncclUnhandledCudaError);
    RankFailures failures;
    failures.expect(run_nccl(2, [&](Rank& r) {
      const ReducerPair reducers(r, own_tensors(r.rank), {});
      failures.expect(has(reducers.created(), " bytes for the buckets on CUDA device ") &&
                          has(reducers.created(), "unhandled cuda error"),
                      reducers.created());
    }));
    failures.check();
    CHECK(all_reduces() == 0);
  }
}

TEST_CASE("a re-plan moves device buckets") {
  const FakeNccl fake(6, 30);
  RankFailures failures;
  failures.expect(run_nccl(2, [&](Rank& r) {
    ReducerPair reducers(r, own_tensors(r.rank), {.limit = kWhole});
    failures.expect(reducers.created());
    for (const uint64_t limit : {uint64_t{0}, uint64_t{500}, kWhole}) {
      failures.expect(step(reducers, limit + 3, r.rank, true));
      failures.expect(reducers.compare());
      failures.expect(reducers.replan(limit));
      failures.expect(step(reducers, limit + 50, r.rank, false));
      failures.expect(reducers.compare());
    }
  }));
  failures.check();
}

TEST_CASE("the cost of collectives is measured in the buckets' memory") {
  const FakeNccl fake(16, 10);
  RankFailures failures;
  failures.expect(run_nccl(2, [&](Rank& r) {
    ReducerPair reducers(r, own_tensors(r.rank), {.limit = kWhole, .replan = WEFT_PLANNER_MODEL});
    failures.expect(reducers.created());
    for (uint64_t seed = 1; seed < 4; seed++) {
      failures.expect(step(reducers, seed * 10, r.rank, false));
      failures.expect(reducers.compare());
      if (seed == 1) weft_barrier(r.comm, nullptr, nullptr);
      if (seed == 1) failures.expect(all_reduces() == 2 * kOwnBuckets, "more than the buckets'");
      if (seed == 1) weft_barrier(r.comm, nullptr, nullptr);
    }
  }));
  failures.check();
  CHECK(all_reduces() >= 2 * (3 * kOwnBuckets + 3));  // three a size by each rank, and the buckets'
}

TEST_CASE("a communicator on another device than the gradients is an error") {
  const FakeNccl fake;
  RankFailures failures;
  failures.expect(run_nccl(2, [&](Rank& r) {
    ReducerPair reducers(r, {{"w", {40}, WEFT_DTYPE_F32, r.rank == 0 ? 0 : 5}}, {});
    const std::string& why = reducers.created();
    failures.expect(has(why,
                        "bucket 0 ['w'] is sent from device to device on rank 0 and through host memory on "
                        "rank 1"),
                    why);
    failures.expect(has(why, "cudaSetDevice"), why);
  }));
  failures.check();
}

TEST_CASE("a step that NCCL refuses fails by name, and the streams continue") {
  const FakeNccl fake(2, 100);
  fake_nccl_fail("ncclAllReduce", ncclInternalError);
  RankFailures failures;
  failures.expect(run_nccl(2, [&](Rank& r) {
    ReducerPair reducers(r, own_tensors(r.rank), {.limit = 300});
    failures.expect(reducers.created());
    std::string wrong = step(reducers, 7, r.rank, true);
    failures.expect(cudaStreamSynchronize(reducers.stream(r.rank).get()) == cudaSuccess, "the stream hangs");
    if (wrong.empty()) {
      failures.expect(weft_reducer_finish(reducers.device(), nullptr) != WEFT_OK, "the step has not failed");
      wrong = ReducerPair::error(reducers.device());
    }
    failures.expect(has(wrong, "NCCL: ") && has(wrong, "internal error"), wrong);
  }));
  failures.check();
  CHECK(fake_nccl_calls("ncclCommAbort") >= 1);
}

TEST_CASE("ranks that continue without a lost rank bind their reducer to NCCL anew") {
  const FakeNccl fake(12, 200);
  RankFailures failures;
  std::atomic<int> left{0};
  failures.expect(run_nccl(3, [&](Rank& r) {
    ReducerPair reducers(r, own_tensors(r.rank), {.limit = kWhole});
    failures.expect(reducers.created());
    failures.expect(step(reducers, 100, r.rank, false));
    failures.expect(reducers.compare());
    weft_barrier(r.comm, nullptr, nullptr);
    if (r.rank == 2) {
      weft_comm_abort(r.comm, "it leaves");
      left++;
      return;
    }
    while (left == 0) std::this_thread::yield();
    // Begins a step that fails, at whatever point.
    if (weft_reducer_begin(reducers.device(), nullptr) == WEFT_OK) {
      for (size_t i = 0; i < reducers.tensors().size(); i++) {
        const int device = reducers.tensors()[i].device;
        const weft_stream* const stream = device == kHost ? nullptr : reducers.stream(device).view();
        (void)weft_reducer_ready(reducers.device(), i, nullptr, stream);
      }
      failures.expect(weft_reducer_finish(reducers.device(), nullptr) != WEFT_OK, "nobody was missing");
    }
    weft_comm* survivors = nullptr;
    weft_error error = WEFT_ERROR_INIT;
    failures.expect(weft_comm_shrink(r.comm, nullptr, &survivors, &error) == WEFT_OK, error.text);
    if (survivors == nullptr) return;
    for (weft_reducer* reducer : {reducers.host(), reducers.device()})
      failures.expect(weft_reducer_rebind(reducer, survivors, &error) == WEFT_OK, error.text);
    const uint64_t before = all_reduces();
    failures.expect(step(reducers, 300, r.rank, true));
    failures.expect(reducers.compare());
    failures.expect(all_reduces() > before, "not by NCCL");
    weft_comm_destroy(&r.comm);
    r.comm = survivors;
  }));
  failures.check();
}

}  // namespace capi_nccl_reducer
