// The MPI library's own non-blocking collectives (backend mpi.native): communicators of MPI's beside the
// link's, one for each lane that uses them, because each has one order of operations.
//
// Threads: as core/offload.h says. Every use of MPI is under the link's mutex and behind its check.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <vector>

#include "core/offload.h"
#include "library.h"

namespace weft::mpi {

class Natives final : public Offload {
 public:
  // The user's collectives, and a reducer of two lanes.
  static constexpr size_t kLanes = 3;

  // Beside comm; collective, without a deadline, as MPI_Comm_dup is. What was made is in *made, errors or
  // not.
  static int make(MPI_Comm comm, std::vector<MPI_Comm>* made);
  // mutex and may_call, which is called with it held, outlive the object.
  Natives(const std::vector<MPI_Comm>& made, std::recursive_mutex& mutex, std::function<bool()> may_call);
  ~Natives() override = default;  // what was not freed stays MPI's

  const char* name() const override { return "mpi"; }
  uint32_t lanes() const override { return kLanes; }
  bool executes(const CollectiveArgs& args) const override;
  Status start(uint32_t lane, size_t place, const CollectiveArgs& part) override;
  Status test(uint32_t lane, size_t place, bool* done) override;
  void end(uint32_t lane) override;
  uint64_t ended() const override { return ended_.load(std::memory_order_relaxed); }

  // Whether all ranks are done with what this one has ended; goes on with it. With mutex held, as those
  // below.
  bool settled();
  // Nothing is under way on any rank: MPI gets its communicators back.
  void free();

 private:
  struct Line {
    MPI_Comm comm = MPI_COMM_NULL;
    std::array<MPI_Request, kDepth> parts{};
    std::vector<MPI_Request> ends;  // of operations that other ranks may still be in
  };
  static int call(const Line& line, const CollectiveArgs& part, MPI_Request* request);
  static Status finalised();

  std::recursive_mutex& mutex_;
  const std::function<bool()> may_call_;
  std::vector<Line> lines_;
  std::atomic<uint64_t> ended_{0};
};

}  // namespace weft::mpi
