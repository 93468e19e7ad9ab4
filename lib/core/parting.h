// The end of a communicator whose messages do not outlive their sender (Transport::outlives_sender): a rank
// says how much it has sent to each other one, and leaves when they have all of it. Before that, keeps the
// engine at work while something that was sent has not left the process.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/buffer.h"
#include "core/engine.h"

namespace weft {

class Comm;

class Parting final : public Task {
 public:
  // comm outlives it: the comm owns it, and removes it from the engine.
  explicit Parting(Comm& comm);

  // Wait until everybody who is still there has what this rank sent; at most kLongestMs. kInterrupted: not
  // all had it when the program ended the call. Any thread, once.
  Status part();
  // From the control channel, after the kind.
  void on_message(int rank, ByteReader& message);
  Poll poll() override;
  void fail(const Status& why) noexcept override;

  static constexpr uint8_t kMessage = 3;         // of the control channel
  static constexpr int64_t kLongestMs = 10'000;  // WEFT_DEFAULT_DESTROY_TIMEOUT_MS

 private:
  bool all_have_everything() const;

  Comm& comm_;
  // By rank. What a rank that leaves has sent to this one, plus one; 0: it does not leave, or was answered.
  std::vector<std::atomic<uint64_t>> leaving_;
  std::vector<std::atomic<bool>> has_everything_;  // by rank: it has what this rank sent
  std::atomic<int> waiting_{0};                    // entries of leaving_ that are not 0
};

}  // namespace weft
