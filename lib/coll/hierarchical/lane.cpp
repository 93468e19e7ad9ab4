#include "coll/hierarchical/lane.h"

#include <algorithm>
#include <utility>

#include "base/round_up.h"
#include "base/text.h"
#include "coll/algorithm.h"

namespace weft::coll {
namespace {

// About how many bytes a rank exchanges across hosts at a time; long enough to hide the latency.
constexpr uint64_t kPieceBytes = uint64_t{1} << 20;

// Scratch memory of one piece on a device: plans need one block there.
constexpr uint64_t kPinnedBytes = kPieceBytes + 4 * kCacheLine;

uint64_t line_elements(uint64_t element) {
  return std::max<uint64_t>(64 / element, 1);
}

}  // namespace

HierarchicalLane::HierarchicalLane(const Grouping& grouping, const DeviceOps& host,
                                   std::shared_ptr<Arena> arena, ProgressReports& progress_reports,
                                   const LaneKey& key, std::unique_ptr<CollectiveLane> local,
                                   std::unique_ptr<CollectiveLane> across)
    : grouping_(grouping), host_(host), progress_reports_(progress_reports), scratch_(std::move(arena)) {
  inputs_.resize(static_cast<size_t>(grouping.size()));
  wait_.lane = ProgressReports::lane_of(key);
  local_ = {std::move(local), key.first_slot};
  across_ = {std::move(across), key.first_slot};
}

// A device that still executes an operation may still read and write the pinned memory, which is then not
// freed.
HierarchicalLane::~HierarchicalLane() {
  abandon();
  if (local_.lane->writers().empty()) scratch_.free_pinned();
}

Status HierarchicalLane::prepare(const DeviceCall& call) {
  DeviceCall inside = call;
  inside.direct = true;
  WEFT_TRY(local_.lane->prepare(inside));
  return scratch_.reserve_pinned(call, kPinnedBytes);
}

void HierarchicalLane::rest() {
  scratch_.release();
  local_.lane->rest();
  if (across_.lane) across_.lane->rest();
}

void HierarchicalLane::start(const CollectiveArgs& args, uint64_t slot) {
  args_ = args;
  whole_ = {Descriptor::of(args), reported_slot(args, slot)};
  wait_ = {wait_.lane, slot, whole_.descriptor};
  progress_reports_.begins();
  plan_ = &plan_of(args);
  result_ = {};
  moved_ = 0;
  running_ = true;
  ending_ = false;
  cut_ = inside_ = exchanged_ = back_ = 0;
  all_cut_ = back_running_ = false;
  const Composed op = operation();
  if (op.on_device()) return;
  const uint64_t bytes = std::max(need(op, false), spreads() ? need(op, true) : 0);
  if (Status status = scratch_.reserve(round_up(bytes, kCacheLine)); !status.ok()) finish(std::move(status));
}

// Returns the most elements of a piece (of a slice, if spread in slices).
uint64_t HierarchicalLane::most(const Composed& op, bool spread) const {
  const auto blocks = static_cast<uint64_t>(std::max(plan_->scratch_blocks(op, spread), 1));
  const uint64_t elements = std::max<uint64_t>(kPieceBytes / (blocks * op.element), 1);
  const uint64_t line = line_elements(op.element);
  return elements < line ? elements : elements / line * line;
}

// Returns the most bytes of scratch that a piece needs.
uint64_t HierarchicalLane::need(const Composed& op, bool spread) const {
  const auto blocks = static_cast<uint64_t>(plan_->scratch_blocks(op, spread));
  // Parts begin on cache lines (Composed::part).
  return blocks == 0 ? 0 : blocks * std::min(args_.count, most(op, spread)) * op.element + 4 * 64;
}

// Cuts the operation's next piece. Depends on nothing that differs between ranks.
void HierarchicalLane::cut(Piece* piece) {
  const Composed op = operation();
  const uint64_t left = args_.count - cut_;
  *piece = {};
  piece->begin = cut_;
  piece->spread = spreads();
  piece->scratch = op.on_device() ? scratch_.pinned_part(inside_) : scratch_.part(inside_);
  if (piece->spread && plan_->spreads == Spreads::kSlices) {
    // Each rank gets whole cache lines; what is left is short.
    const auto ranks = static_cast<uint64_t>(grouping_.widest);
    const uint64_t line = line_elements(op.element);
    const uint64_t slice = std::min(most(op, true), left / (ranks * line) * line);
    piece->spread = slice > 0 && left * op.element > kSmallBytes;
    piece->count = slice * ranks;
  }
  if (!piece->spread || plan_->spreads != Spreads::kSlices) {
    piece->count = std::min(left, most(op, piece->spread));
  }
  if (cut_ == 0) algorithm_ = piece->spread ? "spread" : "leaders";
  cut_ += piece->count;
  all_cut_ = cut_ == args_.count;
}

Poll HierarchicalLane::poll() {
  if (!running_) return ending_ && !writers().empty() ? Poll::kWaiting : Poll::kFinished;
  const bool local = advance_local();
  const bool across = running_ && advance_across();
  if (!running_) return ending_ ? Poll::kAdvanced : Poll::kFinished;
  if (!local && !across) {
    if (!progress_reports_.waits(&wait_)) return Poll::kWaiting;
    const auto other = progress_reports_.different(wait_);
    if (!other) return Poll::kWaiting;
    finish(mismatch(whole_.slot, grouping_.rank, whole_.descriptor, other->first, other->second));
    return ending_ ? Poll::kAdvanced : Poll::kFinished;
  }
  progress_reports_.advanced(&wait_);
  return Poll::kAdvanced;
}

// Runs the local lane: the first stage of piece 0, then alternately the first stage of piece k + 1 (if there
// is one) and the last stage of piece k.
bool HierarchicalLane::advance_local() {
  if (local_.running) {
    const bool advanced = poll_below(local_);
    if (local_.running || !running_) return advanced;
    if (!back_running_) {
      inside_++;
      return true;
    }
    back_running_ = false;
    if (plan_->done != nullptr) plan_->done(operation(), piece(back_));
    back_++;
    if (all_cut_ && back_ == inside_) finish({});
    return true;
  }
  if (!all_cut_ && inside_ - back_ < kInFlight) {
    Piece& next = piece(inside_);
    cut(&next);
    run(local_, plan_->inside, next);
    return true;
  }
  if (back_ == exchanged_) return false;
  back_running_ = true;
  run(local_, plan_->back, piece(back_));
  return true;
}

bool HierarchicalLane::advance_across() {
  if (across_.running) {
    const bool advanced = poll_below(across_);
    if (!across_.running && running_) exchanged_++;
    return advanced;
  }
  if (exchanged_ == inside_) return false;
  // Leaders exchange for their hosts; in spread pieces and the barrier of all ranks every rank takes part.
  const Piece& next = piece(exchanged_);
  if (across_.lane == nullptr || (!next.spread && !grouping_.is_leader())) {
    exchanged_++;
  } else {
    run(across_, plan_->across, next);
  }
  return true;
}

void HierarchicalLane::run(Below& below, void (*stage_of)(const Composed&, const Piece&, CollectiveArgs*),
                           const Piece& piece) {
  CollectiveArgs stage;
  stage.coll = Coll::kBarrier;
  stage.dtype = args_.dtype;
  stage.whole = &whole_;
  stage_of(operation(), piece, &stage);
  if (&below == &local_ && stage.coll != Coll::kBarrier) stage.device = args_.device;
  below.running = true;
  below.lane->start(stage, below.slot++);
}

// Returns true if the lane advanced. Its operation may have ended then, successfully or not.
bool HierarchicalLane::poll_below(Below& below) {
  switch (below.lane->poll()) {
    case Poll::kFinished:
      below.running = false;
      moved_ = plus(moved_, below.lane->moved_bytes());
      if (Status status = below.lane->result(); !status.ok()) finish(std::move(status));
      return true;
    case Poll::kAdvanced:
      return true;
    default:
      return false;
  }
}

void HierarchicalLane::finish(Status status) {
  if (!status.ok()) {
    abandon();
    ending_ = args_.device != nullptr;
  }
  result_ = std::move(status);
  running_ = false;
}

void HierarchicalLane::abandon() {
  // Also abandons an idle lane: ranks of the host wait for this one and must see that it abandoned the
  // operation.
  if (running_) {
    local_.lane->abandon();
    if (across_.lane != nullptr) across_.lane->abandon();
  }
  local_.running = across_.running = false;
  running_ = false;
}

std::vector<int> HierarchicalLane::missing() const {
  if (!running_) return {};
  // While a host's ranks wait for the exchange, only those that take part in it know the missing ranks.
  if (across_.running) return across_.lane->missing();
  return local_.running ? local_.lane->missing() : std::vector<int>();
}

bool HierarchicalLane::waits_for(int rank) const {
  if (!running_) return false;
  if (across_.running) return across_.lane->waits_for(rank);
  return local_.running && local_.lane->waits_for(rank);
}

// Returns the ranks that this one waits for and that sent no report; if all of them did, any ranks that sent
// none.
std::vector<int> HierarchicalLane::absent() const {
  std::vector<int> waited_for = missing();
  for (const std::vector<int>& silent :
       {progress_reports_.silent(wait_, waited_for), progress_reports_.silent(wait_)}) {
    if (!silent.empty()) return silent;
  }
  return waited_for;
}

}  // namespace weft::coll
