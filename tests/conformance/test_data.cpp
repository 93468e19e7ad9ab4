// Every collective x dtype x op x size x ranks, on every backend, against a serial reference.
#include "backends.h"
#include "cases.h"
#include "device.h"
#include "support/catch.h"
#include "support/sampling.h"
#include "support/seed.h"

using namespace weft;
using namespace weft::test;

namespace {

const uint64_t kSample = sampling(1, 12, 12);  // runs one case in kSample

constexpr Coll kColls[] = {Coll::kAllReduce,     Coll::kReduce,     Coll::kBroadcast,      Coll::kAllGather,
                           Coll::kReduceScatter, Coll::kGather,     Coll::kScatter,        Coll::kAllToAll,
                           Coll::kBarrier,       Coll::kAllGatherV, Coll::kReduceScatterV, Coll::kGatherV,
                           Coll::kScatterV,      Coll::kAllToAllV};

// Adds all combinations for one number of elements, or one in `one_in` of them.
void add_cases(std::vector<Case>* cases, uint64_t count, uint64_t one_in, Random& random) {
  for (const Coll coll : kColls) {
    for (int d = 1; d <= kDtypeLast; d++) {
      const auto dtype = static_cast<Dtype>(d);
      for (const ReduceOp op : ops_of(coll, dtype)) {
        if (!random.chance(has_blocks(coll) ? 3 * one_in : one_in)) continue;
        Case& c = cases->emplace_back();
        c.coll = coll;
        c.dtype = dtype;
        c.op = op;
        c.count = count;
        c.in_place = may_be_in_place(coll) && random.chance(2);
        c.arena = random.chance(3);
      }
    }
  }
}

void run_all(int size, const std::vector<Case>& drawn, Random& random) {
  std::vector<Case> any, exact;
  const uint64_t seed = random.next();
  for (const BackendRow& row : backend_rows()) {
    std::vector<Case>& cases = row.adds_partial_sums ? exact : any;
    if (cases.empty()) {
      cases = drawn;
      prepare_all(&cases, size, seed, row.adds_partial_sums ? Values::kExact : Values::kAny);
    }
    run_on(row, size, [&](Rank& self) {
      size_t at = 0;
      for (const Case& c : cases) {
        if (skips_on_device(row, at++)) continue;
        execute(c, self);
        if (!self.failures.empty()) return;
      }
    });
  }
}

}  // namespace

TEST_CASE("every backend of the library is in the suite") {
  CHECK(backends_without_row() == std::vector<std::string>());
}

TEST_CASE("every collective delivers the reference's bits at small sizes") {
  for (const int size : {1, 2, 3, 4, 5, 8}) {
    Random random(base_seed() * 100 + static_cast<uint64_t>(size));
    std::vector<Case> cases;
    add_cases(&cases, 0, 4 * kSample, random);
    add_cases(&cases, 1, 2 * kSample, random);
    add_cases(&cases, 37, kSample, random);
    add_cases(&cases, 4096, 4 * kSample, random);
    run_all(size, cases, random);
  }
}

TEST_CASE("every collective delivers the reference's bits above a megabyte") {
  for (const int size : {1, 2, 3, 5}) {
    Random random(base_seed() * 100 + 50 + static_cast<uint64_t>(size));
    std::vector<Case> cases;
    add_cases(&cases, (1 << 20) + 3, 60 * kSample, random);
    run_all(size, cases, random);
  }
}
