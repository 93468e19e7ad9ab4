#include "mpi_link.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <span>
#include <utility>

#include "base/guard.h"
#include "base/text.h"
#include "base/thread.h"
#include "framed/wire.h"

namespace weft::mpi {
namespace {

constexpr int kFrameTag = 0;
// Most messages are sent without an offer, because the receiver's answer also waits for a busy rank to call
// MPI.
constexpr uint64_t kEagerBytes = 256 * 1024;
// The most frames that one call of progress() receives.
constexpr int kMostHeard = 16;
// Time for MPI to release the staging, and time that MPI_Finalize waits for a running call.
constexpr int64_t kWindUpMs = 1000;
constexpr int64_t kFinalizeMs = 4 * kWindUpMs;  // for the call, and to wind up

// The address of a rank. The tag separates its communicator from others that are created at the same time.
struct Address {
  int32_t world_rank = 0;
  int32_t world_size = 0;
  int32_t tag = 0;
};
constexpr int kLeastTagBound = 32767;  // the least that MPI guarantees

bool parse(ByteView bytes, Address* address) {
  if (bytes.size() != sizeof *address) return false;
  std::memcpy(address, bytes.data(), sizeof *address);
  return address->world_rank >= 0 && address->world_rank < address->world_size && address->tag >= 0 &&
         address->tag <= kLeastTagBound;
}

Status lost_status(int peer, const std::string& why) {
  return Status::error(Code::kPeerFailed,
                       cat("a message between this rank and rank ", peer, " failed: ", why),
                       Evidence::kConnection)
      .with_ranks({peer});
}

int class_of(int error) {
  int result = MPI_ERR_OTHER;
  MPI_Error_class(error, &result);
  return result;
}

}  // namespace

MpiLink::MpiLink(Exchange& exchange, Deadline deadline, bool progress_thread, bool natives, Clock& clock,
                 Log& log)
    : exchange_(exchange),
      deadline_(deadline),
      rank_(exchange.rank()),
      size_(exchange.size()),
      progress_thread_(progress_thread),
      with_natives_(natives),
      clock_(clock),
      log_(log) {}

MpiLink::~MpiLink() {
  stop();
}

Status MpiLink::open(framed::LinkEvents& events, Bytes* address) {
  events_ = &events;
  WEFT_TRY(begin(size_, progress_thread_, &callers_));
  opener_ = std::this_thread::get_id();
  Address mine;
  MPI_Comm_rank(MPI_COMM_WORLD, &mine.world_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &mine.world_size);
  if (mine.world_size < size_) {
    return Status::error(Code::kUnavailable,
                         cat("MPI_COMM_WORLD has ", mine.world_size,
                             mine.world_size == 1 ? " rank" : " ranks", ", and the communicator has ", size_,
                             ": start the ranks together, with the mpirun of ", version()));
  }
  mine.tag = static_cast<int32_t>(clock_.now_ns() % kLeastTagBound);
  const ByteView bytes = std::as_bytes(std::span(&mine, 1));
  address->assign(bytes.begin(), bytes.end());
  return {};
}

Status MpiLink::join(const std::vector<ByteView>& addresses) {
  std::vector<int> world_ranks;
  std::set<int> seen;
  int tag = 0;
  int world_size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  for (size_t r = 0; r < addresses.size(); r++) {
    Address theirs;
    if (!parse(addresses[r], &theirs) || theirs.world_size != world_size ||
        !seen.insert(theirs.world_rank).second) {
      const int name = exchange_.name(static_cast<int>(r));
      return Status::error(Code::kUnavailable, cat("rank ", name,
                                                   " is not in this rank's MPI job: start all ranks with one "
                                                   "mpirun"))
          .with_ranks({name});
    }
    world_ranks.push_back(theirs.world_rank);
    if (r == 0) tag = theirs.tag;
  }
  const std::lock_guard lock(mutex_);
  WEFT_TRY(make_communicator(world_ranks, tag));
  staging_ = std::make_unique<std::byte[]>((kReceives + kSends) * kSlotBytes);
  receives_.assign(kReceives, MPI_REQUEST_NULL);
  sends_.assign(kSends, MPI_REQUEST_NULL);
  send_peers_.resize(kSends);
  completed_.resize(kSends);
  statuses_.resize(kSends);
  for (size_t i = 0; i < kSends; i++) free_slots_.push_back(i);
  for (size_t i = 0; i < kReceives; i++) {
    const int error = post_receive(i);
    if (error != MPI_SUCCESS) return failed("MPI_Irecv", error);
  }
  return {};
}

// While one exists, errors of MPI_COMM_WORLD are returned, also to the program. Otherwise the program's
// handler decides, and MPI's default handler ends the job. Any thread.
class WorldErrors {
 public:
  WorldErrors() {
    const std::lock_guard lock(mutex);
    if (users++ > 0) return;
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &programs);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  }
  ~WorldErrors() {
    const std::lock_guard lock(mutex);
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (--users > 0 || finalized != 0) return;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, programs);
    MPI_Errhandler_free(&programs);
  }
  WorldErrors(const WorldErrors&) = delete;
  WorldErrors& operator=(const WorldErrors&) = delete;

 private:
  static inline std::mutex mutex;
  static inline int users = 0;                                  // guarded by mutex
  static inline MPI_Errhandler programs = MPI_ERRHANDLER_NULL;  // guarded by mutex
};

