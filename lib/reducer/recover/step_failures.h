// Records of steps that ranks have failed with weft_reducer_fail, and their texts. A rank that fails a step
// notifies all others before it continues with the step's collectives. Each of them thus knows by the time
// its step is over.
//
// Threads: any thread.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "comm/lane_messages.h"

namespace weft {

// Identifies an attempt of a synchronised step, equal on all ranks. A failed step keeps its number for the
// next attempt.
struct StepAttempt {
  uint64_t step = 0;
  uint64_t attempt = 0;
  bool operator==(const StepAttempt&) const = default;
};

struct ReducerState;

class StepFailures final : public LaneMessageListener {
 public:
  static constexpr size_t kMaxText = 512;  // bytes of a rank's text

  explicit StepFailures(int size) : reports_(static_cast<size_t>(size)) {}

  // Returns at most kMaxText bytes of the text, cut between UTF-8 characters.
  static std::string_view cut(std::string_view text);
  // Encodes this rank's note to the others. The text is cut.
  static Bytes encode(const StepAttempt& at, std::string_view text);
  void on_lane_message(int rank, ByteView note) override;
  // Returns kStepFailed, which names the ranks that have failed this attempt and quotes their texts; or ok.
  Status of(const StepAttempt& at) const;

 private:
  struct Report {
    bool any = false;
    StepAttempt at;
    std::string text;
  };
  // The last two notes of a rank. It may have failed the next step already when this rank checks the last
  // one.
  struct LastTwo {
    std::array<Report, 2> reports;
    size_t older = 0;
  };
  mutable std::mutex mutex_;
  std::vector<LastTwo> reports_;  // by rank; guarded by mutex_
};

// Registers the listener, for a state that has a lane, before any rank begins a step on it.
void listen_for_failures(ReducerState* state);

}  // namespace weft
