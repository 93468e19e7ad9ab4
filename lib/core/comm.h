// A communicator: a set of ranks with lanes of operations, a control channel, and one failure that is final.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/closed_lanes.h"
#include "core/collectives.h"
#include "core/context.h"
#include "core/control.h"
#include "core/control_exchange.h"
#include "core/failpoints.h"
#include "core/flight.h"
#include "core/flight_dump.h"
#include "core/lane.h"
#include "core/lineage.h"
#include "core/notes.h"

namespace weft {

class Parting;

struct CommOptions {
  std::string backend;       // as asked for; empty: the best
  FailPointsPtr failpoints;  // of tests
  std::string algorithms;    // of collectives over a transport, as WEFT_ALGORITHMS; empty: chosen by size
  int64_t init_timeout_ms = 60'000;
  int64_t op_timeout_ms = 300'000;
  int64_t heartbeat_timeout_ms = 5'000;  // -1: silence is no evidence
  uint64_t arena_limit_bytes = uint64_t{64} << 30;
  bool authenticated = false;  // members proved that they hold the job's secret
  bool spans_hosts = false;    // ranks may be on several hosts
  std::string host;            // the address of this host that others reach, if known
  int host_label = -1;         // of this rank, where hosts are simulated (LabelledHosts)
  int node_label = -1;         // BackendArgs::node
  int device = -1;             // index of this rank's CUDA device; -1: the calling thread's current one
  std::string job;             // the name of the job, if it has one
  std::string flight_path;     // where a failure's flight record goes; empty: nowhere
  uint64_t id = 0;             // equal on all ranks, and of no other communicator; made by form
};

// Threads: any thread, except that the order of submissions to one lane must be the same on all ranks.
class Comm final : public ControlListener, public std::enable_shared_from_this<Comm> {
 public:
  static std::shared_ptr<Comm> create(std::shared_ptr<Context> context, int rank, int size,
                                      CommOptions options, std::unique_ptr<Control> control,
                                      std::unique_ptr<Collectives> collectives, Descent descent = {});
  Comm(std::shared_ptr<Context> context, int rank, int size, CommOptions options,
       std::unique_ptr<Control> control, std::unique_ptr<Collectives> collectives, Descent descent);
  ~Comm() override;

  int rank() const { return rank_; }
  int size() const { return size_; }
  Context& context() { return *context_; }
  std::shared_ptr<Context> shared_context() { return context_; }
  Collectives& collectives() { return *collectives_; }
  Control& control() { return *control_; }
  const CommOptions& options() const { return options_; }
  // Which of the communicators that were shrunk from each other this is.
  const Descent& descent() const { return descent_; }
  // A test may make this rank fail here.
  Status reach(FailPlace place, uint64_t number = 0, uint64_t stage = 0) {
    return options_.failpoints == nullptr
               ? Status()
               : options_.failpoints->reach(place, number, stage, context_->clock());
  }
  Deadline op_deadline(int64_t timeout_ms) {
    return Deadline::after(context_->clock(), timeout_ms, options_.op_timeout_ms);
  }

  // The lane of a user's call: the first collective lane, or the one of a pair of ranks.
  Status lane_for(const CollectiveArgs& args, std::shared_ptr<Lane>* lane);
  // A further order of collectives (a reducer's). All ranks open them in the same order. Where a backend has
  // few, one that all ranks had closed when they last agreed to open lanes is used again; its slots go on.
  // Whether it succeeds is this rank's own affair: the ranks agree on that before they use it, and who has
  // one that not all have closes it. The next one is the same for all in any case.
  // overlapping: operations need not wait for the one before where the backend can do that, so none may read
  // what the one before writes.
  Status open_lane(std::shared_ptr<Lane>* lane, bool overlapping = false);
  // Nothing is outstanding on it, or the comm has failed.
  void close_lane(const std::shared_ptr<Lane>& lane);

  // Submit and wait; drives progress meanwhile. timeout_ms: as in op_deadline.
  Status run(const CollectiveArgs& args, int64_t timeout_ms);
  Status run(const CollectiveArgs& args, Deadline deadline);
  Status run(const std::shared_ptr<Lane>& lane, const CollectiveArgs& args, Deadline deadline);
  // Drive until done(), which the deadlines of operations of this communicator bring about. If the program
  // interrupts the call, the communicator fails; done() is true on return all the same. what(): the text of
  // what is waited for.
  template <class Done, class What>
  void complete(Done&& done, What&& what) {
    Engine& engine = context_->engine();
    if (engine.wait(done, Deadline::never())) return;
    fail(interrupted(what()));
    engine.settle(done, Deadline::never());
  }
  // The failure of a communicator whose program interrupted this rank's wait for `what`.
  Status interrupted(const std::string& what) const;
  // All-gather of small byte strings, for agreements (manifests, split). lane: null for the user's, in whose
  // order it then is; where the program may call others at the same time, one of its own.
  Status agree(ByteView mine, std::vector<Bytes>* all, Deadline deadline,
               const std::shared_ptr<Lane>& lane = nullptr);
  // The same over the user's lane, before lanes are opened: the ranks tell each other also which ones they
  // have closed. beside: where a lane is opened as well, a communicator of some of these ranks, or null.
  Status agree_to_open(Comm* beside, ByteView mine, std::vector<Bytes>* all, Deadline deadline);

