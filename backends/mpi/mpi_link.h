// A Link over MPI's messages: a communicator of MPI's for each of Weft's, and staging of Weft's own that MPI
// writes into and reads from. MPI cannot be told to leave a buffer alone while a rank does not answer; what
// it still holds when a link goes is never freed.
//
// Threads: as frames/link.h says. MPI_Finalize, on a thread of the program, ends the link first
// (on_finalize), so every use of MPI is under mutex_.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "core/exchange.h"
#include "frames/link.h"
#include "library.h"
#include "native.h"

namespace weft::mpi {

class MpiLink final : public frames::Link {
 public:
  // clock and log outlive the link, exchange join(), which ends by the deadline where MPI lets any thread
  // call it. progress_thread: MPI is called from a thread of Weft's own, too. natives: with MPI's own
  // collectives, the same on all ranks.
  MpiLink(Exchange& exchange, Deadline deadline, bool progress_thread, bool natives, Clock& clock, Log& log);
  ~MpiLink() override;

  Status open(frames::LinkEvents& events, Bytes* address) override;
  bool joins() const override { return true; }
  Status join(const std::vector<ByteView>& addresses) override;
  Status connect(int peer, ByteView address, frames::LinkLimits* limits) override;
  bool send(int peer, ByteView head, ByteView data, frames::Lent& lent) override;
  bool progress() override;
  void close(int peer) override;
  void stop() override;
  bool settled() override;
  std::string path(int /*peer*/) const override { return "MPI"; }
  std::string about() const override { return version(); }
  Offload* offload() override { return natives_.get(); }
  const char* name() const override { return with_natives_ ? "mpi.native" : "mpi"; }

 private:
  // A frame that waits for a slot: the only ones that are lent.
  struct Waiting {
    int peer = 0;
    ByteView head;
    ByteView data;
    frames::Lent* lent = nullptr;  // null: it was given back
  };

  Status make_communicator(const std::vector<int>& world_ranks, int tag);
  Status create_group(MPI_Group group, int tag, std::vector<MPI_Comm>* natives);
  bool may_call();  // MPI, now, on this thread; else all peers are lost, once
  void lose_all(const Status& why);
  std::byte* receive_slot(size_t i) { return staging_.get() + i * kSlotBytes; }
  std::byte* send_slot(size_t i) { return staging_.get() + (kReceives + i) * kSlotBytes; }
  int post_receive(size_t i);
  bool receive();
  bool reclaim();  // slots whose frames have gone
  bool send_waiting();
  void start(size_t slot, int peer, ByteView head, ByteView data);
  void wind_up();  // the other ranks are told, and MPI lets go of the staging, or it is left to MPI
  template <class Done>
  bool within_time(std::vector<MPI_Request>& requests, Done&& done);
  static int on_finalize(MPI_Comm self, int keyval, void* attached, void* state);

  static constexpr size_t kSlotBytes = 64 * 1024;
  static constexpr size_t kReceives = 32;
  static constexpr size_t kSends = 32;

  Exchange& exchange_;
  const Deadline deadline_;
  const int rank_;
  const int size_;
  const bool progress_thread_;
  const bool with_natives_;
  Clock& clock_;
  Log& log_;
  frames::LinkEvents* events_ = nullptr;
  Callers callers_ = Callers::kAny;
  std::thread::id opener_;

  std::recursive_mutex mutex_;        // what is below; taken again by sends from inside heard()
  MPI_Comm comm_ = MPI_COMM_NULL;     // null: MPI is not called (any more)
  std::unique_ptr<Natives> natives_;  // or null
  int keyval_ = MPI_KEYVAL_INVALID;
  // What MPI_COMM_SELF is given: this link, or null once it is gone.
  std::unique_ptr<std::atomic<MpiLink*>> attached_;
  std::unique_ptr<std::byte[]> staging_;
  std::vector<MPI_Request> receives_;  // of each receive slot
  size_t next_receive_ = 0;            // the one that was posted first: frames are heard in this order
  std::vector<MPI_Request> sends_;     // of each send slot; null: free
  std::vector<int> send_peers_;
  std::vector<size_t> free_slots_;
  std::vector<int> completed_;        // for MPI_Testsome
  std::vector<MPI_Status> statuses_;  // the same
  std::vector<Waiting> waiting_;      // from first_waiting_ on
  size_t first_waiting_ = 0;
  std::vector<frames::Lent*> given_up_;  // come back with the next progress()
  int farewells_ = 0;                    // last frames heard, one a rank
  bool winding_up_ = false;
  bool all_lost_ = false;
  std::atomic<bool> stopping_{false};    // by stop()
  std::atomic<bool> finalising_{false};  // MPI_Finalize is in on_finalize
  std::atomic<bool> ended_{false};       // by MPI_Finalize
};

}  // namespace weft::mpi
