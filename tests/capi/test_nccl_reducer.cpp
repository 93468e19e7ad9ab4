// Reducers over the nccl backend: buckets on the communicator's device are communicated from device to
// device. They are compared with twins in host memory of the same communicator, whose results must have the
// same bits if sums are exact.
#include <atomic>
#include <string>

#include "capi/fake_nccl.h"
#include "capi/programs.h"
#include "support/seed.h"

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
std::string begin_step(Twins& twins, uint64_t seed, int rank,
                       const weft_begin_options& begin = WEFT_BEGIN_OPTIONS_INIT) {
  std::string wrong = twins.begin(begin);
  std::vector<size_t> order(twins.tensors().size());
  for (size_t i = 0; i < order.size(); i++) order[i] = i;
  Random random(seed + static_cast<uint64_t>(rank));
  std::shuffle(order.begin(), order.end(), random);
  for (const size_t i : order) {
    if (wrong.empty()) wrong = twins.ready(i, seed + i);
  }
  return wrong;
}

std::string step(Twins& twins, uint64_t seed, int rank, bool on_streams,
                 const weft_begin_options& begin = WEFT_BEGIN_OPTIONS_INIT,
                 const weft_finish_options& finish = WEFT_FINISH_OPTIONS_INIT) {
  const std::string wrong = begin_step(twins, seed, rank, begin);
  return wrong.empty() ? twins.finish(finish, on_streams) : wrong;
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
      Notes notes;
      notes.expect(run_nccl(2, [&](Rank& r) {
        Twins twins(r, own_tensors(r.rank), {.mode = gradients, .limit = kWhole});
        notes.expect(twins.created());
        for (uint64_t seed = 1; seed < 4 && twins.created().empty(); seed++) {
          notes.expect(step(twins, seed * 100, r.rank, on_streams));
          notes.expect(twins.compare());
        }
      }));
      notes.check();
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
    Notes notes;
    INFO(text_of(program, seed));
    notes.expect(run_nccl(program.ranks, [&](Rank& r) {
      std::vector<Tensor> tensors = mixed_tensors();
      for (Tensor& tensor : tensors) {
        if (tensor.device != kHost) tensor.device = (tensor.device + r.rank) % 8;
      }
      notes.expect(run_program(r, tensors, program, common_seed));
    }));
    notes.check();
    if (!notes.empty()) return;
    travelled += all_reduces();
  }
  CHECK(travelled > 0);
}

TEST_CASE("a rank's weight counts in a bucket that stays on its device") {
  const FakeNccl fake(4, 40);
  Notes notes;
  notes.expect(run_nccl(2, [&](Rank& r) {
    Twins::Options how;
    how.flags = WEFT_REDUCER_UNEVEN;
    how.divide_by = WEFT_DIVIDE_WEIGHTS;
    Twins twins(r, own_tensors(r.rank), how);
    notes.expect(twins.created());
    weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
    begin.weight = r.rank == 0 ? 1.0 : 3.0;  // factors of 0.5 and 1.5
    notes.expect(step(twins, 5, r.rank, false, begin));
    notes.expect(twins.compare());
  }));
  notes.check();
  CHECK(all_reduces() > 0);
}

