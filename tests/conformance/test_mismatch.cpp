// Ranks that make different calls: no rank that received data reports success, and every error names both
// sides.
#include "backends.h"
#include "base/text.h"
#include "calls.h"
#include "cases.h"
#include "coll/select.h"
#include "coll/variable.h"
#include "device.h"
#include "support/catch.h"
#include "support/sampling.h"
#include "support/seed.h"

using namespace weft;
using namespace weft::test;

namespace {

const uint64_t kSample = sampling(1, 8, 8);  // runs one case in kSample
constexpr int kRanks = 3;

struct Variant {
  const char* name;
  void (*change)(CollectiveArgs& args);
};

constexpr Variant kVariants[] = {
    {"op", [](CollectiveArgs& args) { args.op = ReduceOp::kMax; }},
    {"dtype", [](CollectiveArgs& args) { args.dtype = Dtype::kF32; }},
    {"count", [](CollectiveArgs& args) { args.count -= 1; }},
    {"root", [](CollectiveArgs& args) { args.peer = 2; }},
    {"collective", [](CollectiveArgs& args) { args.coll = Coll::kAllGather; }},
    {"tag", [](CollectiveArgs& args) { args.tag = 77; }},
};

// Returns the slot of a lane's first operation: tests/age lets lanes begin late.
uint64_t first_slot(const Rank& self) {
  return first_of(self.comm->options().failpoints, FailCounter::kSlots);
}

// Makes the calls of rank `odd` and those of the other ranks, on buffers that are large enough for all.
void check_variant(const BackendRow& row, Coll coll, const Variant& variant, uint64_t count, int odd,
                   const RanksOptions& options = {}) {
  INFO(name(coll) << " with another " << variant.name << " on rank " << odd << ", count " << count);
  run_on(
      row, kRanks,
      [&](Rank& self) {
        std::vector<int32_t> from(count * kRanks), to(count * kRanks);
        CollectiveArgs ordinary;
        ordinary.coll = coll;
        ordinary.dtype = Dtype::kI32;
        ordinary.op = ReduceOp::kSum;
        ordinary.count = count;
        ordinary.peer = 1;
        ordinary.src = raw(from);
        ordinary.dst = raw(to);
        if (coll == Coll::kBroadcast) ordinary.src = ordinary.dst;
        CollectiveArgs other = ordinary;
        variant.change(other);
        if (other.coll != ordinary.coll) other.op = ReduceOp::kNone;
        Status status = run_there(row, self, self.rank == odd ? other : ordinary, {whole(from), whole(to)});
        // A rank that receives nothing may have completed before the mismatch was detected. Its communicator
        // fails all the same.
        if (status.ok()) {
          const bool rooted = coll == Coll::kReduce || coll == Coll::kGather;
          self.expect(rooted || coll == Coll::kBroadcast || coll == Coll::kScatter,
                      "received data, and success");
          status = wait_for_failure(self);
        }
        self.expect(status.code() == Code::kMismatch, "code: " + status.text());
        for (const CollectiveArgs& args : {ordinary, other}) {
          self.expect(contains(status.text(), text_there(row, args)), "both sides: " + status.text());
        }
        self.expect(contains(status.text(), cat("rank ", odd)), "the odd rank: " + status.text());
        self.expect(status.info().slot == first_slot(self), "slot: " + status.text());
      },
      options);
}

}  // namespace

