// Drains a communicator whose messages do not outlive their sender (Transport::outlives_sender). A leaving
// rank reports to each other rank how much it has sent to it, and leaves when they have received all of it.
// Before that, it keeps the engine polling while sent data has not left the process.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/buffer.h"
#include "engine/engine.h"

namespace weft {

class Comm;

class Drain final : public Task {
 public:
  // comm owns the task, outlives it, and removes it from the engine.
  explicit Drain(Comm& comm);

  // Waits until every rank that is still there has received what this rank sent. Returns false if the
  // deadline passed or the program interrupted the call before that. Any thread, once.
  bool drain(Deadline deadline);
  // Handles a control message, after its type byte.
  void on_message(int rank, ByteReader& message);
  Poll poll() override;
  void fail(const Status& why) noexcept override;

  static constexpr uint8_t kMessage = 3;  // message type on the control channel

 private:
  bool all_have_everything() const;

  Comm& comm_;
  // By rank: the amount (Transport::sent_to) that a leaving rank has sent to this rank, plus one. 0: the rank
  // is not leaving, or was answered.
  std::vector<std::atomic<uint64_t>> leaving_;
  std::vector<std::atomic<bool>> has_everything_;  // by rank: it has received what this rank sent
  std::atomic<int> waiting_{0};                    // number of nonzero entries of leaving_
};

}  // namespace weft
