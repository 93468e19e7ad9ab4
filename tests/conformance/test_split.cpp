// Splits of a communicator: created over their parent, and independent of it and of each other.
#include "backends.h"
#include "bootstrap.h"
#include "calls.h"
#include "support/catch.h"

using namespace weft;
using namespace weft::test;

namespace {

void check_part(Rank& self, const std::shared_ptr<Comm>& part, int rank, int size, int32_t sum) {
  if (!part) return self.expect(false, "no part");
  self.expect(part->rank() == rank && part->size() == size, "place in the part");
  for (const size_t count : {size_t{3}, size_t{50'000}}) {
    std::vector<int32_t> data(count, self.rank);
    self.expect(part->run(all_reduce(data), part->op_deadline(0)), "all_reduce in the part");
    self.expect(data == std::vector<int32_t>(count, sum), "sum over the part");
  }
}

}  // namespace

TEST_CASE("a communicator splits by color, ordered by key, and the parts are communicators") {
  for (const BackendRow& row : backend_rows()) {
    if (row.simulated) continue;  // the control channel of a split uses sockets
    run_on(row, 5, [](Rank& self) {
      const bool none = self.rank == 3;
      const int color = self.rank % 2;  // {0, 2, 4} and {1}
      std::shared_ptr<Comm> part;
      self.expect(split(self.comm, registry(), none, color, -self.rank, &part), "split");
      if (none) {
        self.expect(part == nullptr, "rank 3 is in no part");
      } else if (color == 1) {
        check_part(self, part, 0, 1, 1);
      } else {
        check_part(self, part, 2 - self.rank / 2, 3, 6);
      }
      std::vector<int32_t> data(10, 1);
      self.expect(self.run(all_reduce(data)), "the parent goes on");
      std::shared_ptr<Comm> again;
      self.expect(split(self.comm, registry(), false, 0, self.rank, &again), "split again");
      check_part(self, again, self.rank, 5, 10);
      if (part) (void)part->close().ok();
      self.expect(self.run(barrier()), "the parent outlives a part");
      if (again) (void)again->close().ok();
    });
  }
}

TEST_CASE("a split that fails does not fail its parent") {
  for (const BackendRow& row : backend_rows()) {
    if (row.simulated) continue;
    run_on(row, 3, [](Rank& self) {
      std::shared_ptr<Comm> part;
      self.expect(split(self.comm, registry(), false, 0, 0, &part), "split");
      if (!part) return;
      if (self.rank == 1) part->fail(Status::error(Code::kAborted, "enough"));
      Status status;
      while (status.ok()) status = part->run(barrier(), part->op_deadline(0));
      self.expect(status.code() == Code::kAborted, status.text());
      std::vector<int32_t> data(10, 1);
      self.expect(self.run(all_reduce(data)), "the parent");
      (void)part->close().ok();
    });
  }
}
