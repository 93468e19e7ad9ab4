// Boundaries where exceptions stop. The library throws none itself, but every allocation may throw
// (std::bad_alloc), and so may the program's C++ code behind a C pointer. At the boundaries (an extern "C"
// body, a thread, an engine task, a control channel listener) `guarded` converts the exception to a Status
// for the call or the communicator. CarriedException carries an exception past the frames of a C library.
// Threads: any thread.
#pragma once

#include <cxxabi.h>
#include <unistd.h>

#include <exception>
#include <new>
#include <utility>

#include "base/status.h"
#include "base/text.h"

namespace weft {

// Called in catch (...). A callback of the program may end its thread (pthread_exit, pthread_cancel): Python
// does that if a function needs the interpreter after its end. Catching that would abort the process, so the
// thread waits for the process to end.
inline void stay_if_thread_ends() {
#if defined(__GLIBCXX__)
  try {
    throw;
  } catch (const abi::__forced_unwind&) {
    for (;;) ::pause();
  } catch (...) {
    return;  // the caller handles it
  }
#endif
}

// Runs a body that returns Status. No exception escapes, and reporting out of memory needs no memory.
template <class Body>
Status guarded(Body&& body) noexcept {
  try {
    try {
      return body();
    } catch (const std::bad_alloc&) {
      return Status::out_of_memory();
    } catch (const std::exception& error) {
      return Status::error(Code::kInternal,
                           cat("internal: unexpected C++ exception: ", error.what(),
                               "; unless a callback of the program threw it, report this as a bug of Weft"));
    } catch (...) {
      stay_if_thread_ends();
      return Status::error(Code::kInternal,
                           "internal: unexpected C++ exception of unknown type; unless a callback of the "
                           "program threw it, report this as a bug of Weft");
    }
  } catch (...) {  // no memory for the text
    return Status::out_of_memory();
  }
}

// Does what guarded() does, for a body that returns nothing.
template <class Body>
Status guarded_run(Body&& body) noexcept {
  return guarded([&]() -> Status {
    body();
    return {};
  });
}

// Carries an exception through C code. In a callback that C code calls, run() executes the body and stores
// its exception. After the C function has returned, rethrow() throws it. One thread at a time.
class CarriedException {
 public:
  template <class Body>
  void run(Body&& body) noexcept {
    try {
      body();
    } catch (...) {
      stay_if_thread_ends();
      if (!caught_) caught_ = std::current_exception();
    }
  }
  void rethrow() {
    if (caught_) std::rethrow_exception(std::exchange(caught_, nullptr));
  }

 private:
  std::exception_ptr caught_;
};

}  // namespace weft
