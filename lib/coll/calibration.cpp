#include "coll/calibration.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/process.h"
#include "base/text.h"
#include "coll/transport_tuner.h"

namespace weft::coll {
namespace {

constexpr uint64_t kSentBytes = 2 << 20;  // by a rank in a measurement: each other rank gets a whole vector
constexpr uint64_t kShortest = 4 << 10;
constexpr uint64_t kLeast = 64;
constexpr uint64_t kLongest = 1 << 20;
constexpr int kMostRepeats = 12;
constexpr int kLeastRepeats = 2;                  // the first one uses connections that have not sent yet
constexpr uint64_t kMostNs = kCalibrationNs / 6;  // for one size, so that several repeats fit
constexpr uint64_t kUnknown = UINT64_MAX;         // result of a rank that had too little time
// CrossoverSearch takes the 1 / kPart quantile of the times. It is low, because a short operation often waits
// for the previous one.
constexpr size_t kPart = 8;
constexpr double kEqual = 0.1;  // keeps the table's choice unless the other one is faster by more

Status malformed(const BackendArgs& args, size_t rank, size_t bytes) {
  const int name = args.exchange.name(static_cast<int>(rank));
  return Status::error(Code::kInternal, cat("internal: rank ", name, " sent a malformed message of ", bytes,
                                            " bytes in the crossover search; report this as a bug of Weft"))
      .with_ranks({name});
}

std::vector<uint64_t> tuner_sizes(int ranks) {
  std::vector<uint64_t> sizes;
  const uint64_t longest = std::min(kLongest, kSentBytes / static_cast<uint64_t>(std::max(ranks - 1, 1)));
  const uint64_t shortest = std::bit_floor(std::min(kShortest, table_one_shot(ranks) / 4));
  if (shortest < kLeast) return sizes;
  for (uint64_t bytes = shortest; bytes <= longest; bytes *= 2) sizes.push_back(bytes);
  return sizes;
}

class TunerMemory {
 public:
  TunerMemory(const HostAllocator& allocator, uint64_t bytes)
      : allocator_(allocator), bytes_(bytes), memory_(allocator.get(bytes, 64)) {}
  ~TunerMemory() {
    if (memory_ != nullptr) allocator_.put(memory_, bytes_);
  }
  TunerMemory(const TunerMemory&) = delete;
  TunerMemory& operator=(const TunerMemory&) = delete;
  std::byte* get() const { return memory_; }  // null: no memory

