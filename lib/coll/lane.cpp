#include "coll/lane.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <utility>

#include "base/splitmix.h"
#include "base/text.h"
#include "engine/wait_stats.h"

namespace weft::coll {
namespace {

// Bytes that one poll may read before it returns; fewer while messages are in flight, since they need polls
// too.
constexpr uint64_t kWorkBytes = uint64_t{1} << 20;
constexpr uint64_t kMeanwhileBytes = uint64_t{256} << 10;
// Idle polls between two checks of what the other ranks execute.
constexpr uint32_t kRoundsPerCheck = 32;
// Bytes of schedules that a lane keeps. The schedules of a reducer's buckets take a small part of the
// buckets' own size.
constexpr uint64_t kPlanBytes = uint64_t{16} << 20;

// Returns the lane number on the wire. A collective lane has its id. A send lane and the receive lane at the
// other end have the same number, which counts down from UINT32_MAX by id. UINT32_MAX - 1 is left out,
// because ProgressReports uses it.
uint32_t wire_lane(const LaneKey& key) {
  if (key.kind == LaneKey::Kind::kCollective) return key.id;
  return key.id == 0 ? UINT32_MAX : UINT32_MAX - 1 - key.id;
}

}  // namespace

size_t TransportLane::HashShape::operator()(const ShapeKey& key) const {
  uint64_t h = static_cast<uint64_t>(key.coll) | uint64_t{key.at_once} << 8 | key.element << 16;
  for (const uint64_t word : {static_cast<uint64_t>(key.root), key.count}) {
    h = scramble((h ^ word) + kSplitMixStep);
  }
  return h;
}

TransportLane::TransportLane(const LaneContext& context, const LaneKey& key)
    : context_(context), key_(key), wire_lane_(wire_lane(key)) {}

void TransportLane::start(const CollectiveArgs& args, uint64_t slot) {
  args_ = args;
  slot_ = slot;
  descriptor_ = Descriptor::of(args);
  result_ = Status();
  idle_polls_ = 0;
  sent_bytes_ = 0;
  round_ = 0;
  plan_ = nullptr;
  if (Status status = choose_plan(); !status.ok()) return finish(std::move(status));
  running_ = true;  // only now: without a schedule there is nothing to take back
  if (reports()) {
    wait_ = {ProgressReports::lane_of(key_), slot, descriptor_};
    context_.reports->begins();
  }
  post_round();
}

// Finds the schedule of args_, or builds it.
Status TransportLane::choose_plan() {
  Shape shape;
  shape.rank = context_.rank;
  shape.size = context_.size;
  shape.root = args_.peer;
  shape.count = args_.count;
  shape.element = dtype_size(args_.dtype);
  shape.at_once = folds_at_once(args_);
  shape.one_shot = context_.forced.one_shot;
  shape.blocks = args_.blocks;
  if (shape.blocks != nullptr) return build(shape);
  const auto known = plans_.find({args_.coll, shape.root, shape.count, shape.element, shape.at_once});
  if (known == plans_.end()) return build(shape);
  plan_ = &known->second;
  return {};
}

Status TransportLane::build(const Shape& shape) {
  const Algorithm& algorithm = select(args_.coll, shape, context_.forced);
  Plan plan;
  plan.shape = shape;
  plan.algorithm = algorithm.name;
  algorithm.build(shape, plan.schedule);
  plan.has_handshake = key_.kind != LaneKey::Kind::kCollective || needs_handshake(algorithm, shape);
  if (key_.kind == LaneKey::Kind::kCollective && plan.has_handshake) {
    plan.schedule.add_handshake(shape.rank, shape.size, algorithm.synchronises);
  }
  plan.schedule.shrink();
  WEFT_TRY(reserve(plan.schedule));
  if (shape.blocks != nullptr) {
    once_ = std::move(plan);
    plan_ = &once_;
  } else {
    if (plan_bytes_ + plan.memory_bytes() > kPlanBytes) {
      plans_.clear();
      plan_bytes_ = 0;
    }
    plan_bytes_ += plan.memory_bytes();
    const ShapeKey key{args_.coll, shape.root, shape.count, shape.element, shape.at_once};
    plan_ = &plans_.emplace(key, std::move(plan)).first->second;
  }
  note_memory();
  return {};
}

Status TransportLane::reserve(const Schedule& schedule) {
  if (messages_.size() < 2 * schedule.most_transfers()) {
    messages_.resize(2 * schedule.most_transfers());
    pending_.reserve(schedule.most_transfers());
  }
  fold_inputs_.reserve(static_cast<size_t>(context_.size));
  return scratch_.reserve(schedule.scratch_bytes(), args_.coll);
}

void TransportLane::note_memory() {
  memory_bytes_ = scratch_.bytes() + plan_bytes_ + once_.schedule.memory_bytes() +
                  messages_.capacity() * sizeof(Message) + pending_.capacity() * sizeof(uint32_t) +
                  fold_inputs_.capacity() * sizeof(std::byte*);
}

void TransportLane::post_round() {
  const bool last = round_ + 1 == plan_->schedule.rounds().size();
  // Set before anything is posted, so that abandon() finds the posted messages even if the rest throws.
  ahead_round_ = last ? 0 : round_ + 1;
  pending_.resize(plan_->schedule.transfers(round_).size());
  std::iota(pending_.begin(), pending_.end(), 0);
  work_index_ = 0;
  work_begin_ = 0;
  // Receives are posted first, so that data that has already arrived goes straight to its destination.
  for (const bool sends : {false, true}) {
    if (round_ == 0) post(0, When::kAhead, sends);
    post(round_, When::kInRound, sends);
    if (!last) post(round_ + 1, When::kAhead, sends);
  }
}

void TransportLane::post(size_t round, When when, bool sends) {
  const std::span<const Transfer> transfers = plan_->schedule.transfers(round);
  for (uint32_t i = 0; i < transfers.size(); i++) {
    const Transfer& t = transfers[i];
    if (t.is_send != sends || t.when != when) continue;
    Message& message = this->message(round, i) = Message();
    const MessageTag tag{slot_, wire_lane_, t.step};
    std::byte* const memory = t.bytes == 0 ? nullptr : at(t.memory);
    if (t.is_send) {
      sent_bytes_ += t.bytes;
      if (waits_ != nullptr) message.waits = waits_->word();
      context_.transport.send(context_.name(t.peer), tag, descriptor_, memory, t.bytes, &message);
    } else {
      context_.transport.receive(context_.name(t.peer), tag, memory, t.bytes, &message);
    }
  }
}

Poll TransportLane::poll() {
  if (!running_) return Poll::kFinished;
  if (!pending_.empty()) {
    context_.transport.progress();
    const bool advanced = reap();
    if (!running_) return Poll::kFinished;
    if (advanced) {
      idle_polls_ = 0;
      if (reports()) context_.reports->advanced(&wait_);
    }
    if (!pending_.empty()) {
      const size_t meanwhile = plan_->schedule.meanwhile(round_);
      if (work_index_ < meanwhile) {
        work(meanwhile, kMeanwhileBytes);
        return Poll::kAdvanced;
      }
      if (advanced) return Poll::kAdvanced;
      Status status = check_reports();
      if (status.ok() && ++idle_polls_ % kRoundsPerCheck == 0) status = check_peers();
      if (!status.ok()) finish(std::move(status));
      return running_ ? Poll::kWaiting : Poll::kFinished;
    }
  }
  if (!work(plan_->schedule.works(round_).size(), kWorkBytes)) return Poll::kAdvanced;
  if (++round_ == plan_->schedule.rounds().size()) {
    finish({});
    return Poll::kFinished;
  }
  post_round();
  return Poll::kAdvanced;
}

bool TransportLane::reap() {
  const std::span<const Transfer> transfers = plan_->schedule.transfers(round_);
  const size_t before = pending_.size();
  Status failure;
  std::erase_if(pending_, [&](uint32_t i) {
    if (!message(round_, i).done) return false;
    if (waits_ != nullptr && !transfers[i].is_send) {
      waits_->received(context_.name(transfers[i].peer), message(round_, i).waits);
    }
    if (failure.ok()) failure = check(transfers[i], message(round_, i));
    return true;
  });
  if (!failure.ok()) finish(std::move(failure));
  return pending_.size() != before;
}

// Checks the sender's operation first: nothing else in a message of another operation can be trusted.
Status TransportLane::check(const Transfer& transfer, const Message& message) const {
  if (transfer.is_send) return message.status;
  const bool carried = message.status.ok() || message.status.code() == Code::kMismatch;
  const int rank = context_.name(context_.rank);
  const int peer = context_.name(transfer.peer);
  const uint64_t slot = reported_slot(args_, slot_);
  if (carried && message.peer_descriptor != descriptor_) {
    return mismatch(slot, rank, descriptor_, peer, message.peer_descriptor);
  }
  WEFT_TRY(message.status);
  if (message.received_bytes == transfer.bytes) return {};
  return Status::error(Code::kMismatch,
                       cat("operation ", slot, ": rank ", peer, " sent ", message.received_bytes,
                           " bytes where rank ", rank, " expects ", transfer.bytes,
                           ": give all ranks the same WEFT_TUNE and the same version of Weft"),
                       Evidence::kDescriptor)
      .with_slot(slot)
      .with_ranks({peer});
}

Status TransportLane::check_peers() {
  const std::span<const Transfer> transfers = plan_->schedule.transfers(round_);
  for (const uint32_t i : pending_) {
    Descriptor theirs;
    if (transfers[i].is_send) continue;
    const int peer = context_.name(transfers[i].peer);
    if (!context_.transport.peek(peer, wire_lane_, slot_, &theirs)) continue;
    if (theirs == descriptor_) continue;
    return mismatch(reported_slot(args_, slot_), context_.name(context_.rank), descriptor_, peer, theirs);
  }
  return {};
}

// Checks whether a rank that reported executes something else.
Status TransportLane::check_reports() {
  if (!reports() || !context_.reports->waits(&wait_)) return {};
  const auto other = context_.reports->different(wait_);
  if (!other) return {};
  return mismatch(reported_slot(args_, slot_), context_.name(context_.rank), descriptor_, other->first,
                  other->second);
}

bool TransportLane::work(size_t most, uint64_t budget) {
  const std::span<const Work> works = plan_->schedule.works(round_).first(most);
  while (work_index_ < works.size()) {
    if (budget == 0) return false;
    const Work& next = works[work_index_];
    const uint64_t unit = next.kind == WorkKind::kCopy ? 1 : plan_->shape.element * next.input_count;
    const uint64_t count =
        std::min(next.count - work_begin_, std::max<uint64_t>(budget / unit / 64 * 64, 64));
    run(next, work_begin_, count);
    budget -= std::min(budget, count * unit);
    work_begin_ += count;
    if (work_begin_ < next.count) continue;
    work_index_++;
    work_begin_ = 0;
  }
  return true;
}

void TransportLane::run(const Work& work, uint64_t begin, uint64_t count) {
  const std::span<const Ref> inputs = plan_->schedule.inputs(work);
  const uint64_t element = work.kind == WorkKind::kCopy ? 1 : plan_->shape.element;
  std::byte* const to = at(work.to) + begin * element;
  if (work.kind == WorkKind::kCopy) {
    const std::byte* const from = at(inputs[0]) + begin * element;
    if (from != to) std::memcpy(to, from, count * element);
    return;
  }
  fold_inputs_.clear();
  for (const Ref& input : inputs) fold_inputs_.push_back(at(input) + begin * element);
  FoldArgs fold;
  fold.dtype = args_.dtype;
  fold.op = args_.op;
  fold.inputs = fold_inputs_.data();
  fold.input_count = static_cast<int>(fold_inputs_.size());
  fold.outputs = &to;
  fold.output_count = 1;
  fold.count = count;
  if (work.kind == WorkKind::kFold) {
    fold.prescale = args_.prescale;
    fold.postscale = args_.postscale;
  }
  context_.host.fold(fold);
}

void TransportLane::finish(Status status) {
  if (!status.ok()) abandon();
  result_ = std::move(status);
  running_ = false;
}

void TransportLane::abandon() {
  for (const uint32_t i : pending_) take_back(message(round_, i));
  pending_.clear();
  if (ahead_round_ != 0) {
    const std::span<const Transfer> transfers = plan_->schedule.transfers(ahead_round_);
    for (uint32_t i = 0; i < transfers.size(); i++) {
      if (transfers[i].when == When::kAhead) take_back(message(ahead_round_, i));
    }
  }
  ahead_round_ = 0;
  running_ = false;
}

void TransportLane::take_back(Message& message) {
  if (!message.done) context_.transport.cancel(&message);
}

// in_use: also counts messages that only keep their buffer in use. Their receiver may have all of them, and
// may have left.
std::vector<int> TransportLane::awaited(bool in_use) const {
  std::vector<int> ranks;
  if (!running_) return ranks;
  const std::span<const Transfer> transfers = plan_->schedule.transfers(round_);
  // Ranks whose messages are awaited; if there are none, ranks that have not taken this rank's messages.
  for (const bool sends : {false, true}) {
    for (const uint32_t i : pending_) {
      const Message& one = message(round_, i);
      if (transfers[i].is_send == sends && !one.done && (in_use || !one.on_its_way))
        ranks.push_back(context_.name(transfers[i].peer));
    }
    if (!ranks.empty()) break;
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

// Returns the awaited ranks; without a handshake, those that sent no report, because an awaited rank may
// itself wait for another one.
std::vector<int> TransportLane::absent() const {
  std::vector<int> waited_for = awaited(true);
  if (!running_ || !reports()) return waited_for;
  const std::vector<int> silent = context_.reports->silent(wait_);
  return silent.empty() ? waited_for : silent;
}

bool TransportLane::waits_for(int rank) const {
  if (!running_) return false;
  const std::span<const Transfer> transfers = plan_->schedule.transfers(round_);
  for (const bool sends : {false, true}) {
    bool any = false;
    for (const uint32_t i : pending_) {
      if (transfers[i].is_send != sends || message(round_, i).done) continue;
      any = true;
      if (context_.name(transfers[i].peer) == rank) return true;
    }
    if (any) return false;
  }
  return false;
}

// Operations only read their source. broadcast has one buffer, which the root may pass as src or dst.
std::byte* TransportLane::at(const Ref& ref) const {
  const std::byte* const from = args_.src != nullptr ? args_.src : args_.dst;
  switch (ref.space) {
    case Space::kSource:
      return const_cast<std::byte*>(from) + ref.offset;
    case Space::kTarget:
      return args_.dst + ref.offset;
    default:
      return scratch_.get() + ref.offset;
  }
}

}  // namespace weft::coll
