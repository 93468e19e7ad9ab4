// Ranks over shared memory, as threads. The real lanes, rounds and rings run.
#include <weft/weft.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "audit.h"
#include "shm/lane.h"
#include "shm/pair.h"
#include "support/catch.h"

namespace weft::shm {

// Makes groups without system calls.
class GroupSetup {
 public:
  static std::shared_ptr<Group> group(int rank, const Layout& layout, const std::vector<std::byte*>& segments,
                                      const Thresholds& thresholds, const DeviceOps& host) {
    std::shared_ptr<Group> made(new Group);
    made->rank_ = rank;
    made->layout_ = layout;
    made->host_ = &host;
    made->thresholds_ = thresholds;
    made->crowded_ = true;
    for (std::byte* const segment : segments) {
      PeerSegment peer;
      peer.base = peer.arena_base = segment;
      peer.remote_base = reinterpret_cast<uint64_t>(segment);
      peer.same_process = true;
      made->peers_.push_back(peer);
    }
    made->populated_.resize(segments.size());
    return made;
  }
};

// Instead of those of segment.cpp.
Layout::Layout(int ranks, uint64_t arena_size) {
  const auto count = static_cast<uint64_t>(ranks);
  lanes = kPage;
  pairs = lanes + 2 * sizeof(LaneBlock);
  staging = round_up(pairs + count * kPairChannels * sizeof(PairBlock), kPage);
  rings = staging + 2 * kStagingBytes;
  arena = round_up(rings + count * kPairChannels * kRingBytes, kPage);
  arena_bytes = arena_size;
  total = arena + arena_bytes;
}
Status PopulatedRanges::ensure(std::byte*, uint64_t, uint64_t, uint64_t) {
  return {};
}
Status populate(std::byte*, uint64_t) {
  return {};
}
uint64_t available_memory() {
  return UINT64_MAX;
}

namespace {

using model::memory;
using model::require;

constexpr uint64_t kArena = 64 << 10;

// A few elements at each end stand for the rest.
void fold_ends(const FoldArgs& args) {
  for (uint64_t i = 0; i < args.count; i++) {
    if (i == 2 && args.count > 4) i = args.count - 2;
    float sum = 0;
    for (int k = 0; k < args.input_count; k++) {
      float value = 0;
      std::memcpy(&value, args.inputs[k] + i * sizeof value, sizeof value);
      sum += value;
    }
    for (int k = 0; k < args.output_count; k++)
      std::memcpy(args.outputs[k] + i * sizeof sum, &sum, sizeof sum);
  }
}

const DeviceOps kHost = [] {
  DeviceOps ops{};
  ops.name = "host";
  ops.fold = fold_ends;
  return ops;
}();

struct Ranks {
  explicit Ranks(int size, const Thresholds& thresholds = {}) : layout(size, kArena) {
    for (int r = 0; r < size; r++) segments.push_back(memory(layout.total));
    for (int r = 0; r < size; r++)
      groups.push_back(GroupSetup::group(r, layout, segments, thresholds, kHost));
  }
  int size() const { return static_cast<int>(groups.size()); }
  std::byte* arena(int rank) const { return segments[static_cast<size_t>(rank)] + layout.arena; }

  // Runs body(rank, group) on a thread for each rank.
  template <class Body>
  void run(const Body& body) {
    std::vector<std::function<void()>> bodies;
    for (int r = 0; r < size(); r++)
      bodies.push_back([this, &body, r] { body(r, groups[static_cast<size_t>(r)]); });
    model::run(bodies);
  }

