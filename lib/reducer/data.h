// The data that the calls of one reducer share. The functions that implement the calls take it as their first
// argument; Reducer owns it.
#pragma once

#include <weft/weft.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/status.h"
#include "base/text.h"
#include "reducer/feature/sharded/gather.h"
#include "reducer/state.h"
#include "reducer/statistics.h"
#include "reducer/step/step.h"

namespace weft {

// The steps as the program's thread sees them. Written by begin and finish, and the calls that end like them.
struct ProgramSteps {
  uint32_t stamp = 0;                     // of the last step; 0: there was none
  std::atomic<uint32_t> synchronised{0};  // the stamp of the last synchronised step
  StepStart start;                        // of the last synchronised step
  void* const* destinations = nullptr;    // where results of absent parameters go in this step
  uint64_t failed_attempts = 0;           // of the next synchronised step so far; equal on all ranks
  std::optional<std::string> fail_next;   // text of a failed local step; the next synchronised step will fail
  bool finishing = false;                 // finish has left the step to streams that wait
  bool finish_again = false;              // the host waited instead of streams: finish may be called again
  uint64_t entered_ns = 0;                // when finish was called then
  Deadline finish_deadline = Deadline::never();
  int last_active = -1;              // the highest rank with data in the last step; -1: none or unknown
  bool reduced = false;              // the buckets hold the last step's results
  bool results = false;              // the gradients hold results of the last synchronised step
  bool measured = false;             // a step with norms has finished
  uint64_t finished = 0;             // steps finished here, including those that were rolled back
  uint64_t retained_step = kNoStep;  // the step whose contributions are all retained
  uint32_t retained_buckets = 0;     // buckets whose contributions are in the retained copies
  bool replanned = false;  // re-planned, or tried to automatically, at least once; equal on all ranks
  bool may_retry = false;  // some rank may retry the next step; equal on all ranks
};

// When parameters are gathered (feature/sharded/gather_calls.h).
struct Gathering {
  std::atomic<bool> active{false};  // from gather_params until the next step
  // Set when a step has left the owners their slices: wait_param then starts the gather. The program's thread
  // sets it. It is cleared under `mutex`, once `active` is set or the next step begins.
  std::atomic<bool> owed{false};
  std::mutex mutex;
  Deadline deadline = Deadline::never();
  Status unable;            // why this rank cannot gather
  bool has_values = false;  // this rank has a value of some parameter that has a gradient
};

struct ReducerData {
  // Only replace_program() changes these three, on the program's thread and under `mutex`. Other threads copy
  // them with parts_of(). ready and absent are the exception: they take no lock, and are called inside steps.
  std::shared_ptr<ReducerState> state;
  std::shared_ptr<Step> step;
  std::shared_ptr<Gather> gather;  // null unless sharded; made with step
  mutable std::mutex mutex;

  ProgramSteps program;
  Gathering gathering;
  Statistics statistics;
  int64_t timeout_ms = 0;  // of calls that wait; 0: the communicator's
};

// The objects that any thread may use while begin, a re-plan or a rebind replaces them. A copy keeps them
// alive.
struct Parts {
  std::shared_ptr<ReducerState> state;
  std::shared_ptr<Step> step;
  std::shared_ptr<Gather> gather;
};
inline Parts parts_of(const ReducerData& r) {
  const std::lock_guard lock(r.mutex);
  return {r.state, r.step, r.gather};
}

// Remembers an error, and returns it. Any thread.
inline Status note(ReducerData& r, Status status) {
  return status.ok() ? status : r.statistics.note(std::move(status));
}

// Names the attempt of the next synchronised step, as all ranks do.
inline StepAttempt attempt_of(const ReducerData& r) {
  return {r.statistics.steps(), r.program.failed_attempts};
}

// Names the open step, or the next one.
inline std::string step_text(const ReducerData& r) {
  return r.state->readiness->step().local() ? "a local step" : cat("step ", r.statistics.steps());
}

// Refuses a call inside a step. call: its name, at the beginning of the error.
inline Status outside_step(const ReducerData& r, const char* call) {
  if (!r.state->readiness->step().open()) return {};
  return Status::error(Code::kState, cat(call, " inside ", step_text(r), ": finish it first"));
}

}  // namespace weft
