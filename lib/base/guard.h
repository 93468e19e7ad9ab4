// Where exceptions stop. The library throws none of its own, but every allocation may (std::bad_alloc), and
// so may the program's C++ code behind a C pointer. At the edges (an extern "C" body, a thread, a task of the
// engine, a listener of the control channel) `guarded` makes a Status of it, for the call or the
// communicator; past frames of a C library `CarriedException` takes it to our side. Threads: any thread.
#pragma once

#include <exception>
#include <new>
#include <utility>

#include "base/status.h"
#include "base/text.h"

namespace weft {

// Run a body that returns Status. Nothing flies out, and running out of memory needs no memory to be said.
template <class Body>
Status guarded(Body&& body) noexcept {
  try {
    try {
      return body();
    } catch (const std::bad_alloc&) {
      return Status::out_of_memory();
    } catch (const std::exception& error) {
      return Status::error(Code::kInternal, cat("unexpected exception: ", error.what()));
    } catch (...) {
      return Status::error(Code::kInternal, "unexpected exception");
    }
  } catch (...) {  // no memory for the text
    return Status::out_of_memory();
  }
}

// The same for one that returns nothing.
template <class Body>
Status guarded_run(Body&& body) noexcept {
  return guarded([&]() -> Status {
    body();
    return {};
  });
}

// An exception of a callback that C code has called: run() the callback's body, and once the C function has
// returned rethrow(). One thread at a time.
class CarriedException {
 public:
  template <class Body>
  void run(Body&& body) noexcept {
    try {
      body();
    } catch (...) {
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
