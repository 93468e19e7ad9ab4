#include "comm/comm.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "comm/comm_metrics.h"
#include "comm/drain.h"
#include "comm/message_type.h"
#include "device/arena.h"

namespace weft {
namespace {

constexpr uint32_t kMaxReportText = 4096;

}  // namespace

std::shared_ptr<Comm> Comm::create(std::shared_ptr<Context> context, int rank, int size, CommOptions options,
                                   std::unique_ptr<Control> control, std::unique_ptr<Collectives> collectives,
                                   Generation generation, Status* failure) {
  if (!generation.generations) {
    // This communicator is the first generation.
    generation.generations = std::make_shared<Generations>(std::move(control), rank, size, context->engine());
    for (int r = 0; r < size; r++) generation.members.push_back(r);
    control = generation.generations->control_of_first();
  }
  auto comm = std::make_shared<Comm>(std::move(context), rank, size, std::move(options), std::move(control),
                                     std::move(collectives), std::move(generation));
  if (Status opened = comm->tasks_.open_user_lane(); !opened.ok()) {
    if (failure != nullptr) *failure = std::move(opened);
    return nullptr;
  }
  if (!comm->collectives_->outlives_sender()) {
    comm->drain_ = std::make_shared<Drain>(*comm);
    comm->context_->engine().add(comm->drain_);
  }
  comm->context_->add_comm(comm);
  comm->context_->trace_comms().add({comm->options_.id, rank, size, comm->options_.backend,
                                     comm->options_.job,
                                     rank == 0 ? std::optional<ClockOffset>(ClockOffset()) : std::nullopt});
  comm->generation_.generations->opened(comm->generation_.number);
  comm->control_->start(comm.get());
  comm->metrics_ =
      comm->context_->metrics().add([made = comm.get()](MetricsText* text) { describe_comm(*made, text); });
  if (comm->context_->trace() != nullptr) comm->clock_probe_.ask();
  return comm;
}

Comm::Comm(std::shared_ptr<Context> context, int rank, int size, CommOptions options,
           std::unique_ptr<Control> control, std::unique_ptr<Collectives> collectives, Generation generation)
    : context_(std::move(context)),
      rank_(rank),
      size_(size),
      options_(std::move(options)),
      generation_(std::move(generation)),
      control_(std::move(control)),
      collectives_(std::move(collectives)),
      departures_(size) {}

Comm::~Comm() {
  (void)guarded([this] { return close(); }).ok();
}

template <class MakeDeadline>
Status Comm::run_until(Lane& lane, const CollectiveArgs& args, MakeDeadline&& make_deadline) {
  Request request;
  request.args = args;
  Engine& engine = context_->engine();
  if (!engine.try_locked([&] { return lane.start_at_once(&request); })) lane.submit(&request);
  int polls = 0;
  const auto done = [&] {
    if (request.done()) return true;
    if (polls++ != kPollsWithoutClock) return false;
    const Deadline deadline = make_deadline();
    engine.locked([&] { request.deadline = deadline; });
    return request.done();
  };
  complete(done, [&] { return call_text(args); });
  return request.result;
}

Status Comm::run(const CollectiveArgs& args, int64_t timeout_ms) {
  const auto make_deadline = [&] { return op_deadline(timeout_ms); };
  if (args.coll != Coll::kSend && args.coll != Coll::kRecv)
    return run_until(*tasks_.user_lane(), args, make_deadline);
  std::shared_ptr<Lane> lane;
  WEFT_TRY(lane_for(args, &lane));
  return run_until(*lane, args, make_deadline);
}

Status Comm::run(const CollectiveArgs& args, Deadline deadline) {
  std::shared_ptr<Lane> lane;
  WEFT_TRY(lane_for(args, &lane));
  return run(lane, args, deadline);
}

Status Comm::run(const std::shared_ptr<Lane>& lane, const CollectiveArgs& args, Deadline deadline) {
  return run_until(*lane, args, [&] { return deadline; });
}

Status Comm::agree(ByteView mine, std::vector<Bytes>* all, Deadline deadline,
                   const std::shared_ptr<Lane>& lane) {
  const std::shared_ptr<Lane>& over = lane ? lane : tasks_.user_lane();
  std::vector<uint64_t> sizes(static_cast<size_t>(size_));
  const uint64_t my_size = mine.size();
  CollectiveArgs args;
  args.coll = Coll::kAllGather;
  args.dtype = Dtype::kU64;
  args.count = 1;
  args.src = reinterpret_cast<const std::byte*>(&my_size);
  args.dst = reinterpret_cast<std::byte*>(sizes.data());
  WEFT_TRY(run(over, args, deadline));
  const auto longest = std::max_element(sizes.begin(), sizes.end());
  const uint64_t most = *longest;
  if (most > Control::kMaxMessage * 64) {
    return Status::error(
        Code::kArg,
        cat("rank ", longest - sizes.begin(), " has ", bytes_text(most),
            " of data for an agreement of the ranks, such as a list of parameters: the limit is 64 MiB"));
  }
  Bytes padded(most), gathered(most * static_cast<size_t>(size_));
  if (!mine.empty()) std::memcpy(padded.data(), mine.data(), mine.size());
  args.dtype = Dtype::kU8;
  args.count = most;
  args.src = padded.data();
  args.dst = gathered.data();
  WEFT_TRY(run(over, args, deadline));
  all->clear();
  for (size_t r = 0; r < sizes.size(); r++) {
    const auto* start = gathered.data() + r * most;
    all->emplace_back(start, start + sizes[r]);
  }
  return {};
}

// Message layout: this communicator's closed lanes, those of `beside`, and the bytes to agree on.
Status Comm::agree_to_open(Comm* beside, ByteView mine, std::vector<Bytes>* all, Deadline deadline) {
  if (beside == this) beside = nullptr;
  ByteWriter message;
  tasks_.write_closed_lanes(&message);
  message.put(static_cast<uint8_t>(beside != nullptr));
  if (beside != nullptr) {
    message.put(beside->options_.id);
    beside->tasks_.write_closed_lanes(&message);
  }
  message.put_bytes(mine);
  WEFT_TRY(agree(message.bytes(), all, deadline));
  std::vector<ClosedLanes::Published> here, there;
  for (Bytes& theirs : *all) {
    ByteReader reader(theirs);
    here.push_back(ClosedLanes::read(&reader));
    if (reader.get<uint8_t>() != 0) {
      const bool same = reader.get<uint64_t>() == (beside != nullptr ? beside->options_.id : 0);
      ClosedLanes::Published published = ClosedLanes::read(&reader);
      if (beside != nullptr && same) there.push_back(std::move(published));
    }
    const ByteView rest = reader.get_bytes(UINT32_MAX);
    // Empty if the message could not be read.
    theirs = reader.done() ? Bytes(rest.begin(), rest.end()) : Bytes();
  }
  tasks_.compare_closed_lanes(here);
  if (beside == nullptr) return {};
  if (there.size() != static_cast<size_t>(beside->size_))
    there.clear();  // some of its ranks do not take part
  beside->tasks_.compare_closed_lanes(there);
  return {};
}

void Comm::fail(const Status& reason, bool send_to_others) noexcept {
  Status status = reason;
  if (options_.members != nullptr) {
    // Without memory for a longer text the error stays as it is.
    (void)guarded_run([&] { status = options_.members->with_places(reason); }).ok();
  }
  std::shared_ptr<Comm> recorded;
  const auto before_others_see_it = [&] {
    const bool records = !options_.flight_path.empty() && context_->options().write_flight;
    if (records && status.code() != Code::kCancelled) recorded = weak_from_this().lock();
    if (recorded) dump_.announce(context_->clock());
  };
  if (!failure_.set(status, before_others_see_it)) return;
  // An exception in logging or sending must not prevent the steps below, above all when memory has run out.
  // Ranks that this rank could not reach receive the failure when it leaves (close).
  const auto log = [&] {
    context_->log().error(cat("rank ", rank_, ": communicator failed: ", status.text()));
  };
  if (context_->log().enabled(LogLevel::kError) && status.code() != Code::kCancelled)
    (void)guarded_run(log).ok();
  if (send_to_others) (void)guarded_run([&] { send_failure(status); }).ok();
  if (recorded) dump_.start(std::move(recorded));
  context_->engine().notify();
}

Status Comm::interrupted(const std::string& what) const {
  return Status::error(Code::kInterrupted, cat("rank ", rank_, ": the program interrupted ", what))
      .with_ranks({rank_});
}

Status Comm::cancelled() const {
  return guarded([&] {
    return Status::error(Code::kCancelled, cat("the ", closed_with_context_ ? "context" : "communicator",
                                               " was destroyed on this rank"));
  });
}

// Waits until what this rank has sent needs it no more: it has left, or was received if it does not outlive
// its sender.
Status Comm::deliver() {
  const Deadline deadline = Deadline::after(context_->clock(), kDeliverMs, 0);
  const auto flushed = [&] { return failed() || tasks_.flush(); };
  bool delivered = context_->engine().wait(flushed, deadline);
  if (drain_) delivered &= drain_->drain(delivered ? deadline : Deadline::at(0));
  if (delivered) return {};
  if (Interrupt::requested()) {
    return Status::error(
        Code::kInterrupted,
        "the program interrupted the call before all ranks had received the data of this rank");
  }
  context_->log().warn(cat("rank ", rank_, " leaves the communicator after ", kDeliverMs,
                           " ms, although not all ranks have received its messages"));
  return {};
}

Status Comm::close(bool with_context) {
  const std::lock_guard closing(close_mutex_);
  if (closed_) return {};
  closed_with_context_ = with_context;
  closed_ = true;
  // Fail points cannot stop the communicator from closing.
  (void)guarded([&] { return reach(FailPlace::kLeaving); }).ok();
  const Status parted = guarded([&] { return deliver(); });
  // A rank that leaves because of a failure sends that failure first: its goodbye may arrive before the
  // report of the rank that found the failure.
  if (failed()) (void)guarded_run([&] { send_failure(failure()); }).ok();
  metrics_.reset();  // the last numbers: a communicator that is closed in good order has not failed
  fail(cancelled(), false);
  dump_.close(context_->clock());
  tasks_.end();
  (void)guarded_run([&] { control_->leave(); }).ok();
  control_->stop();
  if (generation_.number > 0) (void)guarded_run([&] { generation_.generations->closed(); }).ok();
  Status drained = guarded([&] { return context_->callbacks().drain(context_->clock()); });
  return parted.ok() ? drained : parted;
}

FlightRecord Comm::flight() {
  FlightRecord record;
  record.comm = options_.id;
  record.job = options_.job;
  record.rank = rank_;
  record.size = size_;
  record.generation = generation_.number;
  record.first_rank = generation_.members.empty() ? rank_ : generation_.members[static_cast<size_t>(rank_)];
  record.backend = options_.backend;
  record.operations = operations();
  record.failure = failure();
  tasks_.describe(&record);
  return record;
}

void Comm::send_failure(const Status& status) {
  const ErrorInfo& info = status.info();
  ByteWriter message;
  message.put(MessageType::kFailure).put(info.code).put(info.evidence).put(info.slot).put(info.step);
  message.put(static_cast<uint32_t>(info.ranks.size()));
  for (const int rank : info.ranks) message.put(static_cast<int32_t>(rank));
  message.put_string(std::string_view(info.text).substr(0, kMaxReportText));
  for (int r = 0; r < size_; r++) {
    if (r != rank_) control_->send(r, message.bytes());
  }
}

// Adopts another rank's failure as this rank's.
void Comm::adopt(int rank, ByteView message) {
  ByteReader reader(message);
  ErrorInfo info;
  info.code = reader.get<Code>();
  reader.get<Evidence>();
  info.evidence = Evidence::kReport;
  info.slot = reader.get<uint64_t>();
  info.step = reader.get<uint64_t>();
  const auto count = reader.get<uint32_t>();
  if (count > static_cast<uint32_t>(size_)) return;
  for (uint32_t i = 0; i < count; i++) {
    const auto failed = reader.get<int32_t>();
    if (failed >= 0 && failed < size_) info.ranks.push_back(failed);
  }
  info.text = cat("rank ", rank, " reports: ", reader.get_string(kMaxReportText));
  if (!reader.done() || info.code <= Code::kOk || info.code > kLastCode) return;
  fail(Status(std::move(info)), false);
}

void Comm::on_broken(const Status& why) noexcept {
  fail(why);
}

void Comm::on_peer_lost(int rank, const Status& why) noexcept {
  Status agreed = agreed_errors_.last_of(rank);
  const Evidence evidence = why.info().evidence;
  if (evidence == Evidence::kConnection || evidence == Evidence::kProcess) {
    departures_.set_gone(rank);
  }
  if (!agreed.ok()) {
    const Status thrown = guarded_run([&] {
      ErrorInfo info = agreed.info();
      info.evidence = Evidence::kReport;
      info.text += cat(" (rank ", rank, " has ended because of this error)");
      agreed = Status(std::move(info));
    });
    (void)thrown.ok();  // without memory the error keeps the text that was received
  }
  // Before the departure is set: a lane that sees the rank as departed would report that it left.
  fail(agreed.ok() ? why : agreed);
  departures_.set_departed(rank);
}

void Comm::on_peer_left(int rank) noexcept {
  departures_.set_gone(rank);
  departures_.set_departed(rank);
  context_->engine().notify();
}

void Comm::on_message(int rank, ByteView message) noexcept {
  const Status thrown = guarded_run([&] {
    ByteReader reader(message);
    switch (reader.get<MessageType>()) {
      case MessageType::kFailure:
        return adopt(rank, message.subspan(1));
      case MessageType::kExchange:
        return postbox_.on_message(rank, reader);
      case MessageType::kDrain:
        if (drain_) drain_->on_message(rank, reader);
        return;
      case MessageType::kConsensus:
      case MessageType::kSurvivorsExchange:
        return;  // Generations handles them
      case MessageType::kLaneMessage:
        return lane_messages_.on_message(rank, reader);
      case MessageType::kAgreedError:
        return agreed_errors_.on_error(rank, message.subspan(1));
      case MessageType::kContinues:
        return agreed_errors_.on_continues(rank);
      case MessageType::kClockQuestion:
        return clock_probe_.on_question(rank, reader);
      case MessageType::kClockAnswer:
        return clock_probe_.on_answer(rank, reader);
    }
  });
  if (!thrown.ok()) fail(thrown);  // the message is not sent again
}

std::unique_ptr<Exchange> Comm::subgroup(uint32_t id, std::vector<int> members) {
  ControlExchange::Options options;
  options.kind = static_cast<uint8_t>(MessageType::kExchange);
  options.id = id;
  options.self = rank_;
  options.members = std::move(members);
  options.broken = [this] { return failed() ? failure() : Status(); };
  options.owner = shared_from_this();
  return std::make_unique<ControlExchange>(*control_, postbox_, context_->engine(), std::move(options));
}

}  // namespace weft
