#include "rendezvous/store_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <vector>

#include "base/guard.h"
#include "base/text.h"
#include "environment/launch.h"
#include "rendezvous/refusals.h"
#include "rendezvous/socket.h"
#include "rendezvous/store_session.h"

namespace weft {

using store::Group;
using store::Session;
using store::Type;

// The state that the server's thread owns.
class StoreServer::Loop {
 public:
  Loop(const StoreServerOptions& options, Clock& clock, Log& log)
      : key_(options.key),
        one_rendezvous_(options.one_rendezvous),
        job_(options.job),
        clock_(clock),
        log_(log),
        refusals_("store", clock, log),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  Status listen(const Address& address, bool* in_use) {
    if (!wake_.valid()) return Status::system("eventfd", errno);
    return listen_at(address, key_.secret && !address.local(), &listener_, &address_, in_use);
  }
  const Address& address() const { return address_; }
  void run();
  void request_stop(Deadline deadline) {
    stop_at_ns_.store(deadline.ns(), std::memory_order_release);
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  }

 private:
  using GroupKey = std::pair<std::string, uint64_t>;

  void give_up(const Status& thrown);
  bool finished();
  void wait_for_events();
  void accept_some();
  bool displace(bool greeted, int most);
  void serve(Session& session, bool readable);
  void handle(Session& session, ByteView frame);
  void join(Session& session, ByteView frame);
  void give(Session& session, ByteView frame);
  void refuse(Session& session, const Status& status);
  std::string about_strangers() const;
  void drop(Session& session, const Status& why);
  void sweep();
  bool stopping() const { return stop_at_ns_.load(std::memory_order_acquire) != kRunning; }
  Deadline soon() const { return Deadline::after(clock_, kUnauthenticatedMs, 0); }

  static constexpr uint64_t kRunning = UINT64_MAX - 1;
  static constexpr int kAcceptsAtOnce = 64;

