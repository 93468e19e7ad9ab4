// An instance of the library: clock, log, engine, callbacks. Its handle and everything created from it share
// ownership, so any order of destruction is legal.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/thread.h"
#include "comm/trace_comms.h"
#include "comm/trace_sink.h"
#include "device/accelerator.h"
#include "device/allocator.h"
#include "device/device.h"
#include "device/stream_gate.h"
#include "engine/callbacks.h"
#include "engine/engine.h"
#include "engine/flight.h"
#include "engine/fork_guard.h"
#include "hook/hook_guard.h"
#include "hook/stage_worker.h"
#include "metrics/file.h"
#include "metrics/metrics.h"

namespace weft {

class Comm;

struct ContextOptions {
  Engine::Mode mode = Engine::Mode::kThread;
  Log::Sink log_sink;
  LogLevel log_level = LogLevel::kOff;
  LogSettings environment_log;
  MetricsFile::Options metrics_file;  // an empty path: none
  ThreadStart thread_start;
  std::string module_path;
  std::string flight_path;  // of communicators; empty: as the environment specifies
  // Writes a flight record into a folder. Any thread. Empty: no record is written.
  std::function<Status(const FlightRecord&, const std::string& folder)> write_flight;
  Interrupt::Source interrupt;      // uses the context's clock
  const DeviceOps* host = nullptr;  // required
  HostAllocator host_allocator;
  std::shared_ptr<Accelerator> accelerator;  // null: none; the reason is in accelerator_status
  Status accelerator_status;
  std::shared_ptr<Clock> clock;  // default: the system clock
  bool status = true;            // the process answers `weft status`
  bool stream_waits = false;     // WEFT_CONTEXT_STREAM_WAITS: StreamGate may hold streams
};

// Threads: any thread.
class Context : public std::enable_shared_from_this<Context> {
 public:
  static Status create(ContextOptions options, std::shared_ptr<Context>* context);
  explicit Context(ContextOptions options);
  ~Context();

  // Closes every communicator and ends the threads, when the handle is destroyed. Idempotent. kTimeout: as
  // Comm::close.
  Status close();

  Clock& clock() { return *clock_; }
  // Returns the system clock; null under a simulated clock.
  SystemClock* system_clock() { return system_clock_; }
  Log& log() { return log_; }
  Engine& engine() { return engine_; }
  Callbacks& callbacks() { return callbacks_; }
  // Returns the accelerator; null if there is no accelerator module. It may still not work on this machine.
  Accelerator* accelerator() const { return options_.accelerator.get(); }
  // Loads the accelerator's library on the first call. Returns ok with a description in *detail, or
  // kUnavailable with the reason.
  Status probe_accelerator(std::string* detail);
  StreamGate& gate() { return gate_; }
  StageWorker& stages() { return stages_; }
  const DeviceOps& host() const { return *options_.host; }
  const ContextOptions& options() const { return options_; }
  bool forked() const { return guard_.forked(); }
  // Returns the interrupt source that blocking calls on the context's objects poll.
  const Interrupt::Source& interrupt() const { return interrupt_; }

  // Numbers the communicators that this context creates through a store.
  uint64_t next_rendezvous() { return rendezvous_.fetch_add(1); }
  void add_comm(const std::shared_ptr<Comm>& comm);
  std::vector<std::shared_ptr<Comm>> comms();
  Metrics& metrics() { return *metrics_; }

  // Returns the sink of the running trace; null when no trace is running. The sink lives as long as the
  // context.
  TraceSink* trace() const { return trace_.load(std::memory_order_acquire); }
  void set_trace(TraceSink* sink) { trace_.store(sink, std::memory_order_release); }
  // The communicators of this context, also former ones, for the metadata of a trace.
  TraceComms& trace_comms() { return trace_comms_; }
  // Measures the offsets of their clocks (ClockProbe). wait: for their ends, half a second at most.
  void measure_clocks(bool wait);
  // Keeps an object alive as long as the context (a trace recorder).
  void keep(std::shared_ptr<void> object);

 private:
  const ContextOptions options_;
  std::shared_ptr<Clock> clock_;
  SystemClock* system_clock_ = nullptr;
  Interrupt::Source interrupt_;  // set once by the constructor
  Log log_;
  const std::shared_ptr<Metrics> metrics_ = std::make_shared<Metrics>();
  std::unique_ptr<MetricsFile> metrics_file_;  // if the environment asks for one
  ForkGuard guard_;
  std::atomic<TraceSink*> trace_{nullptr};
  TraceComms trace_comms_;
  std::atomic<uint64_t> rendezvous_{0};
  std::mutex mutex_;
  std::vector<std::weak_ptr<Comm>> comms_;   // guarded by mutex_
  std::vector<std::shared_ptr<void>> kept_;  // guarded by mutex_
  StreamGate gate_;
  Callbacks callbacks_;
  Engine engine_;
  StageWorker stages_;
};

// Returns the deadline for waiting for a hook's turn: half of the time to `deadline`, 10 s at most. Other
// ranks may wait for this rank by the same deadline, so there must be time left to send them the reason for a
// failure.
inline Deadline turn_deadline(Clock& clock, Deadline deadline) {
  constexpr uint64_t kLongestNs = 10'000'000'000;
  const uint64_t now = clock.now_ns();
  return Deadline::at(now + std::min(kLongestNs, (std::max(deadline.ns(), now) - now) / 2));
}

// Calls a hook for the program, never concurrently with a stage. kState: a stage has not returned in time.
// Exceptions become errors (guard_hook).
template <class Work>
Status with_turn(Context& context, Hook& hook, Deadline deadline, Work&& work) {
  const auto guarded = [&]() -> Status { return guard_hook(hook, "a call", work); };
  if (context.engine().mode() == Engine::Mode::kCaller) return context.engine().locked(guarded);
  if (!hook.turn().take(context.clock(), turn_deadline(context.clock(), deadline))) {
    context.stages().turn_over();
    return Status::error(Code::kState, "a stage of hook '" + hook.name() + "' has not returned");
  }
  const struct Turn {
    Context& context;
    Hook& hook;
    ~Turn() {
      hook.turn().give();
      context.stages().turn_over();
    }
  } turn{context, hook};
  return guarded();
}

}  // namespace weft
