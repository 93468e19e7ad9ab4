// Programs for the runs of allocation_runs.h. They handle errors: they make no further call after the first
// one.
#pragma once

#include <weft/weft.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "capi/allocation_runs.h"

namespace weft_test {

// Leaves at the first error, which it notes.
#define WEFT_TAKE(out, call) \
  do {                       \
    (out).take(call);        \
    if (!(out).ok()) return; \
  } while (false)

inline void on_complete(void* data, weft_status) {
  static_cast<Outcome*>(data)->called++;
}
inline void on_bucket(void* data, uint64_t, uint32_t, weft_status) {
  static_cast<Outcome*>(data)->called++;
}

inline void meeting(AllocatingRank& r) {
  r.out->take(weft_barrier(r.comm, nullptr, nullptr));
}

// All-reduces of several sizes, and requests with callbacks.
inline void collectives(AllocatingRank& r) {
  weft_comm* const comm = r.comm;
  Outcome& out = *r.out;
  std::vector<float> values, gathered;
  {
    const FailingAllocations::Exempt exempt;
    values.assign(200'000, 1.0f);
    gathered.assign(kRanks * values.size(), 0.0f);
  }
  const auto sum = [&](uint64_t count, weft_request** request) {
    return weft_all_reduce(comm, values.data(), values.data(), count, WEFT_DTYPE_F32, WEFT_OP_SUM, nullptr,
                           request);
  };
  out.take(weft_barrier(comm, nullptr, nullptr));
  for (const uint64_t count : {uint64_t{4}, uint64_t{3'000}, uint64_t{200'000}}) {
    if (out.ok()) out.take(sum(count, nullptr));
  }
  if (out.ok()) {
    out.take(weft_all_gather(comm, values.data(), gathered.data(), values.size(), WEFT_DTYPE_F32, nullptr,
                             nullptr));
  }
  if (out.ok()) {
    out.take(r.rank == 0 ? weft_send(comm, values.data(), 50'000, WEFT_DTYPE_F32, 1, nullptr, nullptr)
                         : weft_recv(comm, values.data(), 50'000, WEFT_DTYPE_F32, 0, nullptr, nullptr));
  }
  weft_request* requests[3] = {};
  for (weft_request*& request : requests) {
    if (out.ok()) out.take(sum(1'000, &request));
    if (request == nullptr) continue;
    const weft_status told = weft_request_on_complete(request, on_complete, &out);
    if (told == WEFT_OK) out.posted++;
    out.take(told);
  }
  // Aborting the communicator completes its requests.
  if (!out.ok()) weft_comm_abort(comm, "an allocation failed");
  for (weft_request*& request : requests) {
    if (request == nullptr) continue;
    out.take(weft_request_wait(request, kOpMs));
    weft_request_release(&request);
  }
}

// Adds two arrays, for WEFT_OP_USER.
inline weft_status add(void*, const void* from, void* into, uint64_t count, weft_dtype) {
  for (uint64_t i = 0; i < count; i++) static_cast<float*>(into)[i] += static_cast<const float*>(from)[i];
  return WEFT_OK;
}

// Buffers of a rank, which the injector does not count.
struct Buffers {
  static constexpr uint64_t kCount = 3'000;
  std::vector<float> in = std::vector<float>(kRanks * kCount, 1.0f);
  std::vector<float> out = std::vector<float>(kRanks * kCount, 0.0f);
};
template <class T>
std::unique_ptr<T> make_uncounted() {
  const FailingAllocations::Exempt exempt;
  return std::make_unique<T>();
}

// Every collective, once.
inline void every_collective(AllocatingRank& r) {
  weft_comm* const comm = r.comm;
  Outcome& o = *r.out;
  const auto buffers = make_uncounted<Buffers>();
  float* const in = buffers->in.data();
  float* const out = buffers->out.data();
  constexpr uint64_t n = Buffers::kCount;
  constexpr weft_dtype f32 = WEFT_DTYPE_F32;
  constexpr weft_op sum = WEFT_OP_SUM;
  WEFT_TAKE(o, weft_all_reduce(comm, in, out, n, f32, sum, nullptr, nullptr));
  WEFT_TAKE(o, weft_reduce(comm, in, out, n, f32, sum, 1, nullptr, nullptr));
  WEFT_TAKE(o, weft_broadcast(comm, out, n, f32, 1, nullptr, nullptr));
  WEFT_TAKE(o, weft_all_gather(comm, in, out, n, f32, nullptr, nullptr));
  WEFT_TAKE(o, weft_reduce_scatter(comm, in, out, n, f32, sum, nullptr, nullptr));
  WEFT_TAKE(o, weft_gather(comm, in, out, n, f32, 0, nullptr, nullptr));
  WEFT_TAKE(o, weft_scatter(comm, in, out, n, f32, 0, nullptr, nullptr));
  WEFT_TAKE(o, weft_all_to_all(comm, in, out, n, f32, nullptr, nullptr));
  WEFT_TAKE(o, weft_barrier(comm, nullptr, nullptr));
  const uint64_t counts[kRanks] = {n, n / 3};
  const uint64_t mine = counts[r.rank];
  const uint64_t sent[kRanks] = {mine, mine / 2};
  const uint64_t received[kRanks] = {r.rank == 0 ? counts[0] : counts[0] / 2,
                                     r.rank == 0 ? counts[1] : counts[1] / 2};
  WEFT_TAKE(o, weft_all_gather_v(comm, in, out, counts, nullptr, f32, nullptr, nullptr));
  WEFT_TAKE(o, weft_reduce_scatter_v(comm, in, out, counts, nullptr, f32, sum, nullptr, nullptr));
  WEFT_TAKE(o, weft_gather_v(comm, in, out, counts, nullptr, f32, 1, nullptr, nullptr));
  WEFT_TAKE(o, weft_scatter_v(comm, in, out, counts, nullptr, f32, 1, nullptr, nullptr));
  WEFT_TAKE(o, weft_all_to_all_v(comm, in, sent, nullptr, out, received, nullptr, f32, nullptr, nullptr));
  weft_reduction reduction = WEFT_REDUCTION_INIT;
  reduction.combine = add;
  weft_coll_options options = WEFT_COLL_OPTIONS_INIT;
  options.reduction = &reduction;
  WEFT_TAKE(o, weft_all_reduce(comm, in, out, n, f32, WEFT_OP_USER, &options, nullptr));
  const int64_t indices[] = {7, 2, 7};
  const int64_t extent = 1'000'000;
  weft_sparse entries = WEFT_SPARSE_INIT, summed = WEFT_SPARSE_INIT;
  entries.count = 3;
  entries.indices = indices;
  entries.values = in;
  o.take(weft_sparse_all_reduce(comm, &entries, &extent, 1, 1, f32, sum, nullptr, &summed, nullptr));
  o.take(weft_sparse_release(&summed));
}

// Messages, alone, in groups and with tags, and memory of the communicator.
inline void messages(AllocatingRank& r) {
  weft_comm* const comm = r.comm;
  Outcome& o = *r.out;
  const auto buffers = make_uncounted<Buffers>();
  float* const in = buffers->in.data();
  float* const out = buffers->out.data();
  constexpr uint64_t n = Buffers::kCount;
  constexpr weft_dtype f32 = WEFT_DTYPE_F32;
  const int32_t peer = 1 - r.rank;
  WEFT_TAKE(o, weft_group_begin(comm));
  WEFT_TAKE(o, weft_recv(comm, out, n, f32, peer, nullptr, nullptr));
  WEFT_TAKE(o, weft_send(comm, in, n, f32, peer, nullptr, nullptr));
  WEFT_TAKE(o, weft_all_reduce(comm, in, in, 10, f32, WEFT_OP_SUM, nullptr, nullptr));
  WEFT_TAKE(o, weft_group_end(comm, nullptr));
  // Both send first: the shorter messages are copied, and the longer ones wait for their receives.
  for (const uint64_t count : {uint64_t{100}, 2 * n}) {
    weft_request* sent = nullptr;
    weft_message message = WEFT_MESSAGE_INIT;
    o.take(weft_send_tagged(comm, in, count, f32, peer, 5, nullptr, &sent));
    if (o.ok()) {
      o.take(
          weft_recv_tagged(comm, out, count, f32, WEFT_ANY_SOURCE, WEFT_ANY_TAG, &message, nullptr, nullptr));
    }
    if (!o.ok()) weft_comm_abort(comm, "an allocation failed");
    if (sent != nullptr) o.take(weft_request_wait(sent, kOpMs));
    weft_request_release(&sent);
    if (!o.ok()) return;
  }
  void* memory = nullptr;
  WEFT_TAKE(o, weft_comm_alloc(comm, n * sizeof(float), &memory));
  const auto shared = static_cast<float*>(memory);
  WEFT_TAKE(o, weft_all_reduce(comm, shared, shared, n, f32, WEFT_OP_SUM, nullptr, nullptr));
  WEFT_TAKE(o, weft_comm_free(comm, memory));
}

// A part of both ranks, and one of each alone.
inline void split(AllocatingRank& r) {
  for (const int32_t color : {0, r.rank}) {
    weft_comm* part = nullptr;
    r.out->take(weft_comm_split(r.comm, color, -r.rank, &part, nullptr));
    if (r.out->ok()) r.out->take(weft_barrier(part, nullptr, nullptr));
    r.out->take(weft_comm_destroy(&part));
    if (!r.out->ok()) return;
  }
}

// A model of four parameters in two buckets, and its steps.
struct Model {
  Model() {
    for (size_t i = 0; i < kParams; i++) {
      values[i].assign(kCount, 2.0f);
      gradients[i].assign(kCount, 1.0f);
      params[i] = WEFT_PARAM_INIT;
      params[i].name = kNames[i];
      params[i].dtype = WEFT_DTYPE_F32;
      params[i].ndim = 1;
      params[i].shape = &kShape;
    }
    options.params = params;
    options.param_count = kParams;
    options.mode = WEFT_GRADIENT_COPY;
    options.bucket_limits = &kLimit;
    options.bucket_limit_count = 1;
  }
  static constexpr size_t kParams = 4;
  static constexpr int64_t kShape = 1'500;
  static constexpr size_t kCount = 1'500;
  static constexpr uint64_t kLimit = 12'000;
  static constexpr const char* kNames[kParams] = {"one", "two", "three", "four"};
  std::vector<float> values[kParams], gradients[kParams];
  weft_param params[kParams];
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
};

// Makes one step, unless there was an error.
inline void make_step(weft_reducer* reducer, Model& model, Outcome& out) {
  if (out.ok()) out.take(weft_reducer_begin(reducer, nullptr));
  for (size_t p = 0; out.ok() && p < Model::kParams; p++) {
    out.take(weft_reducer_ready(reducer, p, model.gradients[p].data(), nullptr));
  }
  if (out.ok()) out.take(weft_reducer_finish(reducer, nullptr));
}

// Steps over a hook, whose state is saved after them and loaded into a new hook.
inline void steps(AllocatingRank& r, const char* hook_name) {
  Outcome& out = *r.out;
  const auto model = make_uncounted<Model>();
  model->options.on_bucket = on_bucket;
  model->options.on_bucket_user_data = &out;
  out.take(weft_hook_create(r.context, hook_name, nullptr, &model->options.hook));
  weft_reducer* reducer = nullptr;
  if (out.ok()) out.take(weft_reducer_create(r.comm, &model->options, &reducer, nullptr));
  for (int step = 0; out.ok() && step < 3; step++) {
    const weft_status begun = weft_reducer_begin(reducer, nullptr);
    out.take(begun);
    if (begun != WEFT_OK) break;
    uint32_t buckets = 0;
    out.take(weft_reducer_bucket_count(reducer, &buckets));
    out.posted += static_cast<int>(buckets);
    for (size_t p = 0; out.ok() && p < Model::kParams; p++) {
      out.take(weft_reducer_ready(reducer, p, model->gradients[p].data(), nullptr));
    }
    const weft_status finished = weft_reducer_finish(reducer, nullptr);
    out.take(finished);
    if (finished != WEFT_OK) break;
  }
  std::vector<char> saved;
  uint64_t size = 0;
  if (out.ok()) out.take(weft_hook_save(model->options.hook, nullptr, &size, nullptr));
  if (out.ok()) {
    const FailingAllocations::Exempt exempt;
    saved.resize(size);
  }
  if (out.ok()) out.take(weft_hook_save(model->options.hook, saved.data(), &size, nullptr));
  weft_hook* loaded = nullptr;
  if (out.ok()) out.take(weft_hook_create_saved(r.context, saved.data(), size, &loaded, nullptr));
  out.take(weft_hook_destroy(&loaded));
  out.take(weft_reducer_destroy(&reducer));
  out.take(weft_hook_destroy(&model->options.hook));
}

// A reducer with a sparse parameter, absent ones, norms and retained gradients.
inline void features(AllocatingRank& r) {
  Outcome& out = *r.out;
  const auto model = make_uncounted<Model>();
  constexpr uint64_t kSparse = 1, kAbsent = 3;
  model->params[kSparse].flags = WEFT_PARAM_SPARSE;
  model->options.flags = WEFT_REDUCER_ABSENT | WEFT_REDUCER_NORMS | WEFT_REDUCER_RETAIN;
  weft_reducer* reducer = nullptr;
  out.take(weft_reducer_create(r.comm, &model->options, &reducer, nullptr));
  const int64_t indices[] = {8, 3};
  for (int step = 0; out.ok() && step < 2; step++) {
    out.take(weft_reducer_begin(reducer, nullptr));
    for (const uint64_t p : {uint64_t{0}, uint64_t{2}}) {
      if (out.ok()) out.take(weft_reducer_ready(reducer, p, model->gradients[p].data(), nullptr));
    }
    weft_sparse entries = WEFT_SPARSE_INIT;
    entries.count = 2;
    entries.indices = indices;
    entries.values = model->values[kSparse].data();
    if (out.ok()) out.take(weft_reducer_ready_sparse(reducer, kSparse, &entries, nullptr));
    if (out.ok()) out.take(weft_reducer_absent(reducer, &kAbsent, 1));
    if (out.ok()) out.take(weft_reducer_finish(reducer, nullptr));
    weft_norms norms = WEFT_NORMS_INIT;
    if (out.ok()) out.take(weft_reducer_norms(reducer, &norms, nullptr));
    if (out.ok()) out.take(weft_reducer_sparse_result(reducer, kSparse, &entries));
    weft_reducer_stats stats = WEFT_REDUCER_STATS_INIT;
    if (out.ok()) out.take(weft_reducer_query(reducer, &stats));
  }
  out.take(weft_reducer_destroy(&reducer));
}

// A sharded reducer in view mode, and the call that gathers parameters.
inline void sharded(AllocatingRank& r) {
  Outcome& out = *r.out;
  const auto model = make_uncounted<Model>();
  model->options.mode = WEFT_GRADIENT_VIEW;
  model->options.flags = WEFT_REDUCER_SHARDED;
  for (size_t p = 0; p < Model::kParams; p++) model->params[p].parameter = model->values[p].data();
  weft_reducer* reducer = nullptr;
  out.take(weft_reducer_create(r.comm, &model->options, &reducer, nullptr));
  for (int step = 0; out.ok() && step < 2; step++) {
    out.take(weft_reducer_begin(reducer, nullptr));
    for (size_t p = 0; out.ok() && p < Model::kParams; p++) {
      out.take(weft_reducer_ready(reducer, p, nullptr, nullptr));
    }
    if (out.ok()) out.take(weft_reducer_finish(reducer, nullptr));
    if (out.ok()) out.take(weft_reducer_gather_params(reducer, nullptr));
  }
  out.take(weft_reducer_destroy(&reducer));
}

// A communicator fails in a step. The ranks continue with a new one and repeat the step.
inline void recovery(AllocatingRank& r) {
  Outcome& out = *r.out;
  const auto model = make_uncounted<Model>();
  model->options.flags = WEFT_REDUCER_RETAIN;
  weft_reducer* reducer = nullptr;
  out.take(weft_reducer_create(r.comm, &model->options, &reducer, nullptr));
  make_step(reducer, *model, out);
  if (out.ok()) out.take(weft_reducer_begin(reducer, nullptr));
  r.barrier->wait();  // neither aborts before both have begun
  if (out.ok()) out.take(weft_comm_abort(r.comm, "a test"));
  for (size_t p = 0; out.ok() && p < Model::kParams; p++) {
    out.take(weft_reducer_ready(reducer, p, model->gradients[p].data(), nullptr));
  }
  if (out.ok() && weft_reducer_finish(reducer, nullptr) == WEFT_OK) out.take(WEFT_ERR_INTERNAL);
  weft_comm* next = nullptr;
  if (out.ok()) out.take(weft_comm_shrink(r.comm, nullptr, &next, nullptr));
  if (out.ok()) out.take(weft_reducer_rebind(reducer, next, nullptr));
  if (out.ok()) out.take(weft_reducer_retry(reducer, nullptr));
  make_step(reducer, *model, out);
  out.take(weft_reducer_destroy(&reducer));
  if (next == nullptr) return;
  weft_comm_destroy(&r.comm);
  r.comm = next;
}

// Makes the collective calls of a reducer that are not part of a step.
inline void collective_calls(AllocatingRank& r) {
  Outcome& out = *r.out;
  const auto model = make_uncounted<Model>();
  model->options.flags = WEFT_REDUCER_UNEVEN;
  for (size_t i = 0; i < Model::kParams; i++) model->params[i].parameter = model->values[i].data();
  weft_reducer* reducer = nullptr;
  out.take(weft_reducer_create(r.comm, &model->options, &reducer, nullptr));
  const auto step = [&](const char* failure) {
    if (out.ok()) out.take(weft_reducer_begin(reducer, nullptr));
    for (size_t p = 0; out.ok() && p < Model::kParams; p++)
      out.take(weft_reducer_ready(reducer, p, model->gradients[p].data(), nullptr));
    if (!out.ok()) return;
    out.take(failure != nullptr ? weft_reducer_fail(reducer, failure)
                                : weft_reducer_finish(reducer, nullptr));
  };
  if (out.ok()) out.take(weft_reducer_check(reducer, nullptr));
  step(nullptr);
  if (out.ok()) out.take(weft_reducer_replan(reducer, nullptr, nullptr));
  // Both ranks fail the step: if only one did, the other rank's finish would be an error.
  step("a text that is too long for a string without an allocation");
  if (r.rank == 0) step(nullptr);
  if (out.ok()) out.take(weft_reducer_join(reducer, nullptr, nullptr));
  out.take(weft_reducer_destroy(&reducer));
}

}  // namespace weft_test
