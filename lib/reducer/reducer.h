// Gradient synchronisation for one manifest of parameters over one communicator. Each function implements the
// call of weft.h with its name, which is the contract. The C layer has checked struct sizes.
#pragma once

#include <weft/weft.h>

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "metrics/metrics.h"
#include "reducer/data.h"

namespace weft {

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

  // ---- any thread. The calls that make a parameter ready or absent never poll the engine, not even in
  // caller mode; they take a lock only while the uses of parameters are being learned.
  Status ready(uint64_t param, void* gradient, const weft_stream* stream);
  Status ready_tensor(uint64_t param, const weft_tensor& gradient, const weft_stream* stream);
  Status ready_sparse(uint64_t param, const weft_sparse& gradient, const weft_stream* stream);
  Status absent(const uint64_t* params, uint64_t count);
  Status grad_view(uint64_t param, void** view);
  Status wait_param(uint64_t param, int64_t timeout_ms);
  // Makes a stream wait for the result of one parameter. The caller has checked the stream.
  Status stream_wait_param(uint64_t param, int device, DeviceStream stream);
  Status refuse(Status status);  // records an error that the C layer found
  bool capturing() const;  // true while a captured step is open: the program's streams are being captured
  Status error() const;    // the last error
  void query(weft_reducer_stats* stats) const;

  // ---- one thread at a time. given: an error that the caller found; a collective passes it to the other
  // ranks.
  Status begin(const weft_begin_options* options);
  Status finish(const weft_finish_options& options);
  // Ends a captured step, with or without an error.
  Status finish_captured(const weft_finish_options& options, const Status& given);
  // Waits for a finish that was left to streams, and returns the step's result once. Calls that need the
  // results call this first.
  Status settle_finish();
  Status fail(std::string_view text);
  Status join(const weft_join_options& options, weft_join_result* result);
  Status result(uint64_t param, void* gradient);
  Status sparse_result(uint64_t param, weft_sparse* result);
  Status norms(weft_norms* norms, double* per_param);
  // slices: null to ask for their number.
  Status owned(int32_t rank, weft_slice* slices, uint64_t* count);
  Status param(uint64_t param, weft_param_info* info) const;
  Status bucket(uint32_t bucket, weft_bucket_info* info, uint64_t* params, uint64_t capacity);
  uint32_t bucket_count() const;
  std::string report() const;  // everything that is known, as JSON
  // Collective; returns without waiting.
  Status gather_params(const weft_gather_options& options, const Status& given);
  Status replan(const weft_replan_options& options, const Status& given);        // collective
  Status broadcast(const weft_broadcast_options& options, const Status& given);  // collective
  Status check();                                                                // collective
  void verdict(weft_verdict* verdict) const;
  Status rebind(std::shared_ptr<Comm> comm);  // collective over comm
  Status retry(const weft_finish_options& options);

  Comm& comm() { return *data_.state->comm; }

 private:
  Reducer(std::shared_ptr<ReducerState> state, int64_t timeout_ms);

  ReducerData data_;
  std::unique_ptr<Metrics::Source> metrics_;  // describes data_
};

}  // namespace weft