 private:
  const HostAllocator& allocator_;
  const uint64_t bytes_;
  std::byte* const memory_;
};

// Builds the key under which the measurement is cached: the ranks' processes, and the members of the
// all_reduces. Empty where ranks share a core, because nothing is measured there.
Status ask_key(const LaneContext& lanes, const BackendArgs& args, std::string* key) {
  ByteWriter writer;
  this_process().put(writer);
  writer.put(uint8_t{args.crowded});
  std::vector<Bytes> all;
  WEFT_TRY(args.exchange.all_gather(writer.bytes(), &all, args.deadline));
  *key =
      cat("one_shot ", lanes.transport.name(), ' ', lanes.size, " of ", list_text(lanes.members, SIZE_MAX));
  bool crowded = false;
  for (size_t r = 0; r < all.size(); r++) {
    ByteReader reader(all[r]);
    const ProcessIdentity theirs = ProcessIdentity::get(reader);
    crowded |= reader.get<uint8_t>() != 0;
    if (!reader.done()) return malformed(args, r, all[r].size());
    *key += cat("; ", theirs.boot_id, ' ', theirs.pid_namespace, ' ', theirs.pid, ' ', theirs.start_ticks);
  }
  if (crowded) key->clear();
  return {};
}

// Sets *found to rank 0's value, or to 0 if any rank found nothing. Sets *can to true only if it is true on
// all ranks.
Status agree(const BackendArgs& args, uint64_t* found, bool* can) {
  ByteWriter writer;
  writer.put(*found).put(uint8_t{*can});
  std::vector<Bytes> all;
  WEFT_TRY(args.exchange.all_gather(writer.bytes(), &all, args.deadline));
  bool all_found = true;
  for (size_t r = 0; r < all.size(); r++) {
    ByteReader reader(all[r]);
    const auto theirs = reader.get<uint64_t>();
    *can &= reader.get<uint8_t>() != 0;
    if (!reader.done()) return malformed(args, r, all[r].size());
    if (r == 0) *found = theirs;
    all_found = all_found && theirs != 0;
  }
  if (!all_found) *found = 0;
  return {};
}

// Runs the measurement. memory: enough for the largest operation.
Status try_out(const LaneContext& lanes, bool takes_part, const BackendArgs& args, std::byte* memory,
               uint64_t* found) {
  std::optional<uint64_t> one_shot;
  Status status;
  if (takes_part) {
    std::memset(memory, 0, largest_tuned(lanes.size));
    TransportTuner tuner(lanes, args, memory);
    const auto run = [&](bool small, uint64_t bytes, uint64_t* slowest_ns, uint64_t* elapsed_ns) {
      return tuner.run(small, bytes, slowest_ns, elapsed_ns);
    };
    status = calibrate(run, lanes.size, &one_shot);
  }
  WEFT_TRY(agree_on(args.exchange, status, args.deadline));
  *found = one_shot.value_or(kUnknown);
  bool can = true;
  return agree(args, found, &can);
}

}  // namespace

uint64_t largest_tuned(int ranks) {
  const std::vector<uint64_t> sizes = tuner_sizes(ranks);
  return sizes.empty() ? 0 : sizes.back();
}

Status calibrate(const CrossoverSearch::Run& run, int ranks, std::optional<uint64_t>* one_shot) {
  CrossoverSearch search(tuner_sizes(ranks), kMostNs, kPart);
  bool over = false;
  while (search.repeats() < kMostRepeats && !over) WEFT_TRY(search.repeat(run, kCalibrationNs, &over));
  search.leave_out(kLeastRepeats);
  const std::vector<uint64_t>& sizes = search.sizes();
  if (sizes.empty()) return {};
  const uint64_t table = table_one_shot(ranks);
  const auto preferred =
      static_cast<size_t>(std::upper_bound(sizes.begin(), sizes.end(), table) - sizes.begin());
  const size_t boundary = search.boundary(preferred, kEqual);
  // Beyond the measured sizes the table's value is as good as any.
  *one_shot = boundary == preferred ? table : boundary == 0 ? sizes[0] / 2 : sizes[boundary - 1];
  return {};
}

Status measure_one_shot(const LaneContext& lanes, bool takes_part, const BackendArgs& args, Forced* forced) {
  const uint64_t largest = largest_tuned(lanes.size);
  if (args.measurements == nullptr || !forced->measure || lanes.size < 2 || largest == 0 ||
      forced->covers(Coll::kAllReduce) || lanes.transport.offload() != nullptr) {
    return {};
  }
  std::string key;
  WEFT_TRY(ask_key(lanes, args, &key));
  if (key.empty()) return {};
  const TunerMemory memory(args.allocator, largest);
  uint64_t found = 0;
  const std::string kept = args.measurements->find(key);
  if (kept.size() == sizeof found) std::memcpy(&found, kept.data(), sizeof found);
  bool can = memory.get() != nullptr;
  WEFT_TRY(agree(args, &found, &can));
  if (found == 0) {
    if (!can) return {};
    WEFT_TRY(try_out(lanes, takes_part, args, memory.get(), &found));
    args.measurements->keep(key, {reinterpret_cast<const char*>(&found), sizeof found});
  }
  if (found == kUnknown) return {};
  forced->one_shot = found;
  return {};
}

}  // namespace weft::coll
