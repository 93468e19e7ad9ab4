// Reductions by a function of the program (WEFT_OP_USER), through the C ABI. Ranks are threads.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "capi/ranks.h"
#include "support/catch.h"

namespace capi_user_reduction {

using weft_test::Findings;
using weft_test::kBackends;
using weft_test::kModes;
using weft_test::Rank;

namespace {

// The function x -> a x + b, modulo 2^64. Composition is associative and not commutative.
struct Affine {
  uint64_t a;
  uint64_t b;
  bool operator==(const Affine&) const = default;
};

Affine compose(Affine f, Affine g) {
  return {f.a * g.a, f.a * g.b + f.b};
}

// Composes items of two U64 and counts its calls.
weft_status combine(void* user_data, const void* from, void* into, uint64_t count, weft_dtype dtype) {
  if (count % 2 != 0 || dtype != WEFT_DTYPE_U64) return WEFT_ERR_ARG;
  const auto* const g = static_cast<const Affine*>(from);
  auto* const f = static_cast<Affine*>(into);
  for (uint64_t i = 0; i < count / 2; i++) f[i] = compose(f[i], g[i]);
  ++*static_cast<int*>(user_data);
  return WEFT_OK;
}

Affine input(int rank, uint64_t i) {
  return {2 * (i * 7 + static_cast<uint64_t>(rank)) + 3, i + 100 * static_cast<uint64_t>(rank) + 1};
}
std::vector<Affine> inputs(int rank, uint64_t items) {
  std::vector<Affine> all(items);
  for (uint64_t i = 0; i < items; i++) all[i] = input(rank, i);
  return all;
}
std::vector<Affine> results(int size, uint64_t items) {
  std::vector<Affine> all = inputs(0, items);
  for (int r = 1; r < size; r++) {
    for (uint64_t i = 0; i < items; i++) all[i] = compose(all[i], input(r, i));
  }
  return all;
}

struct Reduction {
  int calls = 0;
  weft_reduction how = WEFT_REDUCTION_INIT;
  weft_coll_options options = WEFT_COLL_OPTIONS_INIT;
  explicit Reduction(weft_reduce_fn function = combine, uint64_t unit = 2) {
    how.combine = function;
    how.user_data = &calls;
    how.unit = unit;
    options.reduction = &how;
  }
};

template <class Body>
void on_ranks(int size, Body&& body) {
  for (const char* backend : kBackends) {
    for (const int32_t mode : kModes) {
      INFO(backend << ", mode " << mode);
      Findings findings;
      CHECK(weft_test::run(backend, size, mode, [&](Rank& r) { body(r, findings); }) == "");
      CHECK(findings.wrong == 0);
    }
  }
}

}  // namespace

TEST_CASE("a reduction of the program combines the ranks' items in rank order, also across pieces") {
  for (const int size : {1, 2, 3, 4}) {
    on_ranks(size, [](Rank& r, Findings& f) {
      // 40,000 items are of 640 KiB for one rank, and several pieces in a reduce_scatter.
      for (const uint64_t items : {0, 1, 2, 5, 1'000, 40'000, 150'001}) {
        if (items > 1'000 && r.size == 4) continue;
        Reduction reduction;
        const std::vector<Affine> mine = inputs(r.rank, items), all = results(r.size, items);
        std::vector<Affine> in_place = mine, out(items);
        f.expect(weft_all_reduce(r.comm, in_place.data(), in_place.data(), 2 * items, WEFT_DTYPE_U64,
                                 WEFT_OP_USER, &reduction.options, nullptr) == WEFT_OK);
        f.expect(in_place == all);
        const int root = r.size - 1;
        f.expect(weft_reduce(r.comm, mine.data(), r.rank == root ? out.data() : nullptr, 2 * items,
                             WEFT_DTYPE_U64, WEFT_OP_USER, root, &reduction.options, nullptr) == WEFT_OK);
        if (r.rank == root) f.expect(out == all);
        if (r.rank == 0) f.expect((reduction.calls > 0) == (r.size > 1 && items > 0));
      }
    });
  }
}

TEST_CASE("a reduce_scatter with a reduction of the program gives each rank its block") {
  on_ranks(3, [](Rank& r, Findings& f) {
    for (const uint64_t items : {0, 1, 77, 30'000}) {
      const auto size = static_cast<uint64_t>(r.size);
      Reduction reduction;
      const std::vector<Affine> mine = inputs(r.rank, size * items), all = results(r.size, size * items);
      std::vector<Affine> out(items);
      weft_request* request = nullptr;
      f.expect(weft_reduce_scatter(r.comm, mine.data(), out.data(), 2 * items, WEFT_DTYPE_U64, WEFT_OP_USER,
                                   &reduction.options, &request) == WEFT_OK);
      f.expect(weft_request_wait(request, 0) == WEFT_OK);
      f.expect(weft_request_release(&request) == WEFT_OK);
      f.expect(std::equal(out.begin(), out.end(),
                          all.begin() + static_cast<std::ptrdiff_t>(static_cast<uint64_t>(r.rank) * items)));
    }
  });
}

TEST_CASE("reductions of the program run in groups, between other collectives") {
  on_ranks(2, [](Rank& r, Findings& f) {
    Reduction reduction;
    std::vector<Affine> one = inputs(r.rank, 10), two = inputs(r.rank, 20);
    int32_t sum = 1;
    f.expect(weft_group_begin(r.comm) == WEFT_OK);
    for (std::vector<Affine>* items : {&one, &two})
      f.expect(weft_all_reduce(r.comm, items->data(), items->data(), 2 * items->size(), WEFT_DTYPE_U64,
                               WEFT_OP_USER, &reduction.options, nullptr) == WEFT_OK);
    f.expect(weft_all_reduce(r.comm, &sum, &sum, 1, WEFT_DTYPE_I32, WEFT_OP_SUM, nullptr, nullptr) ==
             WEFT_OK);
    f.expect(weft_group_end(r.comm, nullptr) == WEFT_OK);
    f.expect(one == results(r.size, 10) && two == results(r.size, 20) && sum == r.size);
  });
}

TEST_CASE("a reduction of the program is refused without a function, a whole count or support") {
  on_ranks(1, [](Rank& r, Findings& f) {
    std::vector<uint64_t> data(8);
    Reduction reduction;
    weft_coll_options without = WEFT_COLL_OPTIONS_INIT;
    const auto reduce = [&](uint64_t count, const weft_coll_options* options) {
      return weft_all_reduce(r.comm, data.data(), data.data(), count, WEFT_DTYPE_U64, WEFT_OP_USER, options,
                             nullptr);
    };
    f.expect(reduce(8, nullptr) == WEFT_ERR_ARG && reduce(8, &without) == WEFT_ERR_ARG);
    f.expect(reduce(7, &reduction.options) == WEFT_ERR_ARG);
    reduction.how.unit = uint64_t{1} << 60;
    f.expect(reduce(0, &reduction.options) == WEFT_ERR_ARG);
    reduction.how.unit = 2;
    reduction.how.combine = nullptr;
    f.expect(reduce(8, &reduction.options) == WEFT_ERR_ARG);
    reduction.how.combine = combine;
    reduction.how.struct_size = 4;
    f.expect(reduce(8, &reduction.options) == WEFT_ERR_ARG);
    reduction.how.struct_size = sizeof reduction.how;
    const uint64_t counts[] = {8};
    f.expect(weft_reduce_scatter_v(r.comm, data.data(), data.data(), counts, nullptr, WEFT_DTYPE_U64,
                                   WEFT_OP_USER, &reduction.options, nullptr) == WEFT_ERR_UNSUPPORTED);
    uint8_t supported = 2;
    f.expect(weft_capability(r.context, "shm", WEFT_COLL_REDUCE, WEFT_DTYPE_F8_E4M3, WEFT_OP_USER,
                             WEFT_DEVICE_HOST, &supported) == WEFT_OK &&
             supported == 1);
    f.expect(weft_capability(r.context, "shm", WEFT_COLL_REDUCE, WEFT_DTYPE_F32, WEFT_OP_USER,
                             WEFT_DEVICE_CUDA, &supported) == WEFT_OK &&
             supported == 0);
    f.expect(reduce(8, &reduction.options) == WEFT_OK);
  });
}

TEST_CASE("different units are a mismatch that names both") {
  on_ranks(2, [](Rank& r, Findings& f) {
    std::vector<uint64_t> data(8);
    Reduction reduction(combine, r.rank == 0 ? 2 : 4);
    f.expect(weft_all_reduce(r.comm, data.data(), data.data(), 8, WEFT_DTYPE_U64, WEFT_OP_USER,
                             &reduction.options, nullptr) == WEFT_ERR_MISMATCH);
    weft_error error = WEFT_ERROR_INIT;
    weft_comm_error(r.comm, &error);
    const std::string text = error.text;
    f.expect(text.find("in units of 2") != std::string::npos &&
             text.find("in units of 4") != std::string::npos);
  });
}

TEST_CASE("a reduction of the program that fails on one rank fails the communicator on all") {
  on_ranks(2, [](Rank& r, Findings& f) {
    std::vector<uint64_t> data(8);
    Reduction reduction(r.rank == 0 ? combine : [](void*, const void*, void*, uint64_t, weft_dtype) {
      return static_cast<weft_status>(77);
    });
    const weft_status status = weft_all_reduce(r.comm, data.data(), data.data(), 8, WEFT_DTYPE_U64,
                                               WEFT_OP_USER, &reduction.options, nullptr);
    f.expect(r.rank == 1 ? status == WEFT_ERR_HOOK : status != WEFT_OK);
    weft_error error = WEFT_ERROR_INIT;
    weft_comm_error(r.comm, &error);
    f.expect(std::string(error.text).find("weft_reduction.combine of rank 1 returned 77") !=
             std::string::npos);
    f.expect(error.failed_count == 1 && error.failed_ranks[0] == 1);
  });
}

TEST_CASE("truth values and complex numbers are reduced as such") {
  on_ranks(3, [](Rank& r, Findings& f) {
    const auto reduce = [&](void* data, uint64_t count, weft_dtype dtype, weft_op op) {
      return weft_all_reduce(r.comm, data, data, count, dtype, op, nullptr, nullptr);
    };
    const auto truth = [&](weft_op op) {
      uint8_t values[] = {1, r.rank == 1, 0};
      f.expect(reduce(values, 3, WEFT_DTYPE_BOOL, op) == WEFT_OK);
      return values[0] * 100 + values[1] * 10 + values[2];
    };
    f.expect(truth(WEFT_OP_SUM) == 110 && truth(WEFT_OP_MAX) == 110 && truth(WEFT_OP_BOR) == 110);
    f.expect(truth(WEFT_OP_PROD) == 100 && truth(WEFT_OP_MIN) == 100 && truth(WEFT_OP_BAND) == 100);
    f.expect(truth(WEFT_OP_BXOR) == 110);
    // Aligned to its parts, as C's complex types are.
    alignas(16) double parts[5] = {0, 1.0 + r.rank, -2, 0.5, 4};
    f.expect(reduce(parts + 1, 2, WEFT_DTYPE_C128, WEFT_OP_AVG) == WEFT_OK);
    f.expect(parts[1] == 2 && parts[2] == -2 && parts[3] == 0.5 && parts[4] == 4);
    f.expect(reduce(parts + 1, 2, WEFT_DTYPE_C128, WEFT_OP_PROD) == WEFT_ERR_UNSUPPORTED);
    f.expect(reduce(parts, 1, WEFT_DTYPE_BOOL, WEFT_OP_AVG) == WEFT_ERR_UNSUPPORTED);
    f.expect(weft_broadcast(r.comm, parts, 2, WEFT_DTYPE_C64, 1, nullptr, nullptr) == WEFT_OK);
  });
}

}  // namespace capi_user_reduction
