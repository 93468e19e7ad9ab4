// Gradient synchronisation for one manifest of parameters over one communicator. Implements weft_reducer call
// by call; weft.h is the contract. The C layer has checked struct sizes.
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
#include "reducer/feature/sharded/gather.h"
#include "reducer/history.h"
#include "reducer/state.h"
#include "reducer/step/step.h"

namespace weft {

struct Agreement;
struct PlanRequest;

class Reducer {
 public:
  // Collective: the ranks agree on parameters, limits and the hook. A failure of any rank fails the call on
  // all ranks. given: an error that the caller found in options or hook. create does not read them then, and
  // the other ranks receive the error.
  static Status create(std::shared_ptr<Comm> comm, const Status& given, const weft_reducer_options& options,
                       std::shared_ptr<Hook> hook, std::unique_ptr<Reducer>* reducer);
  // Fails the communicator if a synchronised step is open, because the other ranks count on this one. Returns
  // within a bounded time. No other call may be running.
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  Status grad_view(uint64_t param, void** view);  // any thread
  // The functions below take one thread at a time: begin, finish, bucket, verdict, rebind, retry.
  Status begin(const weft_begin_options* options);
  Status finish(const weft_finish_options& options);
  // Ends a captured step, with or without an error. given: an error that the C layer found.
  Status finish_captured(const weft_finish_options& options, const Status& given);
  Status result(uint64_t param, void* gradient);
  Status sparse_result(uint64_t param, weft_sparse* result);
  Status norms(weft_norms* norms, double* per_param);
  // slices: null to ask for their number.
  Status owned(int32_t rank, weft_slice* slices, uint64_t* count);
  // Collective; returns without waiting. given: an error that the caller found; the other ranks receive it.
  Status gather_params(const weft_gather_options& options, const Status& given);
  Status wait_param(uint64_t param, int64_t timeout_ms);  // any thread
  // Makes a stream wait for the result of one parameter. The caller has checked the stream. Any thread.
  Status stream_wait_param(uint64_t param, int device, DeviceStream stream);
  Status refuse(Status status) { return note(std::move(status)); }  // records an error that the C layer found
  Status param(uint64_t param, weft_param_info* info) const;
  // Takes part in steps without data until all ranks have joined.
  Status join(const weft_join_options& options, weft_join_result* result);
  // ready, ready_tensor, ready_sparse and absent: any thread. They never poll the engine, not even in caller
  // mode. ready takes a lock only while the uses of parameters are being learned.

  Status ready(uint64_t param, const Given& given, const weft_stream* stream);
  Status ready(uint64_t param, void* gradient, const weft_stream* stream) {
    return ready(param, Given{gradient}, stream);
  }
  Status ready_tensor(uint64_t param, const weft_tensor& gradient, const weft_stream* stream);
  Status ready_sparse(uint64_t param, const weft_sparse& gradient, const weft_stream* stream);
  Status absent(const uint64_t* params, uint64_t count);
  // Fails the open step on all ranks, because the program cannot complete it (fail.cpp). One thread at a
  // time, as begin and finish.
  Status fail(std::string_view text);

  // Waits for a finish that was left to streams, and returns the step's result once. Calls that need the
  // results call this first.
  Status settle_finish();
  // True while a captured step is open: the program's streams are then being captured. Any thread.
  bool capturing() const { return state_->captures && state_->captures->open(); }
  Status error() const;  // the last error; any thread
  uint32_t bucket_count() const { return static_cast<uint32_t>(state_->plan.buckets.size()); }
  Status bucket(uint32_t bucket, weft_bucket_info* info, uint64_t* params, uint64_t capacity);
  void query(weft_reducer_stats* stats) const;  // any thread
  std::string report() const;                   // everything that is known, as JSON (report.cpp)

  // Changes the buckets (replan.cpp). Collective. given: an error that the caller found; the other ranks
  // receive it.
  Status replan(const weft_replan_options& options, const Status& given);

