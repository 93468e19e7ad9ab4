// Lets the program end its own blocking call: weft_context_options.interrupt.
//
// Every extern "C" body opens an Interrupt::Scope on its thread. check_call, with which all calls on an
// object begin, sets the context's callback in the scope. Every wait on that thread calls poll(), and ends
// when it returns true. Library threads have no scope, so they never call the callback. Once the callback has
// returned true, poll() stays true until the call returns: later waits of the same call end at once. Waits
// after which memory is released (Engine::settle) do not poll. Backend modules have their own copy of
// lib/base, which knows no calls: they use Exchange::check.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/status.h"

namespace weft {

// Threads: the state belongs to the calling thread. A caller of poll() or ask() must not hold a lock that
// calls allowed inside callbacks need, because the callback may run the program's own code.
class Interrupt {
 public:
  struct Source {
    int32_t (*ask)(void* user_data) = nullptr;  // null: the program never interrupts
    void* user_data = nullptr;
    Clock* clock = nullptr;
  };

  // One call of the program: the innermost call of its thread.
  class Scope {
   public:
    Scope();
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend class Interrupt;
    Scope*& thread_;  // the innermost call of this thread
    Scope* const outer_;
    Source source_;
    uint64_t next_ns_ = 0;  // when to call the callback next; 0: the call has not begun to wait
    bool requested_ = false;
  };

  // Sets the source of this thread's innermost call; it outlives the call's waits.
  static void listen_to(const Source& source);
  // Returns true if it is time to call the callback, or the call was interrupted. Reads the clock if there is
  // a callback.
  static bool due();
  // Calls the program's callback if that is due. True: this thread must stop waiting.
  static bool poll();
  // Calls the callback immediately: used before code of the program that may run for long (its all_gather).
  static bool ask();
  // Returns the answer so far.
  static bool requested();
  // Returns when poll() is due next, for a wait that sleeps; never if there is no callback.
  static Deadline next();

  // Returns requested() as a status: kInterrupted, or ok.
  static Status status();
  // Returns poll() as a status.
  static Status check() {
    static_cast<void>(poll());
    return status();
  }
  // Returns the final result of this thread's call: any error of an interrupted call becomes kInterrupted.
  static Status result(Status status);

  static constexpr int64_t kIntervalMs = 50;  // weft.h guarantees 100
};

}  // namespace weft