// The communicators that one call creates: the link's, and those of MPI's own collectives if they are wanted.
struct Making {
  MPI_Comm comm = MPI_COMM_NULL;
  std::vector<MPI_Comm> natives;
  const char* call = "";
  int error = MPI_SUCCESS;
  Status thrown;  // by the thread
  std::atomic<bool> over{false};

  void make(MPI_Group group, int tag, bool with_natives) {
    const WorldErrors returned;
    call = "MPI_Comm_create_group";
    error = MPI_Comm_create_group(MPI_COMM_WORLD, group, tag, &comm);
    if (error == MPI_SUCCESS) error = MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    if (error != MPI_SUCCESS || !with_natives) return;
    call = "MPI_Comm_dup";
    error = Natives::make(comm, &natives);
  }
};

// Creates the communicators. MPI's calls have no deadline, so a thread makes them. If a rank does not take
// part, the thread and what it creates are left to MPI. There is no such thread where only one thread may
// call MPI; the ranks have just agreed that all of them take part.
Status MpiLink::create_group(MPI_Group group, int tag, std::vector<MPI_Comm>* natives) {
  const auto making = std::make_shared<Making>();
  if (callers_ != Callers::kAny) {
    making->make(group, tag, with_natives_);
  } else {
    std::thread thread;
    const auto body = [making, group, tag, with_natives = with_natives_] {
      const LongCall call;
      making->thrown = guarded_run([&] { making->make(group, tag, with_natives); });
      making->over.store(true, std::memory_order_release);
    };
    WEFT_TRY(start_thread("weft-mpi-join", body, {}, &thread));
    thread.detach();
    // Reserves part of the time for the exchange of the ranks' results.
    const uint64_t now = clock_.now_ns();
    const Deadline deadline = Deadline::at(now + (std::max(deadline_.ns(), now) - now) / 4 * 3);
    for (uint32_t round = 0; !making->over.load(std::memory_order_acquire); round++) {
      WEFT_TRY(exchange_.check());
      if (deadline.expired(clock_)) {
        return Status::error(Code::kTimeout,
                             "MPI has not made its communicator by the deadline: some rank has not reached "
                             "MPI_Comm_create_group, and MPI does not report which one",
                             Evidence::kDeadline);
      }
      clock_.relax(round);
    }
  }
  WEFT_TRY(making->thrown);
  comm_ = making->comm;
  *natives = making->natives;
  return making->error == MPI_SUCCESS ? Status() : failed(making->call, making->error);
}