  // Broadcasts the values of the parameters (values.cpp). Collective. given: as for replan.
  Status broadcast(const weft_broadcast_options& options, const Status& given);
  Status check();

  // Recovery (recover.cpp). rebind is collective over comm.
  void verdict(weft_verdict* verdict) const;
  Status rebind(std::shared_ptr<Comm> comm);
  Status retry(const weft_finish_options& options);

  Comm& comm() { return *state_->comm; }

 private:
  Reducer(std::shared_ptr<ReducerState> state, int64_t timeout_ms);

  // Agrees with comm's ranks on the hook's collectives, for a state that has a plan, and makes the objects
  // that depend on them. Collective. given: the error that keeps this rank from it; the other ranks receive
  // it.
  static Status build_collectives(ReducerState* state, const Status& given, const Agreement& agreement);
  // The objects that any thread may use while begin, a re-plan or a rebind replaces them. A copy keeps them
  // alive.
  struct Parts {
    std::shared_ptr<ReducerState> state;
    std::shared_ptr<Step> step;
    std::shared_ptr<Gather> gather;
  };
  Parts parts() const {
    const std::lock_guard lock(mutex_);
    return {state_, step_, gather_};
  }
  // Installs another state, with a step of its own. *next receives the old state, which the caller releases.
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
  void poll_step();  // lets the engine poll the step
  bool has_bucket(uint64_t param) const {
    return param < state_->plan.bucket_of.size() && state_->plan.bucket_of[param] != kNoBucket;
  }
  // kArg for a parameter that does not exist or has no gradient.
  static Status known(const ReducerState& state, uint64_t param);
  Status known(uint64_t param) const { return known(*state_, param); }
  Status check_begin(const weft_begin_options& options) const;
  Status check_accumulation() const;
  // Captured steps (captured.cpp).
  Status begin_captured(const weft_begin_options& options);
  Status ready_captured(uint64_t param, void* gradient, const weft_stream* stream);
  Status outside_capture(const char* what) const;
  Status check_destinations(void* const* gradients) const;
  Status check_finish(const weft_finish_options& options) const;
  static Status no_dense_gradient(const ReducerState& state, uint64_t param);
  Status check_gradient(uint64_t param, const void* gradient, const weft_stream* stream) const;
  // Gradients in device memory, and streams that wait (ready_devices.cpp).
  void notice_devices();
  Status check_gradient_memory(uint64_t param, const void* gradient) const;
  Status check_gradient_stream(uint64_t param, const weft_stream* stream) const;
  Status find_gradient(uint64_t param, void** gradient) const;
  Status come_from_device(uint64_t param, void** gradient, const weft_stream* stream, StepWord step);
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
  // entries: those of a sparse gradient; null if put() has received them already.
  Status take(uint64_t param, const Given& given, StepWord step);
  void bring(uint64_t param, const Given& given, StepWord step);
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
  void publish(const weft_finish_options& options);
  void publish(const FinishRecord& request);
  // Ends the open step.
  Status finish_open(const weft_finish_options& options, StepWord step, uint64_t entered_ns);
  Status finish_local();
  Status fail_local(std::string_view text);
  Status fail_step(std::string_view text);
  void fail_comm(std::string_view text);
  bool may_be_left_out() const;
  void publish_failure(std::string_view text, Deadline deadline);
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
  Status await_pre_step(int64_t timeout_ms);
  Status begin_without_data(StepStart start, bool joined);
  Status check_sum(uint64_t param) const;
  bool leave_out(uint64_t param, uint32_t stamp);
  std::byte* destination(uint64_t param) const;
  Status wait_for_step(uint64_t entered_ns, bool commit, int64_t timeout_ms) {
    return wait_for_step(entered_ns, commit, state_->comm->op_deadline(timeout_ms));
  }
  Status wait_for_step(uint64_t entered_ns, bool commit, Deadline deadline);
  Status not_reduced();
  void drop_window();
  void note_handshake(bool over, bool reduced);
  Step::Times times(uint32_t bucket) const;  // of the last synchronised step
  bool reduced() const;
  Status close_step(uint64_t entered_ns);
  void note_times(uint64_t entered_ns, uint64_t now_ns, bool reduced);
  void note_error_memory();
  Status commit(Deadline deadline);
  Status check_rebind(Comm& comm);
  void take_over(std::shared_ptr<ReducerState> next, bool moved);
  Status agree_on_committed(const Agreement& agreement, const Status& given, uint64_t* committed, Plan* plan);
  void trace_ready(uint64_t param);
  Status note(Status status);  // remembers an error
  std::string step_text() const;
  // Lists every byte that the reducer holds, by its owner (report.cpp).
  std::vector<std::pair<const char*, uint64_t>> memory_parts() const;
  std::vector<std::pair<const char*, uint64_t>> heap_parts() const;  // without gradients and hook memory
  uint64_t heap_bytes() const;
  uint64_t device_bytes() const;  // tables, and views on devices

