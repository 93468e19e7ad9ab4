#include "comm/comm.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/text.h"
#include "comm/drain.h"
#include "device/arena.h"
#include "engine/comm_part.h"
#include "engine/composite.h"
#include "transport/result.h"

namespace weft {
namespace {

// Types of control messages between members.
constexpr uint8_t kFailMessage = 1;
constexpr uint8_t kExchangeMessage = 2;
// 3 is Drain::kMessage, 4 and 5 are the messages of control/generations.h, 6 is LaneMessages::kMessage.
constexpr uint8_t kErrorMessage = 7;      // an agreed error; its result follows
constexpr uint8_t kContinuesMessage = 8;  // the sender continues in spite of its last agreed error
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
  if (Status opened = comm->open_lane(&comm->user_lane_); !opened.ok()) {
    if (failure != nullptr) *failure = std::move(opened);
    return nullptr;
  }
  if (!comm->collectives_->outlives_sender()) {
    comm->drain_ = std::make_shared<Drain>(*comm);
    comm->context_->engine().add(comm->drain_);
  }
  comm->context_->add_comm(comm);
  comm->generation_.generations->opened(comm->generation_.number);
  comm->control_->start(comm.get());
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
      departed_(std::make_unique<std::atomic<bool>[]>(static_cast<size_t>(size))),
      gone_(std::make_unique<std::atomic<bool>[]>(static_cast<size_t>(size))),
      received_errors_(static_cast<size_t>(size)) {}

Comm::~Comm() {
  (void)guarded([this] { return close(); }).ok();
}

Status Comm::make_lane(const LaneKey& key, bool overlapping, Executes* executes) {
  std::unique_ptr<CollectiveLane> impl;
  std::unique_ptr<CollectiveLane> second;
  LaneKey lane_key = key;
  lane_key.pipeline_lanes = overlapping ? 2 : 1;
  const auto open = [&] {
    const Status opened = collectives_->open_lane(lane_key, &impl);
    lane_key.pipeline_index = 1;
    return opened.ok() && overlapping ? collectives_->open_lane(lane_key, &second) : opened;
  };
  WEFT_TRY(context_->engine().locked(open));
  // Some of the user's collectives are composite operations.
  if (key.kind == LaneKey::Kind::kCollective && key.id == 0) {
    impl = std::make_unique<CompositeLane>(std::move(impl));
  }
  executes->impl = std::move(impl);
  executes->second = std::move(second);
  return {};
}

// Adds a lane. Called with lanes_mutex_ held, so that close(), which sets closed_ before it takes the lanes,
// misses none.
void Comm::add_lane(const LaneKey& key, Executes executes, uint64_t first, std::shared_ptr<Lane>* lane) {
  auto made = std::make_shared<Lane>(*this, key, std::move(executes.impl), first, std::move(executes.second));
  lanes_.reserve(lanes_.size() + 1);
  context_->engine().add(made);
  lanes_.push_back(made);  // the engine and lanes_ both have the lane, or neither has, whatever throws
  *lane = std::move(made);
}

Status Comm::open_lane(std::shared_ptr<Lane>* lane, bool overlapping) {
  const std::lock_guard lock(lanes_mutex_);
  if (closed_) return cancelled();
  LaneKey key;
  ClosedLanes::Entry kept;
  if (!closed_lanes_.take(&key.id, &kept)) key.id = next_lane_++;
  Executes executes{kept.impl, nullptr};
  if (!executes.impl) {
    const Status made = make_lane(key, overlapping && collectives_->overlaps(), &executes);
    // This rank failed to open the lane, but other ranks may have opened it. It is kept here as a closed
    // lane, so that all ranks can open it again once the others have closed it too.
    if (!made.ok() && collectives_->few_lanes()) closed_lanes_.keep(key.id, kept);
    WEFT_TRY(made);
  }
  add_lane(key, std::move(executes), kept.next_slot, lane);
  return {};
}

void Comm::close_lane(const std::shared_ptr<Lane>& lane) {
  context_->engine().remove(lane.get());
  const std::lock_guard lock(lanes_mutex_);
  lanes_.erase(std::remove(lanes_.begin(), lanes_.end(), lane), lanes_.end());
  if (closed_ || failed() || !collectives_->few_lanes()) return;
  const auto next_slot = [&] { return lane->idle() ? lane->next_slot() : UINT64_MAX; };
  const ClosedLanes::Entry kept = {lane->impl(), context_->engine().locked(next_slot)};
  if (kept.next_slot == UINT64_MAX) return;
  kept.impl->rest();
  closed_lanes_.keep(lane->key().id, kept);
}

Status Comm::lane_for(const CollectiveArgs& args, std::shared_ptr<Lane>* lane) {
  if (args.coll != Coll::kSend && args.coll != Coll::kRecv) {
    *lane = user_lane_;
    return {};
  }
  LaneKey key;
  key.kind = args.coll == Coll::kSend ? LaneKey::Kind::kSend : LaneKey::Kind::kReceive;
  key.peer = args.peer;
  const std::lock_guard lock(lanes_mutex_);
  std::shared_ptr<Lane>& known = pair_lanes_[{key.kind, key.peer}];
  if (!known) {
    if (closed_) return cancelled();
    Executes executes;
    WEFT_TRY(make_lane(key, false, &executes));
    add_lane(key, std::move(executes), 0, &known);
  }
  *lane = known;
  return {};
}

Status Comm::part(MakePart make, CommPart** part) {
  const std::lock_guard lock(lanes_mutex_);
  for (const auto& [maker, known] : parts_) {
    if (maker != make) continue;
    *part = known.get();
    return {};
  }
  if (closed_) return cancelled();
  parts_.reserve(parts_.size() + 1);
  std::shared_ptr<CommPart> made = make(*this);
  context_->engine().add(made);
  *part = made.get();
  parts_.emplace_back(make, std::move(made));
  return {};
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
    return run_until(*user_lane_, args, make_deadline);
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
  const std::shared_ptr<Lane>& over = lane ? lane : user_lane_;
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

void Comm::write_closed_lanes(ByteWriter* message) {
  const std::lock_guard lock(lanes_mutex_);
  closed_lanes_.write(message);
}

void Comm::compare_closed_lanes(const std::vector<ClosedLanes::Published>& published) {
  const std::lock_guard lock(lanes_mutex_);
  closed_lanes_.compare(published);
}

// Message layout: this communicator's closed lanes, those of `beside`, and the bytes to agree on.
Status Comm::agree_to_open(Comm* beside, ByteView mine, std::vector<Bytes>* all, Deadline deadline) {
  if (beside == this) beside = nullptr;
  ByteWriter message;
  write_closed_lanes(&message);
  message.put(static_cast<uint8_t>(beside != nullptr));
  if (beside != nullptr) {
    message.put(beside->options_.id);
    beside->write_closed_lanes(&message);
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
  compare_closed_lanes(here);
  if (beside == nullptr) return {};
  if (there.size() != static_cast<size_t>(beside->size_))
    there.clear();  // some of its ranks do not take part
  beside->compare_closed_lanes(there);
  return {};
}

void Comm::fail(const Status& status, bool send_to_others) noexcept {
  std::shared_ptr<Comm> recorded;
  {
    const std::lock_guard lock(failure_mutex_);
    if (failed_.load(std::memory_order_relaxed)) return;
    failure_ = status;
    const bool records = !options_.flight_path.empty() && context_->options().write_flight;
    if (records && status.code() != Code::kCancelled) recorded = weak_from_this().lock();
    if (recorded) dump_.announce(context_->clock());
    failed_.store(true, std::memory_order_release);
  }
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

Status Comm::failure() const {
  const std::lock_guard lock(failure_mutex_);
  return failure_;
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
  const auto flushed = [&] {
    const std::lock_guard lock(lanes_mutex_);
    return failed() || std::all_of(parts_.begin(), parts_.end(), [&](const auto& part) {
             return context_->engine().locked([&] { return part.second->flush(); });
           });
  };
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
  fail(cancelled(), false);
  dump_.close(context_->clock());
  std::vector<std::shared_ptr<Lane>> lanes;
  std::vector<std::shared_ptr<CommPart>> parts;
  {
    const std::lock_guard lock(lanes_mutex_);
    lanes.swap(lanes_);
    pair_lanes_.clear();
    for (const auto& [make, part] : parts_) parts.push_back(part);
  }
  // Completes outstanding operations.
  const auto end = [&](auto& task) {
    task.close();
    const auto waits = [&] {
      return context_->engine().locked([&] { return Engine::poll(task); }) != Poll::kParked;
    };
    for (uint32_t round = 0; waits(); round++) context_->clock().relax(round);
    context_->engine().remove(&task);
  };
  for (const auto& lane : lanes) end(*lane);
  for (const auto& part : parts) end(*part);
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
  const std::lock_guard lock(lanes_mutex_);
  context_->engine().locked([&] {
    record.now_ns = context_->clock().now_ns();
    for (const auto& lane : lanes_) record.lanes.push_back(lane->flight());
    for (const auto& [make, part] : parts_) part->describe(&record);
  });
  return record;
}

bool Comm::quiet() {
  const std::lock_guard lock(lanes_mutex_);
  return context_->engine().locked([&] {
    return std::all_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->idle(); }) &&
           std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part.second->quiet(); });
  });
}

void Comm::send_failure(const Status& status) {
  const ErrorInfo& info = status.info();
  ByteWriter message;
  message.put(kFailMessage).put(info.code).put(info.evidence).put(info.slot).put(info.step);
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

void Comm::agreed_error(const Status& error) {
  if (size_ == 1 || failed()) return;
  uint64_t number = 0;
  {
    const std::lock_guard lock(announce_mutex_);
    number = ++announced_;
    ByteWriter message;
    message.put(kErrorMessage).put_raw(encode_result(error));
    for (int r = 0; r < size_; r++) {
      if (r != rank_) control_->send(r, message.bytes());
    }
    error_stands_.store(true, std::memory_order_relaxed);
  }
  Engine& engine = context_->engine();
  const auto over = [&] {
    control_->poll();
    return failed() || others_found(number);
  };
  engine.wait(over, Deadline::after(context_->clock(), kAgreedErrorMs, 0));
}

// Returns true if every other rank that has not left has announced at least as many errors.
bool Comm::others_found(uint64_t errors) {
  const std::lock_guard lock(received_errors_mutex_);
  for (int r = 0; r < size_; r++) {
    if (r != rank_ && received_errors_[static_cast<size_t>(r)].count < errors && !departed(r)) return false;
  }
  return true;
}

void Comm::withdraw_error() {
  const std::lock_guard lock(announce_mutex_);
  ByteWriter message;
  message.put(kContinuesMessage);  // may throw: the error then remains announced
  if (!error_stands_.exchange(false, std::memory_order_relaxed)) return;
  for (int r = 0; r < size_; r++) {
    if (r != rank_) control_->send(r, message.bytes());
  }
}

void Comm::receive_error(int rank, ByteView message) {
  Status error;
  if (!decode_result(message, size_, &error) || error.ok()) return;
  {
    const std::lock_guard lock(received_errors_mutex_);
    AgreedErrors& received = received_errors_[static_cast<size_t>(rank)];
    received.count++;
    received.last = std::move(error);
  }
  context_->engine().notify();
}

void Comm::on_peer_lost(int rank, const Status& why) noexcept {
  Status agreed;
  {
    const std::lock_guard lock(received_errors_mutex_);
    agreed = received_errors_[static_cast<size_t>(rank)].last;
  }
  const Evidence evidence = why.info().evidence;
  if (evidence == Evidence::kConnection || evidence == Evidence::kProcess) {
    gone_[static_cast<size_t>(rank)].store(true, std::memory_order_release);
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
  // Before departed_ is set: a lane that sees the rank as departed would report that it left.
  fail(agreed.ok() ? why : agreed);
  departed_[static_cast<size_t>(rank)].store(true, std::memory_order_release);
  any_departed_.store(true, std::memory_order_release);
}

void Comm::on_peer_left(int rank) noexcept {
  gone_[static_cast<size_t>(rank)].store(true, std::memory_order_release);
  departed_[static_cast<size_t>(rank)].store(true, std::memory_order_release);
  any_departed_.store(true, std::memory_order_release);
  context_->engine().notify();
}

void Comm::on_message(int rank, ByteView message) noexcept {
  const Status thrown = guarded_run([&] {
    ByteReader reader(message);
    const auto kind = reader.get<uint8_t>();
    if (kind == kFailMessage) adopt(rank, message.subspan(1));
    if (kind == Drain::kMessage && drain_) drain_->on_message(rank, reader);
    if (kind == LaneMessages::kMessage) lane_messages_.on_message(rank, reader);
    if (kind == kExchangeMessage) postbox_.on_message(rank, reader);
    if (kind == kErrorMessage) receive_error(rank, message.subspan(1));
    if (kind == kContinuesMessage) {
      const std::lock_guard lock(received_errors_mutex_);
      received_errors_[static_cast<size_t>(rank)].last = Status();
    }
  });
  if (!thrown.ok()) fail(thrown);  // the message is not sent again
}

std::unique_ptr<Exchange> Comm::subgroup(uint32_t id, std::vector<int> members) {
  ControlExchange::Options options;
  options.kind = kExchangeMessage;
  options.id = id;
  options.self = rank_;
  options.members = std::move(members);
  options.broken = [this] { return failed() ? failure() : Status(); };
  options.owner = shared_from_this();
  return std::make_unique<ControlExchange>(*control_, postbox_, context_->engine(), std::move(options));
}

}  // namespace weft
