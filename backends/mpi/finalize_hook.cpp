#include "finalize_hook.h"

#include "base/guard.h"

namespace weft::mpi {
namespace {

constexpr int64_t kLockMs = 1000;             // MPI_Finalize waits so long for a running call of the link
constexpr int64_t kFinalizeMs = 4 * kLockMs;  // for that call, and to wind up

}  // namespace

int FinalizeHook::attach() {
  int error = MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, on_delete, &keyval_, nullptr);
  attribute_ = std::make_unique<std::atomic<FinalizeHook*>>(this);
  if (error == MPI_SUCCESS) error = MPI_Comm_set_attr(MPI_COMM_SELF, keyval_, attribute_.get());
  return error;
}

void FinalizeHook::detach() {
  if (!attached() || finalised_) return;
  detaching_ = true;
  MPI_Comm_delete_attr(MPI_COMM_SELF, keyval_);  // calls on_delete
  MPI_Comm_free_keyval(&keyval_);
}

// The attribute stays with MPI, which deletes it in MPI_Finalize.
void FinalizeHook::forget() {
  if (attribute_ != nullptr) attribute_.release()->store(nullptr);
  keyval_ = MPI_KEYVAL_INVALID;
}

void FinalizeHook::await_finalize() const {
  const Deadline deadline = Deadline::after(clock_, kFinalizeMs, 0);
  for (uint32_t round = 0; finalising_ && !deadline.expired(clock_); round++) clock_.relax(round);
}

// Called by MPI: from inside detach, or as the first step of MPI_Finalize.
int FinalizeHook::on_delete(MPI_Comm /*self*/, int /*keyval*/, void* attached, void* /*state*/) {
  FinalizeHook* const hook = *static_cast<std::atomic<FinalizeHook*>*>(attached);
  if (hook != nullptr) hook->run();
  return MPI_SUCCESS;
}

void FinalizeHook::run() {
  const bool finalising = !detaching_;
  if (finalising) {
    finalising_ = true;
    finalised_ = true;
  }
  // The thread that holds the mutex may wait for a lock of MPI_Finalize, so MPI_Finalize continues without
  // the link after a while.
  const Deadline deadline = Deadline::after(clock_, kLockMs, 0);
  bool locked = mutex_.try_lock();
  for (uint32_t round = 0; !locked && !deadline.expired(clock_); round++) {
    clock_.relax(round);
    locked = mutex_.try_lock();
  }
  if (locked) {
    (void)guarded_run([&] { wind_up_(); }).ok();  // no exception passes through MPI
    mutex_.unlock();
  }
  if (finalising) finalising_ = false;  // the last access: await_finalize may be waiting for it
}

}  // namespace weft::mpi