TEST_CASE("a different op, dtype, count, collective or plan on any rank is an error on all") {
  Random random(base_seed());
  for (const BackendRow& row : backend_rows()) {
    for (const Variant& variant : kVariants) {
      if (std::string(variant.name) == "root") continue;
      for (int odd = 0; odd < kRanks; odd++) {
        for (const uint64_t count : {2u, 100'000u}) {
          if (!random.chance(kSample)) continue;
          check_variant(row, Coll::kAllReduce, variant, count, odd);
        }
      }
    }
  }
}

TEST_CASE("a different count is an error on all, whatever the algorithm of all_reduce") {
  for (const coll::AlgorithmRow row_of : coll::algorithms()) {
    if (row_of().coll != Coll::kAllReduce) continue;
    RanksOptions options;
    options.comm.algorithms = cat("all_reduce:", row_of().name);
    for (const BackendRow& row : backend_rows()) {
      if (row.backend().make_transport == nullptr || row.devices) continue;
      // Below and above the size from which ranks also send a handshake.
      for (const uint64_t count : {2u, 100'000u})
        check_variant(row, Coll::kAllReduce, kVariants[2], count, 1, options);
    }
  }
}

TEST_CASE("a different root or count in a rooted collective is an error on all") {
  Random random(base_seed());
  for (const BackendRow& row : backend_rows()) {
    for (const Coll coll : {Coll::kReduce, Coll::kBroadcast, Coll::kGather, Coll::kScatter}) {
      for (int odd = 0; odd < kRanks; odd++) {
        if (random.chance(kSample)) check_variant(row, coll, kVariants[2], 5000, odd);
        if (random.chance(kSample)) check_variant(row, coll, kVariants[3], 10, odd);
      }
    }
  }
}

TEST_CASE("calls in a different order are an error on all") {
  for (const BackendRow& row : backend_rows()) {
    run_on(row, 3, [&](Rank& self) {
      std::vector<int32_t> data(1000, 1);
      std::vector<CollectiveArgs> calls = {all_reduce(data), barrier()};
      if (self.rank == 2) std::swap(calls[0], calls[1]);
      const Status status = run_there(row, self, calls[0], {whole(data)});
      self.expect(status.code() == Code::kMismatch, "code: " + status.text());
      self.expect(contains(status.text(), "barrier"), status.text());
      self.expect(contains(status.text(), "all_reduce"), status.text());
    });
  }
}

TEST_CASE("different block counts on any rank are an error on all before data moves") {
  Random random(base_seed());
  for (const BackendRow& row : backend_rows()) {
    for (const Coll coll : {Coll::kAllGatherV, Coll::kReduceScatterV, Coll::kGatherV, Coll::kScatterV}) {
      for (int odd = 0; odd < kRanks; odd++) {
        if (!random.chance(kSample)) continue;
        INFO(name(coll) << ", rank " << odd);
        run_on(row, kRanks, [&](Rank& self) {
          std::vector<int32_t> from(12, 1), to(12, 7);
          std::vector<uint64_t> counts = {5, 0, 7};
          if (self.rank == odd) std::swap(counts[0], counts[2]);
          CollectiveArgs args;
          args.coll = coll;
          args.dtype = Dtype::kI32;
          args.op = is_reduction(coll) ? ReduceOp::kSum : ReduceOp::kNone;
          args.peer = has_root(coll) ? 1 : 0;
          args.src = raw(from);
          args.dst = raw(to);
          const BlockList list{counts.data(), nullptr};
          const coll::VariableCall call(self.comm->collectives(), self.rank, self.size, list, list, &args);
          Status status = self.run(args);
          if (status.ok()) {
            self.expect(has_root(coll), "received data, and success");
            status = wait_for_failure(self);
          }
          self.expect(status.code() == Code::kMismatch, "code: " + status.text());
          self.expect(contains(status.text(), "blocks"), "the counts: " + status.text());
          self.expect(contains(status.text(), cat("rank ", odd)), "the odd rank: " + status.text());
          self.expect(status.info().slot == first_slot(self), "slot: " + status.text());
        });
      }
    }
  }
}

TEST_CASE("a pair of ranks that counts differently in all_to_all_v is named on all") {
  for (const BackendRow& row : backend_rows()) {
    run_on(row, kRanks, [&](Rank& self) {
      std::vector<int32_t> from(12, 1), to(12, 7), data(3, 1);
      self.expect(self.run(all_reduce(data)), "slot 0");
      const std::vector<uint64_t> given = {2, 2, 2}, taken = {2, 2, self.rank == 1 ? 3u : 2u};
      CollectiveArgs args;
      args.coll = Coll::kAllToAllV;
      args.dtype = Dtype::kI32;
      args.src = raw(from);
      args.dst = raw(to);
      const coll::VariableCall call(self.comm->collectives(), self.rank, self.size, {given.data(), nullptr},
                                    {taken.data(), nullptr}, &args);
      const Status status = self.run(args);
      self.expect(status.code() == Code::kMismatch, "code: " + status.text());
      self.expect(contains(status.text(), "rank 2 sends 2 elements to rank 1, which expects 3"),
                  status.text());
      self.expect(status.info().slot == first_slot(self) + 1, "slot: " + status.text());
      self.expect(to == std::vector<int32_t>(12, 7), "data moved");
    });
  }
}

TEST_CASE("errors after an operation of several stages name the caller's slot") {
  for (const BackendRow& row : backend_rows()) {
    run_on(row, kRanks, [&](Rank& self) {
      std::vector<int32_t> from(12, 1), to(12, 7);
      const std::vector<uint64_t> counts = {2, 2, 2};
      CollectiveArgs args;
      args.coll = Coll::kAllToAllV;
      args.dtype = Dtype::kI32;
      args.src = raw(from);
      args.dst = raw(to);
      const BlockList list{counts.data(), nullptr};
      const coll::VariableCall call(self.comm->collectives(), self.rank, self.size, list, list, &args);
      // If the other ranks are fast, the failure arrives before the end of this operation.
      Status status = self.run(args);
      std::vector<int32_t> data(self.rank == 1 ? 4 : 3, 1);
      if (status.ok()) status = self.run(all_reduce(data));
      self.expect(status.code() == Code::kMismatch, "code: " + status.text());
      self.expect(contains(status.text(), cat("operation ", first_slot(self) + 1)), status.text());
      self.expect(status.info().slot == first_slot(self) + 1, "slot: " + status.text());
    });
  }
}

TEST_CASE("a message of a different length or dtype is an error at the receiver") {
  for (const BackendRow& row : backend_rows()) {
    for (const uint64_t sent : {0u, 3u, 100'000u}) {
      for (const uint64_t expected : {4u, 99'999u}) {
        INFO(sent << " sent, " << expected << " expected");
        run_on(row, 2, [&](Rank& self) {
          std::vector<int32_t> data(self.rank == 0 ? sent : expected);
          const Status status =
              run_there(row, self, self.rank == 0 ? send(data, 1) : receive(data, 0), {whole(data)});
          if (self.rank == 1) {
            self.expect(status.code() == Code::kMismatch, status.text());
            self.expect(contains(status.text(), cat("i32 x ", sent)), status.text());
            self.expect(contains(status.text(), cat("i32 x ", expected)), status.text());
          }
          self.expect(!wait_for_failure(self).ok(), "the sender learns of it");
        });
      }
    }
  }
}
