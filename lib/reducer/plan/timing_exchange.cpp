#include "reducer/plan/timing_exchange.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "comm/context.h"
#include "device/arena.h"

namespace weft {
namespace {

constexpr uint64_t kSizes[] = {4u << 10, 64u << 10, 512u << 10, 4u << 20, 32u << 20};
constexpr uint64_t kMostNs = uint64_t{1} << 50;  // 13 days: sums of it do not overflow
constexpr int kRounds = 3;                       // rounds per size; the first one warms up
constexpr uint64_t kEnoughNs = 100'000'000u;     // no larger size is measured after one that took longer

CollectiveArgs reduction(Dtype dtype, ReduceOp op, uint64_t count, std::byte* buffer) {
  CollectiveArgs args;
  args.coll = Coll::kAllReduce;
  args.dtype = dtype;
  args.op = op;
  args.count = count;
  args.src = args.dst = buffer;
  return args;
}

// A block of the arena, which the collectives access fastest.
class Scratch {
 public:
  explicit Scratch(std::shared_ptr<Arena> arena) : arena_(std::move(arena)) {}
  ~Scratch() {
    if (memory_ != nullptr) static_cast<void>(arena_->free(memory_));
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  Status take(uint64_t bytes) { return arena_->allocate(bytes, &memory_); }
  std::byte* memory() const { return memory_; }

 private:
  const std::shared_ptr<Arena> arena_;
  std::byte* memory_ = nullptr;
};

Status largest(Comm& comm, const std::shared_ptr<Lane>& lane, std::vector<uint64_t>* values,
               Deadline deadline) {
  return comm.run(
      lane,
      reduction(Dtype::kU64, ReduceOp::kMax, values->size(), reinterpret_cast<std::byte*>(values->data())),
      deadline);
}

}  // namespace

Status exchange_timings(Comm& comm, const std::shared_ptr<Lane>& lane, const ReadyTimes& mine,
                        uint64_t largest_bytes, Deadline deadline, std::unique_ptr<Timings>* result,
                        const TimingMemory& place) {
  Scratch scratch(comm.collectives().arena());
  const bool placed = place.bytes >= kSizes[0];
  uint64_t most = std::clamp(largest_bytes, kSizes[0], *std::rbegin(kSizes));
  if (placed) most = std::min(most, place.bytes);
  const Status taken = placed ? Status() : scratch.take(most);
  // Ready times, 0 for not ready. The last element is 1 if some rank has no memory.
  std::vector<uint64_t> latest(mine.size() + 1);
  std::transform(mine.begin(), mine.end(), latest.begin(),
                 [](uint64_t ns) { return ns == kNeverReady ? 0 : ns + 1; });
  latest.back() = taken.ok() ? 0 : 1;
  WEFT_TRY(largest(comm, lane, &latest, deadline));
  WEFT_TRY(taken.with_prefix("cannot allocate memory to measure the time of collectives: "));
  if (latest.back() != 0) {
    return Status::error(Code::kNoMemory,
                         "another rank could not allocate memory to measure the time of collectives");
  }
  latest.pop_back();
  for (uint64_t& ns : latest) ns = ns == 0 ? kNeverReady : ns - 1;

  std::vector<TransferCost::Point> points;
  uint64_t before = 0;
  for (const uint64_t size : kSizes) {
    const uint64_t bytes = std::min(size, most);
    if (bytes == before) break;
    before = bytes;
    std::vector<uint64_t> least = {UINT64_MAX};
    for (int round = 0; round < kRounds; round++) {
      const uint64_t begin = comm.context().clock().now_ns();
      CollectiveArgs args = reduction(Dtype::kF32, ReduceOp::kSum, bytes / sizeof(float),
                                      placed ? place.memory : scratch.memory());
      if (placed) args.device = place.device;
      WEFT_TRY(comm.run(lane, args, deadline));
      if (round > 0) least[0] = std::min(least[0], comm.context().clock().now_ns() - begin);
    }
    WEFT_TRY(largest(comm, lane, &least, deadline));
    least[0] = std::min(least[0], kMostNs);  // the value came from another rank
    points.push_back({bytes, least[0]});
    if (least[0] > kEnoughNs) break;
  }
  *result = std::make_unique<Timings>(Timings{std::move(latest), TransferCost(std::move(points))});
  return {};
}

}  // namespace weft
