// Collectives and messages that are started together, as weft_group_end starts them
// (tests/capi/test_variable.cpp tests the calls of groups), and sparse sums compared with a serial reference.
#include <cstring>
#include <map>

#include "backends.h"
#include "base/text.h"
#include "calls.h"
#include "cases.h"
#include "device.h"
#include "device/allocator.h"
#include "reducer/feature/sparse/sparse_sum.h"
#include "support/catch.h"
#include "support/kernels_reference.h"
#include "support/seed.h"

using namespace weft;
using namespace weft::test;

namespace {

// Operations of a group, prepared in the order in which they are added, then submitted together.
class Group {
 public:
  explicit Group(const BackendRow& row, Rank& self) : row_(row), self_(self), outstanding_(self) {}

  void add(const CollectiveArgs& args, HostBuffer from, HostBuffer to = {}) {
    if (!row_.devices || args.coll == Coll::kBarrier) return host_.push_back(args);
    devices_.push_back(std::make_unique<DeviceOperation>(self_, args, std::array<HostBuffer, 2>{from, to}));
    std::shared_ptr<Lane> lane;
    self_.expect(self_.comm->lane_for(devices_.back()->args(), &lane), "lane");
    if (lane) self_.expect(devices_.back()->prepare(*lane), "prepare");
  }
  Status run() {
    for (const CollectiveArgs& args : host_) outstanding_.submit(args);
    for (const auto& operation : devices_) outstanding_.submit(operation->args());
    Status status = outstanding_.wait();
    for (const auto& operation : devices_) operation->fetch();
    return status;
  }

 private:
  const BackendRow& row_;
  Rank& self_;
  std::vector<CollectiveArgs> host_;
  std::vector<std::unique_ptr<DeviceOperation>> devices_;
  Outstanding outstanding_;  // destroyed first, so that requests end before their operations
};

CollectiveArgs broadcast(std::vector<int32_t>& data, int root) {
  CollectiveArgs args = all_reduce(data);
  args.coll = Coll::kBroadcast;
  args.op = ReduceOp::kNone;
  args.peer = root;
  return args;
}

CollectiveArgs all_gather(const std::vector<int32_t>& mine, std::vector<int32_t>& all) {
  CollectiveArgs args;
  args.coll = Coll::kAllGather;
  args.dtype = Dtype::kI32;
  args.count = mine.size();
  args.src = reinterpret_cast<const std::byte*>(mine.data());
  args.dst = raw(all);
  return args;
}

// Each rank places its messages differently among the collectives, whose order is the same on all ranks.
void run_group(const BackendRow& row, Rank& self, size_t count) {
  const size_t n = static_cast<size_t>(self.size);
  const int next = (self.rank + 1) % self.size, before = (self.rank + self.size - 1) % self.size;
  std::vector<int32_t> sum(count, self.rank), other(7, 1), told(count, self.rank), mine(count, self.rank),
      all(count * n), sent(count, self.rank), heard(count, -1);
  Group group(row, self);
  const bool send_first = self.rank % 2 == 0;
  const auto messages = [&](bool send_now) {
    if (send_now) group.add(send(sent, next), whole(sent));
    if (!send_now) group.add(receive(heard, before), whole(heard));
  };
  messages(send_first);
  group.add(all_reduce(sum), whole(sum));
  group.add(broadcast(told, self.size - 1), whole(told));
  group.add(barrier(), {});
  if (self.rank != 1) messages(!send_first);
  group.add(all_gather(mine, all), whole(mine), whole(all));
  group.add(all_reduce(other), whole(other));
  if (self.rank == 1) messages(!send_first);
  self.expect(group.run(), "the group");
  std::vector<int32_t> gathered(count * n);
  for (size_t i = 0; i < gathered.size(); i++)
    gathered[i] = static_cast<int32_t>(i / std::max(count, size_t{1}));
  const int32_t ranks = static_cast<int32_t>(n);
  self.expect(sum == std::vector<int32_t>(count, ranks * (ranks - 1) / 2), "all_reduce");
  self.expect(told == std::vector<int32_t>(count, ranks - 1), "broadcast");
  self.expect(all == gathered, "all_gather");
  self.expect(other == std::vector<int32_t>(7, ranks), "the last all_reduce");
  self.expect(heard == std::vector<int32_t>(count, before), "the message");
}

constexpr int64_t kInner = 3;      // the elements of a row: two dimensions are indexed
constexpr uint64_t kElements = 2;  // of an entry

struct Entries {
  std::vector<int64_t> indices;
  Bytes values;
  weft_sparse c() const { return {sizeof(weft_sparse), indices.size() / 2, indices.data(), values.data()}; }
};

// Entries of every rank at random rows, some of them repeated. Values are small whole numbers, exact in every
// type.
struct SparseCase {
  Dtype dtype = Dtype::kF32;
  ReduceOp op = ReduceOp::kSum;
  int64_t rows = 0;
  std::vector<Entries> entries;                   // by rank
  std::map<uint64_t, std::vector<int64_t>> sums;  // by place

