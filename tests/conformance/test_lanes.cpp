// Lanes, which order operations independently, and messages between pairs of ranks.
#include <numeric>

#include "../unit/reducer_rig.h"
#include "backends.h"
#include "base/text.h"
#include "calls.h"
#include "device.h"
#include "support/catch.h"

using namespace weft;
using namespace weft::test;

TEST_CASE("lanes are independent: each rank may start them in its own order") {
  for (const BackendRow& row : backend_rows()) {
    run_on(row, 3, [](Rank& self) {
      constexpr size_t kLanes = 4;
      constexpr size_t kOperations = 12;
      std::vector<std::shared_ptr<Lane>> lanes(kLanes);
      for (auto& lane : lanes) self.expect(self.comm->open_lane(&lane), "open");
      std::vector<std::vector<int32_t>> data;
      for (size_t i = 0; i < kLanes * kOperations; i++) {
        data.emplace_back(i % 3 == 0 ? 1 + i : 700 * i, static_cast<int32_t>(i) + self.rank);
      }
      Outstanding outstanding(self);
      for (size_t k = 0; k < kOperations; k++) {
        for (size_t l = 0; l < kLanes; l++) {
          const size_t lane = (l + static_cast<size_t>(self.rank)) % kLanes;
          outstanding.submit(*lanes[lane], all_reduce(data[lane * kOperations + k]));
        }
      }
      std::vector<int32_t> user(10, 1);
      self.expect(self.run(all_reduce(user)), "the user's lane meanwhile");
      self.expect(outstanding.wait(), "lanes");
      for (size_t i = 0; i < data.size(); i++) {
        const std::vector<int32_t> sum(data[i].size(), static_cast<int32_t>(3 * i + 3));
        self.expect(data[i] == sum, cat("sum ", i));
      }
      for (auto& lane : lanes) self.comm->close_lane(lane);
    });
  }
}

TEST_CASE("lanes of operations on devices are independent as well") {
  for (const BackendRow& row : backend_rows()) {
    if (!row.devices) continue;
    run_on(row, 3, [](Rank& self) {
      constexpr size_t kLanes = 3;
      constexpr size_t kOperations = 6;
      std::vector<std::shared_ptr<Lane>> lanes(kLanes);
      for (auto& lane : lanes) self.expect(self.comm->open_lane(&lane), "open");
      std::vector<std::vector<int32_t>> data;
      std::vector<std::unique_ptr<DeviceOperation>> operations;
      for (size_t i = 0; i < kLanes * kOperations; i++) {
        std::vector<int32_t>& mine =
            data.emplace_back(i % 3 == 0 ? 1 + i : 700 * i, static_cast<int32_t>(i) + self.rank);
        operations.push_back(std::make_unique<DeviceOperation>(
            self, all_reduce(mine),
            std::array<HostBuffer, 2>{HostBuffer{raw(mine), mine.size() * sizeof mine[0]}, {}}));
      }
      Outstanding outstanding(self);
      for (size_t k = 0; k < kOperations; k++) {
        for (size_t l = 0; l < kLanes; l++) {
          const size_t lane = (l + static_cast<size_t>(self.rank)) % kLanes;
          DeviceOperation& operation = *operations[lane * kOperations + k];
          self.expect(operation.prepare(*lanes[lane]), "prepare");
          outstanding.submit(*lanes[lane], operation.args());
        }
      }
      self.expect(outstanding.wait(), "lanes");
      for (size_t i = 0; i < data.size(); i++) {
        operations[i]->fetch();
        const std::vector<int32_t> sum(data[i].size(), static_cast<int32_t>(3 * i + 3));
        self.expect(data[i] == sum, cat("sum ", i));
      }
      for (auto& lane : lanes) self.comm->close_lane(lane);
    });
  }
}

TEST_CASE("lanes that all ranks have closed are opened again, any number of times") {
  for (const BackendRow& row : backend_rows()) {
    run_on(row, 3, [&](Rank& self) {
      // Sizes for every path: inline, a cache line or two, staged in one piece, in rounds. They alternate, so
      // that each path follows each other one.
      constexpr uint64_t kCounts[] = {1, 30, 5'000, 3, 60'000, 0, 200, 300'000, 7};
      const Deadline deadline = self.comm->op_deadline(0);
      std::vector<std::shared_ptr<Lane>> open;
      uint32_t highest = 0, last = 0;
      for (uint32_t round = 0; round < 150; round++) {
        ByteWriter mine;
        mine.put(last);
        std::vector<Bytes> all;
        self.expect(self.comm->agree_to_open(nullptr, mine.bytes(), &all, deadline), "agree");
        for (const Bytes& theirs : all)
          self.expect(theirs == mine.bytes(), cat("another lane in round ", round));
        std::shared_ptr<Lane> lane;
        self.expect(self.comm->open_lane(&lane), "open");
        if (!lane) return;
        last = lane->key().id;
        highest = std::max(highest, last);
        open.push_back(lane);
        // The lane that was opened last is used. Rank 2 closes older lanes in another order, and rank 1
        // closes them later.
        std::vector<int32_t> data(kCounts[round % 9], static_cast<int32_t>(round) + self.rank);
        const std::vector<int32_t> sum(data.size(), static_cast<int32_t>(3 * round + 3));
        self.expect(self.comm->run(lane, all_reduce(data), deadline), "run");
        self.expect(data == sum, cat("sum of round ", round));
        const size_t held = self.rank == 1 ? 4 : 1 + round % 2;
        while (open.size() > held) {
          const auto first = self.rank == 2 ? open.end() - 2 : open.begin();
          self.comm->close_lane(*first);
          open.erase(first);
        }
      }
      self.expect(highest < 12 || !self.comm->collectives().few_lanes(), cat(highest, " lanes"));
      for (auto& lane : open) self.comm->close_lane(lane);
    });
  }
}

TEST_CASE("more reducers than lanes can be created in sequence on one communicator") {
  const Model model({{"a", {90}}, {"b", {7}}, {"c", {400}}});
  for (const BackendRow& row : backend_rows()) {
    run_on(row, 3, [&](Rank& self) {
      std::unique_ptr<Reducer> earlier, reducer;
      for (uint64_t round = 0; round < 80; round++) {
        const RigOptions rig = {.mode = round % 2 == 0 ? WEFT_GRADIENT_COPY : WEFT_GRADIENT_VIEW};
        self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, rig), "create");
        if (!reducer) return;
        Gradients gradients(model);
        for (uint64_t step = 0; step < 1 + round % 3; step++) {
          std::vector<std::byte*> places = pointers(gradients);
          for (size_t i = 0; i < model.size(); i++) {
            void* view = places[i];
            if (rig.mode == WEFT_GRADIENT_VIEW) self.expect(reducer->grad_view(i, &view), "view");
            gradients.fill(i, round + step, self.rank, places[i] = static_cast<std::byte*>(view));
          }
          self.expect(reducer->begin(nullptr), "begin");
          self.expect(ready_all(*reducer, places, round), "ready");
          self.expect(reducer->finish({}), "finish");
          const Gradients expected = reference(model, {round + step}, 3, 3);
          for (size_t i = 0; i < model.size(); i++) {
            self.expect(std::memcmp(places[i], expected.memory()[i].data(), model.span(i)) == 0,
                        cat("result of round ", round));
          }
        }
        if (self.rank != 1 || round % 5 == 0) earlier.reset();  // rank 1 keeps several for a while
        if (!earlier) earlier = std::move(reducer);
      }
    });
  }
}

