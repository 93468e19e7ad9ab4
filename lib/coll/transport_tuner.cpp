#include "coll/transport_tuner.h"

#include <utility>

#include "base/text.h"

namespace weft::coll {
namespace {

constexpr uint64_t kCheckNs = 20'000'000;    // between checks whether an awaited rank is lost
constexpr uint32_t kTunerLane = 0x7ffffffe;  // and the next number: lanes of communicators count from 0

// algorithm: one of all_reduce.
LaneContext only(const LaneContext& ranks, const char* algorithm) {
  Forced forced;
  (void)parse_forced(cat("all_reduce:", algorithm), &forced).ok();
  return {ranks.transport, ranks.host, ranks.rank, ranks.size, forced, ranks.members};
}

LaneKey key_of(uint32_t id) {
  LaneKey key;
  key.kind = LaneKey::Kind::kCollective;
  key.id = id;
  return key;
}

CollectiveArgs all_reduce_args(Dtype dtype, ReduceOp op, std::byte* data, uint64_t count) {
  CollectiveArgs args;
  args.coll = Coll::kAllReduce;
  args.dtype = dtype;
  args.op = op;
  args.count = count;
  args.src = args.dst = data;
  return args;
}

}  // namespace

TransportTuner::TransportTuner(const LaneContext& ranks, const BackendArgs& args, std::byte* memory)
    : args_(args),
      memory_(memory),
      one_round_(only(ranks, "one_shot")),
      two_rounds_(only(ranks, "direct")),
      one_shot_(one_round_, key_of(kTunerLane)),
      direct_(two_rounds_, key_of(kTunerLane + 1)),
      begin_ns_(args.clock.now_ns()) {}

Status TransportTuner::run(bool one_shot, uint64_t bytes, uint64_t* slowest_ns, uint64_t* elapsed_ns) {
  const CollectiveArgs args = all_reduce_args(Dtype::kF32, ReduceOp::kSum, memory_, bytes / sizeof(float));
  if (Status failed = reach(args_, FailPlace::kMeasuring, runs_++); !failed.ok())
    return give_up(one_shot_, std::move(failed));
  const uint64_t start = args_.clock.now_ns();
  WEFT_TRY(finish(one_shot ? one_shot_ : direct_, args, one_shot ? one_shot_slot_++ : direct_slot_++));
  const uint64_t end = args_.clock.now_ns();
  uint64_t times[2] = {end - start, end - begin_ns_};
  WEFT_TRY(synchronise(times));
  *slowest_ns = times[0];
  *elapsed_ns = times[1];
  return {};
}

// Replaces both numbers by their maximum over all ranks. All ranks return, and begin what is next, at about
// the same time.
Status TransportTuner::synchronise(uint64_t numbers[2]) {
  const CollectiveArgs args =
      all_reduce_args(Dtype::kU64, ReduceOp::kMax, reinterpret_cast<std::byte*>(numbers), 2);
  return finish(one_shot_, args, one_shot_slot_++);
}

Status TransportTuner::finish(TransportLane& lane, const CollectiveArgs& args, uint64_t slot) {
  lane.start(args, slot);
  uint64_t next_check_ns = args_.clock.now_ns() + kCheckNs;
  for (uint32_t round = 0;; round++) {
    const Poll poll = lane.poll();
    if (poll == Poll::kFinished) return lane.result().ok() ? Status() : give_up(lane, lane.result());
    if (poll == Poll::kAdvanced) {
      round = 0;
      continue;
    }
    if (round % 64 == 63) {
      if (Status status = check_peers(lane, &next_check_ns); !status.ok())
        return give_up(lane, std::move(status));
    }
    args_.clock.relax(round);
  }
}

// Returns an error if waiting no longer makes sense.
Status TransportTuner::check_peers(const TransportLane& lane, uint64_t* next_ns) {
  const uint64_t now = args_.clock.now_ns();
  if (now < *next_ns && now < args_.deadline.ns()) return {};
  *next_ns = now + kCheckNs;
  WEFT_TRY(args_.exchange.check());
  if (!args_.deadline.expired(args_.clock)) return {};
  std::vector<int> missing = lane.missing();
  for (int& rank : missing) rank = args_.exchange.name(rank);
  return Status::error(Code::kTimeout, cat("rank ", list_text(missing),
                                           " did not take part before the deadline of the group setup"))
      .with_ranks(missing);
}

// Abandons the operation and reports the error, so that the other ranks stop waiting.
Status TransportTuner::give_up(TransportLane& lane, Status why) {
  lane.abandon();
  why = why.with_prefix("autotuning of message algorithms: ");
  args_.exchange.fail(why);
  return why;
}

}  // namespace weft::coll
