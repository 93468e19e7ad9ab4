// Gradient synchronisation for one manifest of parameters over one communicator: what stands behind
// weft_reducer, call for call (weft.h is the contract). The C layer has checked struct sizes.
#pragma once

#include <weft/weft.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "sync/gather.h"
#include "sync/history.h"
#include "sync/state.h"
#include "sync/step.h"

namespace weft {

struct Agreement;
struct PlanRequest;

class Reducer {
 public:
  // Collective: agrees on parameters, limits and the hook. Any rank's failure is every rank's.
  // given: what the caller found wrong with options and hook, which then are not looked at; the other ranks
  // learn it.
  static Status create(std::shared_ptr<Comm> comm, const Status& given, const weft_reducer_options& options,
                       std::shared_ptr<Hook> hook, std::unique_ptr<Reducer>* reducer);
  // In the middle of a synchronised step it fails the communicator, because the others count on this rank.
  // Bounded. No other call is running.
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  Status grad_view(uint64_t param, void** view);  // any thread
  // One thread at a time: begin, finish, bucket, verdict, rebind, retry.
  Status begin(const weft_begin_options* options);
  Status finish(const weft_finish_options& options);
  // Of a captured step, which is then over, well or not. given: what the C layer found wrong.
  Status finish_captured(const weft_finish_options& options, const Status& given);
  Status result(uint64_t param, void* gradient);
  Status sparse_result(uint64_t param, weft_sparse* result);
  Status norms(weft_norms* norms, double* per_param);
  // slices: null to ask for their number.
  Status owned(int32_t rank, weft_slice* slices, uint64_t* count);
  // Results of all ranks where their owners have them (reduced.cpp). pieces: null to ask for their number.
  Status reduced_view(uint64_t param, weft_reduced_piece* pieces, uint64_t* count);
  // Collective; returns at once. given: what the caller found wrong; the other ranks learn it.
  Status gather_params(const weft_gather_options& options, const Status& given);
  Status wait_param(uint64_t param, int64_t timeout_ms);  // any thread
  // On a stream, which is checked. Any thread.
  Status stream_wait_param(uint64_t param, int device, DeviceStream stream);
  Status refuse(Status status) { return note(std::move(status)); }  // what the C layer found wrong
  Status param(uint64_t param, weft_param_info* info) const;
  // Steps without data until all ranks have joined.
  Status join(const weft_join_options& options, weft_join_result* result);
  // Any thread, lock-free. Never drives the engine, also not in caller mode.
  // A gradient in the program's memory.
  struct Given {
    void* data = nullptr;
    const Layout* layout = nullptr;  // null: as the parameter
  };
  Status ready(uint64_t param, const Given& given, const weft_stream* stream);
  Status ready(uint64_t param, void* gradient, const weft_stream* stream) {
    return ready(param, Given{gradient}, stream);
  }
  Status ready_tensor(uint64_t param, const weft_tensor& gradient, const weft_stream* stream);
  Status ready_sparse(uint64_t param, const weft_sparse& gradient, const weft_stream* stream);
  Status absent(const uint64_t* params, uint64_t count);
  // The program cannot go on with the open step: it fails on all ranks (fail.cpp).
  Status fail(std::string_view text);

  // A finish that was left to streams is over: how the step went, once. Calls that need that do so first.
  Status settle_finish();
  // A captured step is open: streams are then those that are being captured. Any thread.
  bool capturing() const { return state_->captures && state_->captures->open(); }
  Status error() const;  // the last one; any thread
  uint32_t bucket_count() const { return static_cast<uint32_t>(state_->plan.buckets.size()); }
  Status bucket(uint32_t bucket, weft_bucket_info* info, uint64_t* params, uint64_t capacity);
  void query(weft_reducer_stats* stats) const;  // any thread
  std::string report() const;                   // all that is known, as JSON (report.cpp)

  // Other buckets (replan.cpp). Collective. given: what the caller found wrong; the other ranks learn it.
  Status replan(const weft_replan_options& options, const Status& given);

  // Values of the parameters (values.cpp). Collective. given: as replan's.
  Status broadcast(const weft_broadcast_options& options, const Status& given);
  Status check();

  // Recovery (recover.cpp). rebind is collective over comm.
  void verdict(weft_verdict* verdict) const;
  Status rebind(std::shared_ptr<Comm> comm);
  Status retry(const weft_finish_options& options);

  Comm& comm() { return *state_->comm; }

 private:
  Reducer(std::shared_ptr<ReducerState> state, int64_t timeout_ms);