TEST_CASE("norms of buckets that stay on their device have the bits of the host's, and clip alike") {
  for (const int32_t gradients : {WEFT_GRADIENT_COPY, WEFT_GRADIENT_VIEW}) {
    INFO("gradients " << gradients);
    const FakeNccl fake(21, 40);
    Notes notes;
    notes.expect(run_nccl(2, [&](Rank& r) {
      Twins::Options how;
      how.flags = WEFT_REDUCER_NORMS;
      how.mode = gradients;
      how.limit = kWhole;
      std::vector<Tensor> tensors = own_tensors(r.rank);
      tensors.push_back({"long", {150'000}, WEFT_DTYPE_F32, r.rank});  // has pieces of its own
      Twins twins(r, tensors, how);
      notes.expect(twins.created());
      for (const double clip : {0.0, 10.0}) {
        weft_finish_options finish = WEFT_FINISH_OPTIONS_INIT;
        finish.clip_norm = clip;
        notes.expect(
            step(twins, 40 + static_cast<uint64_t>(clip), r.rank, true, WEFT_BEGIN_OPTIONS_INIT, finish));
        notes.expect(twins.compare());
        notes.expect(twins.compare_norms());
        weft_norms norms{}, host{};
        norms.struct_size = host.struct_size = sizeof norms;
        notes.expect(weft_reducer_norms(twins.device(), &norms, nullptr) == WEFT_OK, "norms");
        notes.expect(weft_reducer_norms(twins.host(), &host, nullptr) == WEFT_OK, "the host's norms");
        notes.expect(norms.total == host.total, "another norm");
        notes.expect(norms.total > 10 && (clip == 0) == (norms.clip_factor == 1), "it did not clip");
      }
    }));
    notes.check();
    CHECK(all_reduces() > 0);
  }
}

TEST_CASE("gradients are communicated in a narrower type, and cast on their device") {
  const FakeNccl fake(8, 40);
  Notes notes;
  notes.expect(run_nccl(2, [&](Rank& r) {
    Twins::Options how;
    how.reduce_dtype = WEFT_DTYPE_BF16;
    how.limit = kWhole;
    Twins twins(r, own_tensors(r.rank), how);
    notes.expect(twins.created());
    for (uint64_t seed = 1; seed < 3; seed++) {
      notes.expect(step(twins, seed * 100, r.rank, true));
      notes.expect(twins.compare());
    }
  }));
  notes.check();
  CHECK(all_reduces() > 0);
}

TEST_CASE("options that need host memory keep the buckets there") {
  const auto travels = [](const Twins::Options& how) {
    const FakeNccl fake(5, 20);
    Notes notes;
    notes.expect(run_nccl(2, [&](Rank& r) {
      Twins twins(r, own_tensors(r.rank), how);
      notes.expect(twins.created());
      notes.expect(step(twins, 9, r.rank, false));
      notes.expect(twins.compare());
    }));
    notes.check();
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
      Notes notes;
      notes.expect(run_nccl(2, [&](Rank& r) {
        Twins::Options how{.mode = gradients, .limit = kWhole, .hook = hook};
        Twins twins(r, own_tensors(r.rank), how);
        notes.expect(twins.created());
        for (uint64_t seed = 1; seed < 4 && twins.created().empty(); seed++) {
          notes.expect(step(twins, seed * 100, r.rank, seed == 2));
          notes.expect(twins.compare());
        }
        if (!twins.created().empty()) return;
        // Also fetches the results from the buckets.
        for (size_t i = 0; i < twins.tensors().size(); i++) {
          const Tensor& tensor = twins.tensors()[i];
          if (tensor.device != r.rank) continue;
          std::vector<char> expected(tensor.bytes());
          DeviceBuffer<char> result(tensor.bytes(), tensor.device);
          const Stream& stream = twins.stream(tensor.device);
          result.write(stream, [](size_t) { return 0; });
          cudaStreamSynchronize(stream.get());
          notes.expect(weft_reducer_result(twins.host(), i, expected.data()) == WEFT_OK, "the host's result");
          notes.expect(weft_reducer_result(twins.device(), i, result.get()) == WEFT_OK,
                       "the device's result");
          notes.expect(result.read(stream) == expected, "'" + tensor.name + "': another result");
        }
      }));
      notes.check();
      CHECK(all_reduces() == 3 * 2 * kOwnBuckets);
    }
  }
}

TEST_CASE("two reducers and the program's own calls share NCCL, in any order on each rank") {
  const FakeNccl fake(11, 60);
  Notes notes;
  notes.expect(run_nccl(3, [&](Rank& r) {
    Stream stream(r.rank);
    DeviceBuffer<float> buffer(3000, r.rank);
    const weft_coll_options options = on(stream);
    // Both are created in the same order on all ranks and used in an order of each rank's own. A begin that
    // re-plans waits for all ranks.
    Twins one(r, own_tensors(r.rank), {.flags = WEFT_REDUCER_KEEP_PLAN, .limit = 300});
    Twins two(r, own_tensors(r.rank), {.flags = WEFT_REDUCER_KEEP_PLAN, .limit = kWhole});
    notes.expect(one.created() + two.created());
    for (uint64_t seed = 1; seed < 4 && one.created().empty(); seed++) {
      buffer.write(stream, [&](size_t i) { return static_cast<float>(i % 7); });
      weft_request* request = nullptr;
      const auto own_call = [&] {
        notes.expect(weft_all_reduce(r.comm, buffer.get(), buffer.get(), 3000, WEFT_DTYPE_F32, WEFT_OP_SUM,
                                     &options, &request) == WEFT_OK,
                     "all_reduce");
      };
      if (r.rank != 1) own_call();
      Twins& first = r.rank == 0 ? one : two;
      Twins& second = r.rank == 0 ? two : one;
      notes.expect(begin_step(first, seed * 100, r.rank) + begin_step(second, seed * 200, r.rank));
      if (r.rank == 1) own_call();
      for (Twins* twins : {&second, &first}) notes.expect(twins->finish(WEFT_FINISH_OPTIONS_INIT, true));
      notes.expect(weft_request_wait(request, 20'000) == WEFT_OK, "request");
      weft_request_release(&request);
      notes.expect(buffer.read(stream)[5] == 15.f, "the program's sum");
      notes.expect(one.compare() + two.compare());
    }
  }));
  notes.check();
}

TEST_CASE("an NCCL without memory registration works on plain device memory") {
  const FakeNccl fake(14, 30);
  fake_nccl_version(21805);
  Notes notes;
  notes.expect(run_nccl(2, [&](Rank& r) {
    Twins twins(r, own_tensors(r.rank), {.limit = kWhole});
    notes.expect(twins.created());
    notes.expect(step(twins, 3, r.rank, true));
    notes.expect(twins.compare());
  }));
  notes.check();
  CHECK(all_reduces() > 0);
  CHECK(fake_nccl_calls("ncclMemAlloc") + fake_nccl_calls("ncclCommRegister") == 0);
}

TEST_CASE("memory that NCCL cannot allocate or register fails the reducer's creation on all ranks") {
  for (const char* const call : {"ncclMemAlloc", "ncclCommRegister"}) {
    const FakeNccl fake(15, 30);
    fake_nccl_fail(call, ncclUnhandledCudaError);
    Notes notes;
    notes.expect(run_nccl(2, [&](Rank& r) {
      const Twins twins(r, own_tensors(r.rank), {});
      notes.expect(has(twins.created(), " bytes for the buckets on CUDA device ") &&
                       has(twins.created(), "unhandled cuda error"),
                   twins.created());
    }));
    notes.check();
    CHECK(all_reduces() == 0);
  }
}

TEST_CASE("a re-plan moves device buckets") {
  const FakeNccl fake(6, 30);
  Notes notes;
  notes.expect(run_nccl(2, [&](Rank& r) {
    Twins twins(r, own_tensors(r.rank), {.limit = kWhole});
    notes.expect(twins.created());
    for (const uint64_t limit : {uint64_t{0}, uint64_t{500}, kWhole}) {
      notes.expect(step(twins, limit + 3, r.rank, true));
      notes.expect(twins.compare());
      notes.expect(twins.replan(limit));
      notes.expect(step(twins, limit + 50, r.rank, false));
      notes.expect(twins.compare());
    }
  }));
  notes.check();
}

TEST_CASE("the cost of collectives is measured in the buckets' memory") {
  const FakeNccl fake(16, 10);
  Notes notes;
  notes.expect(run_nccl(2, [&](Rank& r) {
    Twins twins(r, own_tensors(r.rank), {.flags = WEFT_REDUCER_REPLAN | WEFT_REDUCER_MODEL, .limit = kWhole});
    notes.expect(twins.created());
    for (uint64_t seed = 1; seed < 4; seed++) {
      notes.expect(step(twins, seed * 10, r.rank, false));
      notes.expect(twins.compare());
      if (seed == 1) weft_barrier(r.comm, nullptr, nullptr);
      if (seed == 1) notes.expect(all_reduces() == 2 * kOwnBuckets, "more than the buckets'");
      if (seed == 1) weft_barrier(r.comm, nullptr, nullptr);
    }
  }));
  notes.check();
  CHECK(all_reduces() >= 2 * (3 * kOwnBuckets + 3));  // three a size by each rank, and the buckets'
}

TEST_CASE("a communicator on another device than the gradients is an error") {
  const FakeNccl fake;
  Notes notes;
  notes.expect(run_nccl(2, [&](Rank& r) {
    Twins twins(r, {{"w", {40}, WEFT_DTYPE_F32, r.rank == 0 ? 0 : 5}}, {});
    const std::string& why = twins.created();
    notes.expect(has(why,
                     "bucket 0 ['w'] is sent from device to device on rank 0 and through host memory on "
                     "rank 1"),
                 why);
    notes.expect(has(why, "cudaSetDevice"), why);
  }));
  notes.check();
}

TEST_CASE("a step that NCCL refuses fails by name, and the streams continue") {
  const FakeNccl fake(2, 100);
  fake_nccl_fail("ncclAllReduce", ncclInternalError);
  Notes notes;
  notes.expect(run_nccl(2, [&](Rank& r) {
    Twins twins(r, own_tensors(r.rank), {.limit = 300});
    notes.expect(twins.created());
    std::string wrong = step(twins, 7, r.rank, true);
    notes.expect(cudaStreamSynchronize(twins.stream(r.rank).get()) == cudaSuccess, "the stream hangs");
    if (wrong.empty()) {
      notes.expect(weft_reducer_finish(twins.device(), nullptr) != WEFT_OK, "the step has not failed");
      wrong = Twins::error(twins.device());
    }
    notes.expect(has(wrong, "NCCL: ") && has(wrong, "internal error"), wrong);
  }));
  notes.check();
  CHECK(fake_nccl_calls("ncclCommAbort") >= 1);
}

TEST_CASE("ranks that continue without a lost rank bind their reducer to NCCL anew") {
  const FakeNccl fake(12, 200);
  Notes notes;
  std::atomic<int> left{0};
  notes.expect(run_nccl(3, [&](Rank& r) {
    Twins twins(r, own_tensors(r.rank), {.limit = kWhole});
    notes.expect(twins.created());
    notes.expect(step(twins, 100, r.rank, false));
    notes.expect(twins.compare());
    weft_barrier(r.comm, nullptr, nullptr);
    if (r.rank == 2) {
      weft_comm_abort(r.comm, "it leaves");
      left++;
      return;
    }
    while (left == 0) std::this_thread::yield();
    // Begins a step that fails, at whatever point.
    if (weft_reducer_begin(twins.device(), nullptr) == WEFT_OK) {
      for (size_t i = 0; i < twins.tensors().size(); i++) {
        const int device = twins.tensors()[i].device;
        const weft_stream* const stream = device == kHost ? nullptr : twins.stream(device).view();
        (void)weft_reducer_ready(twins.device(), i, nullptr, stream);
      }
      notes.expect(weft_reducer_finish(twins.device(), nullptr) != WEFT_OK, "nobody was missing");
    }
    weft_comm* survivors = nullptr;
    weft_error error = WEFT_ERROR_INIT;
    notes.expect(weft_comm_shrink(r.comm, nullptr, &survivors, &error) == WEFT_OK, error.text);
    if (survivors == nullptr) return;
    for (weft_reducer* reducer : {twins.host(), twins.device()})
      notes.expect(weft_reducer_rebind(reducer, survivors, &error) == WEFT_OK, error.text);
    const uint64_t before = all_reduces();
    notes.expect(step(twins, 300, r.rank, true));
    notes.expect(twins.compare());
    notes.expect(all_reduces() > before, "not by NCCL");
    weft_comm_destroy(&r.comm);
    r.comm = survivors;
  }));
  notes.check();
}
