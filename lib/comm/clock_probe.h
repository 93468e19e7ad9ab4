// Measures the difference between this rank's clock and rank 0's, for traces of ranks on several hosts. It
// asks rank 0 for its time over the control channel, kRounds times. The round trip that took least time
// counts: half of that time is the largest possible error. Rank 0 answers on the thread that delivers the
// control channel's messages, whatever its program does.
//
// Threads: ask and wait: any thread. on_question and on_answer: the thread that delivers messages.
#pragma once

#include <cstdint>
#include <mutex>

#include "base/buffer.h"
#include "base/clock.h"

namespace weft {

class Comm;

class ClockProbe {
 public:
  // comm outlives it.
  explicit ClockProbe(Comm& comm) : comm_(comm) {}

  // Starts a measurement. Its best result so far is always in the context's TraceComms.
  void ask();
  // Waits until the measurement is over, rank 0 has left, or the communicator has failed.
  void wait(Deadline deadline);
  // Handle the control messages of these types, after the type byte.
  void on_question(int rank, ByteReader& message);
  void on_answer(int rank, ByteReader& message);

  static constexpr uint8_t kQuestionMessage = 9;  // the asking rank's time follows
  static constexpr uint8_t kAnswerMessage = 10;   // that time, and rank 0's

 private:
  static constexpr int kRounds = 16;

  // Not called with mutex_ held: the answer may come before it returns.
  void send_question(uint64_t asked_ns);
  bool over();

  Comm& comm_;
  std::mutex mutex_;
  int rounds_left_ = 0;                // guarded by mutex_
  uint64_t asked_ns_ = 0;              // of the question in flight; guarded by mutex_
  uint64_t shortest_ns_ = UINT64_MAX;  // round trip of this measurement; guarded by mutex_
};

}  // namespace weft