  const AuthKey key_;
  const bool one_rendezvous_;
  const std::optional<std::string> job_;
  Clock& clock_;
  Log& log_;
  Refusals refusals_;
  Fd wake_;
  Fd listener_;
  Address address_;
  std::atomic<uint64_t> stop_at_ns_{kRunning};  // written by stop(), read by the thread
  bool stop_seen_ = false;
  bool told_ = false;          // members of incomplete groups have been notified that the store closes
  bool exhausted_ = false;     // out of descriptors: stop accepting for a while
  uint64_t strangers_ = 0;     // clients refused before they joined
  std::string last_stranger_;  // the address of the last one, and why
  std::vector<std::unique_ptr<Session>> sessions_;
  std::vector<pollfd> ready_;  // wake, listener, then sessions_ in order
  std::map<GroupKey, std::unique_ptr<Group>> groups_;
};

void StoreServer::Loop::run() {
  for (bool over = false; !over;) {
    const Status thrown = guarded_run([&] {
      do {
        wait_for_events();
        const size_t polled = ready_.size() - 2;  // sessions that existed at the poll
        for (size_t i = 0; i < polled; i++) serve(*sessions_[i], ready_[i + 2].revents != 0);
        if (ready_[1].revents != 0) accept_some();
        sweep();
      } while (!finished());
      over = true;
    });
    if (!thrown.ok()) give_up(thrown);
  }
}

// Out of memory: data of groups may be incomplete. Their members receive the reason, or see the end of their
// connections if there is no memory for it either.
void StoreServer::Loop::give_up(const Status& thrown) {
  (void)guarded_run([&] {
    const Bytes reason =
        store::encode_failed(Status::error(thrown.code(), cat("the store failed: ", thrown.text())));
    for (const auto& session : sessions_) {
      if (!session->unauthenticated() && !session->closing()) session->say_goodbye(reason, soon());
    }
  }).ok();
  for (const auto& session : sessions_) {
    session->forget_group();
    if (!session->closing()) session->connection().close();
  }
  groups_.clear();
}

// When stopping: returns true once no member is left that could still finish, and all ranks have been
// notified. These include ranks that have yet to join a group with different sizes.
bool StoreServer::Loop::finished() {
  if (!stop_seen_) return false;
  if (!told_) {
    told_ = true;
    for (const auto& session : sessions_) {
      Group* group = session->group();
      if (session->unauthenticated()) {
        session->connection().close();  // a rank that is just arriving tries again
      } else if (group != nullptr && !group->complete()) {
        session->say_goodbye(store::encode_plain(Type::kClosing), soon());
      }
    }
    sweep();
  }
  const auto awaits = [](const auto& entry) { return entry.second->awaits_latecomers(); };
  const bool idle = sessions_.empty() && std::none_of(groups_.begin(), groups_.end(), awaits);
  return idle || Deadline::at(stop_at_ns_).expired(clock_);
}

void StoreServer::Loop::wait_for_events() {
  // Read before poll, so that data sent before the stop is handled before the stop takes effect.
  stop_seen_ = stopping();
  ready_.clear();
  ready_.push_back({wake_.get(), POLLIN, 0});
  ready_.push_back({exhausted_ ? -1 : listener_.get(), POLLIN, 0});
  Deadline next = stopping() ? Deadline::at(stop_at_ns_) : Deadline::never();
  if (exhausted_) next = Deadline::after(clock_, kExhaustedPauseMs, 0);
  exhausted_ = false;
  for (const auto& session : sessions_) {
    ready_.push_back({session->connection().fd(), session->connection().events(), 0});
    next = next.earlier(session->deadline());
  }
  const bool look_once = stop_seen_ && !told_;  // the previous pass may have consumed the wake-up
  ::poll(ready_.data(), ready_.size(), look_once ? 0 : next.remaining_ms(clock_));
  uint64_t count;
  [[maybe_unused]] const ssize_t drained = ::read(wake_.get(), &count, sizeof count);
}

// Accepts a bounded number at a time, so that existing sessions are served however many arrive.
void StoreServer::Loop::accept_some() {
  for (int i = 0; i < kAcceptsAtOnce; i++) {
    Fd fd;
    if (Status status = accept_from(listener_.get(), &fd, &exhausted_); !status.ok()) {
      log_.error(cat("store: ", status.text()));
      exhausted_ = true;
    }
    if (exhausted_ && (displace(false, 0) || displace(true, 0))) {
      exhausted_ = false;
      continue;
    }
    if (!fd.valid()) return;
    if (Status status = check_peer_user(fd.get()); !status.ok()) {
      refusals_.report(LogLevel::kWarn, status.text());
      continue;
    }
    displace(false, kMaxSilent - 1);
    // Leaves descriptors to the rest of this process.
    while (descriptors_are_scarce(fd.get()) &&
           (displace(false, kMostWhenScarce) || displace(true, kMostWhenScarce))) {
    }
    sessions_.push_back(
        std::make_unique<Session>(Connection(std::move(fd), Role::kServer, key_), clock_.now_ns(), soon()));
    // A rank sends its hello as soon as it is connected, so it counts as silent only for a moment.
    serve(*sessions_.back(), true);
  }
}

// Closes the oldest of the unauthenticated clients that have (or have not) sent Weft's hello, if there are
// more than `most` of them. A rank that is affected tries again. A connection that has proved that it holds
// the secret is not affected.
bool StoreServer::Loop::displace(bool greeted, int most) {
  Session* oldest = nullptr;
  int unauthenticated = 0;
  for (const auto& session : sessions_) {
    const Connection& connection = session->connection();
    if (!connection.open() || connection.established() || connection.greeted() != greeted) continue;
    unauthenticated++;
    if (oldest == nullptr || session->since_ns() < oldest->since_ns()) oldest = session.get();
  }
  if (unauthenticated <= most) return false;
  oldest->connection().close();
  return true;
}

void StoreServer::Loop::serve(Session& session, bool readable) {
  Connection& connection = session.connection();
  if (!connection.open()) return;
  bool closed = false;
  if (readable) {
    const bool silent = !connection.greeted();
    std::vector<Bytes> frames;
    const Status status = connection.read(&frames, &closed);
    if (silent && connection.greeted()) {
      session.set_greeted(clock_.now_ns());
      displace(true, kMaxGreeted);
    }
    // Data from a closing session is read, to detect its end, and ignored.
    for (const Bytes& frame : frames) {
      if (!session.closing() && connection.open()) handle(session, frame);
    }
    if (!status.ok()) {
      if (session.closing()) closed = true;
      refuse(session, status);
    }
  }
  if (!closed && session.deadline().expired(clock_)) closed = true;
  if (!session.pump()) closed = true;
  if (!closed) return;
  const int rank = session.rank();
  drop(session,
       Status::error(Code::kPeerFailed,
                     cat("rank ", rank, " closed its connection while the communicator was being created"),
                     Evidence::kConnection)
           .with_ranks({rank}));
}

void StoreServer::Loop::handle(Session& session, ByteView frame) {
  const Type type = store::type_of(frame);
  if (session.unauthenticated()) {
    if (type == Type::kJoin) return join(session, frame);
  } else if (type == Type::kGive) {
    return give(session, frame);
  } else if (type == Type::kWhoIsMissing) {
    return session.group()->who_is_missing(session.rank(), about_strangers());
  } else if (type == Type::kLeave) {
    Group* group = session.group();
    session.say_goodbye({}, soon());
    return group->leave(session.rank());
  }
  Status why;
  if (!session.unauthenticated() && store::decode_failed(frame, &why)) {
    Group* group = session.group();
    session.say_goodbye({}, soon());
    return group->lost(session.rank(), why);
  }
  refuse(session, Status::error(Code::kAuth,
                                cat(session.unauthenticated() ? std::string("a client that has not joined")
                                                              : cat("rank ", session.rank()),
                                    " sent the store a frame of ", frame.size(),
                                    " bytes with unexpected type ", static_cast<int>(type))));
}

void StoreServer::Loop::join(Session& session, ByteView frame) {
  store::Join join;
  if (!store::decode(frame, &join)) {
    return refuse(session,
                  Status::error(Code::kArg, cat("a client sent the store a malformed request to join, of ",
                                                frame.size(), " bytes")));
  }
  if (join.size < 1 || join.size > kMaxRanks) {
    return refuse(session, Status::error(Code::kArg, cat("rank ", join.rank, " gives the size ", join.size,
                                                         ": allowed are 1 to ", kMaxRanks,
                                                         " ranks (WEFT_SIZE, or weft_comm_options.size)")));
  }
  if (job_ && join.job != *job_) {  // its deadline ends the connection
    return refusals_.report(LogLevel::kInfo, cat("rank ", join.rank, " is of job \"", join.job,
                                                 "\", but this is the store of job \"", *job_, "\""));
  }
  const GroupKey key(join.job, join.sequence);
  const auto found = groups_.find(key);
  const bool known = found != groups_.end() && (found->second->complete() || found->second->failed());
  if (stopping() && !known) {
    return session.say_goodbye(store::encode_plain(Type::kClosing), soon());
  }
  if (found == groups_.end()) groups_[key] = std::make_unique<Group>(join.size);
  Group* group = groups_[key].get();
  session.enter(group, join.rank);
  if (Status status = group->join(join, &session); !status.ok()) refuse(session, status);
}

void StoreServer::Loop::give(Session& session, ByteView frame) {
  store::Give give;
  if (!store::decode(frame, &give)) {
    return refuse(session, Status::error(Code::kInternal,
                                         cat("rank ", session.rank(), " sent the store a malformed frame of ",
                                             frame.size(), " bytes of data")));
  }
  if (Status status = session.group()->give(session.rank(), std::move(give)); !status.ok())
    refuse(session, status);
}

// Sends a session its error and ends it. A member's mistake fails its group.
void StoreServer::Loop::refuse(Session& session, const Status& status) {
  if (session.closing()) return;
  refusals_.report(LogLevel::kInfo, status.text());
  Group* group = session.unauthenticated() ? nullptr : session.group();
  if (group == nullptr) {
    strangers_++;
    last_stranger_ = cat(peer_text(session.connection().fd()), ": ", status.text());
  }
  session.say_goodbye(session.connection().established() ? store::encode_failed(status) : Bytes{}, soon());
  if (group != nullptr) group->lost(session.rank(), status.with_ranks({session.rank()}));
}

// Describes the clients that were refused before they joined: one of them may be the rank that is missing.
std::string StoreServer::Loop::about_strangers() const {
  if (strangers_ == 0) return "";
  return cat("the store has refused ", strangers_, strangers_ == 1 ? " connection" : " connections, the last",
             " from ", last_stranger_);
}

// Handles the end of a connection.
void StoreServer::Loop::drop(Session& session, const Status& why) {
  Group* group = session.unauthenticated() ? nullptr : session.group();
  session.forget_group();
  session.connection().close();
  if (group != nullptr) group->lost(session.rank(), why);
}

// Writes output that other sessions' events have caused, and removes closed sessions and finished groups.
void StoreServer::Loop::sweep() {
  for (const auto& session : sessions_) {
    if (session->closing() && session->deadline().ns() == Deadline::never().ns()) {
      session->say_goodbye({}, soon());  // its group failed
    }
    if (session->connection().open() && !session->pump()) session->connection().shut_down();
  }
  std::erase_if(sessions_, [](const auto& session) { return !session->connection().open(); });
  std::erase_if(groups_, [this](const auto& entry) {
    const Group& group = *entry.second;
    return group.failed() ? !one_rendezvous_ : group.empty();
  });
}

Status StoreServer::start(const StoreServerOptions& options, Clock& clock, Log& log,
                          std::unique_ptr<StoreServer>* server, bool* in_use) {
  *in_use = false;
  WEFT_TRY(init_crypto());
  WEFT_TRY(check_reach(options.listen, options.key.secret));
  if (options.listen.kind == Address::Kind::kFolder) {
    return Status::error(Code::kArg, cat("a store cannot listen at ", options.listen.text(),
                                         ": give tcp://host:port or unix:@name"));
  }
  if (options.listen.kind == Address::Kind::kUnix && !options.key.secret) WEFT_TRY(check_user_is_known());
  auto loop = std::make_unique<Loop>(options, clock, log);
  WEFT_TRY(loop->listen(options.listen, in_use));
  if (!options.key.secret) {
    log.info(cat("store: the job has no secret; every process of this host that can reach ",
                 loop->address().text(), " can join it"));
  }
  std::unique_ptr<StoreServer> started(new StoreServer(std::move(loop)));
  Loop* running = started->loop_.get();
  WEFT_TRY(
      start_thread("weft-store", [running] { running->run(); }, options.on_thread_start, &started->thread_));
  *server = std::move(started);
  return {};
}

StoreServer::StoreServer(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}

StoreServer::~StoreServer() {
  stop(Deadline::at(0));
}

const Address& StoreServer::address() const {
  return loop_->address();
}

void StoreServer::stop(Deadline deadline) {
  loop_->request_stop(deadline);
  if (thread_.joinable()) thread_.join();
}

}  // namespace weft
