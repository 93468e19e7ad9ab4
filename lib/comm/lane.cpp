#include "comm/lane.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/text.h"
#include "comm/comm.h"
#include "comm/context.h"
#include "comm/trace_sink.h"
#include "device/arena.h"

namespace weft {
namespace {

// Time that a failed operation waits for ranks that are writing into its buffers. A write takes a fraction of
// a millisecond.
constexpr int64_t kFenceMs = 1000;
// Time without progress after which the log names the ranks that an operation waits for.
constexpr uint64_t kLongWaitNs = 5'000'000'000;
constexpr uint64_t kSecondNs = 1'000'000'000;

}  // namespace

Lane::Lane(Comm& comm, const LaneKey& key, std::shared_ptr<CollectiveLane> impl,
           std::shared_ptr<CollectiveLane> second)
    : comm_(comm),
      key_(key),
      depth_(second == nullptr ? 1 : kRuns),
      oldest_(key.first_slot),
      slot_(key.first_slot),
      flight_(key.kind == LaneKey::Kind::kCollective ? FlightRing::kCapacity : FlightRing::kPairCapacity) {
  runs_[0].impl = std::move(impl);
  runs_[1].impl = std::move(second);
  for (Run& one : runs_) one.executor = one.impl.get();
}

void Lane::submit(Request* request) {
  request->next = nullptr;
  {
    const std::lock_guard lock(queue_mutex_);
    if (!closed_) {
      (head_ == nullptr ? head_ : tail_->next) = request;
      tail_ = request;
      queued_.store(true, std::memory_order_release);
      return;
    }
  }
  request->complete(comm_.failure());
}

bool Lane::start_at_once(Request* request) {
  if (!idle() || comm_.failed()) return false;
  // The lane owns the request from here on, even if starting it throws.
  const Status thrown = guarded_run([&] {
    start(request);
    poll();
  });
  if (!thrown.ok()) [[unlikely]]
    fail(thrown);
  return true;
}

// Operations of the lane complete with the next polls.
void Lane::fail(const Status& why) noexcept {
  comm_.fail(why);
}

uint64_t Lane::memory_bytes() const {
  uint64_t bytes = 0;
  for (uint64_t i = 0; i < depth_; i++) bytes += runs_[i].impl->memory_bytes();
  return bytes;
}

void Lane::share_waits(WaitStats* stats) {
  for (uint64_t i = 0; i < depth_; i++) runs_[i].impl->share_waits(stats);
}

void Lane::close() {
  const std::lock_guard lock(queue_mutex_);
  closed_ = true;
}

Poll Lane::poll() {
  if (comm_.failed()) return fail_all(comm_.failure());
  while (slot_ - oldest_ < depth_ && next()) {
  }
  if (oldest_ == slot_) return Poll::kParked;
  if (!polled()) {
    watch();
    return Poll::kWaiting;
  }
  idle_polls_ = 0;
  departed_ = -1;
  while (oldest_ != slot_ && oldest().over && !comm_.failed()) finish();
  return idle() ? Poll::kParked : Poll::kAdvanced;
}

bool Lane::polled() {
  bool advanced = false;
  for (uint64_t slot = oldest_; slot != slot_; slot++) {
    Run& one = run(slot);
    if (one.over) continue;
    const Poll poll = one.executor->poll();
    one.over = poll == Poll::kFinished;
    advanced = advanced || one.over || poll == Poll::kAdvanced;
    if (!one.over || slot == oldest_ || one.executor->result().ok()) continue;
    // The communicator fails at once: an earlier operation may wait for data that will never arrive.
    flight_.finished(slot, one.executor->algorithm(), false);
    comm_.fail(one.executor->result());
  }
  return advanced;
}

bool Lane::next() {
  if (!queued_.load(std::memory_order_acquire)) return false;
  Request* request = nullptr;
  {
    const std::lock_guard lock(queue_mutex_);
    request = head_;
    head_ = head_->next;
    queued_.store(head_ != nullptr, std::memory_order_relaxed);
  }
  start(request);
  return true;
}

void Lane::start(Request* request) {
  comm_.continue_after_error();
  Run& one = run(slot_);
  one.request = request;
  one.over = false;
  request->slot = slot_++;
  flight_.started(request->args, request->slot);
  idle_polls_ = 0;
  departed_ = -1;
  if (comm_.context().trace() != nullptr) request->start_ns = comm_.context().clock().now_ns();
  if (const Status status = comm_.reach(FailPlace::kOperation, request->slot); !status.ok()) [[unlikely]] {
    comm_.fail(status.with_slot(request->slot));
  }
  if (request->args.composite != nullptr && !one.composing) {
    one.executor = &one.composing.emplace(one.impl, request->slot);
  }
  one.executor->start(request->args, request->slot);
}

void Lane::finish() {
  Request* const request = oldest().request;
  CollectiveLane& executor = *oldest().executor;
  Status status = executor.result();
  if (TraceSink* trace = comm_.context().trace(); trace != nullptr && request->start_ns != 0) {
    TraceEvent event;
    event.kind = TraceKind::kCollective;
    event.name = name(request->args.coll);
    event.begin_ns = request->start_ns;
    event.end_ns = comm_.context().clock().now_ns();
    event.comm = comm_.options().id;
    event.rank = comm_.rank();
    event.lane = key_.id;
    event.bucket = request->bucket;
    event.step = request->step;
    event.index = request->slot;
    event.bytes = request->args.count * dtype_size(request->args.dtype);
    event.algorithm = executor.algorithm();
    event.sent_bytes = executor.moved_bytes().value_or(UINT64_MAX);
    trace->record(event);
  }
  oldest_++;  // nothing throws from here on, so every request that has left the lane is completed
  flight_.finished(request->slot, executor.algorithm(), status.ok());
  if (status.ok()) {
    request->moved_bytes = executor.moved_bytes();
    comm_.count_operation(executor.algorithm());
  } else {
    comm_.fail(status);
    if (comm_.dumping()) {
      ended_ = request;
      return;
    }
    status = comm_.failure();
  }
  request->complete(std::move(status));
}

Poll Lane::fail_all(const Status& failure) {
  if (oldest_ != slot_ && !abandoned_) {
    (void)guarded_run([&] { waited_for_ = oldest().executor->missing(); }).ok();  // for the flight record
    for (uint64_t slot = oldest_; slot != slot_; slot++) run(slot).executor->abandon();
    abandoned_ = true;
    fence_ = Deadline::after(comm_.context().clock(), kFenceMs, 0);
  }
  if (oldest_ != slot_ && !fenced()) return Poll::kWaiting;
  if (!idle() && comm_.dumping()) return Poll::kWaiting;
  if (ended_ != nullptr) std::exchange(ended_, nullptr)->complete(failure);
  while (oldest_ != slot_) run(oldest_++).request->complete(failure);
  Request* request = nullptr;
  {
    const std::lock_guard lock(queue_mutex_);
    request = std::exchange(head_, nullptr);
    queued_.store(false, std::memory_order_relaxed);
  }
  while (request != nullptr) {
    Request* const after = request->next;
    request->complete(failure);
    request = after;
  }
  return Poll::kParked;
}

// Dead ranks write nothing. The lane cannot wait for a rank that is stopped in the middle of a write: arena
// memory that it may still write into is kept from reuse.
bool Lane::fenced() {
  std::vector<int> writers;
  for (uint64_t slot = oldest_; slot != slot_; slot++) {
    const std::vector<int> more = run(slot).executor->writers();
    writers.insert(writers.end(), more.begin(), more.end());
  }
  writers.erase(std::remove_if(writers.begin(), writers.end(), [&](int rank) { return comm_.gone(rank); }),
                writers.end());
  if (writers.empty()) return true;
  if (!fence_.expired(comm_.context().clock())) return false;
  comm_.collectives().arena()->taint();
  comm_.context().log().warn(cat("rank ", comm_.rank(), ": rank ", list_text(writers),
                                 " may still write into communicator memory that ",
                                 text_of(*oldest().request, oldest_), " used; that memory is not reused"));
  return true;
}

void Lane::watch() {
  idle_polls_++;
  const Request& request = *oldest().request;
  if (comm_.any_departed()) {
    for (const int rank : oldest().executor->missing()) {
      if (!comm_.departed(rank)) continue;
      // Messages that the rank sent before its goodbye may have arrived between the poll and this check. The
      // rank has really left only if it is still missing after another poll.
      if (std::exchange(departed_, rank) != rank) break;
      comm_.fail(Status::error(Code::kPeerFailed,
                               cat("rank ", rank, " left the communicator; ", text_of(request, oldest_),
                                   " waits for it", departure_hint()),
                               Evidence::kConnection)
                     .with_ranks({rank})
                     .with_slot(oldest_));
      return;
    }
  }
  if (idle_polls_ % 256 != 0) return;
  const uint64_t now_ns = comm_.context().clock().now_ns();
  if (idle_polls_ == 256) {
    waiting_since_ns_ = now_ns;
    flight_.waiting(oldest_, now_ns);
  } else if (now_ns - waiting_since_ns_ >= kLongWaitNs && warned_slot_ != oldest_) {
    warn_of_long_wait(now_ns);
  }
  const Request* const late = expired();
  if (late == nullptr) return;
  const std::vector<int> missing = oldest().executor->absent();
  const std::string behind =
      late == &request ? "" : cat(" behind ", text_of(request, oldest_), missing.empty() ? "" : ", which is");
  comm_.fail(Status::error(Code::kTimeout,
                           cat(text_of(*late, late->slot), " passed its deadline", behind,
                               missing.empty() ? "" : cat(" waiting for rank ", list_text(missing))),
                           Evidence::kDeadline)
                 .with_ranks(missing)
                 .with_slot(late->slot));
}

void Lane::warn_of_long_wait(uint64_t now_ns) {
  warned_slot_ = oldest_;
  if (!comm_.context().log().enabled(LogLevel::kWarn)) return;
  const Request& request = *oldest().request;
  const std::vector<int> ranks = oldest().executor->absent();
  std::string text = cat(text_of(request, oldest_), " has made no progress for ",
                         (now_ns - waiting_since_ns_) / kSecondNs, " s");
  if (!ranks.empty()) text += cat(", waiting for rank ", list_text(ranks));
  const uint64_t deadline_ns = request.deadline.ns();
  if (deadline_ns == UINT64_MAX) {
    text += "; it has no deadline";
  } else if (deadline_ns > now_ns) {
    text += cat("; it fails in ", (deadline_ns - now_ns) / kSecondNs, " s");
  }
  comm_.context().log().warn(text);
}

// Returns the source's advice on how to make a rank's departure during a reducer's steps harmless; empty for
// other lanes.
std::string Lane::departure_hint() const {
  const auto source = flight_source_.lock();
  return source ? source->departure_hint() : std::string();
}

Request* Lane::expired() {
  Clock& clock = comm_.context().clock();
  for (uint64_t slot = oldest_; slot != slot_; slot++) {
    if (run(slot).request->deadline.expired(clock)) return run(slot).request;
  }
  const std::lock_guard lock(queue_mutex_);
  uint64_t slot = slot_;
  for (Request* request = head_; request != nullptr; request = request->next, slot++) {
    request->slot = slot;
    if (request->deadline.expired(clock)) return request;
  }
  return nullptr;
}

FlightLane Lane::flight() {
  FlightLane lane;
  lane.key = key_;
  lane.next_slot = slot_;
  lane.operations = flight_.operations(slot_, key_.first_slot);
  if (oldest_ != slot_ || abandoned_)
    lane.waits_for = abandoned_ ? waited_for_ : oldest().executor->missing();
  {
    const std::lock_guard lock(queue_mutex_);
    for (const Request* request = head_; request != nullptr; request = request->next) lane.queued++;
  }
  if (const auto source = flight_source_.lock()) {
    lane.has_step = true;
    lane.step = source->flight_step();
  }
  return lane;
}

std::string Lane::text_of(const Request& request, uint64_t slot) const {
  return cat("operation ", slot, " (", call_text(request.args), ") on rank ", comm_.rank());
}

}  // namespace weft
