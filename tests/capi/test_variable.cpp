// The C ABI as a program uses it: blocks of different sizes, sparse sums, groups, one-byte floats. Ranks are
// threads.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "capi/ranks.h"
#include "support/catch.h"

namespace capi_variable {

using weft_test::Findings;
using weft_test::kBackends;
using weft_test::kModes;
using weft_test::Rank;

namespace {

template <class Body>
void on_ranks(int size, Body&& body) {
  for (const char* backend : kBackends) {
    for (const int32_t mode : kModes) {
      INFO(backend << ", mode " << mode);
      Findings findings;
      const std::string error = weft_test::run(backend, size, mode, [&](Rank& r) { body(r, findings); });
      CHECK(error == "");
      CHECK(findings.wrong == 0);
    }
  }
}

// Rank r's block has r + 1 elements of value r.
constexpr uint64_t kCounts[] = {1, 2, 3};
constexpr int kRanks = 3;

std::vector<int32_t> block(int rank) {
  return std::vector<int32_t>(static_cast<size_t>(rank) + 1, rank);
}

}  // namespace

TEST_CASE(
    "all_gather_v places blocks at the offsets, in place as well, and its arrays may be reused at once") {
  on_ranks(kRanks, [](Rank& r, Findings& f) {
    const std::vector<int32_t> expected = {2, 2, 2, -1, 0, -1, 1, 1};
    for (const bool in_place : {false, true}) {
      std::vector<int32_t> dst(8, -1), src = block(r.rank);
      std::vector<uint64_t> counts(kCounts, kCounts + 3), offsets = {4, 6, 0};
      int32_t* const own = dst.data() + offsets[static_cast<size_t>(r.rank)];
      if (in_place) std::copy(src.begin(), src.end(), own);
      weft_request* request = nullptr;
      f.expect(weft_all_gather_v(r.comm, in_place ? own : src.data(), dst.data(), counts.data(),
                                 offsets.data(), WEFT_DTYPE_I32, nullptr, &request) == WEFT_OK);
      counts.assign(3, 99);
      offsets.assign(3, 99);
      f.expect(weft_request_wait(request, 0) == WEFT_OK);
      f.expect(weft_request_release(&request) == WEFT_OK);
      f.expect(dst == expected);
    }
  });
}

TEST_CASE("collectives of blocks of different sizes refuse invalid arguments") {
  on_ranks(1, [](Rank& r, Findings& f) {
    std::vector<int32_t> src(8), dst(8);
    const uint64_t counts[] = {3}, huge[] = {UINT64_MAX / 2};
    const auto all_to_all = [&](const uint64_t* given, const uint64_t* taken, void* to) {
      return weft_all_to_all_v(r.comm, src.data(), given, nullptr, to, taken, nullptr, WEFT_DTYPE_I32,
                               nullptr, nullptr);
    };
    f.expect(all_to_all(nullptr, counts, dst.data()) == WEFT_ERR_ARG);
    f.expect(all_to_all(counts, nullptr, dst.data()) == WEFT_ERR_ARG);
    f.expect(all_to_all(huge, huge, dst.data()) == WEFT_ERR_ARG);
    f.expect(all_to_all(counts, counts, src.data()) == WEFT_ERR_ARG);
    f.expect(all_to_all(counts, counts, nullptr) == WEFT_ERR_ARG);
    f.expect(all_to_all(counts, counts, dst.data()) == WEFT_OK);
    f.expect(weft_reduce_scatter_v(r.comm, src.data(), dst.data(), counts, nullptr, WEFT_DTYPE_I32,
                                   WEFT_OP_AVG, nullptr, nullptr) == WEFT_ERR_UNSUPPORTED);
    f.expect(weft_gather_v(r.comm, src.data(), dst.data(), counts, nullptr, WEFT_DTYPE_I32, 1, nullptr,
                           nullptr) == WEFT_ERR_ARG);
  });
  on_ranks(2, [](Rank& r, Findings& f) {
    std::vector<int32_t> src(8), dst(8);
    const uint64_t counts[] = {3, 3}, offsets[] = {0, 2};
    f.expect(weft_all_gather_v(r.comm, src.data(), dst.data(), counts, offsets, WEFT_DTYPE_I32, nullptr,
                               nullptr) == WEFT_ERR_ARG);
    // Blocks that are only read may overlap. In place, this rank's block is written.
    const auto sum = [&](void* to) {
      return weft_reduce_scatter_v(r.comm, src.data(), to, counts, offsets, WEFT_DTYPE_I32, WEFT_OP_SUM,
                                   nullptr, nullptr);
    };
    f.expect(sum(dst.data()) == WEFT_OK);
    f.expect(sum(src.data() + offsets[r.rank]) == WEFT_ERR_ARG);
  });
}

TEST_CASE("sends and receives of a group may come in any order, and blocking calls complete at its end") {
  on_ranks(2, [](Rank& r, Findings& f) {
    for (const bool waits : {true, false}) {
      std::vector<int32_t> mine(100'000, r.rank), theirs(100'000, -1), sum(3, 1);
      weft_request *inner = nullptr, *all = nullptr;
      f.expect(weft_group_begin(r.comm) == WEFT_OK);
      f.expect(weft_group_begin(r.comm) == WEFT_ERR_STATE);
      f.expect(weft_send(r.comm, mine.data(), mine.size(), WEFT_DTYPE_I32, 1 - r.rank, nullptr, nullptr) ==
               WEFT_OK);
      f.expect(weft_all_reduce(r.comm, sum.data(), sum.data(), 3, WEFT_DTYPE_I32, WEFT_OP_SUM, nullptr,
                               &inner) == WEFT_OK);
      f.expect(weft_recv(r.comm, theirs.data(), theirs.size(), WEFT_DTYPE_I32, 1 - r.rank, nullptr,
                         nullptr) == WEFT_OK);
      f.expect(weft_send(r.comm, nullptr, 5, WEFT_DTYPE_I32, 1 - r.rank, nullptr, nullptr) == WEFT_ERR_ARG);
      uint8_t done = 1;
      f.expect(weft_request_test(inner, &done) == WEFT_OK && done == 0);
      weft_comm* part = nullptr;
      f.expect(weft_comm_split(r.comm, 0, 0, &part, nullptr) == WEFT_ERR_STATE);
      f.expect(weft_group_end(r.comm, waits ? nullptr : &all) == WEFT_OK);
      if (!waits) {
        f.expect(weft_request_wait(all, 0) == WEFT_OK);
        f.expect(weft_request_release(&all) == WEFT_OK);
      }
      f.expect(weft_request_wait(inner, WEFT_TIMEOUT_POLL) == WEFT_OK);
      f.expect(weft_request_release(&inner) == WEFT_OK);
      f.expect(theirs == std::vector<int32_t>(100'000, 1 - r.rank));
      f.expect(sum == std::vector<int32_t>(3, 2));
      f.expect(weft_group_end(r.comm, nullptr) == WEFT_ERR_STATE);
    }
    f.expect(weft_group_begin(r.comm) == WEFT_OK);
    f.expect(weft_group_end(r.comm, nullptr) == WEFT_OK);
  });
}

TEST_CASE("calls of other threads into a group are refused, and change nothing") {
  Findings f;
  std::string texts[3];
  const std::string error = weft_test::run("loopback", 1, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    float mine = 1, theirs = 2;
    const auto reduce = [&](float* value) {
      return weft_all_reduce(r.comm, value, value, 1, WEFT_DTYPE_F32, WEFT_OP_SUM, nullptr, nullptr);
    };
    const auto why = [&] {
      weft_error told = WEFT_ERROR_INIT;
      weft_comm_error(r.comm, &told);
      return std::string(told.text);
    };
    f.expect(weft_group_begin(r.comm) == WEFT_OK);
    f.expect(reduce(&mine) == WEFT_OK);
    std::thread([&] {
      f.expect(reduce(&theirs) == WEFT_ERR_STATE);
      texts[0] = why();
      f.expect(weft_group_begin(r.comm) == WEFT_ERR_STATE);
      texts[1] = why();
      f.expect(weft_group_end(r.comm, nullptr) == WEFT_ERR_STATE);
      texts[2] = why();
    }).join();
    f.expect(weft_group_end(r.comm, nullptr) == WEFT_OK);
    std::thread([&] { f.expect(reduce(&theirs) == WEFT_OK); }).join();
  });
  CHECK(error == "");
  CHECK(f.wrong == 0);
  CHECK(texts[0] ==
        "another thread has opened a group on the communicator: until weft_group_end only that thread may "
        "call collectives");
  CHECK(texts[1] == "a group is open on the communicator: call weft_group_end first");
  CHECK(texts[2] == "weft_group_end: another thread has opened the group, and must end it");
}

TEST_CASE("a group that is never ended completes when its communicator is destroyed") {
  on_ranks(1, [](Rank& r, Findings& f) {
    int32_t value = 1;
    weft_request* request = nullptr;
    f.expect(weft_group_begin(r.comm) == WEFT_OK);
    f.expect(weft_all_reduce(r.comm, &value, &value, 1, WEFT_DTYPE_I32, WEFT_OP_SUM, nullptr, &request) ==
             WEFT_OK);
    f.expect(weft_comm_destroy(&r.comm) == WEFT_OK);
    f.expect(weft_request_wait(request, 1000) == WEFT_ERR_CANCELLED);
    f.expect(weft_request_release(&request) == WEFT_OK);
  });
}

TEST_CASE("callbacks of a group that is never ended have run when its communicator is destroyed") {
  on_ranks(1, [](Rank& r, Findings& f) {
    int32_t value = 1;
    weft_request* request = nullptr;
    std::atomic<int> called{0};
    f.expect(weft_group_begin(r.comm) == WEFT_OK);
    f.expect(weft_all_reduce(r.comm, &value, &value, 1, WEFT_DTYPE_I32, WEFT_OP_SUM, nullptr, &request) ==
             WEFT_OK);
    const auto callback = [](void* user_data, weft_status) {
      // Long enough to expose a destroy that does not wait, and short enough not to delay the test.
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      (*static_cast<std::atomic<int>*>(user_data))++;
    };
    f.expect(weft_request_on_complete(request, callback, &called) == WEFT_OK);
    f.expect(weft_comm_destroy(&r.comm) == WEFT_OK);
    f.expect(called == 1);
    f.expect(weft_request_release(&request) == WEFT_OK);
  });
}

TEST_CASE("a group returns the failure of one of its calls") {
  on_ranks(2, [](Rank& r, Findings& f) {
    std::vector<int32_t> data(static_cast<size_t>(3 + r.rank));
    f.expect(weft_group_begin(r.comm) == WEFT_OK);
    f.expect(weft_barrier(r.comm, nullptr, nullptr) == WEFT_OK);
    f.expect(weft_all_reduce(r.comm, data.data(), data.data(), data.size(), WEFT_DTYPE_I32, WEFT_OP_SUM,
                             nullptr, nullptr) == WEFT_OK);
    f.expect(weft_group_end(r.comm, nullptr) == WEFT_ERR_MISMATCH);
  });
}

TEST_CASE("sparse_all_reduce adds up entries, sorted, in memory of the caller's own") {
  on_ranks(kRanks, [](Rank& r, Findings& f) {
    const int64_t shape[] = {5, 1000, 2};
    // Every rank has (4, 7) twice, and one entry of its own.
    const int64_t indices[] = {4, r.rank, 4, 7, 30 + r.rank, 7};
    const float values[] = {1, 2, 5, 6, 10, 20};
    weft_sparse src = WEFT_SPARSE_INIT, sum = WEFT_SPARSE_INIT;
    src.count = 3;
    src.indices = indices;
    src.values = values;
    for (const int32_t op : {WEFT_OP_SUM, WEFT_OP_AVG}) {
      weft_request* request = nullptr;
      f.expect(weft_sparse_all_reduce(r.comm, &src, shape, 3, 2, WEFT_DTYPE_F32, op, nullptr, &sum,
                                      &request) == WEFT_OK);
      int32_t after = 1;  // follows the order of the calls
      f.expect(weft_all_reduce(r.comm, &after, &after, 1, WEFT_DTYPE_I32, WEFT_OP_SUM, nullptr, nullptr) ==
               WEFT_OK);
      f.expect(weft_request_wait(request, 0) == WEFT_OK && after == r.size);
      f.expect(weft_request_release(&request) == WEFT_OK);
      f.expect(sum.count == 4);
      if (sum.count != 4) return;
      const std::vector<int64_t> rows(sum.indices, sum.indices + 8);
      f.expect(rows == std::vector<int64_t>{0, 1, 2, 4, 30, 31, 32, 7});
      const auto* const v = static_cast<const float*>(sum.values);
      const float scale = op == WEFT_OP_AVG ? 1.0f / 3.0f : 1.0f;
      f.expect(v[0] == 5 * scale && v[1] == 6 * scale && v[4] == 5 * scale);
      f.expect(v[6] == 33 * scale && v[7] == 66 * scale);
      f.expect(weft_sparse_release(&sum) == WEFT_OK && sum.count == 0 && sum.indices == nullptr);
      f.expect(weft_sparse_release(&sum) == WEFT_OK);
    }
    const auto refused = [&](int32_t ndim, int32_t sparse_ndim, int32_t dtype, int32_t op) {
      return weft_sparse_all_reduce(r.comm, &src, shape, ndim, sparse_ndim, dtype, op, nullptr, &sum,
                                    nullptr);
    };
    f.expect(refused(3, 0, WEFT_DTYPE_F32, WEFT_OP_SUM) == WEFT_ERR_ARG);
    f.expect(refused(1, 2, WEFT_DTYPE_F32, WEFT_OP_SUM) == WEFT_ERR_ARG);
    f.expect(refused(3, 2, WEFT_DTYPE_F32, WEFT_OP_MAX) == WEFT_ERR_UNSUPPORTED);
    f.expect(refused(3, 2, WEFT_DTYPE_F8_E5M2, WEFT_OP_SUM) == WEFT_ERR_UNSUPPORTED);
    f.expect(refused(3, 2, WEFT_DTYPE_C64, WEFT_OP_SUM) == WEFT_ERR_UNSUPPORTED);
    f.expect(refused(3, 2, WEFT_DTYPE_BOOL, WEFT_OP_SUM) == WEFT_ERR_UNSUPPORTED);
    src.count = 0;
    f.expect(refused(3, 2, WEFT_DTYPE_I64, WEFT_OP_SUM) == WEFT_OK && sum.count == 0);
  });
}

TEST_CASE("sparse arrays of different shapes are a mismatch") {
  on_ranks(2, [](Rank& r, Findings& f) {
    const int64_t shape[] = {5, 6 + r.rank};
    weft_sparse src = WEFT_SPARSE_INIT, sum = WEFT_SPARSE_INIT;
    f.expect(weft_sparse_all_reduce(r.comm, &src, shape, 2, 1, WEFT_DTYPE_F32, WEFT_OP_SUM, nullptr, &sum,
                                    nullptr) == WEFT_ERR_MISMATCH);
  });
}

TEST_CASE("a sparse sum refuses a result that is its source, and impossible sizes") {
  on_ranks(1, [](Rank& r, Findings& f) {
    const int64_t index = 0;
    const double value = 5;
    weft_sparse entries = WEFT_SPARSE_INIT, sum = WEFT_SPARSE_INIT;
    entries.count = 1;
    entries.indices = &index;
    entries.values = &value;
    const auto reduce = [&](int64_t first, int64_t second, weft_sparse* result) {
      const int64_t shape[] = {first, second};
      return weft_sparse_all_reduce(r.comm, &entries, shape, 2, 1, WEFT_DTYPE_F64, WEFT_OP_SUM, nullptr,
                                    result, nullptr);
    };
    f.expect(reduce(1, 1, &entries) == WEFT_ERR_ARG);
    f.expect(entries.count == 1 && entries.values == &value);
    // A dimension of 0 does not allow the other dimensions to be larger.
    f.expect(reduce(0, std::numeric_limits<int64_t>::max() / 4, &sum) == WEFT_ERR_ARG);
    f.expect(reduce(1, 1, &sum) == WEFT_OK && sum.count == 1);
    f.expect(weft_sparse_release(&sum) == WEFT_OK);
  });
}

TEST_CASE("a sparse sum of most of an array returns the whole array") {
  on_ranks(2, [](Rank& r, Findings& f) {
    const int64_t shape[] = {100};
    std::vector<int64_t> indices(90);
    std::vector<int32_t> values(90, 1);
    for (size_t i = 0; i < indices.size(); i++) indices[i] = static_cast<int64_t>(i);
    weft_sparse src = WEFT_SPARSE_INIT, sum = WEFT_SPARSE_INIT;
    src.count = indices.size();
    src.indices = indices.data();
    src.values = values.data();
    f.expect(weft_sparse_all_reduce(r.comm, &src, shape, 1, 1, WEFT_DTYPE_I32, WEFT_OP_SUM, nullptr, &sum,
                                    nullptr) == WEFT_OK);
    f.expect(sum.count == 100 && sum.indices[99] == 99);
    if (sum.count == 100) {
      f.expect(static_cast<const int32_t*>(sum.values)[89] == 2 &&
               static_cast<const int32_t*>(sum.values)[90] == 0);
    }
    f.expect(weft_sparse_release(&sum) == WEFT_OK);
  });
}

TEST_CASE("one-byte floats can be sent, and reductions refuse them by name") {
  on_ranks(2, [](Rank& r, Findings& f) {
    std::vector<uint8_t> mine(9, static_cast<uint8_t>(0x30 + r.rank)), all(18), expected(18, 0x30);
    std::fill(expected.begin() + 9, expected.end(), uint8_t{0x31});
    f.expect(weft_all_gather(r.comm, mine.data(), all.data(), 9, WEFT_DTYPE_F8_E4M3, nullptr, nullptr) ==
             WEFT_OK);
    f.expect(all == expected);
    f.expect(weft_broadcast(r.comm, mine.data(), 9, WEFT_DTYPE_F8_E5M2, 1, nullptr, nullptr) == WEFT_OK);
    f.expect(mine == std::vector<uint8_t>(9, 0x31));
    f.expect(weft_all_reduce(r.comm, mine.data(), mine.data(), 9, WEFT_DTYPE_F8_E4M3, WEFT_OP_SUM, nullptr,
                             nullptr) == WEFT_ERR_UNSUPPORTED);
    uint8_t supported = 2;
    f.expect(weft_capability(r.context, "shm", WEFT_COLL_SEND, WEFT_DTYPE_F8_E4M3, 0, 0, &supported) ==
             WEFT_OK);
    f.expect(supported == 1);
    f.expect(weft_capability(r.context, "shm", WEFT_COLL_REDUCE, WEFT_DTYPE_F8_E4M3, WEFT_OP_SUM, 0,
                             &supported) == WEFT_OK);
    f.expect(supported == 0);
  });
}

TEST_CASE("a rank's block for itself in all_to_all_v may have any size") {
  on_ranks(2, [](Rank& r, Findings& f) {
    constexpr uint64_t kOwn = 700'001;
    const auto me = static_cast<size_t>(r.rank);
    uint64_t counts[] = {3, 3};
    counts[me] = kOwn;
    std::vector<int32_t> src(kOwn + 3), dst(kOwn + 3, -1);
    for (size_t i = 0; i < src.size(); i++) src[i] = static_cast<int32_t>(i) * 2 + r.rank;
    f.expect(weft_all_to_all_v(r.comm, src.data(), counts, nullptr, dst.data(), counts, nullptr,
                               WEFT_DTYPE_I32, nullptr, nullptr) == WEFT_OK);
    // Rank 0's own elements come first; rank 1's first elements are those for rank 0.
    std::vector<int32_t> expected = src;
    for (size_t i = 0; i < 3; i++) {
      expected[r.rank == 0 ? kOwn + i : i] =
          static_cast<int32_t>(r.rank == 0 ? i : kOwn + i) * 2 + 1 - r.rank;
    }
    f.expect(dst == expected);
  });
}

TEST_CASE("a sparse sum of many pieces arrives completely") {
  on_ranks(2, [](Rank& r, Findings& f) {
    constexpr uint64_t kEntries = 200'000;
    const int64_t shape[] = {1'000'000, 3};
    std::vector<int64_t> indices(kEntries);
    std::vector<float> values(kEntries * 3);
    for (uint64_t i = 0; i < kEntries; i++) indices[i] = static_cast<int64_t>(i) * 4 + r.rank;
    for (uint64_t i = 0; i < values.size(); i++) values[i] = static_cast<float>(i % 1000 + 1);
    weft_sparse entries = WEFT_SPARSE_INIT, sum = WEFT_SPARSE_INIT;
    entries.count = kEntries;
    entries.indices = indices.data();
    entries.values = values.data();
    f.expect(weft_sparse_all_reduce(r.comm, &entries, shape, 2, 1, WEFT_DTYPE_F32, WEFT_OP_SUM, nullptr, &sum,
                                    nullptr) == WEFT_OK);
    f.expect(sum.count == 2 * kEntries);
    const auto* const found = static_cast<const float*>(sum.values);
    for (uint64_t i = 0; i < sum.count; i++) {
      f.expect(sum.indices[i] == static_cast<int64_t>(i / 2 * 4 + i % 2));
      for (uint64_t e = 0; e < 3; e++) f.expect(found[i * 3 + e] == values[i / 2 * 3 + e]);
    }
    f.expect(weft_sparse_release(&sum) == WEFT_OK);
  });
}

}  // namespace capi_variable