  // Agree with comm's ranks on the hook's collectives for a state that has a plan, and make what depends on
  // them. Collective. given: why this rank cannot, which the others learn.
  static Status furnish(ReducerState* state, const Status& given, const Agreement& agreement);
  // What any thread may use while begin, a re-plan or rebind put others in their place: these stay for it.
  struct Parts {
    std::shared_ptr<ReducerState> state;
    std::shared_ptr<Step> step;
    std::shared_ptr<Gather> gather;
  };
  Parts parts() const {
    const std::lock_guard lock(mutex_);
    return {state_, step_, gather_};
  }
  // A state in place of this one's, which becomes the caller's to drop; with a step of its own.
  void replace(std::shared_ptr<ReducerState>* next, const std::function<void(Step&)>& prepare);
  void unmake_step();
  void start_gather(int64_t timeout_ms, const Status& wish, bool announce);
  Status settle_gather();
  Status end_owed_gather();
  void start_owed_gather();
  Status await_gather();
  bool end_gather();
  Status wait_value(const Parts& at, uint64_t param, int64_t timeout_ms);
  static Parts parts_for(std::shared_ptr<ReducerState> state);
  void drive_step();  // by the engine
  bool has_bucket(uint64_t param) const {
    return param < state_->plan.bucket_of.size() && state_->plan.bucket_of[param] != kNoBucket;
  }
  // kArg for one that does not exist or has no gradient.
  static Status known(const ReducerState& state, uint64_t param);
  Status known(uint64_t param) const { return known(*state_, param); }
  Status check_begin(const weft_begin_options& options) const;
  // Of steps that are captured (captured.cpp).
  Status begin_captured(const weft_begin_options& options);
  Status ready_captured(uint64_t param, void* gradient, const weft_stream* stream);
  Status outside_capture(const char* what) const;
  Status check_destinations(void* const* gradients) const;
  Status check_finish(const weft_finish_options& options) const;
  static Status no_dense_gradient(const ReducerState& state, uint64_t param);
  Status check_gradient(uint64_t param, const void* gradient, const weft_stream* stream) const;
  // Of gradients in device memory, and of streams that wait (ready_devices.cpp).
  void notice_devices();
  Status check_gradient_memory(uint64_t param, const void* gradient) const;
  Status check_gradient_stream(uint64_t param, const weft_stream* stream) const;
  Status find_gradient(uint64_t param, void** gradient) const;
  Status come_from_device(uint64_t param, void** gradient, const weft_stream* stream, StepWord step);
  void take_on_device(uint64_t param, void* gradient, StepWord step);
  void arrive_on_device(uint32_t bucket);
  void fail_device(const Status& status, uint64_t param);
  Status await_devices(Deadline deadline);
  Status result_on_device(uint64_t param, void* gradient);
  bool lets_streams_wait() const;
  bool leave_to_streams(const weft_finish_options& options, uint64_t entered_ns);
  bool await_gradients(uint32_t stamp, Deadline deadline);
  Status check_stream_wait(uint64_t param, uint32_t stamp) const;
  int32_t device_of(uint64_t param) const;
  Status another_tensor(uint64_t param, const weft_tensor& gradient, bool viewed) const;
  Status ready_restrided(uint64_t param, const weft_tensor& gradient);
  // entries: of a sparse gradient, or null if they were put already.
  Status take(uint64_t param, const Given& given, StepWord step, const weft_sparse* entries = nullptr);
  void bring(uint64_t param, const Given& given, StepWord step, const weft_sparse* entries);
  void take_entries(uint64_t param, const weft_sparse* entries);
  Status check_result(uint64_t param) const;
  uint64_t reduced_bytes(uint32_t bucket) const;
  void arrive(uint32_t bucket);
  Status ready_refused(uint64_t param, StepWord step) const;
  Status too_often(uint64_t param, StepWord step) const;
  Status take_learned(StepWord step);
  Status leave_out_unused();
  std::string uses_text(uint64_t param, StepWord step, uint32_t more = 0) const;
  bool used(uint64_t param, uint32_t stamp) const;
  Status take_use(uint64_t param, const Given& gradient, StepWord step);
  void remember(uint64_t param, const Given& gradient);
  Status absent_refused(uint64_t param, StepWord step) const;
  void tell(const weft_finish_options& options);
  Status finish_local();
  Status fail_local(std::string_view text);
  Status fail_step(std::string_view text);
  void fail_comm(std::string_view text);
  bool may_be_left_out() const;
  void tell_failure(std::string_view text, Deadline deadline);
  void fill_missing(Deadline deadline);
  void next_window();
  StepAttempt attempt() const { return {stats_.steps, failed_attempts_}; }
  Status close_failed(const Status& failed);
  Status still_copied(uint64_t param, const char* step) const;
  Status never_ready(const std::vector<uint32_t>& missing);
  Status take_plan(const PlanRequest* request, const Status& given);
  Status put_in_place(Plan plan, std::vector<uint64_t>* limits, Deadline deadline);
  Status check_between_steps(const char* what);
  Status broadcast_root(int32_t wanted, int32_t* root) const;
  Status name_difference(const std::vector<uint32_t>& params, const std::vector<uint64_t>& digests,
                         const std::vector<int>& stale, Deadline deadline);
  Status open_replan();
  Status replan_by_itself();
  Status move_to(Plan plan, Deadline deadline);
  void keep_plan(const Status& why);
  uint32_t next_stamp();
  void open_step(const StepStart& start, bool full);
  Status await_prelude(int64_t timeout_ms);
  void begin_without_data(StepStart start, bool joined);
  bool leave_out(uint64_t param, uint32_t stamp);
  std::byte* destination(uint64_t param) const;
  Status wait_for_step(uint64_t entered_ns, bool commit, int64_t timeout_ms) {
    return wait_for_step(entered_ns, commit, state_->comm->op_deadline(timeout_ms));
  }
  Status wait_for_step(uint64_t entered_ns, bool commit, Deadline deadline);
  Status not_reduced();
  void drop_window();
  void note_opening(bool over, bool reduced);
  Step::Times times(uint32_t bucket) const;  // in the last synchronised step
  bool reduced() const;
  Status close_step(uint64_t entered_ns);
  void note_times(uint64_t entered_ns, uint64_t now_ns, bool reduced);
  void note_error_memory();
  Status commit(Deadline deadline);
  Status await_readers();
  Status check_rebind(Comm& comm);
  void take_over(std::shared_ptr<ReducerState> next, bool moved);
  Status agree_on_committed(const Agreement& agreement, const Status& given, uint64_t* committed, Plan* plan);
  void trace_ready(uint64_t param);
  Status note(Status status);  // remembers an error
  std::string step_text() const;
  // Every byte that the reducer holds, by what holds it (report.cpp).
  std::vector<std::pair<const char*, uint64_t>> memory_parts() const;
  std::vector<std::pair<const char*, uint64_t>> heap_parts() const;  // without gradients and the hook's
  uint64_t heap_bytes() const;
  uint64_t device_bytes() const;  // tables, and views on devices

