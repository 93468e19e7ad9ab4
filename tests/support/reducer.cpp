#include "support/reducer.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "capi/handles.h"

namespace weft::test {
namespace {

Status status_of(const weft_error& error) {
  ErrorInfo info;
  info.code = static_cast<Code>(error.code);
  info.evidence = static_cast<Evidence>(error.evidence);
  info.text = error.text;
  info.slot = error.slot;
  info.step = error.step;
  const uint64_t listed = std::min<uint64_t>(error.failed_count, WEFT_ERROR_RANKS);
  info.ranks.assign(error.failed_ranks, error.failed_ranks + listed);
  return Status(std::move(info));
}

// Returns the error of the call that has just ended with `code` on this thread.
Status status_of(weft_status code) {
  if (code == WEFT_OK) return {};
  weft_error error = WEFT_ERROR_INIT;
  if (weft_last_error(&error) == code) return status_of(error);
  return Status::error(static_cast<Code>(code), code_name(static_cast<Code>(code)));
}

void must(weft_status code) {
  if (const Status status = status_of(code); !status.ok()) throw std::runtime_error(status.text());
}

template <class T>
T* sized(T* given) {
  if (given != nullptr && given->struct_size == 0) given->struct_size = sizeof(T);
  return given;
}

}  // namespace

Status Reducer::create(const std::shared_ptr<Comm>& comm, weft_reducer_options options,
                       const std::shared_ptr<Hook>& hook, std::unique_ptr<Reducer>* reducer) {
  weft_comm over;
  over.rep = comm;
  weft_hook with{comm->shared_context(), hook};
  if (hook) options.hook = &with;
  weft_reducer* made = nullptr;
  const Status status = status_of(weft_reducer_create(&over, sized(&options), &made, nullptr));
  if (made != nullptr) reducer->reset(new Reducer(made));
  return status;
}

Reducer::~Reducer() {
  static_cast<void>(weft_reducer_destroy(&handle_));
}

Status Reducer::grad_view(uint64_t param, void** view) {
  return status_of(weft_reducer_grad_view(handle_, param, view));
}

Status Reducer::begin(const weft_begin_options* options) {
  return status_of(weft_reducer_begin(handle_, options));
}

Status Reducer::ready(uint64_t param, void* gradient, const weft_stream* stream) {
  return status_of(weft_reducer_ready(handle_, param, gradient, stream));
}

Status Reducer::ready_tensor(uint64_t param, weft_tensor gradient, const weft_stream* stream) {
  return status_of(weft_reducer_ready_tensor(handle_, param, sized(&gradient), stream));
}

Status Reducer::ready_sparse(uint64_t param, weft_sparse gradient, const weft_stream* stream) {
  return status_of(weft_reducer_ready_sparse(handle_, param, sized(&gradient), stream));
}

Status Reducer::absent(const uint64_t* params, uint64_t count) {
  return status_of(weft_reducer_absent(handle_, params, count));
}

Status Reducer::finish(weft_finish_options options) {
  return status_of(weft_reducer_finish(handle_, sized(&options)));
}

Status Reducer::fail(const char* text) {
  return status_of(weft_reducer_fail(handle_, text));
}

Status Reducer::wait_param(uint64_t param, int64_t timeout_ms) {
  return status_of(weft_reducer_wait_param(handle_, param, timeout_ms));
}

Status Reducer::result(uint64_t param, void* gradient) {
  return status_of(weft_reducer_result(handle_, param, gradient));
}

Status Reducer::sparse_result(uint64_t param, weft_sparse* result) {
  return status_of(weft_reducer_sparse_result(handle_, param, sized(result)));
}

Status Reducer::norms(weft_norms* norms, double* per_param) {
  return status_of(weft_reducer_norms(handle_, sized(norms), per_param));
}

Status Reducer::owned(int32_t rank, weft_slice* slices, uint64_t* count) {
  return status_of(weft_reducer_owned(handle_, rank, slices, count));
}

Status Reducer::gather_params(weft_gather_options options) {
  return status_of(weft_reducer_gather_params(handle_, sized(&options)));
}

Status Reducer::join(weft_join_options options, weft_join_result* result) {
  return status_of(weft_reducer_join(handle_, sized(&options), sized(result)));
}

Status Reducer::replan(weft_replan_options options) {
  return status_of(weft_reducer_replan(handle_, sized(&options), nullptr));
}

Status Reducer::broadcast(weft_broadcast_options options) {
  return status_of(weft_reducer_broadcast(handle_, sized(&options), nullptr));
}

Status Reducer::check() {
  return status_of(weft_reducer_check(handle_, nullptr));
}

Status Reducer::param(uint64_t param, weft_param_info* info) const {
  return status_of(weft_reducer_param(handle_, param, sized(info)));
}

Status Reducer::rebind(const std::shared_ptr<Comm>& comm) {
  weft_comm to;
  to.rep = comm;
  return status_of(weft_reducer_rebind(handle_, &to, nullptr));
}

Status Reducer::retry(weft_finish_options options) {
  return status_of(weft_reducer_retry(handle_, sized(&options)));
}

Status Reducer::bucket(uint32_t bucket, weft_bucket_info* info, uint64_t* params, uint64_t capacity) {
  return status_of(weft_reducer_bucket(handle_, bucket, sized(info), params, capacity));
}

Status Reducer::error() const {
  weft_error error = WEFT_ERROR_INIT;
  return weft_reducer_error(handle_, &error) == WEFT_OK ? Status() : status_of(error);
}

void Reducer::verdict(weft_verdict* verdict) const {
  must(weft_reducer_verdict(handle_, sized(verdict)));
}

uint32_t Reducer::bucket_count() const {
  uint32_t count = 0;
  must(weft_reducer_bucket_count(handle_, &count));
  return count;
}

void Reducer::query(weft_reducer_stats* stats) const {
  must(weft_reducer_query(handle_, sized(stats)));
}

std::string Reducer::report() const {
  uint64_t size = 0;
  must(weft_reducer_report(handle_, nullptr, &size));
  std::string text(size, '\0');
  must(weft_reducer_report(handle_, text.data(), &size));
  text.resize(size - 1);
  return text;
}

}  // namespace weft::test
