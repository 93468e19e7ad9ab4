// A Link over MPI's messages: one MPI communicator for each of Weft's, and staging memory that MPI writes
// into and reads from. MPI cannot be made to release a buffer while a rank does not answer. Memory that MPI
// still uses when a link ends is never freed.
//
// Threads: as framed/link.h says. MPI_Finalize, on a thread of the program, ends the link first
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
#include "framed/link.h"
#include "library.h"
#include "native.h"
#include "transport/exchange.h"

namespace weft::mpi {

class MpiLink final : public framed::Link {
 public:
  // clock and log outlive the link; exchange outlives join(), which ends by the deadline if MPI lets any
  // thread call it. progress_thread: a thread of Weft calls MPI too. natives: enables MPI's own collectives;
  // equal on all ranks.
  MpiLink(Exchange& exchange, Deadline deadline, bool progress_thread, bool natives, Clock& clock, Log& log);
  ~MpiLink() override;

  Status open(framed::LinkEvents& events, Bytes* address) override;
  bool joins() const override { return true; }
  Status join(const std::vector<ByteView>& addresses) override;
  Status connect(int peer, ByteView address, framed::LinkLimits* limits) override;
  bool send(int peer, ByteView head, ByteView data, framed::InFlightFrame& frame) override;
  bool progress() override;
  void close(int peer) override;
  void stop() override;
  bool settled() override;
  std::string path(int /*peer*/) const override { return "MPI"; }
  std::string about() const override { return version(); }
  Offload* offload() override { return natives_.get(); }
  const char* name() const override { return with_natives_ ? "mpi.native" : "mpi"; }

 private:
  // A frame that waits for a slot. Only such frames are in-flight buffers.
  struct Waiting {
    int peer = 0;
    ByteView head;
    ByteView data;
    framed::InFlightFrame* frame = nullptr;  // null: it was returned
  };

  Status make_communicator(const std::vector<int>& world_ranks, int tag);
  Status create_group(MPI_Group group, int tag, std::vector<MPI_Comm>* natives);
  bool may_call();  // true if this thread may call MPI now; otherwise all peers are lost, once
  void lose_all(const Status& why);
  std::byte* receive_slot(size_t i) { return staging_.get() + i * kSlotBytes; }
  std::byte* send_slot(size_t i) { return staging_.get() + (kReceives + i) * kSlotBytes; }
  int post_receive(size_t i);
  bool receive();
  bool reclaim();  // frees the slots of sent frames
  bool send_waiting();
  void start(size_t slot, int peer, ByteView head, ByteView data);
  void wind_up();  // sends the last frames; MPI releases the staging, or keeps it
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
  framed::LinkEvents* events_ = nullptr;
  Callers callers_ = Callers::kAny;
  std::thread::id opener_;

  std::recursive_mutex mutex_;        // guards the members below; taken again by sends from inside on_frame()
  MPI_Comm comm_ = MPI_COMM_NULL;     // null: MPI is no longer called, or not yet
  std::unique_ptr<Natives> natives_;  // or null
  int keyval_ = MPI_KEYVAL_INVALID;
  // The attribute of MPI_COMM_SELF: this link, or null once the link has ended.
  std::unique_ptr<std::atomic<MpiLink*>> attached_;
  std::unique_ptr<std::byte[]> staging_;
  std::vector<MPI_Request> receives_;  // of each receive slot
  size_t next_receive_ = 0;            // the receive posted first: frames are received in this order
  std::vector<MPI_Request> sends_;     // of each send slot; null: free
  std::vector<int> send_peers_;
  std::vector<size_t> free_slots_;
  std::vector<int> completed_;        // for MPI_Testsome
  std::vector<MPI_Status> statuses_;  // the same
  std::vector<Waiting> waiting_;      // from first_waiting_ on
  size_t first_waiting_ = 0;
  std::vector<framed::InFlightFrame*> given_up_;  // returned by the next progress()
  int goodbyes_ = 0;                              // last frames received, one for each rank
  bool winding_up_ = false;
  bool all_lost_ = false;
  std::atomic<bool> stopping_{false};    // set by stop()
  std::atomic<bool> finalising_{false};  // MPI_Finalize is in on_finalize
  std::atomic<bool> ended_{false};       // by MPI_Finalize
};

}  // namespace weft::mpi
