// A Link over MPI's messages: one MPI communicator for each of Weft's, and staging memory (staging.h) that
// MPI writes into and reads from.
//
// Threads: as framed/link.h says. MPI_Finalize, on a thread of the program, ends the link first
// (finalize_hook.h), so every use of MPI is under mutex_.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "finalize_hook.h"
#include "framed/link.h"
#include "library.h"
#include "native.h"
#include "staging.h"
#include "transport/exchange.h"
#include "waiting_frames.h"

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
  Status make_communicator(std::vector<int> world_ranks, int tag);
  bool may_call();  // true if this thread may call MPI now; otherwise all peers are lost, once
  void lose_all(const Status& why);
  bool receive();
  bool reclaim();  // frees the slots of sent frames
  bool send_waiting();
  void start(int peer, ByteView head, ByteView data);
  void wind_up();  // sends the last frames; MPI releases the staging, or keeps it
  template <class Done>
  bool within_time(std::vector<MPI_Request>& requests, Done&& done);

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
  SendSlots sends_;
  ReceiveSlots receives_;
  WaitingFrames waiting_;
  int goodbyes_ = 0;  // last frames received, one for each rank
  bool winding_up_ = false;
  bool all_lost_ = false;
  FinalizeHook finalize_hook_;
};

}  // namespace weft::mpi
