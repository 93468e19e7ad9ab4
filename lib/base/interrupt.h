// Lets the program end a call of its own that blocks: weft_context_options.interrupt.
//
// Every extern "C" body opens an Interrupt::Scope on its thread, and the check that all calls of an object
// begin with (check_call) names the context's callback in it. Whatever waits on that thread calls poll(), and
// ends when it says true. Threads that the library starts have no scope, so they never ask. Once the callback
// has said yes, poll() stays true until the call returns: waits that follow in the same call end at once.
// Waits that make memory safe to leave (Engine::settle) do not ask. Backend modules have a copy of lib/base
// of their own, which knows no calls: they ask through Exchange::check.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/status.h"

namespace weft {

// Threads: the state belongs to the calling thread. Who calls poll() or ask() holds no lock that a call which
// is allowed inside callbacks needs: the callback may run the program's own code.
class Interrupt {
 public:
  struct Source {
    int32_t (*ask)(void* user_data) = nullptr;  // null: the program never interrupts
    void* user_data = nullptr;
    Clock* clock = nullptr;
  };

  // One call of the program, the innermost one of its thread.
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
    uint64_t next_ns_ = 0;  // when to ask; 0: the call has not begun to wait
    bool requested_ = false;
  };

  // The innermost call of this thread asks this source; it outlives the call's waits.
  static void listen_to(const Source& source);
  // It is time to ask, or the answer is yes. Reads the clock where somebody is asked.
  static bool due();
  // Asks the program if that is due. True: this thread stops waiting.
  static bool poll();
  // Asks at once: before code of the program's own that may run for long (its all_gather).
  static bool ask();
  // The answer so far.
  static bool requested();
  // When poll() is due next, for a wait that sleeps; never where nobody is asked.
  static Deadline next();

  // requested() as a status: kInterrupted, or ok.
  static Status status();
  // The same of poll().
  static Status check() {
    static_cast<void>(poll());
    return status();
  }
  // The result of the call on this thread: any error of an interrupted call is kInterrupted.
  static Status result(Status status);

  static constexpr int64_t kIntervalMs = 50;  // weft.h promises 100
};

}  // namespace weft
