// Forces every algorithm of lib/coll, on every backend that moves messages. Checks the result, that all ranks
// have the same bits, and the algorithm's name in the query.
#include <cmath>
#include <cstring>

#include "backends.h"
#include "base/text.h"
#include "calls.h"
#include "cases.h"
#include "coll/select.h"
#include "device.h"
#include "loopback/loopback.h"
#include "support/catch.h"
#include "support/sampling.h"
#include "support/seed.h"

using namespace weft;
using namespace weft::test;

namespace {

const uint64_t kSample = sampling(1, 8, 8);  // runs one case in kSample

// Returns true if the row moves messages. Copies between device and host happen above all algorithms, so one
// device row is enough.
bool has_algorithms(const BackendRow& row) {
  return row.backend().make_transport != nullptr && (!row.devices || row.backend == loopback::backend);
}

bool is_collective(const coll::Algorithm& algorithm) {
  return algorithm.coll != Coll::kSend && algorithm.coll != Coll::kRecv;
}

std::vector<Case> cases_of(const coll::Algorithm& algorithm, int size, Random& random) {
  std::vector<Case> cases;
  for (const uint64_t count : {0u, 1u, 37u, 4099u, 40'009u}) {
    for (int d = 1; d <= kDtypeCount; d++) {
      for (const ReduceOp op : ops_of(algorithm.coll, static_cast<Dtype>(d))) {
        // Samples the cases, most of them at the middle size.
        if (!random.chance(count == 37 ? 2 * kSample : count > 5000 ? 15 * kSample : 8 * kSample)) continue;
        Case& c = cases.emplace_back();
        c.coll = algorithm.coll;
        c.dtype = static_cast<Dtype>(d);
        c.op = op;
        c.count = count;
        c.in_place = may_be_in_place(c.coll) && random.chance(2);
      }
    }
  }
  prepare_all(&cases, size, random.next(), Values::kExact);
  return cases;
}

void run_forced(const BackendRow& row, const coll::Algorithm& algorithm, int size, const RankBody& body) {
  RanksOptions options;
  options.comm.algorithms = cat(name(algorithm.coll), ":", algorithm.name);
  INFO(options.comm.algorithms);
  run_on(row, size, body, options);
}

bool folds_once(const Case& c) {
  CollectiveArgs args;
  args.coll = c.coll;
  args.dtype = c.dtype;
  args.prescale = c.prescale;
  return coll::folds_at_once(args);
}

// Expects that all ranks hold the same bytes.
void expect_equal(Rank& self, const std::vector<int32_t>& mine, const std::string& what) {
  std::vector<int32_t> all(mine.size() * static_cast<size_t>(self.size));
  CollectiveArgs gather;
  gather.coll = Coll::kAllGather;
  gather.dtype = Dtype::kI32;
  gather.count = mine.size();
  gather.src = reinterpret_cast<const std::byte*>(mine.data());
  gather.dst = raw(all);
  self.expect(self.run(gather), "all_gather");
  for (size_t r = 0; r < static_cast<size_t>(self.size); r++) {
    const bool same = std::memcmp(all.data() + r * mine.size(), mine.data(), mine.size() * 4) == 0;
    self.expect(same, cat(what, ": rank ", r, " has other bits"));
  }
}

// The mean of floats whose sums depend on their order must be near the exact mean, and the same on all ranks.
void expect_same_mean(const BackendRow& row, Rank& self, const char* what) {
  constexpr size_t kCount = 10'007;
  std::vector<float> data(kCount);
  Random random(base_seed() + static_cast<uint64_t>(self.rank));
  for (float& value : data) value = static_cast<float>(random.below(1'000'003)) / 1000.0f;
  std::vector<double> sum(kCount);
  for (int r = 0; r < self.size; r++) {
    Random theirs(base_seed() + static_cast<uint64_t>(r));
    for (double& value : sum) value += static_cast<float>(theirs.below(1'000'003)) / 1000.0f;
  }
  CollectiveArgs args;
  args.coll = Coll::kAllReduce;
  args.dtype = Dtype::kF32;
  args.op = ReduceOp::kAvg;
  args.postscale = 1.0 / self.size;
  args.count = kCount;
  args.src = args.dst = reinterpret_cast<std::byte*>(data.data());
  self.expect(run_there(row, self, args, {whole(data)}), "all_reduce");
  bool near = true;
  for (size_t i = 0; i < kCount; i++) near &= std::fabs(data[i] - sum[i] / self.size) < 1e-3;
  self.expect(near, "far from the mean");
  std::vector<int32_t> bits(kCount);
  std::memcpy(bits.data(), data.data(), kCount * 4);
  expect_equal(self, bits, what);
}

}  // namespace

TEST_CASE("every algorithm gives the reference's bits where sums are exact, and is named") {
  for (const coll::AlgorithmRow row_of : coll::algorithms()) {
    const coll::Algorithm& algorithm = row_of();
    if (!is_collective(algorithm)) continue;
    for (const int size : {1, 2, 3, 4, 5, 8}) {
      Random random(base_seed() * 1000 + static_cast<uint64_t>(size));
      std::vector<Case> cases;
      for (const BackendRow& row : backend_rows()) {
        if (!has_algorithms(row)) continue;
        // Schedules do not depend on the row: the simulation tries all sizes, other rows 3 and 8 (odd and
        // even).
        if (!row.simulated && size != 3 && size != 8) continue;
        // If an algorithm is named, mpi.native runs it as mpi does, so one size is enough.
        if (row.run == run_launched && row.adds_partial_sums && size != 3) continue;
        if (cases.empty()) cases = cases_of(algorithm, size, random);
        run_forced(row, algorithm, size, [&](Rank& self) {
          size_t at = 0;
          for (const Case& c : cases) {
            if (skips_on_device(row, at++)) continue;
            execute(c, self);
            if (!self.failures.empty()) return;
            const std::string ran = self.comm->last_algorithm();
            // On devices, long blocks are broadcast in turn, whichever algorithm is named.
            bool other = row.devices && c.coll == Coll::kAllGatherV && ran == "broadcasts";
            // Folds that must happen at once take the best algorithm that does so.
            other |= algorithm.partial && folds_once(c);
            self.expect(ran == algorithm.name || other, cat(c.text(), " ran as ", ran));
          }
        });
      }
    }
  }
}

TEST_CASE("every algorithm of all_reduce gives all ranks the same bits, near the sum") {
  for (const coll::AlgorithmRow row_of : coll::algorithms()) {
    const coll::Algorithm& algorithm = row_of();
    if (algorithm.coll != Coll::kAllReduce) continue;
    for (const int size : {2, 3, 4, 5, 8}) {
      for (const BackendRow& row : backend_rows()) {
        if (!has_algorithms(row) || row.processes) continue;
        run_forced(row, algorithm, size, [&](Rank& self) { expect_same_mean(row, self, algorithm.name); });
      }
    }
  }
}

TEST_CASE("sums have the same bits on all ranks, whatever executes them") {
  for (const int size : {2, 3, 5, 8}) {
    for (const BackendRow& row : backend_rows()) {
      run_on(row, size, [&](Rank& self) { expect_same_mean(row, self, row.name); });
    }
  }
}

TEST_CASE("a mean of large halves does not overflow, whatever the algorithm") {
  for (const coll::AlgorithmRow row_of : coll::algorithms()) {
    const coll::Algorithm& algorithm = row_of();
    if (algorithm.coll != Coll::kAllReduce) continue;
    for (const BackendRow& row : backend_rows()) {
      if (!row.simulated) continue;
      run_forced(row, algorithm, 4, [&](Rank& self) {
        std::vector<uint16_t> data(100, 0x7bff);  // 65504, the largest
        CollectiveArgs args;
        args.coll = Coll::kAllReduce;
        args.dtype = Dtype::kF16;
        args.op = ReduceOp::kAvg;
        args.postscale = 0.25;
        args.count = data.size();
        args.src = args.dst = reinterpret_cast<std::byte*>(data.data());
        self.expect(self.run(args), "all_reduce");
        self.expect(data == std::vector<uint16_t>(100, 0x7bff), "not the mean");
      });
    }
  }
}