  uint64_t places() const { return static_cast<uint64_t>(rows * kInner); }
  std::string text() const { return cat(name(op), " ", name(dtype), ", ", rows, " rows"); }
};

void put_number(Dtype dtype, int64_t value, std::byte* to) {
  if (is_float(dtype)) {
    reference::store(dtype, static_cast<double>(value), to);
  } else {
    std::memcpy(to, &value, dtype_size(dtype));
  }
}

void add_entries(SparseCase* c, uint64_t count, int size, Random& random) {
  const uint64_t element = dtype_size(c->dtype);
  Entries& mine = c->entries.emplace_back();
  mine.indices.resize(2 * count);
  mine.values.resize(count * kElements * element);
  for (uint64_t e = 0; e < count; e++) {
    const uint64_t place = random.below(c->places());
    mine.indices[e] = static_cast<int64_t>(place) / kInner;
    mine.indices[count + e] = static_cast<int64_t>(place) % kInner;
    std::vector<int64_t>& sum = c->sums[place];
    sum.resize(kElements);
    for (uint64_t k = 0; k < kElements; k++) {
      const auto mean = static_cast<int64_t>(random.below(2));
      put_number(c->dtype, mean * size, mine.values.data() + (e * kElements + k) * element);
      sum[k] += c->op == ReduceOp::kAvg ? mean : mean * size;
    }
  }
}

// Draws at most `most` entries for each rank; one rank has none.
SparseCase sparse_case(Dtype dtype, ReduceOp op, int64_t rows, uint64_t most, int size, Random& random) {
  SparseCase c;
  c.dtype = dtype;
  c.op = op;
  c.rows = rows;
  for (int r = 0; r < size; r++) add_entries(&c, r == 1 ? 0 : 1 + random.below(most), size, random);
  return c;
}

// Returns the first difference; "" if there is none.
std::string problem(const SparseCase& c, const weft_sparse& result) {
  const uint64_t element = dtype_size(c.dtype);
  const bool all = result.count == c.places();
  if (!all && result.count != c.sums.size()) return cat(result.count, " entries");
  uint64_t last = 0;
  for (uint64_t e = 0; e < result.count; e++) {
    const auto at = static_cast<uint64_t>(result.indices[e] * kInner + result.indices[result.count + e]);
    if (e > 0 && at <= last) return cat("place ", at, " comes after place ", last);
    last = at;
    const auto wanted = c.sums.find(at);
    if (!all && wanted == c.sums.end()) return cat("nobody gave place ", at);
    for (uint64_t k = 0; k < kElements; k++) {
      std::byte right[8];
      put_number(c.dtype, wanted == c.sums.end() ? 0 : wanted->second[k], right);
      const auto* const got = static_cast<const std::byte*>(result.values) + (e * kElements + k) * element;
      if (std::memcmp(got, right, element) != 0) return cat("another sum at place ", at);
    }
  }
  return {};
}

// Runs what weft_sparse_all_reduce does with its arguments (lib/capi/sparse.cpp).
void run_sparse(const SparseCase& c, Rank& self) {
  Param array;
  array.dtype = c.dtype;
  array.shape = {c.rows, kInner, static_cast<int64_t>(kElements)};
  array.count = c.places() * kElements;
  array.sparse_ndim = 2;
  weft_sparse result = WEFT_SPARSE_INIT;
  const Context& context = self.comm->context();
  SparseSum sum(array, context.options().host_allocator, context.host(), self.rank, self.size,
                c.op == ReduceOp::kAvg, &result);
  self.expect(sum.put(c.entries[static_cast<size_t>(self.rank)].c()), "put");
  CollectiveArgs args;
  args.coll = Coll::kSparseAllReduce;
  args.dtype = c.dtype;
  args.op = c.op;
  args.tag = 1;
  args.composite = &sum;
  self.expect(self.run(args), c.text());
  const std::string wrong = problem(c, result);
  self.expect(wrong.empty(), cat(c.text(), ": ", wrong));
  SparseSum::release(&result);
}

}  // namespace

TEST_CASE(
    "collectives and messages that are started together all complete, where each rank put its messages") {
  for (const BackendRow& row : backend_rows()) {
    for (const int size : {2, 3, 5}) {
      run_on(row, size, [&](Rank& self) {
        for (const size_t count : {size_t{0}, size_t{3}, size_t{50'000}}) run_group(row, self, count);
      });
    }
  }
}

TEST_CASE("sparse sums are those of a serial reference") {
  for (const int size : {1, 2, 3, 5, 8}) {
    Random random(base_seed() * 100 + static_cast<uint64_t>(size));
    std::vector<SparseCase> cases;
    for (int d = 1; d <= kDtypeCount; d++) {
      const auto dtype = static_cast<Dtype>(d);
      for (const ReduceOp op : ops_of(Coll::kAllReduce, dtype)) {
        if (op != ReduceOp::kSum && op != ReduceOp::kAvg) continue;
        cases.push_back(sparse_case(dtype, op, 2000, 9, size, random));  // communicated as entries
        // Communicated as a dense array.
        if (random.chance(3)) cases.push_back(sparse_case(dtype, op, 7, 40, size, random));
      }
    }
    if (size == 3) cases.push_back(sparse_case(Dtype::kBf16, ReduceOp::kAvg, 90'000, 30'000, size, random));
    for (const BackendRow& row : backend_rows()) {
      if (row.devices) continue;  // sparse arrays lie in host memory
      run_on(row, size, [&](Rank& self) {
        for (const SparseCase& c : cases) {
          run_sparse(c, self);
          if (!self.failures.empty()) return;
        }
      });
    }
  }
}
