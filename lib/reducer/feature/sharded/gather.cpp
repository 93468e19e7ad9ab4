#include "reducer/feature/sharded/gather.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/round_up.h"
#include "base/splitmix.h"
#include "base/text.h"
#include "comm/context.h"
#include "reducer/values/chunks.h"

namespace weft {
namespace {

constexpr uint64_t kTag = 0x6761746865726564u;

Status judge(const std::vector<GatherVote>& votes, const Manifest& manifest) {
  for (size_t r = 0; r < votes.size(); r++) {
    const int rank = static_cast<int>(r);
    const bool named = votes[r].missing > 0 && votes[r].missing <= manifest.params.size();
    if (!named && votes[r].missing == 0 && votes[r].refuses == 0) continue;
    const std::string why =
        named ? without_value(manifest, votes[r].missing - 1).text()
        : votes[r].missing == 0
            ? std::string("its call was rejected; see the error on that rank")
            : cat("it reports a missing value of parameter ", votes[r].missing - 1, ", but there are only ",
                  manifest.params.size(), " parameters: run the same version of Weft on all ranks");
    return Status::error(Code::kMismatch, cat("rank ", rank, " cannot gather parameters: ", why),
                         Evidence::kReport)
        .with_ranks({rank});
  }
  return {};
}

}  // namespace

Status GatherStaging::make(const Plan& plan, std::shared_ptr<Arena> arena,
                           std::unique_ptr<GatherStaging>* staging) {
  std::unique_ptr<GatherStaging> made(new GatherStaging);
  made->arena_ = std::move(arena);
  for (const PlannedBucket& bucket : plan.buckets) {
    made->each_ = std::max(made->each_, bucket.count * dtype_size(bucket.gradients));
  }
  made->each_ = round_up(std::max<uint64_t>(made->each_, 1), uint64_t{Arena::kAlignment});
  WEFT_TRY(made->arena_->allocate(made->bytes(), &made->slab_).with_prefix("memory to gather parameters: "));
  *staging = std::move(made);
  return {};
}

GatherStaging::~GatherStaging() {
  if (!left_ && slab_ != nullptr) static_cast<void>(arena_->free(slab_));
}

Gather::Gather(std::shared_ptr<ReducerState> state)
    : state_(std::move(state)),
      s_(*state_),
      order_(s_.plan.buckets.size()),
      done_(std::make_unique<std::atomic<uint32_t>[]>(order_.size())),
      records_(s_.has(WEFT_REDUCER_UNEVEN) ? static_cast<size_t>(s_.comm->size()) : 0),
      votes_(static_cast<size_t>(s_.comm->size())) {
  if (!s_.schedule.slots.empty()) plan_tag_ = s_.schedule.slots.front().args.tag;
  std::iota(order_.begin(), order_.end(), 0u);
  const auto first = [&](uint32_t bucket) {
    const std::vector<uint32_t>& params = s_.plan.buckets[bucket].params;
    return *std::min_element(params.begin(), params.end());
  };
  std::vector<uint32_t> firsts;
  firsts.reserve(order_.size());
  for (const uint32_t bucket : order_) firsts.push_back(first(bucket));
  std::sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) { return firsts[a] < firsts[b]; });
  if (s_.has(WEFT_REDUCER_UNEVEN)) moves_.push_back({.kind = Move::Kind::kHandshake, .share = {}});
  moves_.push_back({.kind = Move::Kind::kVotes, .share = {}});
  for (uint32_t position = 0; position < order_.size(); position++) {
    const std::vector<Share>& shares = s_.ownership->shares(order_[position]);
    for (const Share& share : shares) {
      moves_.push_back({Move::Kind::kShare, position, share, &share == &shares.back()});
    }
  }
}

void Gather::start(const Call& call) {
  call_ = call;
  started_.fetch_add(1, std::memory_order_release);
  s_.comm->context().engine().notify();
}

Poll Gather::poll() {
  if (finished()) return Poll::kParked;
  if (!active_) begin();
  if (s_.comm->failed()) return give_up();
  bool advanced = collect();
  advanced |= pack();
  advanced |= submit();
  advanced |= unpack();
  if (!refused_.ok() || (unpacked_ == order_.size() && collected_ == moves_.size())) {
    end(refused_);
    return Poll::kParked;
  }
  if (advanced) return Poll::kAdvanced;
  return collected_ < submitted_ ? Poll::kWaiting : Poll::kParked;
}

void Gather::begin() {
  active_ = true;
  submitted_ = collected_ = s_.has(WEFT_REDUCER_UNEVEN) && !call_.announce ? 1 : 0;
  opened_ = !call_.announce;
  agreed_ = false;
  packed_ = arrived_ = unpacked_ = 0;
  cursors_ = {};
  refused_ = {};
  record_ = {};
  record_.step = call_.step;
  record_.flags = HandshakeRecord::kGather;
}

// Ends the gather after the communicator has failed, once its requests have completed.
Poll Gather::give_up() {
  for (; collected_ < submitted_; collected_++) {
    if (!request(collected_).done()) return Poll::kWaiting;
  }
  if (s_.comm->dumping()) return Poll::kWaiting;
  end(s_.comm->failure());
  return Poll::kParked;
}

void Gather::end(Status status) {
  active_ = false;
  result_ = std::move(status);
  finished_.store(started_.load(), std::memory_order_release);
}

// Collects the oldest collective: the lane completes them in order.
bool Gather::collect() {
  if (collected_ == submitted_ || !request(collected_).done()) return false;
  const Move& move = moves_[collected_];
  const bool ok = request(collected_).result.ok();
  collected_++;
  if (!ok) return true;  // the communicator has failed
  switch (move.kind) {
    case Move::Kind::kHandshake:
      opened();
      break;
    case Move::Kind::kVotes:
      refused_ = judge(votes_, s_.manifest);
      agreed_ = refused_.ok();
      break;
    case Move::Kind::kShare:
      if (move.last) arrived_++;
  }
  return true;
}

