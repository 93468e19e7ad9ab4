// The MPI library's own non-blocking collectives (backend mpi.native). They have MPI communicators beside the
// link's, one for each lane that uses them, because a communicator has a single order of operations.
//
// Threads: as transport/offload.h says. Every use of MPI is under the link's mutex and after its may_call
// check.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <vector>

#include "library.h"
#include "transport/offload.h"

namespace weft::mpi {

class Natives final : public Offload {
 public:
  // One lane for the user's collectives, and two for a reducer.
  static constexpr size_t kLanes = 3;

  // Creates the communicators beside comm; collective, without a deadline, like MPI_Comm_dup. *made receives
  // what was created, even after an error.
  static int make(MPI_Comm comm, std::vector<MPI_Comm>* made);
  // mutex and may_call outlive the object. may_call is called with mutex held.
  Natives(const std::vector<MPI_Comm>& made, std::recursive_mutex& mutex, std::function<bool()> may_call);
  ~Natives() override = default;  // communicators that were not freed stay with MPI

  const char* name() const override { return "mpi"; }
  uint32_t lanes() const override { return kLanes; }
  bool executes(const CollectiveArgs& args) const override;
  Status start(uint32_t lane, size_t place, const CollectiveArgs& part) override;
  Status test(uint32_t lane, size_t place, bool* done) override;
  void end(uint32_t lane) override;
  uint64_t ended() const override { return ended_.load(std::memory_order_relaxed); }

  // Returns true if all ranks are done with the operations that this rank has ended, and advances them. Needs
  // mutex, like the functions below.
  bool settled();
  // Frees the communicators. No rank has an operation in flight.
  void free();

 private:
  struct Line {
    MPI_Comm comm = MPI_COMM_NULL;
    std::array<MPI_Request, kDepth> parts{};
    std::vector<MPI_Request> ends;  // barriers of operations that other ranks may still execute
  };
  static int call(const Line& line, const CollectiveArgs& part, MPI_Request* request);
  static Status finalised();

  std::recursive_mutex& mutex_;
  const std::function<bool()> may_call_;
  std::vector<Line> lines_;
  std::atomic<uint64_t> ended_{0};
};

}  // namespace weft::mpi