  // Only replace() changes these, on the program's thread and under mutex_. Other threads copy them with
  // parts(). ready and absent are the exception: they take no lock, and are called inside steps.
  std::shared_ptr<ReducerState> state_;
  std::shared_ptr<Step> step_;
  std::shared_ptr<Gather> gather_;      // null unless sharded; made with step_
  std::atomic<bool> gathering_{false};  // from gather_params until the next step
  // Set when a step has left the owners their slices: wait_param then starts the gather. The program's thread
  // sets it. It is cleared under owed_mutex_, once gathering_ is set or the next step begins.
  std::atomic<bool> owed_{false};
  std::mutex owed_mutex_;
  Deadline gather_deadline_ = Deadline::never();
  Status unable_;  // why this rank cannot gather
  const int64_t timeout_ms_;
  uint64_t other_bytes_ = 0;
  bool has_values_ = false;  // this rank has a value of some parameter that has a gradient

  // Written by begin and finish.
  // Failed attempts of the next synchronised step so far (fail.cpp); equal on all ranks.
  uint64_t failed_attempts_ = 0;
  std::optional<std::string> fail_next_;  // text of a failed local step; the next synchronised step will fail
  uint32_t stamp_ = 0;
  bool replanned_ = false;  // re-planned, or tried to automatically, at least once; equal on all ranks
  bool may_retry_ = false;  // some rank may retry the next step; equal on all ranks
  std::atomic<uint32_t> synchronised_{0};  // the stamp of the last synchronised step
  StepStart start_;                        // of the last synchronised step
  void* const* destinations_ = nullptr;    // where results of absent parameters go in this step
  bool finishing_ = false;                 // finish has left the step to streams that wait
  bool finish_again_ = false;              // the host waited instead of streams: finish may be called again
  uint64_t entered_ns_ = 0;                // when finish was called then
  Deadline finish_deadline_ = Deadline::never();
  int last_active_ = -1;              // the highest rank with data in the last step; -1: none or unknown
  bool reduced_ = false;              // the buckets hold the last step's results
  bool results_ = false;              // the gradients hold results of the last synchronised step
  bool measured_ = false;             // a step with norms has finished
  uint64_t finished_ = 0;             // steps finished here, including those that were rolled back
  uint64_t retained_step_ = kNoStep;  // the step whose contributions are all retained
  uint32_t retained_buckets_ = 0;     // buckets whose contributions are in the retained copies
  static constexpr uint64_t kNoStep = WEFT_NO_STEP;

  std::atomic<uint64_t> copied_gradients_{0};  // gradients with another layout than their parameter

  mutable std::mutex mutex_;
  weft_reducer_stats stats_{};           // guarded by mutex_
  History history_;                      // guarded by mutex_
  Status last_error_;                    // guarded by mutex_
  bool warned_of_error_memory_ = false;  // guarded by mutex_
  // Why automatic re-planning kept the buckets (weft_reducer_options.replan); guarded by mutex_.
  std::string plan_kept_;
};

}  // namespace weft