Status MpiLink::make_communicator(const std::vector<int>& world_ranks, int tag) {
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group group = MPI_GROUP_NULL;
  int error = MPI_Comm_group(MPI_COMM_WORLD, &world);
  if (error == MPI_SUCCESS) error = MPI_Group_incl(world, size_, world_ranks.data(), &group);
  if (world != MPI_GROUP_NULL) MPI_Group_free(&world);
  if (error != MPI_SUCCESS) return failed("MPI_Group_incl", error);
  std::vector<MPI_Comm> natives;
  const Status created = create_group(group, tag, &natives);
  // Otherwise the thread may still use the group.
  if (created.ok()) MPI_Group_free(&group);
  WEFT_TRY(created);
  MPI_Comm_set_name(comm_, "weft");
  if (with_natives_) natives_ = std::make_unique<Natives>(natives, mutex_, [this] { return may_call(); });
  // MPI_Finalize first deletes the attributes of MPI_COMM_SELF.
  error = MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, on_finalize, &keyval_, nullptr);
  attached_ = std::make_unique<std::atomic<MpiLink*>>(this);
  if (error == MPI_SUCCESS) error = MPI_Comm_set_attr(MPI_COMM_SELF, keyval_, attached_.get());
  return error == MPI_SUCCESS ? Status() : failed("MPI_Comm_set_attr", error);
}

Status MpiLink::connect(int /*peer*/, ByteView /*address*/, framed::LinkLimits* limits) {
  limits->piece_bytes = kSlotBytes - framed::kMostHeadBytes;
  limits->eager_bytes = kEagerBytes;
  return {};
}

bool MpiLink::send(int peer, ByteView head, ByteView data, framed::InFlightFrame& frame) {
  const std::lock_guard lock(mutex_);
  if (!may_call()) return false;
  if (free_slots_.empty() || first_waiting_ < waiting_.size()) {
    frame.busy = true;
    frame.peer = peer;
    waiting_.push_back({peer, head, data, &frame});
    return true;
  }
  const size_t slot = free_slots_.back();
  free_slots_.pop_back();
  start(slot, peer, head, data);
  return false;
}

// Uses a synchronous send: it completes when the receiver has begun to receive. A standard send may complete
// when MPI has buffered the data, and only further MPI calls would send it on.
void MpiLink::start(size_t slot, int peer, ByteView head, ByteView data) {
  std::byte* const to = send_slot(slot);
  std::memcpy(to, head.data(), head.size());
  if (!data.empty()) std::memcpy(to + head.size(), data.data(), data.size());
  send_peers_[slot] = peer;
  const int error = MPI_Issend(to, static_cast<int>(head.size() + data.size()), MPI_BYTE, peer, kFrameTag,
                               comm_, &sends_[slot]);
  if (error == MPI_SUCCESS) return;
  sends_[slot] = MPI_REQUEST_NULL;
  free_slots_.push_back(slot);
  events_->lost(peer, lost_status(peer, words(error)));
}

bool MpiLink::progress() {
  const std::lock_guard lock(mutex_);
  bool any = !given_up_.empty();
  for (framed::InFlightFrame* frame : std::exchange(given_up_, {})) events_->sent(*frame, {});
  if (!may_call()) return any;
  any |= receive();
  any |= reclaim();
  any |= send_waiting();
  return any;
}

int MpiLink::post_receive(size_t i) {
  return MPI_Irecv(receive_slot(i), static_cast<int>(kSlotBytes), MPI_BYTE, MPI_ANY_SOURCE, kFrameTag, comm_,
                   &receives_[i]);
}

bool MpiLink::receive() {
  if (receives_.empty()) return false;
  bool any = false;
  for (int heard = 0; heard < kMostHeard && comm_ != MPI_COMM_NULL; heard++) {
    int done = 0;
    int bytes = 0;
    MPI_Status status{};
    int error = MPI_Test(&receives_[next_receive_], &done, &status);
    if (error == MPI_SUCCESS && done == 0) break;
    if (error == MPI_SUCCESS) error = MPI_Get_count(&status, MPI_BYTE, &bytes);
    if (error == MPI_SUCCESS && bytes >= 0) {
      const ByteView frame(receive_slot(next_receive_), static_cast<size_t>(bytes));
      const ByteView head = framed::head_of(frame);
      if (bytes == 0) {
        goodbyes_++;
      } else if (!winding_up_) {
        events_->on_frame(head, frame.subspan(head.size()));
      }
      any = true;
      error = post_receive(next_receive_);
    }
    if (error != MPI_SUCCESS) {
      lose_all(Status::error(Code::kPeerFailed, cat("MPI cannot receive any more: ", words(error)),
                             Evidence::kLocal));
      break;
    }
    next_receive_ = (next_receive_ + 1) % kReceives;
  }
  return any;
}