  // Changed by replace alone, by the program's thread and under mutex_: other threads take parts() of them,
  // ready and absent excepted, which take no lock and are called inside steps.
  std::shared_ptr<ReducerState> state_;
  std::shared_ptr<Step> step_;
  std::shared_ptr<Gather> gather_;      // null unless sharded; made with step_
  std::atomic<bool> gathering_{false};  // from gather_params until the next step
  // A step's owners have their slices, and nothing has been gathered since: wait_param would start it. Set by
  // the program's thread; cleared under owed_mutex_, once gathering_ is set or the next step begins.
  std::atomic<bool> owed_{false};
  std::mutex owed_mutex_;
  Deadline gather_deadline_ = Deadline::never();
  Status unable_;  // why this rank cannot gather
  const int64_t timeout_ms_;
  uint64_t other_bytes_ = 0;
  bool has_values_ = false;  // some parameter that has a gradient has a value here

  // begin and finish
  uint64_t failed_attempts_ = 0;          // at the next synchronised step (fail.cpp); equal on all ranks
  std::optional<std::string> fail_next_;  // a local step failed with this text, and the next step will
  uint32_t stamp_ = 0;
  bool replanned_ = false;                 // at least once, or tried to by itself; equal on all ranks
  bool may_retry_ = false;                 // some rank may retry the next step; equal on all ranks
  std::atomic<uint32_t> synchronised_{0};  // the stamp of the last synchronised step
  StepStart start_;                        // of the last synchronised step
  void* const* destinations_ = nullptr;    // of results of absent parameters, in this step
  bool finishing_ = false;                 // finish has left the step to streams that wait
  uint64_t entered_ns_ = 0;                // when that was
  Deadline finish_deadline_ = Deadline::never();
  int last_active_ = -1;          // the highest rank with data in the last step; -1: none, or not known
  bool reduced_ = false;          // the buckets hold the last step's results
  bool results_ = false;          // the last synchronised step has some, in the gradients
  bool lent_ = false;             // other ranks may read them in this rank's views; equal on all ranks
  bool measured_ = false;         // there was a step with norms
  uint64_t finished_ = 0;         // steps finished here, also those that were rolled back
  uint64_t kept_step_ = kNoStep;  // the step whose contributions are kept, all of them
  uint32_t kept_buckets_ = 0;     // of which are in the retained copies; the others in the buckets
  static constexpr uint64_t kNoStep = WEFT_NO_STEP;

  std::atomic<uint64_t> copied_gradients_{0};  // that were not laid out as their parameters

  mutable std::mutex mutex_;
  weft_reducer_stats stats_{};           // guarded by mutex_
  History history_;                      // guarded by mutex_
  Status last_error_;                    // guarded by mutex_
  bool warned_of_error_memory_ = false;  // guarded by mutex_
  std::string plan_kept_;  // why the buckets stayed as they were (WEFT_REDUCER_REPLAN); guarded by mutex_
};

}  // namespace weft
