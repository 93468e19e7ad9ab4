// Marks a thread as inside a callback of the program, so that calls that are not allowed there fail. Threads:
// each thread sees its own marks.
#pragma once

namespace weft {

class CallbackMark {
 public:
  enum class Calls {
    kSome,  // the calls that weft.h allows inside callbacks: reads, test, release, abort
    kNone,  // no calls: log, allocator and thread-start callbacks may run under the library's locks
  };

  explicit CallbackMark(Calls calls = Calls::kSome);
  ~CallbackMark();
  CallbackMark(const CallbackMark&) = delete;
  CallbackMark& operator=(const CallbackMark&) = delete;

  // Returns true if this thread is inside a callback of any context.
  static bool inside();
  // Returns true if this thread is inside a callback that may call nothing.
  static bool no_calls();

 private:
  const Calls calls_;
};

}  // namespace weft