void Gather::opened() {
  StepHandshake handshake;
  const Status judged = decide_handshake(records_, s_.comm->rank(), s_.rules, &handshake);
  opened_ = judged.ok();
  if (!judged.ok()) s_.comm->fail(judged.with_step(call_.step));
}

bool Gather::may_submit(const Move& move) const {
  switch (move.kind) {
    case Move::Kind::kHandshake:
      return true;
    case Move::Kind::kVotes:
      return opened_;
    case Move::Kind::kShare:
      break;
  }
  return agreed_ && move.position < packed_;
}

void Gather::fill(const Move& move, CollectiveArgs* args) {
  *args = {};
  args->coll = Coll::kAllGather;
  args->dtype = Dtype::kU8;
  args->tag = slot_tag(scramble(plan_tag_ ^ (kTag + submitted_ * kSplitMixStep)));
  switch (move.kind) {
    case Move::Kind::kHandshake:
      *args = s_.schedule.slots.front().args;  // as in a step, where joined ranks wait
      args->src = reinterpret_cast<const std::byte*>(&record_);
      args->dst = reinterpret_cast<std::byte*>(records_.data());
      return;
    case Move::Kind::kVotes:
      args->count = sizeof(GatherVote);
      args->src = reinterpret_cast<const std::byte*>(&call_.vote);
      args->dst = reinterpret_cast<std::byte*>(votes_.data());
      return;
    case Move::Kind::kShare:
      break;
  }
  const uint64_t size = element_bytes(order_[move.position]);
  args->count = move.share.count * size;
  args->dst = s_.staging->part(move.position) + move.share.offset * size;
  args->src = args->dst;
  if (move.share.owner == Share::kEach) {
    args->src += static_cast<uint64_t>(s_.comm->rank()) * args->count;  // in place
  } else {
    args->coll = Coll::kBroadcast;
    args->peer = move.share.owner;
  }
}

bool Gather::submit() {
  const size_t before = submitted_;
  while (submitted_ < moves_.size() && submitted_ - collected_ < requests_.size()) {
    const Move& move = moves_[submitted_];
    if (!may_submit(move)) break;
    Request& next = request(submitted_);
    next.reset();
    next.start_ns = 0;
    fill(move, &next.args);
    next.deadline = call_.deadline;
    s_.lane->submit(&next);
    submitted_++;
  }
  return submitted_ != before;
}

// Copies a bounded piece of the bucket's elements that this rank owns (mine), or of the others. True at the
// bucket's end.
template <class Copy>
bool Gather::copy_some(uint32_t bucket, bool mine, Copy&& copy) {
  Cursor& at = cursors_[mine ? 0 : 1];
  const std::vector<uint32_t>& params = s_.plan.buckets[bucket].params;
  for (uint64_t bytes = 0; bytes < kPieceBytes && at.param < params.size();) {
    const uint32_t param = params[at.param];
    const Buckets::Place& place = s_.buckets->place(param);
    const Owned owned = s_.ownership->of(s_.comm->rank(), param);
    const uint64_t owned_end = owned.first + owned.count;
    const bool before = at.element < owned.first;
    const bool inside = !before && at.element < owned_end;
    const uint64_t end = before ? owned.first : inside ? owned_end : place.count;
    const uint64_t most = std::max<uint64_t>((kPieceBytes - bytes) / place.gradient_bytes, 1);
    const uint64_t count = inside == mine ? std::min(most, end - at.element) : end - at.element;
    if (inside == mine && count > 0) copy(param, place, at.element, count);
    bytes += inside == mine ? std::max<uint64_t>(count * place.gradient_bytes, 64) : 64;
    at.element += count;
    if (at.element == place.count) at = {at.param + 1, 0};
  }
  if (at.param < params.size()) return false;
  at = {};
  return true;
}

bool Gather::pack() {
  if (!agreed_ || packed_ == order_.size() || packed_ >= unpacked_ + 2) return false;
  const uint32_t bucket = order_[packed_];
  std::byte* const staging = s_.staging->part(packed_);
  const bool whole = copy_some(
      bucket, true, [&](uint32_t param, const Buckets::Place& place, uint64_t first, uint64_t count) {
        place.layout->pack(static_cast<const std::byte*>(s_.manifest.parameter(param)),
                           staging + (s_.plan.offset_of[param] + first) * place.gradient_bytes, first, count);
      });
  if (whole) packed_++;
  return true;
}

bool Gather::unpack() {
  if (unpacked_ == arrived_) return false;
  const uint32_t bucket = order_[unpacked_];
  const std::byte* const staging = s_.staging->part(unpacked_);
  const bool whole = copy_some(
      bucket, false, [&](uint32_t param, const Buckets::Place& place, uint64_t first, uint64_t count) {
        place.layout->unpack(staging + (s_.plan.offset_of[param] + first) * place.gradient_bytes,
                             static_cast<std::byte*>(s_.manifest.parameter(param)), first, count);
      });
  if (!whole) return true;
  done_[bucket].store(started_.load(), std::memory_order_release);
  unpacked_++;
  return true;
}

uint64_t Gather::element_bytes(uint32_t bucket) const {
  return s_.buckets->place(s_.plan.buckets[bucket].params.front()).gradient_bytes;
}

uint64_t Gather::memory_bytes() const {
  return sizeof *this + moves_.capacity() * sizeof(Move) + order_.size() * 2 * sizeof(uint32_t) +
         records_.capacity() * sizeof(HandshakeRecord) + votes_.capacity() * sizeof(GatherVote);
}

}  // namespace weft
