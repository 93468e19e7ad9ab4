#include "reducer/feature/reduced_views/reduced.h"

#include <algorithm>

#include "base/text.h"
#include "core/context.h"
#include "reducer/reducer.h"

namespace weft {

Status PeerBuckets::make(const Agreement& agreement, const Plan& plan, const Buckets& buckets,
                         std::unique_ptr<PeerBuckets>* peers) {
  Comm& comm = agreement.comm;
  // The lanes are open already.
  const Agreement again{comm, agreement.doing, agreement.deadline, agreement.lane};
  const auto count = static_cast<uint32_t>(plan.buckets.size());
  std::vector<uint64_t> bytes(count);
  ByteWriter mine;
  Status local;
  for (uint32_t b = 0; b < count; b++) {
    bytes[b] = plan.buckets[b].count * dtype_size(buckets.held(b));
    uint64_t place = 0;
    if (local.ok() && !comm.collectives().place_of(buckets.buffers()[b], bytes[b], &place)) {
      local = Status::error(
          Code::kUnsupported,
          cat("WEFT_REDUCER_REDUCED_VIEWS: other ranks cannot read this rank's buckets over backend '",
              comm.collectives().name(),
              "'. Use backend shm; a rebind needs a communicator that is shrunk from the first one"));
    }
    mine.put(place);
  }
  const auto no_difference = [](int, ByteView, int, ByteView) { return std::string(); };
  WEFT_TRY(agree_on(again, local, {}, no_difference));
  std::vector<Bytes> all;
  WEFT_TRY(comm.agree(mine.bytes(), &all, again.deadline, again.lane));
  std::unique_ptr<PeerBuckets> made(new PeerBuckets);
  made->buckets_ = count;
  Status found;
  comm.context().engine().locked([&] { found = made->find(comm, bytes, all); });
  WEFT_TRY(agree_on(again, found, {}, no_difference));
  *peers = std::move(made);
  return {};
}

Status PeerBuckets::find(Comm& comm, const std::vector<uint64_t>& bytes,
                         const std::vector<Bytes>& published) {
  memory_.reserve(published.size() * buckets_);
  for (int r = 0; r < comm.size(); r++) {
    ByteReader reader(published[static_cast<size_t>(r)]);
    for (const uint64_t size : bytes) {
      const auto place = reader.get<uint64_t>();
      const std::byte* at = nullptr;
      WEFT_TRY(comm.collectives().peer_memory(r, place, size, &at).with_ranks({r}));
      memory_.push_back(at);
    }
    if (!reader.done()) {
      return Status::error(Code::kMismatch,
                           cat("rank ", r, " sent ", published[static_cast<size_t>(r)].size(),
                               " bytes of bucket addresses, expected ", bytes.size() * sizeof(uint64_t),
                               ": run the same version of Weft on all ranks"))
          .with_ranks({r});
    }
  }
  return {};
}

// Waits before this rank's gradients change, because other ranks may read them until they also reach begin.
Status Reducer::await_readers() {
  if (!results_shared_) return {};
  CollectiveArgs barrier;
  barrier.coll = Coll::kBarrier;
  barrier.tag = state_->schedule.slots.empty() ? 1 : state_->schedule.slots.front().args.tag;
  const Status came = state_->comm->run(state_->lane, barrier, state_->comm->op_deadline(timeout_ms_));
  results_shared_ = false;  // also after a failure, which has failed the communicator
  if (!came.ok()) {
    return came.with_prefix(cat("begin: not every rank has called it, so results of step ", stats_.steps - 1,
                                " may still be read: "));
  }
  return {};
}

Status Reducer::reduced_view(uint64_t param, weft_reduced_piece* pieces, uint64_t* count) {
  const uint64_t room = *count;
  *count = 0;
  WEFT_TRY(settle_finish());
  const ReducerState& s = *state_;
  if (!s.peers) {
    return note(Status::error(
        Code::kState,
        "weft_reducer_reduced_view: the reducer was created without WEFT_REDUCER_REDUCED_VIEWS"));
  }
  WEFT_TRY(note(known(param)));
  if (s.readiness->step().open()) {
    return note(Status::error(Code::kState,
                              cat("weft_reducer_reduced_view inside ", step_text(), ": finish it first")));
  }
  if (!results_shared_) {
    return note(Status::error(
        Code::kState,
        cat("parameter ", param, " ('", s.manifest.params[param].name,
            "') has no reduced views: no synchronised step has finished on all ranks, or a later "
            "step, re-plan or rebind has ended its views")));
  }
  WEFT_TRY(note(check_result(param)));
  const uint32_t bucket = s.plan.bucket_of[param];
  const uint64_t element = s.buckets->place(param).element_bytes;
  for (int r = 0; r < s.comm->size(); r++) {
    const Owned owned = s.ownership->of(r, param);
    if (owned.count == 0) continue;
    const uint64_t at = *count;
    *count += 1;
    if (pieces == nullptr || at >= room) continue;
    pieces[at] = {s.peers->at(r, bucket) + (s.plan.offset_of[param] + owned.first) * element, owned.first,
                  owned.count, r, 0};
  }
  if (pieces != nullptr && room < *count) {
    return note(
        Status::error(Code::kArg, cat("parameter ", param, " ('", s.manifest.params[param].name, "') has ",
                                      *count, " pieces, but *count gives room for ", room)));
  }
  return {};
}

}  // namespace weft
