// A weft_reducer for tests whose ranks are objects of the library (support/ranks.h): every function is one
// call of the C ABI and returns its error as a Status. So these tests do not depend on how the reducer is
// made inside.
#pragma once

#include <weft/weft.h>

#include <memory>
#include <string>

#include "base/status.h"
#include "comm/comm.h"
#include "hook/hook.h"

namespace weft::test {

// Threads: as weft_reducer. A struct whose struct_size is 0 gets the size of this header's.
class Reducer {
 public:
  // The hook takes the place of options.hook. Null: the default hook.
  static Status create(const std::shared_ptr<Comm>& comm, weft_reducer_options options,
                       const std::shared_ptr<Hook>& hook, std::unique_ptr<Reducer>* reducer);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  Status grad_view(uint64_t param, void** view);
  Status begin(const weft_begin_options* options);
  Status ready(uint64_t param, void* gradient, const weft_stream* stream);
  Status ready_tensor(uint64_t param, weft_tensor gradient, const weft_stream* stream);
  Status ready_sparse(uint64_t param, weft_sparse gradient, const weft_stream* stream);
  Status absent(const uint64_t* params, uint64_t count);
  Status finish(weft_finish_options options);
  Status fail(const char* text);
  Status wait_param(uint64_t param, int64_t timeout_ms);
  Status result(uint64_t param, void* gradient);
  Status sparse_result(uint64_t param, weft_sparse* result);
  Status norms(weft_norms* norms, double* per_param);
  Status owned(int32_t rank, weft_slice* slices, uint64_t* count);
  Status gather_params(weft_gather_options options);
  Status join(weft_join_options options, weft_join_result* result);
  Status replan(weft_replan_options options);
  Status broadcast(weft_broadcast_options options);
  Status check();
  Status param(uint64_t param, weft_param_info* info) const;
  Status rebind(const std::shared_ptr<Comm>& comm);
  Status retry(weft_finish_options options);
  Status bucket(uint32_t bucket, weft_bucket_info* info, uint64_t* params, uint64_t capacity);
  Status error() const;
  // These throw std::runtime_error if the call fails.
  void verdict(weft_verdict* verdict) const;
  uint32_t bucket_count() const;
  void query(weft_reducer_stats* stats) const;
  std::string report() const;

 private:
  explicit Reducer(weft_reducer* handle) : handle_(handle) {}
  weft_reducer* handle_;
};

}  // namespace weft::test