  // The first failure wins, is told to the others if `tell`, and completes everything outstanding.
  void fail(const Status& status, bool tell = true) noexcept;
  // Every rank has found this error in an agreement and is about to return it. Tells the others and
  // waits until they have told it, have left, or kAgreedErrorMs have passed. Where a rank then ends
  // without another operation, the others fail with this error. Any thread without the drive lock,
  // in the same order on all ranks.
  void agreed_error(const Status& error);
  // By a lane that starts an operation, under the drive lock: this rank goes on after such an error.
  void continue_after_error() {
    if (error_stands_.load(std::memory_order_relaxed)) [[unlikely]]
      withdraw_error();
  }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  Status failure() const;
  // The failure's flight record is being written: who completes operations waits for it, briefly.
  bool dumping() { return dump_.pending(context_->clock()); }
  // To the owners of a lane on the other ranks.
  Notes& notes() { return notes_; }
  // What the lanes did last. Takes the drive lock.
  FlightRecord flight();
  // Leave: outstanding operations complete with kCancelled, later ones as well. Idempotent; of several calls
  // at once all return when it is done. Not from a callback. kTimeout: the program's callbacks did not return
  // within the destroy timeout.
  // with_context: because the context is destroyed, for the text of the failure.
  Status close(bool with_context = false);

  bool any_departed() const { return any_departed_.load(std::memory_order_acquire); }
  // The rank's process has ended or has left: it does nothing any more.
  bool gone(int rank) const { return gone_[static_cast<size_t>(rank)].load(std::memory_order_acquire); }
  // It takes part in nothing any more, but may be alive.
  bool departed(int rank) const {
    return departed_[static_cast<size_t>(rank)].load(std::memory_order_acquire);
  }

  // Of the operation that completed last, on any lane.
  const char* last_algorithm() const { return last_algorithm_.load(std::memory_order_relaxed); }
  // How many have completed, on all lanes there ever were.
  uint64_t operations() const { return operations_.load(std::memory_order_relaxed); }
  // By a lane, under the drive lock.
  void count_operation(const char* algorithm) {
    last_algorithm_.store(algorithm, std::memory_order_relaxed);
    operations_.fetch_add(1, std::memory_order_relaxed);
  }

  // Nothing is outstanding, and nothing that was is touched by anybody any more.
  bool quiet();

  // Exchange among some of the ranks over the control channel, to form a part. members: ranks of this comm,
  // ascending by new rank. Every member makes it with the same id.
  std::unique_ptr<Exchange> subgroup(uint32_t id, std::vector<int> members);
  uint32_t next_subgroup_id() { return subgroup_ids_.fetch_add(1); }

  // ControlListener
  void on_peer_lost(int rank, const Status& why) noexcept override;
  void on_peer_left(int rank) noexcept override;
  void on_message(int rank, ByteView message) noexcept override;
  void on_broken(const Status& why) noexcept override;

 private:
  // What executes a lane's operations; second: as Lane's.
  struct Executes {
    std::shared_ptr<CollectiveLane> impl, second;
  };
  Status make_lane(const LaneKey& key, bool overlapping, Executes* executes);
  void add_lane(const LaneKey& key, Executes executes, uint64_t first, std::shared_ptr<Lane>* lane);
  void write_closed_lanes(ByteWriter* message);
  void compare_closed_lanes(const std::vector<ClosedLanes::Told>& told);
  template <class MakeDeadline>
  Status run_until(Lane& lane, const CollectiveArgs& args, MakeDeadline&& make_deadline);
  void tell(const Status& status);
  void withdraw_error();
  bool others_found(uint64_t errors);
  void hear_error(int rank, ByteView message);
  Status cancelled() const;
  void adopt(int rank, ByteView message);

  // Reading the clock costs a tenth of the shortest operations: a blocking call's deadline counts from its
  // third look, some microseconds after the call at most.
  static constexpr int kLooksWithoutClock = 2;

  const std::shared_ptr<Context> context_;
  const int rank_;
  const int size_;
  const CommOptions options_;
  const Descent descent_;
  const std::unique_ptr<Control> control_;
  const std::unique_ptr<Collectives> collectives_;
  Notes notes_{*this};
  std::shared_ptr<Parting> parting_;  // set once in create; null where messages outlive their sender

  std::atomic<bool> failed_{false};
  std::mutex close_mutex_;                        // held by who closes
  std::atomic<bool> closed_{false};               // written under close_mutex_
  std::atomic<bool> closed_with_context_{false};  // written before closed_
  std::atomic<const char*> last_algorithm_{""};
  std::atomic<uint64_t> operations_{0};
  mutable std::mutex failure_mutex_;
  Status failure_;  // guarded by failure_mutex_
  FlightDump dump_;
  std::unique_ptr<std::atomic<bool>[]> departed_, gone_;
  std::atomic<bool> any_departed_{false};

  mutable std::mutex lanes_mutex_;
  std::vector<std::shared_ptr<Lane>> lanes_;                                   // guarded by lanes_mutex_
  std::shared_ptr<Lane> user_lane_;                                            // set once in create
  std::map<std::pair<LaneKey::Kind, int>, std::shared_ptr<Lane>> pair_lanes_;  // guarded by lanes_mutex_
  uint32_t next_lane_ = 0;                                                     // guarded by lanes_mutex_
  ClosedLanes closed_lanes_;  // guarded by lanes_mutex_; empty where there are many

  // Errors that all ranks have found. announce_mutex_ keeps what this rank sends in order; no listener
  // takes it.
  static constexpr int64_t kAgreedErrorMs = 2000;
  struct AgreedErrors {
    uint64_t count = 0;  // that a rank has announced
    Status last;         // kOk once it has started another operation
  };
  std::mutex announce_mutex_;
  uint64_t announced_ = 0;                 // guarded by announce_mutex_
  std::atomic<bool> error_stands_{false};  // written under announce_mutex_
  std::mutex heard_mutex_;
  std::vector<AgreedErrors> heard_;  // by rank; guarded by heard_mutex_

  std::atomic<uint32_t> subgroup_ids_{0};
  Postbox postbox_;
};

}  // namespace weft