TEST_CASE("a ring of messages, small and large, blocking on both sides") {
  for (const BackendRow& row : backend_rows()) {
    for (const int size : {2, 3, 5}) {
      run_on(row, size, [&](Rank& self) {
        for (const uint64_t count : {0u, 1u, 1000u, 300'000u}) {
          std::vector<int32_t> mine(count, self.rank), theirs(count, -1);
          const int from = (self.rank + size - 1) % size;
          Outstanding outstanding(self);
          outstanding.submit(send(mine, (self.rank + 1) % size));
          self.expect(self.run(receive(theirs, from)), "receive");
          self.expect(outstanding.wait(), "send");
          self.expect(theirs == std::vector<int32_t>(count, from), cat("data of ", count));
        }
      });
    }
  }
}

TEST_CASE("many messages both ways between all pairs arrive in order") {
  for (const BackendRow& row : backend_rows()) {
    run_on(row, 3, [](Rank& self) {
      constexpr int kMessages = 40;
      const auto length = [](int i) { return static_cast<size_t>(i % 7 == 0 ? 30'000 : i); };
      Outstanding outstanding(self);
      std::vector<std::vector<int32_t>> sent, received;
      sent.reserve(3 * kMessages);
      received.reserve(3 * kMessages);
      for (int i = 0; i < kMessages; i++) {
        for (int peer = 0; peer < self.size; peer++) {
          if (peer == self.rank) continue;
          sent.emplace_back(length(i), 100 * i + self.rank);
          received.emplace_back(length(i), -1);
          outstanding.submit(send(sent.back(), peer));
          outstanding.submit(receive(received.back(), peer));
        }
      }
      self.expect(self.run(barrier()), "collectives are apart from messages");
      self.expect(outstanding.wait(), "messages");
      size_t at = 0;
      for (int i = 0; i < kMessages; i++) {
        for (int peer = 0; peer < self.size; peer++) {
          if (peer == self.rank) continue;
          self.expect(received[at++] == std::vector<int32_t>(length(i), 100 * i + peer),
                      cat("message ", i, " from ", peer));
        }
      }
    });
  }
}

TEST_CASE("the bytes of an operation are counted") {
  for (const BackendRow& row : backend_rows()) {
    run_on(row, 2, [](Rank& self) {
      std::vector<int32_t> data(100'000, 1);
      self.expect(self.run(all_reduce(data)), "all_reduce");
      const CollectiveCounters moved = self.comm->collectives().counters();
      const uint64_t bytes =
          moved.bytes_shared + moved.bytes_direct + moved.bytes_sent + moved.bytes_received;
      self.expect(bytes >= data.size() * sizeof(data[0]), cat("only ", bytes, " bytes"));
    });
  }
}

TEST_CASE("some of the ranks exchange bytes over the control channel") {
  for (const BackendRow& row : backend_rows()) {
    run_on(row, 4, [](Rank& self) {
      const uint32_t id = self.comm->next_subgroup_id();
      const int parity = self.rank % 2;
      const std::unique_ptr<Exchange> exchange = self.comm->subgroup(id, {parity + 2, parity});
      self.expect(exchange->size() == 2, "size");
      self.expect(exchange->rank() == (self.rank < 2 ? 1 : 0), "rank");
      for (int round = 0; round < 3; round++) {
        ByteWriter mine;
        mine.put(self.rank).put(round);
        std::vector<Bytes> all;
        self.expect(exchange->all_gather(mine.bytes(), &all, self.comm->op_deadline(0)), "exchange");
        if (all.size() != 2) return self.expect(false, "not of two ranks");
        for (size_t i = 0; i < 2; i++) {
          ByteReader theirs(all[i]);
          self.expect(theirs.get<int>() == (i == 0 ? parity + 2 : parity), "whose");
          self.expect(theirs.get<int>() == round, "round");
        }
      }
      self.expect(self.run(barrier()), "barrier");
    });
  }
}
