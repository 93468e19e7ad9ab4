// Ends a link at the latest when MPI_Finalize begins, on whichever thread of the program calls it.
// MPI_Finalize deletes the attributes of MPI_COMM_SELF before anything else, and the hook is one.
//
// Threads: attach, detach and forget need the mutex; the other functions: any thread. MPI_Finalize tries to
// take the mutex, for a second at most.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>

#include "base/clock.h"
#include "library.h"

namespace weft::mpi {

class FinalizeHook {
 public:
  // mutex and clock outlive it. wind_up is called once, with the mutex held: by detach or by MPI_Finalize.
  FinalizeHook(std::recursive_mutex& mutex, Clock& clock, std::function<void()> wind_up)
      : mutex_(mutex), clock_(clock), wind_up_(std::move(wind_up)) {}
  FinalizeHook(const FinalizeHook&) = delete;
  FinalizeHook& operator=(const FinalizeHook&) = delete;

  // Returns MPI's error.
  int attach();
  bool attached() const { return keyval_ != MPI_KEYVAL_INVALID; }
  // Winds up and detaches, unless MPI_Finalize has done so.
  void detach();
  // Detaches without a call of MPI, which this thread may not make. Nothing winds up.
  void forget();
  // Waits until a running MPI_Finalize is done with this object. Called without the mutex.
  void await_finalize() const;
  // Returns true once MPI_Finalize has begun: MPI may not be called any more.
  bool finalised() const { return finalised_; }

 private:
  static int on_delete(MPI_Comm self, int keyval, void* attached, void* state);
  void run();

  std::recursive_mutex& mutex_;
  Clock& clock_;
  const std::function<void()> wind_up_;
  int keyval_ = MPI_KEYVAL_INVALID;
  // The attribute's value: this object, or null once it is forgotten.
  std::unique_ptr<std::atomic<FinalizeHook*>> attribute_;
  std::atomic<bool> detaching_{false};   // MPI calls on_delete from inside detach
  std::atomic<bool> finalising_{false};  // MPI_Finalize is in on_delete
  std::atomic<bool> finalised_{false};
};

}  // namespace weft::mpi
