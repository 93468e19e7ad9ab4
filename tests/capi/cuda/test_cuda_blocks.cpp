// Blocks of different sizes and groups on CUDA buffers, over the backends that threads of one process can
// use. Runs on the fake CUDA, and in tests/gpu on a real one.
#include <numeric>
#include <string>
#include <vector>

#include "capi/cuda.h"
#include "capi/ranks.h"
#include "support/catch.h"

namespace capi_cuda_blocks {

using namespace weft_test;

namespace {

constexpr int kRanks = 3;
constexpr uint64_t kGap = 3;  // elements between blocks

// Returns the value that rank `from` sends to rank `to` at an index.
int32_t value(int from, int to, uint64_t i) {
  return static_cast<int32_t>(i % 1'000'000) * 16 + from * 4 + to;
}

// The layout of the blocks: with gaps, the last rank's block first.
struct Layout {
  explicit Layout(const std::vector<uint64_t>& sizes) : counts(sizes), offsets(sizes.size()) {
    for (size_t r = sizes.size(); r-- > 0;) {
      offsets[r] = end;
      end += sizes[r] + kGap;
    }
  }
  std::vector<uint64_t> counts, offsets;
  uint64_t end = 0;
};

// Returns the elements of a layout of blocks with gaps; make(rank, index) computes each.
template <class Make>
std::vector<int32_t> filled(const Layout& layout, Make&& make) {
  std::vector<int32_t> all(layout.end, -1);
  for (size_t r = 0; r < layout.counts.size(); r++) {
    for (uint64_t i = 0; i < layout.counts[r]; i++) all[layout.offsets[r] + i] = make(static_cast<int>(r), i);
  }
  return all;
}

// A device buffer with these elements.
class Values {
 public:
  Values(const Stream& stream, const std::vector<int32_t>& values) : buffer_(values.size() + 1) {
    buffer_.write(stream, [&](size_t i) { return i < values.size() ? values[i] : 77; });
  }
  int32_t* at(uint64_t i = 0) const { return buffer_.get() + i; }
  // Checks the buffer's contents, and that nothing was written beyond its end.
  bool holds(const Stream& stream, std::vector<int32_t> expected) {
    expected.push_back(77);
    return buffer_.read(stream) == expected;
  }

