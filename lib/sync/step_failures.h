// Steps that a rank has given up with weft_reducer_fail: what this rank and the others said of them. A rank
// that fails a step tells all others before it goes on with the step's collectives, so each of them knows by
// the time its step is over.
//
// Threads: any thread.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/notes.h"

namespace weft {

// A synchronised step's name, equal on all ranks. A step that fails keeps its number for the next attempt.
struct StepAttempt {
  uint64_t step = 0;
  uint64_t attempt = 0;
  bool operator==(const StepAttempt&) const = default;
};

struct ReducerState;

class StepFailures final : public NoteListener {
 public:
  static constexpr size_t kMaxText = 512;  // bytes of a rank's text

  explicit StepFailures(int size) : told_(static_cast<size_t>(size)) {}

  // At most kMaxText bytes of the text, cut between UTF-8 characters.
  static std::string_view cut(std::string_view text);
  // The note of this rank to the others. The text is cut.
  static Bytes encode(const StepAttempt& at, std::string_view text);
  void on_note(int rank, ByteView note) override;
  // kStepFailed, which names the ranks that have failed this attempt and quotes them; or ok.
  Status of(const StepAttempt& at) const;

 private:
  struct Told {
    bool any = false;
    StepAttempt at;
    std::string text;
  };
  // Of one rank. It may have failed the next step already when this rank looks at the last one.
  struct LastTwo {
    std::array<Told, 2> told;
    size_t older = 0;
  };
  mutable std::mutex mutex_;
  std::vector<LastTwo> told_;  // by rank; guarded by mutex_
};

// For a state that has a lane, before any rank begins a step on it.
void listen_for_failures(ReducerState* state);

}  // namespace weft
