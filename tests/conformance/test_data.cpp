// Every collective x dtype x op x size x ranks, on every backend, against a serial reference.
#include "backends.h"
#include "cases.h"
#include "support/catch.h"
#include "support/sanitized.h"
#include "support/seed.h"

using namespace weft;
using namespace weft::test;

namespace {

constexpr uint64_t kSample = kSanitized ? 8 : 1;  // one case in so many

constexpr Coll kColls[] = {Coll::kAllReduce,     Coll::kReduce,     Coll::kBroadcast,      Coll::kAllGather,
                           Coll::kReduceScatter, Coll::kGather,     Coll::kScatter,        Coll::kAllToAll,
                           Coll::kBarrier,       Coll::kAllGatherV, Coll::kReduceScatterV, Coll::kGatherV,
                           Coll::kScatterV,      Coll::kAllToAllV};

// All combinations for one number of elements, or one in `one_in` of them.
void add_cases(std::vector<Case>* cases, uint64_t count, int size, uint64_t one_in, Random& random) {
  for (const Coll coll : kColls) {
    for (int d = 1; d <= kDtypeLast; d++) {
      const auto dtype = static_cast<Dtype>(d);
      if (!valid(dtype)) continue;
      for (const ReduceOp op : ops_of(coll, dtype)) {
        if (!random.chance(has_blocks(coll) ? 3 * one_in : one_in)) continue;
        Case& c = cases->emplace_back();
        c.coll = coll;
        c.dtype = dtype;
        c.op = op;
        c.count = count;
        c.in_place = may_be_in_place(coll) && random.chance(2);
        c.arena = random.chance(3);
        prepare(c, size, random);
      }
    }
  }
}

// The same cases on data whose sums are exact.
std::vector<Case> exact(const std::vector<Case>& cases, int size, Random& random) {
  std::vector<Case> changed;
  for (const Case& c : cases) {
    Case& other = changed.emplace_back();
    other.coll = c.coll;
    other.dtype = c.dtype;
    other.op = c.op;
    other.count = c.count;
    other.in_place = c.in_place;
    other.arena = c.arena;
    prepare_exact(other, size, random);
  }
  return changed;
}

void run_all(int size, const std::vector<Case>& cases, Random& random) {
  std::vector<Case> exact_cases;
  for (const BackendRow& row : backend_rows()) {
    if (row.adds_partial_sums && exact_cases.empty()) exact_cases = exact(cases, size, random);
    run_on(row, size, [&](Rank& self) {
      size_t at = 0;
      for (const Case& c : row.adds_partial_sums ? exact_cases : cases) {
        // A fake device hands every copy to a thread.
        if (row.devices && at++ % 5 != 0) continue;
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
    add_cases(&cases, 0, size, 4 * kSample, random);
    add_cases(&cases, 1, size, 2 * kSample, random);
    add_cases(&cases, 37, size, kSample, random);
    add_cases(&cases, 4096, size, 4 * kSample, random);
    run_all(size, cases, random);
  }
}

TEST_CASE("every collective delivers the reference's bits above a megabyte") {
  for (const int size : {1, 2, 3, 5}) {
    Random random(base_seed() * 100 + 50 + static_cast<uint64_t>(size));
    std::vector<Case> cases;
    add_cases(&cases, (1 << 20) + 3, size, 60 * kSample, random);
    run_all(size, cases, random);
  }
}