bool MpiLink::reclaim() {
  if (comm_ == MPI_COMM_NULL || free_slots_.size() == kSends) return false;
  int count = 0;
  const int error =
      MPI_Testsome(static_cast<int>(kSends), sends_.data(), &count, completed_.data(), statuses_.data());
  const bool single = error != MPI_SUCCESS && class_of(error) == MPI_ERR_IN_STATUS;
  if (error != MPI_SUCCESS && !single) {
    lose_all(
        Status::error(Code::kPeerFailed, cat("MPI cannot send any more: ", words(error)), Evidence::kLocal));
    return true;
  }
  if (count == MPI_UNDEFINED) count = 0;
  for (int i = 0; i < count; i++) {
    const auto slot = static_cast<size_t>(completed_[static_cast<size_t>(i)]);
    const int failure = !single ? MPI_SUCCESS : statuses_[static_cast<size_t>(i)].MPI_ERROR;
    free_slots_.push_back(slot);
    if (failure != MPI_SUCCESS)
      events_->lost(send_peers_[slot], lost_status(send_peers_[slot], words(failure)));
  }
  return count > 0;
}

bool MpiLink::send_waiting() {
  bool any = false;
  while (comm_ != MPI_COMM_NULL && first_waiting_ < waiting_.size() && !free_slots_.empty()) {
    const Waiting next = waiting_[first_waiting_++];
    if (next.frame == nullptr) continue;
    const size_t slot = free_slots_.back();
    free_slots_.pop_back();
    start(slot, next.peer, next.head, next.data);
    events_->sent(*next.frame, {});
    any = true;
  }
  if (first_waiting_ == waiting_.size()) {
    waiting_.clear();
    first_waiting_ = 0;
  }
  return any;
}

void MpiLink::close(int peer) {
  const std::lock_guard lock(mutex_);
  for (size_t i = first_waiting_; i < waiting_.size(); i++) {
    if (waiting_[i].peer == peer && waiting_[i].frame != nullptr) {
      given_up_.push_back(std::exchange(waiting_[i].frame, nullptr));
    }
  }
}

bool MpiLink::settled() {
  const std::lock_guard lock(mutex_);
  if (!may_call()) return true;
  reclaim();
  send_waiting();
  const bool natives = natives_ == nullptr || natives_->settled();
  return natives && free_slots_.size() == kSends && first_waiting_ == waiting_.size();
}

void MpiLink::stop() {
  // MPI_Finalize, on another thread, may be about to take the lock; it must be done with the link first.
  const Deadline deadline = Deadline::after(clock_, kFinalizeMs, 0);
  for (uint32_t round = 0; finalising_ && !deadline.expired(clock_); round++) clock_.relax(round);
  const std::lock_guard lock(mutex_);
  waiting_.clear();
  given_up_.clear();
  first_waiting_ = 0;
  if (keyval_ == MPI_KEYVAL_INVALID && comm_ == MPI_COMM_NULL) return;
  if (callers_ == Callers::kMainThread && std::this_thread::get_id() != opener_) {
    attached_.release()->store(nullptr);
    static_cast<void>(staging_.release());
    keyval_ = MPI_KEYVAL_INVALID;
    comm_ = MPI_COMM_NULL;
    return;
  }
  // Deletes the attribute, which winds up (on_finalize).
  if (keyval_ != MPI_KEYVAL_INVALID && !ended_) {
    stopping_ = true;
    MPI_Comm_delete_attr(MPI_COMM_SELF, keyval_);
    MPI_Comm_free_keyval(&keyval_);
  }
}

bool MpiLink::may_call() {
  if (ended_ || comm_ == MPI_COMM_NULL) {
    lose_all(Status::error(Code::kState, "MPI was finalised while the communicator was in use"));
    return false;
  }
  if (callers_ != Callers::kMainThread || std::this_thread::get_id() == opener_) return true;
  lose_all(
      Status::error(Code::kState,
                    "MPI was not initialised for several threads: only the thread that initialised it may "
                    "wait for this communicator"));
  return false;
}

void MpiLink::lose_all(const Status& why) {
  if (std::exchange(all_lost_, true) || winding_up_) return;
  for (size_t i = first_waiting_; i < waiting_.size(); i++) {
    if (waiting_[i].frame != nullptr) given_up_.push_back(std::exchange(waiting_[i].frame, nullptr));
  }
  log_.error(why.text());
  for (int r = 0; r < size_; r++) {
    if (r != rank_) events_->lost(r, why);
  }
}

