#include "mpi_link.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <span>
#include <utility>

#include "base/text.h"
#include "communicators.h"
#include "framed/wire.h"

namespace weft::mpi {
namespace {

// Most messages are sent without an offer, because the receiver's answer also waits for a busy rank to call
// MPI.
constexpr uint64_t kEagerBytes = 256 * 1024;
// The most frames that one call of progress() receives.
constexpr int kMostHeard = 16;
// Time for MPI to release the staging.
constexpr int64_t kWindUpMs = 1000;

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
      log_(log),
      finalize_hook_(mutex_, clock, [this] { wind_up(); }) {}

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
  WEFT_TRY(make_communicator(std::move(world_ranks), tag));
  sends_.allocate();
  const int error = receives_.post_all(comm_);
  return error == MPI_SUCCESS ? Status() : failed("MPI_Irecv", error);
}

Status MpiLink::make_communicator(std::vector<int> world_ranks, int tag) {
  Communicators made;
  const CommunicatorRequest request{exchange_, clock_,       deadline_, callers_, std::move(world_ranks),
                                    tag,       with_natives_};
  const Status created = create_communicators(request, &made);
  comm_ = made.link;
  WEFT_TRY(created);
  MPI_Comm_set_name(comm_, "weft");
  if (with_natives_) {
    natives_ = std::make_unique<Natives>(made.natives, mutex_, [this] { return may_call(); });
  }
  const int error = finalize_hook_.attach();
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
  if (sends_.full() || !waiting_.empty()) {
    waiting_.add(peer, head, data, frame);
    return true;
  }
  start(peer, head, data);
  return false;
}

void MpiLink::start(int peer, ByteView head, ByteView data) {
  const int error = sends_.send(comm_, peer, head, data);
  if (error != MPI_SUCCESS) events_->lost(peer, lost_status(peer, words(error)));
}

bool MpiLink::progress() {
  const std::lock_guard lock(mutex_);
  const std::vector<framed::InFlightFrame*> given_up = waiting_.take_given_up();
  bool any = !given_up.empty();
  for (framed::InFlightFrame* frame : given_up) events_->sent(*frame, {});
  if (!may_call()) return any;
  any |= receive();
  any |= reclaim();
  any |= send_waiting();
  return any;
}

bool MpiLink::receive() {
  bool any = false;
  for (int heard = 0; heard < kMostHeard && comm_ != MPI_COMM_NULL; heard++) {
    bool received = false;
    ByteView frame;
    int error = receives_.test(&received, &frame);
    if (error == MPI_SUCCESS && !received) break;
    if (error == MPI_SUCCESS) {
      const ByteView head = framed::head_of(frame);
      if (frame.empty()) {
        goodbyes_++;
      } else if (!winding_up_) {
        events_->on_frame(head, frame.subspan(head.size()));
      }
      any = true;
      error = receives_.repost(comm_);
    }
    if (error != MPI_SUCCESS) {
      lose_all(Status::error(Code::kPeerFailed, cat("MPI cannot receive any more: ", words(error)),
                             Evidence::kLocal));
      break;
    }
  }
  return any;
}

bool MpiLink::reclaim() {
  if (comm_ == MPI_COMM_NULL) return false;
  int error = MPI_SUCCESS;
  const auto not_sent = [&](int peer, int why) { events_->lost(peer, lost_status(peer, words(why))); };
  const bool any = sends_.reclaim(&error, not_sent);
  if (error == MPI_SUCCESS) return any;
  lose_all(
      Status::error(Code::kPeerFailed, cat("MPI cannot send any more: ", words(error)), Evidence::kLocal));
  return true;
}

bool MpiLink::send_waiting() {
  bool any = false;
  WaitingFrames::Frame next;
  while (comm_ != MPI_COMM_NULL && !sends_.full() && waiting_.take(&next)) {
    start(next.peer, next.head, next.data);
    events_->sent(*next.frame, {});
    any = true;
  }
  return any;
}

void MpiLink::close(int peer) {
  const std::lock_guard lock(mutex_);
  waiting_.give_up(peer);
}

bool MpiLink::settled() {
  const std::lock_guard lock(mutex_);
  if (!may_call()) return true;
  reclaim();
  send_waiting();
  const bool natives = natives_ == nullptr || natives_->settled();
  return natives && sends_.idle() && waiting_.empty();
}

void MpiLink::stop() {
  // MPI_Finalize, on another thread, may be about to take the lock; it must be done with the link first.
  finalize_hook_.await_finalize();
  const std::lock_guard lock(mutex_);
  waiting_.clear();
  if (!finalize_hook_.attached() && comm_ == MPI_COMM_NULL) return;
  if (callers_ == Callers::kMainThread && std::this_thread::get_id() != opener_) {
    finalize_hook_.forget();
    sends_.abandon();
    receives_.abandon();
    comm_ = MPI_COMM_NULL;
    return;
  }
  finalize_hook_.detach();  // winds up
}

bool MpiLink::may_call() {
  if (finalize_hook_.finalised() || comm_ == MPI_COMM_NULL) {
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
  waiting_.give_up_all();
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
  std::vector<MPI_Request> leaving = sends_.take_requests();
  const size_t data = leaving.size();
  for (int r = 0; r < size_ && !all_lost_ && sends_.allocated(); r++) {
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
  const bool cancelled = within_time(receives_.cancel(), [] { return true; });
  if (clean && natives_ != nullptr) natives_->free();
  if (clean && cancelled) MPI_Comm_free(&comm_);
  // Only the data sends count. If one is incomplete, MPI may still use the staging; goodbyes have no bytes.
  leaving.resize(data);
  const bool gone = std::all_of(leaving.begin(), leaving.end(), [](MPI_Request& request) {
    int complete = 0;
    return MPI_Test(&request, &complete, MPI_STATUS_IGNORE) == MPI_SUCCESS && complete != 0;
  });
  if (!gone) sends_.abandon();
  if (!cancelled) receives_.abandon();
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

}  // namespace weft::mpi