  Layout layout;
  std::vector<std::byte*> segments;
  std::vector<std::shared_ptr<Group>> groups;
};

void complete(CollectiveLane& lane) {
  for (uint32_t round = 0;;) {
    const Poll polled = lane.poll();
    if (polled == Poll::kFinished) break;
    if (polled == Poll::kWaiting) model::clock().relax(round++);
  }
  require(lane.result().ok(), "the operation fails");
}

CollectiveArgs all_reduce(void* buffer, uint64_t count) {
  CollectiveArgs args;
  args.coll = Coll::kAllReduce;
  args.dtype = Dtype::kF32;
  args.op = ReduceOp::kSum;
  args.count = count;
  args.src = args.dst = static_cast<std::byte*>(buffer);
  return args;
}

// Adds floats over all ranks in private memory, `slots` times.
void sums(int size, int slots, uint64_t count, const Thresholds& thresholds) {
  Ranks ranks(size, thresholds);
  ranks.run([&](int rank, const std::shared_ptr<Group>& group) {
    GroupLane lane(group, 0);
    std::vector<float> values(count);
    for (int slot = 0; slot < slots; slot++) {
      values.front() = values.back() = static_cast<float>(rank + slot);
      lane.start(all_reduce(values.data(), count), static_cast<uint64_t>(slot));
      complete(lane);
      const auto sum = static_cast<float>(size * slot + size * (size - 1) / 2);
      require(values.front() == sum && values.back() == sum, "wrong sum");
    }
  });
}

// Adds floats in arenas, which each owner writes into those of all ranks. slices: a reducer owns the input.
void owners(int size, int slots, bool slices = false) {
  Ranks ranks(size);
  ranks.run([&](int rank, const std::shared_ptr<Group>& group) {
    std::mutex mutex;
    std::atomic<bool> gone{false};
    InputSlices whole;
    whole.mutex = &mutex;
    whole.gone = &gone;
    GroupLane lane(group, 0);
    constexpr uint64_t kCount = 8192 / sizeof(float);
    auto* const values = reinterpret_cast<float*>(ranks.arena(rank));
    for (int slot = 0; slot < slots; slot++) {
      values[0] = values[kCount - 1] = static_cast<float>(rank + slot);
      CollectiveArgs args = all_reduce(values, kCount);
      if (slices) args.slices = &whole;
      lane.start(args, static_cast<uint64_t>(slot));
      complete(lane);
      const auto sum = static_cast<float>(size * slot + size * (size - 1) / 2);
      require(values[0] == sum && values[kCount - 1] == sum, "wrong sum");
    }
  });
}

// Gathers through staging, in more rounds than it has chunks, or moves a block from one rank to the other.
void gathers(Coll coll, uint64_t bytes, int slots) {
  Ranks ranks(2);
  std::array<std::byte*, 2> inputs = {memory(bytes), memory(bytes)};
  std::array<std::byte*, 2> outputs = {memory(2 * bytes), memory(2 * bytes)};
  ranks.run([&](int rank, const std::shared_ptr<Group>& group) {
    GroupLane lane(group, 0);
    std::byte* const input = inputs[static_cast<size_t>(rank)];
    std::byte* const output = outputs[static_cast<size_t>(rank)];
    const bool gives = rank == 0 || coll == Coll::kAllGather;
    for (int slot = 0; slot < slots; slot++) {
      for (uint64_t at = 0; gives && at < bytes; at += kChunkBytes)
        input[at] = static_cast<std::byte>(10 * slot + rank + 1);
      CollectiveArgs args;
      args.coll = coll;
      args.count = bytes;
      args.src = gives ? input : nullptr;
      args.dst = output;
      lane.start(args, static_cast<uint64_t>(slot));
      complete(lane);
      for (uint64_t at = 0; at < bytes; at += kChunkBytes) {
        require(output[at] == static_cast<std::byte>(10 * slot + 1), "wrong data of rank 0");
        if (coll == Coll::kAllGather)
          require(output[bytes + at] == static_cast<std::byte>(10 * slot + 2), "wrong data of rank 1");
      }
    }
  });
}

// One rank's input is in its arena, so the other one cannot fill its half before it knows.
void late_halves(int slots) {
  Ranks ranks(2);
  std::byte* const own = memory(8192);
  ranks.run([&](int rank, const std::shared_ptr<Group>& group) {
    GroupLane lane(group, 0);
    auto* const values = reinterpret_cast<float*>(rank == 0 ? ranks.arena(0) : own);
    for (int slot = 0; slot < slots; slot++) {
      values[0] = static_cast<float>(rank + slot);
      lane.start(all_reduce(values, 8192 / sizeof(float)), static_cast<uint64_t>(slot));
      complete(lane);
      require(values[0] == static_cast<float>(2 * slot + 1), "wrong sum");
    }
  });
}

// Sends messages through a ring of one packet, or of several.
void messages(uint32_t channel, int count) {
  Ranks ranks(2);
  ranks.run([&](int rank, const std::shared_ptr<Group>& group) {
    uint64_t value = 0;
    CollectiveArgs args;
    args.coll = rank == 0 ? Coll::kSend : Coll::kRecv;
    args.peer = 1 - rank;
    args.count = sizeof value;
    args.src = rank == 0 ? reinterpret_cast<std::byte*>(&value) : nullptr;
    args.dst = rank == 1 ? reinterpret_cast<std::byte*>(&value) : nullptr;
    std::unique_ptr<CollectiveLane> lane;
    if (rank == 0) lane = std::make_unique<SendLane>(group, 1 - rank, channel);
    if (rank == 1) lane = std::make_unique<ReceiveLane>(group, 1 - rank, channel);
    for (int i = 0; i < count; i++) {
      value = rank == 0 ? static_cast<uint64_t>(i) + 1 : 0;
      lane->start(args, static_cast<uint64_t>(i));
      complete(*lane);
      require(value == static_cast<uint64_t>(i) + 1, "wrong message");
    }
  });
}

// A rank that has failed uses its arena again once no rank writes into it.
void late_writer(int size) {
  Ranks ranks(size);
  ranks.run([&](int rank, const std::shared_ptr<Group>& group) {
    GroupLane lane(group, 0);
    constexpr uint64_t kCount = 8192 / sizeof(float);
    auto* const values = reinterpret_cast<float*>(ranks.arena(rank));
    values[0] = values[kCount - 1] = 1;
    lane.start(all_reduce(values, kCount), 0);
    bool finished = false;
    for (int polls = 0; !finished && polls < (rank == 0 ? 2 : 6); polls++)
      finished = lane.poll() == Poll::kFinished;
    lane.abandon();
    for (uint32_t round = 0; !lane.writers().empty(); round++) model::clock().relax(round);
    if (finished) return;
    std::memset(values, 0, 64);
    std::memset(values + kCount - 16, 0, 64);
  });
}

TEST_CASE("ranks that share memory are correct under the C++ memory model, and need its orders") {
  Thresholds two_shot;
  two_shot.one_shot = 0;
  model::audit({{"messages", [] { messages(1, 3); }, 2, 2},
                {"messages in a ring", [] { messages(0, 10); }, 1, 1},
                {"inline", [] { sums(2, 3, 1, {}); }, 3, 2},
                {"inline, three ranks", [] { sums(3, 3, 1, {}); }, 1, 1},
                {"two-shot, three ranks", [=] { sums(3, 2, 48, two_shot); }, 1, 1},
                {"owner, three ranks", [] { owners(3, 2); }, 1, 1},
                {"late writer, three ranks", [] { late_writer(3); }, 2, 1},
                {"late writer", [] { late_writer(2); }, 2, 2},
                {"halves", [] { sums(2, 3, 16, {}); }, 2, 2},
                {"halves of blocks", [] { gathers(Coll::kBroadcast, 8192, 3); }, 1, 1},
                {"late halves", [] { late_halves(3); }, 2, 2},
                {"staged", [] { gathers(Coll::kAllGather, 5 * kChunkBytes, 2); }, 1, 1},
                {"owner", [] { owners(2, 2); }, 2, 2},
                {"owner with slices", [] { owners(2, 1, true); }, 1, 1},
                {"two-shot", [=] { sums(2, 3, 32, two_shot); }, 2, 2}},
               {"backends/shm/lane.cpp", "backends/shm/lane_blocks.h", "backends/shm/pair.cpp",
                "backends/shm/path_run.cpp"});
}

}  // namespace
}  // namespace weft::shm