// Winds up. A rank may free its MPI_Comm only when nothing can arrive for it any more: MPI gives the number
// of a freed communicator to the next one, which would receive late messages. So each rank sends a last,
// empty frame to every other rank. A rank that has not received all of them in time never frees the MPI_Comm.
void MpiLink::wind_up() {
  if (comm_ == MPI_COMM_NULL) return;
  winding_up_ = true;
  const bool lost_before = all_lost_;
  std::vector<MPI_Request> leaving = std::exchange(sends_, {});
  const size_t data = leaving.size();
  for (int r = 0; r < size_ && !all_lost_ && staging_ != nullptr; r++) {
    if (r == rank_) continue;
    leaving.push_back(MPI_REQUEST_NULL);
    if (MPI_Issend(nullptr, 0, MPI_BYTE, r, kFrameTag, comm_, &leaving.back()) != MPI_SUCCESS)
      all_lost_ = true;
  }
  const auto everybody_is_done = [&] {
    receive();
    return goodbyes_ == size_ - 1 && (natives_ == nullptr || natives_->settled());
  };
  const bool clean = !all_lost_ && within_time(leaving, everybody_is_done);
  for (MPI_Request& request : receives_) {
    if (request != MPI_REQUEST_NULL) MPI_Cancel(&request);
  }
  const bool cancelled = within_time(receives_, [] { return true; });
  if (clean && natives_ != nullptr) natives_->free();
  if (clean && cancelled) MPI_Comm_free(&comm_);
  // Only the data sends count. If one is incomplete, MPI may still use the staging; goodbyes have no bytes.
  leaving.resize(data);
  const bool gone = std::all_of(leaving.begin(), leaving.end(), [](MPI_Request& request) {
    int complete = 0;
    return MPI_Test(&request, &complete, MPI_STATUS_IGNORE) == MPI_SUCCESS && complete != 0;
  });
  if (!gone || !cancelled) static_cast<void>(staging_.release());
  // After MPI_Finalize, the next use of the link reports the loss.
  all_lost_ = lost_before;
  winding_up_ = false;
  comm_ = MPI_COMM_NULL;
}

// Returns true if all requests complete, and done() becomes true, within kWindUpMs.
template <class Done>
bool MpiLink::within_time(std::vector<MPI_Request>& requests, Done&& done) {
  const Deadline deadline = Deadline::after(clock_, kWindUpMs, 0);
  for (uint32_t round = 0;; round++) {
    int complete = 0;
    const int error =
        MPI_Testall(static_cast<int>(requests.size()), requests.data(), &complete, MPI_STATUSES_IGNORE);
    if (error != MPI_SUCCESS) return false;
    if (done() && complete != 0) return true;
    if (deadline.expired(clock_)) return false;
    clock_.relax(round);
  }
}

// ---- called by MPI
// -----------------------------------------------------------------------------------------------------

// Called from stop(), or as the first step of MPI_Finalize.
int MpiLink::on_finalize(MPI_Comm /*self*/, int /*keyval*/, void* attached, void* /*state*/) {
  MpiLink* const link = *static_cast<std::atomic<MpiLink*>*>(attached);
  if (link == nullptr) return MPI_SUCCESS;
  MpiLink& self = *link;
  const bool finalising = !self.stopping_;
  if (finalising) {
    self.finalising_ = true;
    self.ended_ = true;
  }
  // The thread that holds the lock may wait for a lock of MPI_Finalize, so MPI_Finalize continues without
  // this link after a while.
  const Deadline deadline = Deadline::after(self.clock_, kWindUpMs, 0);
  bool locked = self.mutex_.try_lock();
  for (uint32_t round = 0; !locked && !deadline.expired(self.clock_); round++) {
    self.clock_.relax(round);
    locked = self.mutex_.try_lock();
  }
  if (locked) {
    (void)guarded_run([&] { self.wind_up(); }).ok();  // no exception passes through MPI
    self.mutex_.unlock();
  }
  if (finalising) self.finalising_ = false;  // the last access: stop() may be waiting for it
  return MPI_SUCCESS;
}

}  // namespace weft::mpi
