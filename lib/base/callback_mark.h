// Marks a thread as inside a callback of the program, so that calls which are not allowed there are refused.
// Threads: each thread sees its own marks.
#pragma once

namespace weft {

class CallbackMark {
 public:
  enum class Calls {
    kSome,  // what weft.h allows inside callbacks: reads, test, release, abort
    kNone,  // log, allocator and thread-start callbacks: they may run under the library's locks
  };

  explicit CallbackMark(Calls calls = Calls::kSome);
  ~CallbackMark();
  CallbackMark(const CallbackMark&) = delete;
  CallbackMark& operator=(const CallbackMark&) = delete;

  // This thread is inside a callback of any context.
  static bool inside();
  // It is inside one that may call nothing.
  static bool no_calls();

 private:
  const Calls calls_;
};

}  // namespace weft
