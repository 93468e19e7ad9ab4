// A communicator: a set of ranks with lanes of operations, a control channel, and a first failure that is
// final.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "comm/agreed_errors.h"
#include "comm/clock_probe.h"
#include "comm/comm_tasks.h"
#include "comm/context.h"
#include "comm/departures.h"
#include "comm/first_failure.h"
#include "comm/flight_dump.h"
#include "comm/lane.h"
#include "comm/lane_messages.h"
#include "comm/members.h"
#include "control/control_exchange.h"
#include "control/generations.h"
#include "engine/flight.h"
#include "metrics/metrics.h"
#include "transport/collectives.h"
#include "transport/control.h"
#include "transport/failpoints.h"

namespace weft {

class CommPart;
class Drain;

struct CommOptions {
  std::string backend;       // as requested; empty: the best available
  FailPointsPtr failpoints;  // fault injection in tests
  // Algorithms of collectives over a transport, in the syntax of WEFT_TUNE; empty: chosen by size.
  std::string algorithms;
  int64_t init_timeout_ms = 60'000;
  int64_t op_timeout_ms = 300'000;
  int64_t heartbeat_timeout_ms = 5'000;  // -1: missing heartbeats are not treated as a failure
  uint64_t arena_limit_bytes = uint64_t{64} << 30;
  bool authenticated = false;  // members proved that they know the job's secret
  bool spans_hosts = false;    // ranks may be on several hosts
  std::string host;            // address of this host that other hosts can reach, if known
  int host_label = -1;         // host of this rank, where hosts are simulated (LabelledHosts)
  int device = -1;             // index of this rank's CUDA device; -1: the calling thread's current one
  std::string job;             // name of the job, if it has one
  std::string met;             // where the ranks met, for the log: "at tcp://node1:7000, started by Slurm"
  std::string flight_path;     // folder of a failure's flight record; empty: none is written
  std::shared_ptr<const Members> members;  // set by lib/bootstrap; null: not known
  uint64_t id = 0;  // equal on all ranks and unique among communicators; set by lib/bootstrap
};

// Threads: any thread, except that the order of submissions to one lane must be the same on all ranks.
class Comm final : public ControlListener, public std::enable_shared_from_this<Comm> {
 public:
  // Returns null if the lane of the program's collectives does not open, and sets *failure (may be null).
  static std::shared_ptr<Comm> create(std::shared_ptr<Context> context, int rank, int size,
                                      CommOptions options, std::unique_ptr<Control> control,
                                      std::unique_ptr<Collectives> collectives, Generation generation = {},
                                      Status* failure = nullptr);
  Comm(std::shared_ptr<Context> context, int rank, int size, CommOptions options,
       std::unique_ptr<Control> control, std::unique_ptr<Collectives> collectives, Generation generation);
  ~Comm() override;

  int rank() const { return rank_; }
  int size() const { return size_; }
  Context& context() { return *context_; }
  std::shared_ptr<Context> shared_context() { return context_; }
  Collectives& collectives() { return *collectives_; }
  Control& control() { return *control_; }
  const CommOptions& options() const { return options_; }
  // Identifies this communicator among the generations that were shrunk from each other.
  const Generation& generation() const { return generation_; }
  // A fail point: a test may make this rank stop, end or fail here (transport/failpoints.h).
  Status reach(FailPlace place, uint64_t number = 0, uint64_t stage = 0) {
    return options_.failpoints == nullptr
               ? Status()
               : options_.failpoints->reach(place, number, stage, context_->clock());
  }
  Deadline op_deadline(int64_t timeout_ms) {
    return Deadline::after(context_->clock(), timeout_ms, options_.op_timeout_ms);
  }

  // Returns the lane of a user's call: the first collective lane, or the lane of a pair of ranks.
  Status lane_for(const CollectiveArgs& args, std::shared_ptr<Lane>* lane) {
    return tasks_.lane_for(args, lane);
  }
  // Returns the part that `make` creates at the first call. It lives as long as the communicator. kCancelled:
  // the communicator is closed.
  Status part(CommTasks::MakePart make, CommPart** part) { return tasks_.part(make, part); }
  // Opens a further ordered sequence of collectives (for a reducer). All ranks open lanes in the same order.
  // If a backend has few lanes, this reuses a lane that all ranks had closed when they last called
  // agree_to_open; its slot numbers continue. Success is local to this rank. Before the ranks use the lane,
  // they agree on whether all of them opened it; if one did not, the ranks that did close it. Either way the
  // next lane is the same on all ranks. overlapping: if the backend supports it, an operation need not wait
  // for the previous one; then it must not read what the previous one writes.
  Status open_lane(std::shared_ptr<Lane>* lane, bool overlapping = false) {
    return tasks_.open_lane(lane, overlapping);
  }
  // Closes a lane. Either no operation is outstanding on it, or the communicator has failed.
  void close_lane(const std::shared_ptr<Lane>& lane) { tasks_.close_lane(lane); }

  // Submits an operation and waits for it; drives progress meanwhile. timeout_ms: as in op_deadline.
  Status run(const CollectiveArgs& args, int64_t timeout_ms);
  Status run(const CollectiveArgs& args, Deadline deadline);
  Status run(const std::shared_ptr<Lane>& lane, const CollectiveArgs& args, Deadline deadline);
  // Drives progress until done() is true, which the deadlines of this communicator's operations guarantee. If
  // the program interrupts the call, the communicator fails; done() is still true on return. what():
  // describes what the call waits for.
  template <class Done, class What>
  void complete(Done&& done, What&& what) {
    Engine& engine = context_->engine();
    if (engine.wait(done, Deadline::never())) return;
    fail(interrupted(what()));
    engine.settle(done, Deadline::never());
  }
  // Returns the failure of a communicator whose program interrupted this rank's wait for `what`.
  Status interrupted(const std::string& what) const;
  // All-gathers small byte strings, for agreements (manifests, split). lane: null for the user's lane, whose
  // order it then follows. If the program may call collectives at the same time, pass a separate lane.
  Status agree(ByteView mine, std::vector<Bytes>* all, Deadline deadline,
               const std::shared_ptr<Lane>& lane = nullptr);
  // Does what agree() over the user's lane does, before lanes are opened: the ranks also exchange which lanes
  // they have closed. beside: a communicator of some of these ranks that opens a lane as well, or null.
  Status agree_to_open(Comm* beside, ByteView mine, std::vector<Bytes>* all, Deadline deadline);

