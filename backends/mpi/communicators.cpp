#include "communicators.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

#include "base/guard.h"
#include "base/thread.h"
#include "native.h"

namespace weft::mpi {
namespace {

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

// One creation. A thread that MPI does not return to keeps it.
struct Creation {
  Communicators made;
  const char* call = "";
  int error = MPI_SUCCESS;
  Status thrown;  // by the thread
  std::atomic<bool> over{false};

  void run(MPI_Group group, int tag, bool natives) {
    const WorldErrors returned;
    call = "MPI_Comm_create_group";
    error = MPI_Comm_create_group(MPI_COMM_WORLD, group, tag, &made.link);
    if (error == MPI_SUCCESS) error = MPI_Comm_set_errhandler(made.link, MPI_ERRORS_RETURN);
    if (error != MPI_SUCCESS || !natives) return;
    call = "MPI_Comm_dup";
    error = Natives::make(made.link, &made.natives);
  }
};

// Waits for the creation on another thread.
Status await(const CommunicatorRequest& request, const Creation& creation) {
  // Reserves part of the time for the exchange of the ranks' results.
  const uint64_t now = request.clock.now_ns();
  const Deadline deadline = Deadline::at(now + (std::max(request.deadline.ns(), now) - now) / 4 * 3);
  for (uint32_t round = 0; !creation.over.load(std::memory_order_acquire); round++) {
    WEFT_TRY(request.exchange.check());
    if (deadline.expired(request.clock)) {
      return Status::error(Code::kTimeout,
                           "MPI has not made its communicator by the deadline: some rank has not reached "
                           "MPI_Comm_create_group, and MPI does not report which one",
                           Evidence::kDeadline);
    }
    request.clock.relax(round);
  }
  return creation.thrown;
}

// MPI's calls have no deadline, so a thread makes them. If a rank does not take part, the thread and what it
// creates are left to MPI. There is no such thread where only one thread may call MPI; the ranks have just
// agreed that all of them take part.
Status create(const CommunicatorRequest& request, MPI_Group group, Communicators* made) {
  const auto creation = std::make_shared<Creation>();
  if (request.callers != Callers::kAny) {
    creation->run(group, request.tag, request.natives);
  } else {
    std::thread thread;
    const auto body = [creation, group, tag = request.tag, natives = request.natives] {
      const LongCall call;
      creation->thrown = guarded_run([&] { creation->run(group, tag, natives); });
      creation->over.store(true, std::memory_order_release);
    };
    WEFT_TRY(start_thread("weft-mpi-join", body, {}, &thread));
    thread.detach();
    WEFT_TRY(await(request, *creation));
  }
  *made = creation->made;
  return creation->error == MPI_SUCCESS ? Status() : failed(creation->call, creation->error);
}

}  // namespace

Status create_communicators(const CommunicatorRequest& request, Communicators* made) {
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group group = MPI_GROUP_NULL;
  int error = MPI_Comm_group(MPI_COMM_WORLD, &world);
  if (error == MPI_SUCCESS) {
    error = MPI_Group_incl(world, static_cast<int>(request.world_ranks.size()), request.world_ranks.data(),
                           &group);
  }
  if (world != MPI_GROUP_NULL) MPI_Group_free(&world);
  if (error != MPI_SUCCESS) return failed("MPI_Group_incl", error);
  const Status created = create(request, group, made);
  // Otherwise the thread may still use the group.
  if (created.ok()) MPI_Group_free(&group);
  return created;
}

}  // namespace weft::mpi
