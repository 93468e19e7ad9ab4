// Ranks that are absent, leave, are destroyed or fail: the calls of all ranks return and name them.
#include <algorithm>
#include <string_view>
#include <thread>

#include "backends.h"
#include "calls.h"
#include "device.h"
#include "support/catch.h"
#include "support/random_transport.h"
#include "support/sampling.h"
#include "support/seed.h"
#include "support/simulation.h"

using namespace weft;
using namespace weft::test;

namespace {

// Returns each rank below `size`, or in a sample one of them.
std::vector<int> some_ranks(int size, Random& random) {
  const int first = static_cast<int>(random.below(static_cast<uint64_t>(size)));
  std::vector<int> ranks(sampling(static_cast<uint64_t>(size), 1, 1));
  for (size_t i = 0; i < ranks.size(); i++) ranks[i] = (first + static_cast<int>(i)) % size;
  return ranks;
}

}  // namespace

TEST_CASE("a rank that does not call is named by the deadline's error") {
  Random random(base_seed());
  for (const BackendRow& row : backend_rows()) {
    for (const int absent : some_ranks(3, random)) {
      RanksOptions options;
      options.comm.op_timeout_ms = 300;
      run_on(
          row, 3,
          [&](Rank& self) {
            std::vector<int32_t> data(10);
            const Status status = self.rank == absent ? wait_for_failure(self)
                                                      : run_there(row, self, all_reduce(data), {whole(data)});
            self.expect(status.code() == Code::kTimeout, "code: " + status.text());
            // On a busy machine another rank may be late as well, and is then named too.
            const std::vector<int>& named = status.info().ranks;
            self.expect(std::find(named.begin(), named.end(), absent) != named.end(),
                        "ranks: " + status.text());
          },
          options);
    }
  }
}

TEST_CASE("a receive whose message never arrives names the sender") {
  for (const BackendRow& row : backend_rows()) {
    RanksOptions options;
    options.comm.op_timeout_ms = 300;
    run_on(
        row, 3,
        [&](Rank& self) {
          std::vector<int32_t> data(10);
          const Status status =
              self.rank == 1 ? run_there(row, self, receive(data, 2), {whole(data)}) : wait_for_failure(self);
          self.expect(status.code() == Code::kTimeout, "code: " + status.text());
          self.expect(status.info().ranks == std::vector<int>{2}, "ranks: " + status.text());
        },
        options);
  }
}

TEST_CASE("a rank that left is named by the ranks that still need it, and by no other") {
  Random random(base_seed());
  for (const BackendRow& row : backend_rows()) {
    for (const int leaver : some_ranks(3, random)) {
      run_on(row, 3, [&](Rank& self) {
        std::vector<int32_t> data(30'000, 1);
        Status status = run_there(row, self, all_reduce(data), {whole(data)});
        if (self.rank == leaver) {
          self.expect(status, "before the farewell");
          self.expect(self.comm->close(), "close");
          return;
        }
        // Another rank may have completed this operation, called the next one and failed before this rank
        // completed it.
        if (status.ok()) status = run_there(row, self, all_reduce(data), {whole(data)});
        self.expect(status.code() == Code::kPeerFailed, "code: " + status.text());
        self.expect(status.info().ranks == std::vector<int>{leaver}, "ranks: " + status.text());
      });
    }
  }
}

TEST_CASE("ranks may leave as soon as their own operations are complete") {
  for (const BackendRow& row : backend_rows()) {
    for (uint64_t round = 0; round < sampling(10, 4, 4); round++) {
      run_on(row, 4, [&](Rank& self) {
        std::vector<int32_t> data(round % 2 == 0 ? 5 : 40'000, 1);
        self.expect(run_there(row, self, all_reduce(data), {whole(data)}), "all_reduce");
        self.expect(data.back() == 4, "sum");
      });
    }
  }
}

TEST_CASE("destroying a communicator completes what is outstanding") {
  for (const BackendRow& row : backend_rows()) {
    run_on(row, 3, [](Rank& self) {
      std::vector<int32_t> data(100'000);
      if (self.rank == 0) {
        Outstanding outstanding(self);
        outstanding.submit(all_reduce(data));
        outstanding.submit(barrier());
        std::vector<int32_t> room(7);
        outstanding.submit(receive(room, 1));
        (void)self.comm->close().ok();
        for (const auto& request : outstanding.requests()) {
          self.expect(request->done(), "not complete after close");
          self.expect(request->result.code() == Code::kCancelled, request->result.text());
        }
        return;
      }
      // No rank makes the call that rank 0 has outstanding. The others wait for a message that it never
      // sends.
      const Status status = self.run(receive(data, 0));
      self.expect(status.code() == Code::kPeerFailed, "code: " + status.text());
      self.expect(status.info().ranks == std::vector<int>{0}, "ranks: " + status.text());
    });
  }
}

TEST_CASE("a failure from any thread ends every rank's calls with its reason") {
  for (const BackendRow& row : backend_rows()) {
    run_on(row, 3, [&](Rank& self) {
      const auto abort = [&] {
        self.comm->fail(Status::error(Code::kAborted, "the program wants to stop").with_ranks({1}));
      };
      std::thread other;
      Status status = self.run(barrier());
      if (self.rank == 1 && row.simulated) abort();
      if (self.rank == 1 && !row.simulated) other = std::thread(abort);
      while (status.ok()) status = self.run(barrier());
      if (other.joinable()) other.join();
      self.expect(status.code() == Code::kAborted, "code: " + status.text());
      self.expect(contains(status.text(), "the program wants to stop"), status.text());
      self.expect(self.run(barrier()).code() == Code::kAborted, "later operations fail alike");
    });
  }
}

TEST_CASE("a connection of a program's own transport that dies by itself is named by all ranks") {
  for (const BackendRow& row : backend_rows()) {
    if (std::string_view(row.name).find("random") == std::string_view::npos) continue;
    Random random(base_seed());
    for (uint64_t round = 0; round < sampling(24, 6, 4); round++) {
      // With hosts of two, these are on different hosts.
      const int size = 4, from = static_cast<int>(random.below(2)),
                to = 2 + static_cast<int>(random.below(2));
      const uint64_t before = random.below(4), count = random.chance(2) ? 10 : 30'000;
      const bool both = random.chance(2);  // ends notice it
      run_on(row, size, [&](Rank& self) {
        std::vector<int32_t> sum(count), sent(count);
        Status status;
        for (uint64_t i = 0; status.ok() && i < 1000; i++) {
          if (i == before && self.rank == from) end_random_connection(from, to);
          if (i == before && self.rank == to && both) end_random_connection(to, from);
          status = self.run(all_reduce(sum));
          if (status.ok() && self.rank == from) status = self.run(send(sent, to));
          if (status.ok() && self.rank == to) status = self.run(receive(sent, from));
        }
        self.expect(status.code() == Code::kPeerFailed, "code: " + status.text());
        self.expect(contains(status.text(), "has lost rank"), status.text());
        const std::vector<int>& named = status.info().ranks;
        self.expect(named == std::vector{to} || (both && named == std::vector{from}),
                    "ranks: " + status.text());
      });
    }
  }
}