  // Fails the communicator. The first failure is kept, is sent to the other ranks if `tell`, and completes
  // all outstanding operations.
  void fail(const Status& status, bool tell = true) noexcept;
  // Announces an error that every rank has found in an agreement and is about to return. If a rank then ends
  // without another operation, the others fail with this error. Waits until the others have found it too, for
  // a while (AgreedErrors::announce). May be called on any thread without the progress lock, in the same
  // order on all ranks.
  void agreed_error(const Status& error) { agreed_errors_.announce(error); }
  // Called by a lane that starts an operation, under the progress lock: withdraws this rank's announced
  // error.
  void continue_after_error() { agreed_errors_.withdraw(); }
  bool failed() const { return failure_.failed(); }
  Status failure() const { return failure_.status(); }
  // Returns true while the failure's flight record is being written. Lanes delay the completion of operations
  // for it, briefly.
  bool dumping() { return dump_.pending(context_->clock()); }
  // Measures the offset of this rank's clock, for traces.
  ClockProbe& clock_probe() { return clock_probe_; }
  // Messages to the owners of a lane on the other ranks.
  LaneMessages& lane_messages() { return lane_messages_; }
  // Returns the recent operations of all lanes. Takes the progress lock.
  FlightRecord flight();
  // Leaves the communicator: outstanding and later operations complete with kCancelled. Idempotent;
  // concurrent calls all return when it is done. Must not be called from a callback. kTimeout: the program's
  // callbacks did not return within the destroy timeout. with_context: the context is being destroyed; only
  // changes the text of the failure.
  Status close(bool with_context = false);

  // True once close() has begun: no lane or part is added. Their callers then return cancelled().
  bool closed() const { return closed_; }
  Status cancelled() const;

  // Departures describes them.
  bool any_departed() const { return departures_.any(); }
  bool gone(int rank) const { return departures_.gone(rank); }
  bool departed(int rank) const { return departures_.departed(rank); }

  // Returns the algorithm of the operation that completed last, on any lane.
  const char* last_algorithm() const { return last_algorithm_.load(std::memory_order_relaxed); }
  // Returns the number of completed operations on all lanes, including closed ones.
  uint64_t operations() const { return operations_.load(std::memory_order_relaxed); }
  // Called by a lane, under the progress lock.
  void count_operation(const char* algorithm) {
    last_algorithm_.store(algorithm, std::memory_order_relaxed);
    operations_.fetch_add(1, std::memory_order_relaxed);
  }

  // Returns true if no operation is outstanding and no rank touches the buffers of earlier ones.
  bool quiet() { return tasks_.quiet(); }

  // Creates an exchange among some of the ranks over the control channel, to create a subgroup communicator.
  // members: ranks of this communicator, by rank in the new one. Every member calls this with the same id.
  std::unique_ptr<Exchange> subgroup(uint32_t id, std::vector<int> members);
  uint32_t next_subgroup_id() { return subgroup_ids_.fetch_add(1); }

  // ControlListener
  void on_peer_lost(int rank, const Status& why) noexcept override;
  void on_peer_left(int rank) noexcept override;
  void on_message(int rank, ByteView message) noexcept override;
  void on_broken(const Status& why) noexcept override;

 private:
  template <class MakeDeadline>
  Status run_until(Lane& lane, const CollectiveArgs& args, MakeDeadline&& make_deadline);
  Status deliver();
  void send_failure(const Status& status);
  void adopt(int rank, ByteView message);

  // Reading the clock costs a tenth of the shortest operations. A blocking call therefore starts its deadline
  // at its third poll, a few microseconds late at most.
  static constexpr int kPollsWithoutClock = 2;

  static constexpr int64_t kDeliverMs = 10'000;  // WEFT_DEFAULT_DESTROY_TIMEOUT_MS

  const std::shared_ptr<Context> context_;
  const int rank_;
  const int size_;
  const CommOptions options_;
  const Generation generation_;
  const std::unique_ptr<Control> control_;
  const std::unique_ptr<Collectives> collectives_;
  LaneMessages lane_messages_{*this, first_of_32(options_.failpoints, FailCounter::kNotes)};
  std::shared_ptr<Drain> drain_;  // set once in create; null where messages outlive their sender

  FirstFailure failure_;
  std::mutex close_mutex_;                        // held by the thread that closes
  std::atomic<bool> closed_{false};               // written under close_mutex_
  std::atomic<bool> closed_with_context_{false};  // written before closed_
  std::atomic<const char*> last_algorithm_{""};
  std::atomic<uint64_t> operations_{0};
  FlightDump dump_;
  Departures departures_;
  CommTasks tasks_{*this};
  AgreedErrors agreed_errors_{*this};
  ClockProbe clock_probe_{*this};
  std::atomic<uint32_t> subgroup_ids_{first_of_32(options_.failpoints, FailCounter::kSplits)};
  Postbox postbox_;
  std::unique_ptr<Metrics::Source> metrics_;  // the last member: it describes the others
};

}  // namespace weft
