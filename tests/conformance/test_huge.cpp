// More than 2^31 bytes (and elements) in one call and in one message, where the machine has the memory: over
// shared memory and UCX between processes, over loopback between threads, and over MPI.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "backends.h"
#include "base/text.h"
#include "support/catch.h"
#include "support/sanitized.h"

using namespace weft;
using namespace weft::test;

namespace {

// One row for each data path. shm+ucx is composed of two of these, and a program's own transport carries
// frames as ucx does.
constexpr const char* kRows[] = {"shm, processes", "ucx, processes", "loopback, threads", "mpi, launched",
                                 "mpi.native, launched"};

constexpr uint64_t kWords = (uint64_t{1} << 28) + 1001;
constexpr uint64_t kBytes = kWords * 8 - 5;
constexpr uint64_t kNeededKiB = 4 * kWords * 8 / 1024;

uint64_t available_kib() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  for (uint64_t value = 0; file >> name >> value;) {
    if (name == "MemAvailable:") return value;
    std::getline(file, unit);
  }
  return 0;
}

// Bytes below 128, so that doubled values still fit in a byte.
uint64_t word(uint64_t i) {
  return (i * 0x9e3779b97f4a7c15) & 0x7f7f7f7f7f7f7f7f;
}

bool holds(const std::vector<uint64_t>& data, int shift) {
  for (uint64_t i = 0; i + 1 < kWords; i++) {
    if (data[i] != word(i) << shift) return false;
  }
  // The last 5 bytes lie beyond the count.
  return ((data.back() ^ word(kWords - 1) << shift) & 0xffffff) == 0 && data.back() >> 24 == 0;
}

void move(Rank& self) {
  std::vector<uint64_t> data(kWords);
  if (self.rank == 1) {
    for (uint64_t i = 0; i < kWords; i++) data[i] = word(i);
    data.back() &= 0xffffff;
  }
  CollectiveArgs args;
  args.coll = Coll::kBroadcast;
  args.dtype = Dtype::kU8;
  args.count = kBytes;
  args.peer = 1;
  args.dst = reinterpret_cast<std::byte*>(data.data());
  args.src = args.dst;
  self.expect(self.run(args), "broadcast");
  self.expect(holds(data, 0), "what was broadcast");
  args.coll = Coll::kAllReduce;
  args.op = ReduceOp::kSum;
  args.peer = 0;
  self.expect(self.run(args), "all_reduce");
  self.expect(holds(data, 1), "what was reduced");
  args.coll = self.rank == 1 ? Coll::kSend : Coll::kRecv;
  args.op = ReduceOp::kNone;
  args.peer = 1 - self.rank;
  if (self.rank == 0) std::fill(data.begin(), data.end(), 0);
  self.expect(self.run(args), "message");
  self.expect(holds(data, 1), "the message");
}

}  // namespace

TEST_CASE("more than 2^31 bytes are broadcast, reduced and sent in one call", "[.][huge]") {
  if (kSlow) WEFT_SKIP("too slow with a sanitizer or an emulator");
  if (available_kib() < kNeededKiB) {
    WEFT_SKIP(cat("needs ", kNeededKiB >> 10, " MiB, there are ", available_kib() >> 10));
  }
  RanksOptions options;
  options.comm.op_timeout_ms = 180'000;
  for (const BackendRow& row : backend_rows()) {
    const std::string name = row.name;
    if (std::find(std::begin(kRows), std::end(kRows), name) != std::end(kRows)) run_on(row, 2, move, options);
  }
}
