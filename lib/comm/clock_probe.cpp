#include "comm/clock_probe.h"

#include "comm/comm.h"

namespace weft {

void ClockProbe::ask() {
  if (comm_.rank() == 0 || comm_.failed()) return;
  const uint64_t now_ns = comm_.context().clock().now_ns();
  {
    const std::lock_guard lock(mutex_);
    rounds_left_ = kRounds;
    shortest_ns_ = UINT64_MAX;
    asked_ns_ = now_ns;
  }
  send_question(now_ns);
}

void ClockProbe::wait(Deadline deadline) {
  comm_.context().engine().wait(
      [&] {
        comm_.control().poll();
        return over() || comm_.gone(0) || comm_.failed();
      },
      deadline);
}

bool ClockProbe::over() {
  const std::lock_guard lock(mutex_);
  return rounds_left_ == 0;
}

void ClockProbe::send_question(uint64_t asked_ns) {
  ByteWriter message;
  message.put(kQuestionMessage).put(asked_ns);
  comm_.control().send(0, message.bytes());
}

void ClockProbe::on_question(int rank, ByteReader& message) {
  const auto asked_ns = message.get<uint64_t>();
  if (!message.done() || comm_.rank() != 0) return;
  ByteWriter answer;
  answer.put(kAnswerMessage).put(asked_ns).put(comm_.context().clock().now_ns());
  comm_.control().send(rank, answer.bytes());
}

void ClockProbe::on_answer(int rank, ByteReader& message) {
  const auto asked_ns = message.get<uint64_t>();
  const auto rank_0_ns = message.get<uint64_t>();
  const uint64_t now_ns = comm_.context().clock().now_ns();
  if (!message.done() || rank != 0) return;
  bool over = false;
  {
    const std::lock_guard lock(mutex_);
    if (rounds_left_ == 0 || asked_ns != asked_ns_) return;
    const uint64_t trip_ns = now_ns - asked_ns;
    if (trip_ns < shortest_ns_) {
      shortest_ns_ = trip_ns;
      const uint64_t middle_ns = asked_ns + trip_ns / 2;
      comm_.context().trace_comms().set_clock(
          comm_.options().id, {static_cast<int64_t>(rank_0_ns - middle_ns), trip_ns - trip_ns / 2});
    }
    asked_ns_ = now_ns;
    over = --rounds_left_ == 0;
  }
  if (over) {
    comm_.context().engine().notify();
  } else {
    send_question(now_ns);
  }
}

}  // namespace weft
