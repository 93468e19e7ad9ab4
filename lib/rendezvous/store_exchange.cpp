#include "rendezvous/store_exchange.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <iterator>

#include "base/guard.h"
#include "base/interrupt.h"
#include "base/text.h"
#include "environment/launch.h"
#include "rendezvous/resolve.h"
#include "rendezvous/socket.h"

namespace weft {

using store::Type;

namespace {

constexpr uint64_t kMsNs = 1'000'000;
constexpr int64_t kRetryMs = 20;
// Retry time for a port that another process holds: it may belong to a job that is just ending.
constexpr int64_t kInUseMs = 5'000;
// Interval between searches for a store at another name: the kernel's list of sockets may be long.
constexpr int64_t kLookMs = 500;
// Interval between looks at the invitation's file, which may be on a file server.
constexpr int64_t kReadMs = 100;
constexpr int64_t kTryHostMs = 3'000;  // for one of the addresses in the invitation
constexpr const char* kNotAdmitted =
    "the store does not admit this rank: it belongs to another job (WEFT_JOB), or to an earlier start of "
    "this job";
constexpr size_t kSuffixBytes = 8;           // random, in the name that replaces a taken one
constexpr uint64_t kFurtherDescriptors = 8;  // of the process that serves, beside a connection to each rank

Status check_options(const StoreOptions& options) {
  if (options.size < 1 || options.size > kMaxRanks || options.rank < 0 || options.rank >= options.size) {
    return Status::error(
        Code::kArg, cat("rank is ", options.rank, " and size is ", options.size, ": allowed are sizes 1 to ",
                        kMaxRanks, ", and ranks 0 to size - 1"));
  }
  if (options.job.size() > store::kMaxJob) {
    return Status::error(Code::kArg, cat("the job's name has ", options.job.size(), " bytes; at most ",
                                         store::kMaxJob, " are allowed: set a shorter WEFT_JOB"));
  }
  return {};
}

// Returns the prefix of the replacement name: a store whose name is taken listens at this prefix and random
// hexadecimal digits, which no other user can guess.
std::string other_name_begin(const std::string& name) {
  return name + "~";
}

std::string other_name(const std::string& name) {
  static constexpr char kHex[] = "0123456789abcdef";
  const Key random = random_key();
  std::string other = other_name_begin(name);
  for (size_t i = 0; i < kSuffixBytes; i++) {
    const auto byte = static_cast<unsigned>(random[i]);
    other += {kHex[byte >> 4], kHex[byte & 15]};
  }
  return other;
}

}  // namespace

Status StoreExchange::make(const StoreOptions& options, Clock& clock, Log& log, Deadline deadline,
                           std::unique_ptr<StoreExchange>* exchange, std::unique_ptr<StoreServer> invited) {
  WEFT_TRY(init_crypto());
  WEFT_TRY(check_options(options));
  std::unique_ptr<StoreExchange> made(new StoreExchange(options, clock, log, deadline));
  if (options.size > 1 && options.invitation) {
    made->address_ = options.invitation->address(0);
    made->server_ = std::move(invited);
    if (made->server_) made->host_here(options.invitation->store_key(options.key));
    WEFT_TRY(made->join(deadline));
  } else if (options.size > 1) {
    WEFT_TRY(parse_address(options.store, &made->address_));
    WEFT_TRY(made->check_address());
    made->target_ = made->address_;
    if (made->address_.kind == Address::Kind::kFolder)
      made->file_ = std::make_unique<InvitationFile>(made->address_.folder, options.job, options.sequence,
                                                     options.munge);
    if (options.rank == 0 && !options.external) WEFT_TRY(made->host(deadline));
    WEFT_TRY(made->join(deadline));
  }
  *exchange = std::move(made);
  return {};
}

Status StoreExchange::check_address() const {
  WEFT_TRY(check_reach(address_, options_.key.secret));
  // The user of the other side, or of the file, is what tells members from others.
  if (address_.kind != Address::Kind::kTcp && !options_.key.secret) WEFT_TRY(check_user_is_known());
  if (address_.kind == Address::Kind::kTcp && address_.port == 0) {
    return Status::error(Code::kArg, cat("the store address ", options_.store,
                                         " has port 0: give the port at which the store listens"));
  }
  if (address_.kind == Address::Kind::kFolder && options_.external) {
    return Status::error(Code::kArg, cat("the store address ", options_.store,
                                         " is a folder, in which rank 0 writes its own store's address: "
                                         "give the external store's address, or unset WEFT_STORE_EXTERNAL"));
  }
  return {};
}

StoreExchange::~StoreExchange() {
  if (connection_.open() && finished_ && joined_) {
    const auto leave = [this] {
      connection_.send(store::encode_plain(Type::kLeave));
      connection_.flush();
    };
    (void)guarded_run(leave).ok();  // the end of the connection reports the departure too
  }
  connection_.close();
  if (!server_) return;
  // A stopped rank reads nothing. It delays the host until the common deadline and kGoodbyeMs longer, at
  // most.
  const Deadline moment = Deadline::after(clock_, kGoodbyeMs, 0);
  const Deadline bound = Deadline::at(std::max(deadline_.ns(), moment.ns()));
  server_->stop(bound.earlier(Deadline::after(clock_, kDrainMs, 0)));
}

Status StoreExchange::host(Deadline deadline) {
  const Deadline give_up = deadline.earlier(Deadline::after(clock_, kInUseMs, 0));
  WEFT_TRY(check_descriptors(static_cast<uint64_t>(options_.size) + kFurtherDescriptors)
               .with_prefix("rank 0 serves the store: "));
  if (file_) return invite();
  StoreServerOptions options{address_, key_, options_.on_thread_start, true, options_.job};
  bool taken = false;
  for (;;) {
    bool in_use = false;
    Status status = StoreServer::start(options, clock_, log_, &server_, &in_use);
    if (status.ok()) break;
    const bool was_taken = taken;
    taken = in_use && name_is_taken();
    // Checked twice in a row: a store of this user that is just ending is gone by then.
    if (taken && was_taken) {
      options.listen.name = other_name(address_.name);
      log_.warn(
          cat("store: ", address_.text(),
              " is in use by a process that is not a store of this user; the store of this job listens at ",
              options.listen.text(), " instead"));
      continue;
    }
    if (!in_use || give_up.expired(clock_)) {
      return status.with_prefix(
          in_use ? "rank 0 failed to start the store; another process (a second rank 0?) uses the address: "
                 : "rank 0 failed to start the store: ");
    }
    WEFT_TRY(pause(give_up));
  }
  target_ = server_->address();
  if (!target_.local()) target_.host = "127.0.0.1";  // it listens on all interfaces
  return {};
}

// Starts the store at a free port, and writes the invitation to it.
Status StoreExchange::invite() {
  Invitation invitation;
  WEFT_TRY(open_store(options_.key, options_.job, options_.on_thread_start, options_.network, clock_, log_,
                      &invitation, &server_)
               .with_prefix("rank 0 failed to start the store: "));
  host_here(invitation.store_key(options_.key));
  return file_->publish(invitation);
}

// Connects rank 0 to its own store over loopback.
void StoreExchange::host_here(const AuthKey& key) {
  key_ = key;
  target_ = server_->address();
  target_.host = "127.0.0.1";
}

// Returns true if the store's name is in use by a process that is not a store of this user. Any user can bind
// a name of the abstract namespace first.
bool StoreExchange::name_is_taken() const {
  if (!has_other_names()) return false;
  Fd fd;
  int error_number = 0;
  if (!connect_to(address_, &fd, &error_number).ok()) return true;  // bound, but without a listener
  return !check_peer_user(fd.get()).ok();
}

Status StoreExchange::join(Deadline deadline) {
  std::string why_not;
  Deadline look = Deadline::after(clock_, kLookMs, 0);
  for (bool taken = false;; taken = false) {
    bool joined = false;
    const auto attempt = [&](const Address& there) {
      connection_.close();
      return try_join(there, deadline, &joined, &taken, &why_not)
          .with_prefix(cat("store ", address_.text(), ": "));
    };
    WEFT_TRY(invited() ? join_invited(deadline, &joined, &why_not) : attempt(target_));
    if (!joined && (taken || look.expired(clock_))) {
      look = Deadline::after(clock_, kLookMs, 0);
      for (const std::string& name : other_places()) {
        if (joined || deadline.expired(clock_)) break;
        Address there = target_;
        there.name = name;
        WEFT_TRY(attempt(there));
      }
    }
    if (joined) return {};
    connection_.close();
    if (deadline.expired(clock_)) break;
    WEFT_TRY(pause(deadline));
  }
  Status status = Status::error(
      Code::kTimeout,
      cat("no connection to the store", options_.external ? "" : " of rank 0", " at ", address_.text(),
          " before the deadline: ", why_not.empty() ? "no process listens there" : why_not),
      Evidence::kDeadline);
  return options_.external ? status : status.with_ranks({0});
}

// Tries the addresses of rank 0's invitation. Its file may be that of a job that has crashed, at whose
// port another process listens now. So an address that refuses this rank is a reason to read the file again.
Status StoreExchange::join_invited(Deadline deadline, bool* joined, std::string* why_not) {
  Invitation invitation = options_.invitation.value_or(Invitation());
  if (file_) WEFT_TRY(file_->read(&invitation, why_not));
  key_ = invitation.store_key(options_.key);
  for (size_t i = 0; i < invitation.hosts.size(); i++) {
    connection_.close();
    const Address there = invitation.address(i);
    bool taken = false;
    std::string reason;
    Status status =
        try_join(there, deadline.earlier(Deadline::after(clock_, kTryHostMs, 0)), joined, &taken, &reason);
    if (*joined) return {};
    if (!status.ok() && status.code() != Code::kAuth) return status;
    if (reason.empty()) reason = "it does not answer";
    *why_not = cat("rank 0's invitation names ", there.text(), ": ", status.ok() ? reason : status.text());
    if (!status.ok()) refusal_ = *why_not;
    if (!deadline.expired(clock_)) continue;
    // The last attempt may have had no time.
    if (status.ok() && !refusal_.empty()) *why_not = refusal_;
    return {};
  }
  return {};
}

// Returns true if rank 0 may host the store at another name than the configured one; the other ranks then
// search for it. An external store keeps the name that its user chose.
bool StoreExchange::has_other_names() const {
  return !options_.external && address_.kind == Address::Kind::kUnix &&
         address_.name.size() + 1 + 2 * kSuffixBytes <= kMaxUnixName;
}

// Returns the names at which rank 0 may host the store because the configured one is taken. Other users may
// have created some of them.
std::vector<std::string> StoreExchange::other_places() const {
  if (server_ || !has_other_names()) return {};
  const std::string begin = other_name_begin(address_.name);
  std::vector<std::string> names = listening_names(begin);
  std::erase_if(names,
                [&](const std::string& name) { return name.size() != begin.size() + 2 * kSuffixBytes; });
  return names;
}

// Makes one attempt to join. An error is final. Otherwise sets *joined, or the reason to try again. *taken: a
// process of another user listens there.
Status StoreExchange::try_join(Address there, Deadline deadline, bool* joined, bool* taken,
                               std::string* why_not) {
  Fd fd;
  WEFT_TRY(connect(std::move(there), deadline, &fd, why_not));
  if (!fd.valid()) return {};
  if (Status other_user = check_peer_user(fd.get()); !other_user.ok()) {
    if (!has_other_names()) return other_user;
    *taken = true;
    *why_not = other_user.text();
    return {};
  }
  closing_ = false;
  joined_ = false;
  connection_ = Connection(std::move(fd), Role::kClient, key_);
  connection_.set_limit(kLargeFrame);
  connection_.send(store::encode(store::Join{options_.job, options_.sequence, options_.rank, options_.size}));
  return wait_until_joined(deadline, joined, why_not);
}

// Connects *fd to a unix socket, or to one of the addresses of a host. An error is final. Otherwise *fd stays
// invalid if no address takes a connection. why_not: the reason of an earlier attempt, or empty.
Status StoreExchange::connect(Address there, Deadline deadline, Fd* fd, std::string* why_not) {
  std::vector<std::string> hosts = {there.host};
  if (there.kind == Address::Kind::kTcp) {
    const Status found =
        options_.resolver.resolve(there.host, clock_, deadline, options_.on_thread_start, &hosts);
    // A query that the deadline cut off says less than the answer to an earlier one.
    if (!found.ok() && (found.code() != Code::kTimeout || why_not->empty())) *why_not = found.text();
    if (!found.ok()) return {};
  }
  for (const std::string& host : hosts) {
    there.host = host;
    // Where one of several addresses does not answer, another one may.
    const Deadline until =
        hosts.size() > 1 ? deadline.earlier(Deadline::after(clock_, kTryHostMs, 0)) : deadline;
    Fd tried;
    int error_number = 0;
    Status status = connect_to(there, &tried, &error_number);
    bool ready = false;
    if (status.ok()) WEFT_TRY(await_event(tried.get(), POLLOUT, clock_, until, &ready));
    if (ready) error_number = finish_connect(tried.get());
    if (ready && error_number != 0)
      status = Status::system(cat("connecting to ", there.text()), error_number);
    if (!status.ok()) *why_not = status.text();
    if (!status.ok() || !ready) continue;
    *fd = std::move(tried);
    return {};
  }
  return {};
}

Status StoreExchange::wait_until_joined(Deadline deadline, bool* joined, std::string* why_not) {
  while (!joined_) {
    connection_.flush();
    bool ready = false;
    WEFT_TRY(await_event(connection_.fd(), connection_.events(), clock_, deadline, &ready));
    if (!ready) {
      *why_not = connection_.established() ? kNotAdmitted : "the store does not answer";
      return {};
    }
    bool closed = false;
    WEFT_TRY(take_frames(&closed));
    if (closed || closing_) {
      *why_not = closing_                    ? "the store was about to stop"
                 : connection_.established() ? kNotAdmitted
                                             : "the store closed the connection";
      if (!joined_ || closing_) return {};
    }
  }
  *joined = true;
  return {};
}

Status StoreExchange::all_gather(ByteView mine, std::vector<Bytes>* all, Deadline deadline) {
  if (mine.size() > kMaxBytes) {
    return Status::error(Code::kArg,
                         cat("this rank sends ", bytes_text(mine.size()), " to the group setup; at most ",
                             bytes_text(kMaxBytes), " are allowed"));
  }
  if (options_.size == 1) {
    all->assign(1, Bytes(mine.begin(), mine.end()));
    return {};
  }
  const uint64_t now = clock_.now_ns();
  const uint64_t left = deadline.ns() > now ? deadline.ns() - now : 0;
  const Deadline ask = Deadline::at(deadline.ns() - std::min(left / 4, 500 * kMsNs));
  asked_ = answered_ = false;
  WEFT_TRY(failure_);
  give(mine);

  while (failure_.ok() && !complete()) {
    connection_.flush();
    if (!asked_ && ask.expired(clock_)) {
      connection_.send(store::encode_plain(Type::kWhoIsMissing));
      connection_.flush();
      asked_ = true;
    }
    bool ready = false;
    WEFT_TRY(await_event(connection_.fd(), connection_.events(), clock_, asked_ ? deadline : ask, &ready));
    if (!ready) {
      if (!asked_) continue;
      fail(absent());  // the other ranks wait for the same ranks
      break;
    }
    bool closed = false;
    failure_ = hear(&closed);
    if (!failure_.ok() || complete()) break;
    if (closing_ && round_ == 0) {
      // This is the previous communicator's store; the next one is about to start.
      connection_.close();
      WEFT_TRY(pause(deadline));
      failure_ = join(deadline);
      if (failure_.ok()) give(mine);
    } else if (closed || closing_) {
      failure_ = store_lost();
    }
  }
  // A complete round is a success, whatever has failed since.
  if (!complete()) return failure_;
  *all = std::move(parts_);
  parts_.clear();
  round_++;
  return {};
}

void StoreExchange::give(ByteView mine) {
  parts_.clear();
  connection_.send(store::encode(store::Give{round_, Bytes(mine.begin(), mine.end())}));
}

void StoreExchange::fail(const Status& why) {
  if (why.ok() || !failure_.ok()) return;
  failure_ = why;
  if (!connection_.open() || !joined_) return;
  const std::vector<int>& ranks = why.info().ranks;
  const bool own = ranks.empty() || ranks == std::vector<int>{options_.rank};
  connection_.send(store::encode_failed(
      own ? why.with_ranks({options_.rank}).with_prefix(cat("rank ", options_.rank, ": ")) : why));
  connection_.flush();
}

Status StoreExchange::news() {
  if (options_.size == 1 || !failure_.ok()) return failure_;
  bool closed = false;
  failure_ = hear(&closed);
  if (failure_.ok() && (closed || closing_)) failure_ = store_lost();
  return failure_;
}

// Does what take_frames does after this rank has joined. An error of the connection names the store.
Status StoreExchange::hear(bool* closed) {
  Status status = take_frames(closed);
  if (status.code() != Code::kAuth || !status.info().ranks.empty()) return status;
  status = status.with_prefix(cat("the connection to the store at ", address_.text(), " failed: "));
  return options_.external ? status : status.with_ranks({0});
}

Status StoreExchange::take_frames(bool* closed) {
  std::vector<Bytes> frames;
  Status status = connection_.read(&frames, closed);
  for (const Bytes& frame : frames) WEFT_TRY(take_frame(frame));
  return status;
}

Status StoreExchange::take_frame(ByteView frame) {
  const auto nonsense = [&] {
    return Status::error(Code::kInternal,
                         cat("the store at ", address_.text(), " sent an unexpected frame of ", frame.size(),
                             " bytes (type ", static_cast<int>(store::type_of(frame)), ", in round ", round_,
                             "): are it and all ranks of one version of Weft?"));
  };
  switch (store::type_of(frame)) {
    case Type::kJoined:
      joined_ = true;
      return {};
    case Type::kResult: {
      store::Result result;
      if (!store::decode(frame, &result) || result.round != round_ || result.first < 0 ||
          static_cast<size_t>(result.first) != parts_.size() ||
          parts_.size() + result.parts.size() > static_cast<size_t>(options_.size)) {
        return nonsense();
      }
      std::move(result.parts.begin(), result.parts.end(), std::back_inserter(parts_));
      return {};
    }
    case Type::kMissing:
      answered_ = true;
      return store::decode(frame, &missing_) ? Status() : nonsense();
    case Type::kFailed: {
      Status status;
      return store::decode_failed(frame, &status) ? status : nonsense();
    }
    case Type::kClosing:
      closing_ = true;
      return {};
    default:
      return nonsense();
  }
}

Status StoreExchange::store_lost() const {
  if (options_.external) {
    return Status::error(Code::kPeerFailed,
                         cat("the store at ", address_.text(),
                             " closed the connection while the communicator was being created"),
                         Evidence::kConnection);
  }
  return Status::error(Code::kPeerFailed, "rank 0 closed its store while the communicator was being created",
                       Evidence::kConnection)
      .with_ranks({0});
}

Status StoreExchange::absent() const {
  if (!answered_ || missing_.ranks.empty()) {
    return Status::error(Code::kTimeout,
                         cat("the store at ", address_.text(),
                             " did not answer before the deadline: its process hangs or is stopped, or the "
                             "network fails"),
                         Evidence::kDeadline)
        .with_ranks(options_.external ? std::vector<int>{} : std::vector<int>{0});
  }
  const bool one = missing_.ranks.size() == 1;
  std::string text = cat(one ? "rank " : "ranks ", list_text(missing_.ranks), " of ", options_.size,
                         " did not take part before the deadline");
  if (!missing_.note.empty()) text += cat(" (", missing_.note, ")");
  return Status::error(Code::kTimeout, text, Evidence::kDeadline).with_ranks(missing_.ranks);
}

std::string StoreExchange::reachable_host() const {
  if (server_) return address_.host;  // the address that the other ranks were given
  return connection_.open() ? local_host(connection_.fd()) : "";
}

// Sleeps before another attempt.
Status StoreExchange::pause(Deadline deadline) {
  const std::atomic<uint32_t> nobody{0};
  const int64_t ms = invited() ? kReadMs : kRetryMs;
  clock_.sleep(nobody, 0, deadline.earlier(Deadline::after(clock_, ms, 0)).ns());
  return Interrupt::check();
}

}  // namespace weft