 private:
  DeviceBuffer<int32_t> buffer_;
};

// Makes one rank's calls with blocks of these sizes. For all_to_all_v they are the sizes of each sender's
// block to each receiver.
void exercise(Rank& r, const std::vector<uint64_t>& counts, Findings& f) {
  const Stream stream;
  const weft_coll_options options = on(stream);
  const auto own = static_cast<size_t>(r.rank);
  const Layout layout(counts);
  const auto block = [&](int rank, int to) {
    std::vector<int32_t> values(counts[static_cast<size_t>(rank)]);
    for (uint64_t i = 0; i < values.size(); i++) values[i] = value(rank, to, i);
    return values;
  };
  const std::vector<int32_t> nothing(layout.end, -1);
  const std::vector<int32_t> gathered =
      filled(layout, [](int from, uint64_t i) { return value(from, 0, i); });
  const auto mine_alone = [&] {
    return filled(layout, [&](int from, uint64_t i) { return from == r.rank ? value(from, 0, i) : -5; });
  };
  const auto for_each = filled(layout, [&](int to, uint64_t i) { return value(r.rank, to, i); });

  for (const bool in_place : {false, true}) {
    {
      Values src(stream, block(r.rank, 0)), dst(stream, in_place ? mine_alone() : nothing);
      f.expect(weft_all_gather_v(r.comm, in_place ? dst.at(layout.offsets[own]) : src.at(), dst.at(),
                                 counts.data(), layout.offsets.data(), WEFT_DTYPE_I32, &options,
                                 nullptr) == WEFT_OK);
      f.expect(dst.holds(stream, gathered));
    }
    {
      const bool shared = in_place && r.rank == 1;
      Values src(stream, block(r.rank, 0)), dst(stream, shared ? mine_alone() : nothing);
      f.expect(weft_gather_v(r.comm, shared ? dst.at(layout.offsets[own]) : src.at(), dst.at(), counts.data(),
                             layout.offsets.data(), WEFT_DTYPE_I32, 1, &options, nullptr) == WEFT_OK);
      f.expect(dst.holds(stream, r.rank == 1 ? gathered : nothing));
    }
    {
      const bool shared = in_place && r.rank == 2;
      Values src(stream, for_each), dst(stream, std::vector<int32_t>(counts[own], -1));
      int32_t* const to = shared ? src.at(layout.offsets[own]) : dst.at();
      f.expect(weft_scatter_v(r.comm, src.at(), to, counts.data(), layout.offsets.data(), WEFT_DTYPE_I32, 2,
                              &options, nullptr) == WEFT_OK);
      std::vector<int32_t> expected(counts[own]);
      for (uint64_t i = 0; i < expected.size(); i++) expected[i] = value(2, r.rank, i);
      f.expect(shared ? src.holds(stream, for_each) : dst.holds(stream, expected));
    }
    {
      Values src(stream, for_each), dst(stream, std::vector<int32_t>(counts[own], -1));
      int32_t* const to = in_place ? src.at(layout.offsets[own]) : dst.at();
      f.expect(weft_reduce_scatter_v(r.comm, src.at(), to, counts.data(), layout.offsets.data(),
                                     WEFT_DTYPE_I32, WEFT_OP_SUM, &options, nullptr) == WEFT_OK);
      const auto sum = [&](uint64_t i) {
        return value(0, r.rank, i) + value(1, r.rank, i) + value(2, r.rank, i);
      };
      if (in_place) {
        f.expect(src.holds(stream, filled(layout, [&](int rank, uint64_t i) {
                             return rank == r.rank ? sum(i) : value(r.rank, rank, i);
                           })));
      } else {
        std::vector<int32_t> expected(counts[own]);
        for (uint64_t i = 0; i < expected.size(); i++) expected[i] = sum(i);
        f.expect(dst.holds(stream, expected));
      }
    }
  }
  // Rank s sends counts[(s + t) % n] elements to rank t.
  std::vector<uint64_t> sends, takes;
  for (size_t t = 0; t < counts.size(); t++) {
    sends.push_back(counts[(own + t) % counts.size()]);
    takes.push_back(counts[(t + own) % counts.size()]);
  }
  const Layout from(sends), to(takes);
  Values src(stream, filled(from, [&](int rank, uint64_t i) { return value(r.rank, rank, i); }));
  Values dst(stream, std::vector<int32_t>(to.end, -1));
  weft_request* request = nullptr;
  // Freeing memory waits for all streams of the device, also for another rank's stream that waits for this
  // rank.
  f.expect(weft_barrier(r.comm, nullptr, nullptr) == WEFT_OK);
  f.expect(weft_all_to_all_v(r.comm, src.at(), sends.data(), from.offsets.data(), dst.at(), takes.data(),
                             to.offsets.data(), WEFT_DTYPE_I32, &options, &request) == WEFT_OK);
  sends.assign(sends.size(), 99);  // the caller may reuse the arrays after the call
  f.expect(dst.holds(stream, filled(to, [&](int rank, uint64_t i) { return value(rank, r.rank, i); })));
  f.expect(weft_request_wait(request, 10'000) == WEFT_OK);
  weft_request_release(&request);
}

}  // namespace

TEST_CASE("collectives of blocks of different sizes take CUDA buffers") {
  const std::vector<std::vector<uint64_t>> sizes = {
      {1, 2, 3}, {0, 0, 0}, {0, 70'000, 0}, {5, 0, 600'000}, {300'000, 299'999, 300'001}};
  for (const std::string backend : kBackends) {
    for (const auto& counts : sizes) {
      INFO(backend << " " << counts[0] << " " << counts[1] << " " << counts[2]);
      const FakeCuda fake(1, counts[2] + 1, 50);
      Findings findings;
      const std::string error =
          run(backend.c_str(), kRanks, WEFT_PROGRESS_THREAD, [&](Rank& r) { exercise(r, counts, findings); });
      CHECK(error == "");
      CHECK(findings.wrong == 0);
    }
  }
}

TEST_CASE("ranks whose blocks in CUDA memory differ are named") {
  for (const std::string backend : kBackends) {
    INFO(backend);
    const FakeCuda fake;
    Findings findings;
    const std::string error = run(backend.c_str(), 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
      const Stream stream;
      const weft_coll_options options = on(stream);
      DeviceBuffer<float> src(100), dst(100);
      const uint64_t sends[] = {3, 4}, takes[] = {3, uint64_t(4 + r.rank)};
      findings.expect(weft_all_to_all_v(r.comm, src.get(), sends, nullptr, dst.get(), takes, nullptr,
                                        WEFT_DTYPE_F32, &options, nullptr) == WEFT_ERR_MISMATCH);
      weft_error failure = WEFT_ERROR_INIT;
      weft_comm_error(r.comm, &failure);
      findings.expect(std::string(failure.text).find("sends") != std::string::npos);
    });
    CHECK(error == "");
    CHECK(findings.wrong == 0);
  }
}

TEST_CASE("a group's calls on one stream are ordered with it, and not with each other") {
  for (const std::string backend : kBackends) {
    for (const bool waits : {true, false}) {
      INFO(backend << waits);
      const FakeCuda fake(1, 11);
      Findings f;
      const std::string error = run(backend.c_str(), 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
        constexpr uint64_t kCount = 1'500'000;  // a send does not complete before its receive
        const Stream stream;
        const weft_coll_options options = on(stream);
        DeviceBuffer<int32_t> mine(kCount), theirs(kCount), sum(10);
        for (int round = 0; round < 2; round++) {
          mine.write(stream, [&](size_t i) { return static_cast<int32_t>(i) * 2 + r.rank + round; });
          sum.write(stream, [&](size_t i) { return static_cast<int32_t>(i) + r.rank; });
          f.expect(weft_group_begin(r.comm) == WEFT_OK);
          f.expect(weft_send(r.comm, mine.get(), kCount, WEFT_DTYPE_I32, 1 - r.rank, &options, nullptr) ==
                   WEFT_OK);
          f.expect(weft_all_reduce(r.comm, sum.get(), sum.get(), 10, WEFT_DTYPE_I32, WEFT_OP_SUM, &options,
                                   nullptr) == WEFT_OK);
          f.expect(weft_recv(r.comm, theirs.get(), kCount, WEFT_DTYPE_I32, 1 - r.rank, &options, nullptr) ==
                   WEFT_OK);
          int32_t host = 1;
          f.expect(weft_all_reduce(r.comm, &host, &host, 1, WEFT_DTYPE_I32, WEFT_OP_SUM, nullptr, nullptr) ==
                   WEFT_OK);
          weft_request* all = nullptr;
          f.expect(weft_group_end(r.comm, waits ? nullptr : &all) == WEFT_OK);
          const std::vector<int32_t> got = theirs.read(stream), sums = sum.read(stream);
          uint64_t wrong = 0;
          for (size_t i = 0; i < kCount; i++)
            wrong += got[i] != static_cast<int32_t>(i) * 2 + 1 - r.rank + round;
          for (size_t i = 0; i < 10; i++) wrong += sums[i] != static_cast<int32_t>(2 * i) + 1;
          f.expect(wrong == 0);
          if (!waits) f.expect(weft_request_wait(all, 10'000) == WEFT_OK);
          weft_request_release(&all);
          f.expect(host == 2);
        }
      });
      CHECK(error == "");
      CHECK(f.wrong == 0);
    }
  }
}

TEST_CASE("a stream continues when the group that it waits for is never ended, or fails") {
  for (const std::string backend : kBackends) {
    INFO(backend);
    const FakeCuda fake;
    Findings f;
    const std::string error = run(backend.c_str(), 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
      const Stream stream;
      const weft_coll_options options = on(stream);
      DeviceBuffer<float> buffer(100);
      const auto reduce = [&](uint64_t count) {
        return weft_all_reduce(r.comm, buffer.get(), buffer.get(), count, WEFT_DTYPE_F32, WEFT_OP_SUM,
                               &options, nullptr);
      };
      f.expect(weft_group_begin(r.comm) == WEFT_OK);
      f.expect(reduce(r.rank == 0 ? 100 : 99) == WEFT_OK);
      f.expect(reduce(101) == WEFT_ERR_ARG);  // over the end
      f.expect(weft_group_end(r.comm, nullptr) == WEFT_ERR_MISMATCH);
      f.expect(cudaStreamSynchronize(stream.get()) == cudaSuccess);
      f.expect(weft_group_begin(r.comm) == WEFT_OK);
      (void)reduce(100);
      weft_comm_destroy(&r.comm);
      f.expect(cudaStreamSynchronize(stream.get()) == cudaSuccess);
    });
    CHECK(error == "");
    CHECK(f.wrong == 0);
  }
}

}  // namespace capi_cuda_blocks
