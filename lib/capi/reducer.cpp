// weft_reducer_*.
#include "reducer/reducer.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "capi/call.h"
#include "capi/group.h"
#include "capi/handles.h"
#include "capi/params.h"

struct weft_reducer {
  std::shared_ptr<weft::Context> context;
  std::unique_ptr<weft::Reducer> rep;
};

using namespace weft;
using namespace weft::capi;

namespace {

Status usable(const weft_reducer* reducer) {
  WEFT_NOT_NULL(reducer);
  return check_call(*reducer->context);
}

// Runs a part that other ranks take part in, or depend on. If it throws, its progress is unknown, so the
// communicator fails.
template <class Body>
Status or_fail(Comm& comm, Body&& body) noexcept {
  Status status;
  Status thrown = guarded_run([&] { status = body(); });
  if (thrown.ok()) return with_places(comm, status);
  comm.fail(thrown);
  return thrown;
}

template <class Body>
weft_status in_step(weft_reducer* reducer, Body&& body) noexcept {
  return plain([&]() -> Status {
    WEFT_TRY(usable(reducer));
    return or_fail(reducer->rep->comm(), body);
  });
}

// Reads the program's options, with parameters and hook.
Status read_options(const weft_reducer_options* given, Context& context, weft_reducer_options* options,
                    std::vector<weft_param>* params, weft_plan* plan, std::shared_ptr<Hook>* hook) {
  WEFT_NOT_NULL(given);
  WEFT_TRY(read_struct(given, "weft_reducer_options", options));
  WEFT_TRY(read_params(options->params, options->param_count, options->param_size, params));
  options->params = params->data();
  options->param_size = sizeof(weft_param);
  if (options->plan != nullptr) {
    WEFT_TRY(read_struct(options->plan, "weft_plan", plan));
    options->plan = plan;
  }
  if (options->hook != nullptr) {
    if (options->hook->context.get() != &context) {
      return Status::error(Code::kArg,
                           "weft_reducer_options.hook belongs to another context than the communicator: "
                           "create both in one context");
    }
    *hook = options->hook->rep;
    return {};
  }
  return Registry::make_hook("allreduce", {{}, nullptr, context.host()}, hook);
}

// Reads and validates the streams of finish, and replaces the program's list by the validated one.
Status read_streams(Context& context, weft_finish_options* options, std::vector<weft_stream>* streams,
                    bool captured = false) {
  constexpr uint64_t kMost = 1024;
  if (options->stream_count > kMost)
    return Status::error(Code::kArg, cat("weft_finish_options.stream_count is ", options->stream_count,
                                         "; at most ", kMost, " are allowed"));
  if (options->stream == nullptr) {
    if (options->stream_count == 0) return {};
    return Status::error(Code::kArg, cat("weft_finish_options.stream_count is ", options->stream_count,
                                         ", but weft_finish_options.stream is NULL"));
  }
  const auto* at = reinterpret_cast<const std::byte*>(options->stream);
  const uint64_t stride = options->stream->struct_size;
  for (uint64_t i = 0; i < std::max<uint64_t>(options->stream_count, 1); i++, at += stride) {
    weft_stream& stream = streams->emplace_back();
    WEFT_TRY(read_struct(reinterpret_cast<const weft_stream*>(at), "weft_stream", &stream));
    if (stream.kind == WEFT_DEVICE_HOST && options->stream_count > 1)
      return Status::error(Code::kArg, cat("weft_finish_options.stream[", i,
                                           "].kind is WEFT_DEVICE_HOST, but with a stream_count of ",
                                           options->stream_count, " all streams must be of devices"));
    StreamArgs checked;
    WEFT_TRY(check_stream(context, &stream, &checked, captured));
  }
  options->stream = streams->data();
  return {};
}

// Creates a reducer. Errors found here are sent to the other ranks, which are waiting for this one.
Status create(weft_comm& comm, const weft_reducer_options* given, std::unique_ptr<weft_reducer>* made) {
  weft_reducer_options options{};
  std::vector<weft_param> params;
  weft_plan plan{};
  std::shared_ptr<Hook> hook;
  return or_fail(*comm.rep, [&] {
    const Status status = read_options(given, comm.rep->context(), &options, &params, &plan, &hook);
    *made = std::make_unique<weft_reducer>();
    (*made)->context = comm.rep->shared_context();
    return Reducer::create(comm.rep, status, options, std::move(hook), &(*made)->rep);
  });
}

}  // namespace

extern "C" {

weft_status weft_reducer_create(weft_comm* comm, const weft_reducer_options* options, weft_reducer** reducer,
                                weft_error* error) {
  return reported(error, [&]() -> Status {
    WEFT_NOT_NULL(reducer);
    *reducer = nullptr;
    WEFT_NOT_NULL(comm);
    WEFT_TRY(check_call(comm->rep->context()));
    WEFT_TRY(no_group(*comm));
    std::unique_ptr<weft_reducer> made;
    WEFT_TRY(create(*comm, options, &made));
    *reducer = made.release();
    return {};
  });
}

weft_status weft_reducer_destroy(weft_reducer** reducer) {
  return plain([&]() -> Status {
    WEFT_NOT_NULL(reducer);
    if (*reducer == nullptr) return {};
    if (!(*reducer)->context->forked()) {
      WEFT_TRY(check_call(*(*reducer)->context));
      delete *reducer;
    }
    *reducer = nullptr;
    return Interrupt::status();
  });
}

weft_status weft_reducer_grad_view(weft_reducer* reducer, uint64_t param, void** view) {
  return plain([&]() -> Status {
    WEFT_NOT_NULL(view);
    *view = nullptr;
    WEFT_TRY(usable(reducer));
    return reducer->rep->grad_view(param, view);
  });
}

weft_status weft_reducer_begin(weft_reducer* reducer, const weft_begin_options* options) {
  return in_step(reducer, [&]() -> Status {
    weft_begin_options read;
    WEFT_TRY(read_struct(options, "weft_begin_options", &read));
    Status begun = reducer->rep->begin(&read);
    after_progress(*reducer->context);
    return begun;
  });
}

weft_status weft_reducer_ready(weft_reducer* reducer, uint64_t param, void* gradient,
                               const weft_stream* stream) {
  return in_step(reducer, [&]() -> Status { return reducer->rep->ready(param, gradient, stream); });
}

weft_status weft_reducer_ready_tensor(weft_reducer* reducer, uint64_t param, const weft_tensor* gradient,
                                      const weft_stream* stream) {
  return in_step(reducer, [&]() -> Status {
    WEFT_NOT_NULL(gradient);
    weft_tensor read;
    WEFT_TRY(read_struct(gradient, "weft_tensor", &read));
    return reducer->rep->ready_tensor(param, read, stream);
  });
}

weft_status weft_reducer_ready_sparse(weft_reducer* reducer, uint64_t param, const weft_sparse* gradient,
                                      const weft_stream* stream) {
  return in_step(reducer, [&]() -> Status {
    WEFT_NOT_NULL(gradient);
    weft_sparse read;
    WEFT_TRY(read_struct(gradient, "weft_sparse", &read));
    return reducer->rep->ready_sparse(param, read, stream);
  });
}

weft_status weft_reducer_absent(weft_reducer* reducer, const uint64_t* params, uint64_t count) {
  return in_step(reducer, [&]() -> Status { return reducer->rep->absent(params, count); });
}

weft_status weft_reducer_finish(weft_reducer* reducer, const weft_finish_options* options) {
  return in_step(reducer, [&]() -> Status {
    weft_finish_options read = WEFT_FINISH_OPTIONS_INIT;
    std::vector<weft_stream> streams;
    const bool captured = reducer->rep->capturing();
    Status given = read_struct(options, "weft_finish_options", &read);
    if (!given.ok() && !captured) return given;
    if (given.ok()) given = read_streams(*reducer->context, &read, &streams, captured);
    if (captured) return reducer->rep->finish_captured(read, given);
    if (!given.ok()) return reducer->rep->refuse(std::move(given));
    Status status = reducer->rep->finish(read);
    after_progress(*reducer->context);
    return status;
  });
}

weft_status weft_reducer_fail(weft_reducer* reducer, const char* text) {
  return in_step(reducer, [&]() -> Status {
    const Status status = reducer->rep->fail(text != nullptr ? text : "");
    after_progress(*reducer->context);
    return status;
  });
}

weft_status weft_reducer_wait_param(weft_reducer* reducer, uint64_t param, int64_t timeout_ms) {
  return plain([&]() -> Status {
    WEFT_TRY(usable(reducer));
    const Status status = reducer->rep->wait_param(param, timeout_ms);
    after_progress(*reducer->context);
    return status;
  });
}

weft_status weft_reducer_stream_wait_param(weft_reducer* reducer, uint64_t param, const weft_stream* stream) {
  return plain([&]() -> Status {
    WEFT_TRY(usable(reducer));
    StreamArgs checked;
    Status given = check_stream(*reducer->context, stream, &checked);
    if (given.ok() && checked.kind == WEFT_DEVICE_HOST)
      given = Status::error(Code::kArg,
                            "weft_reducer_stream_wait_param: the stream is NULL or of kind WEFT_DEVICE_HOST, "
                            "but must be of a CUDA device; on the host, call weft_reducer_wait_param");
    if (!given.ok()) return reducer->rep->refuse(std::move(given));
    const Status status = reducer->rep->stream_wait_param(param, checked.device, checked.handle);
    after_progress(*reducer->context);
    return status;
  });
}

weft_status weft_reducer_result(weft_reducer* reducer, uint64_t param, void* gradient) {
  return plain([&]() -> Status {
    WEFT_TRY(usable(reducer));
    return reducer->rep->result(param, gradient);
  });
}

weft_status weft_reducer_norms(weft_reducer* reducer, weft_norms* norms, double* per_param) {
  return plain([&]() -> Status {
    WEFT_TRY(usable(reducer));
    weft_norms out{};
    WEFT_TRY(reducer->rep->norms(&out, per_param));
    return write_struct(out, "norms", norms);
  });
}

weft_status weft_reducer_owned(weft_reducer* reducer, int32_t rank, weft_slice* slices, uint64_t* count) {
  return plain([&]() -> Status {
    WEFT_NOT_NULL(count);
    WEFT_TRY(usable(reducer));
    return reducer->rep->owned(rank, slices, count);
  });
}

weft_status weft_reducer_gather_params(weft_reducer* reducer, const weft_gather_options* options) {
  return in_step(reducer, [&]() -> Status {
    weft_gather_options read{};
    const Status given = read_struct(options, "weft_gather_options", &read);
    return reducer->rep->gather_params(read, given);
  });
}

weft_status weft_reducer_sparse_result(weft_reducer* reducer, uint64_t param, weft_sparse* result) {
  return plain([&]() -> Status {
    WEFT_TRY(usable(reducer));
    WEFT_NOT_NULL(result);
    weft_sparse out{};
    Status status = reducer->rep->sparse_result(param, &out);
    WEFT_TRY(write_struct(out, "result", result));
    return status;
  });
}

weft_status weft_reducer_join(weft_reducer* reducer, const weft_join_options* options,
                              weft_join_result* result) {
  return in_step(reducer, [&]() -> Status {
    weft_join_options read;
    WEFT_TRY(read_struct(options, "weft_join_options", &read));
    weft_join_result out{};
    Status joined = reducer->rep->join(read, &out);
    after_progress(*reducer->context);
    if (result != nullptr) WEFT_TRY(write_struct(out, "result", result));
    return joined;
  });
}

weft_status weft_reducer_replan(weft_reducer* reducer, const weft_replan_options* options,
                                weft_error* error) {
  return reported(error, [&]() -> Status {
    WEFT_TRY(usable(reducer));
    weft_replan_options read{};
    weft_plan plan{};
    Status given = read_struct(options, "weft_replan_options", &read);
    if (given.ok() && read.plan != nullptr) {
      given = read_struct(read.plan, "weft_plan", &plan);
      read.plan = &plan;
    }
    return or_fail(reducer->rep->comm(), [&] { return reducer->rep->replan(read, given); });
  });
}

weft_status weft_reducer_broadcast(weft_reducer* reducer, const weft_broadcast_options* options,
                                   weft_error* error) {
  return reported(error, [&]() -> Status {
    WEFT_TRY(usable(reducer));
    weft_broadcast_options read{};
    const Status given = read_struct(options, "weft_broadcast_options", &read);
    return or_fail(reducer->rep->comm(), [&] { return reducer->rep->broadcast(read, given); });
  });
}

weft_status weft_reducer_check(weft_reducer* reducer, weft_error* error) {
  return reported(error, [&]() -> Status {
    WEFT_TRY(usable(reducer));
    return or_fail(reducer->rep->comm(), [&] { return reducer->rep->check(); });
  });
}

weft_status weft_reducer_param(weft_reducer* reducer, uint64_t param, weft_param_info* info) {
  return plain([&]() -> Status {
    WEFT_TRY(usable(reducer));
    weft_param_info out{};
    WEFT_TRY(reducer->rep->param(param, &out));
    return write_struct(out, "info", info);
  });
}

weft_status weft_reducer_verdict(weft_reducer* reducer, weft_verdict* verdict) {
  return plain([&]() -> Status {
    WEFT_TRY(usable(reducer));
    static_cast<void>(reducer->rep->settle_finish().ok());  // reducer_error keeps the error
    weft_verdict out{};
    reducer->rep->verdict(&out);
    return write_struct(out, "verdict", verdict);
  });
}

weft_status weft_reducer_rebind(weft_reducer* reducer, weft_comm* comm, weft_error* error) {
  return reported(error, [&]() -> Status {
    WEFT_TRY(usable(reducer));
    WEFT_NOT_NULL(comm);
    return or_fail(*comm->rep, [&] { return reducer->rep->rebind(comm->rep); });
  });
}

weft_status weft_reducer_retry(weft_reducer* reducer, const weft_finish_options* options) {
  return in_step(reducer, [&]() -> Status {
    weft_finish_options read;
    WEFT_TRY(read_struct(options, "weft_finish_options", &read));
    std::vector<weft_stream> streams;
    if (Status given = read_streams(*reducer->context, &read, &streams); !given.ok())
      return reducer->rep->refuse(std::move(given));
    Status status = reducer->rep->retry(read);
    after_progress(*reducer->context);
    return status;
  });
}

weft_status weft_reducer_error(weft_reducer* reducer, weft_error* error) {
  return reported(error, [&]() -> Status {
    WEFT_NOT_NULL(reducer);
    WEFT_TRY(check_process(*reducer->context));
    return with_places(reducer->rep->comm(), reducer->rep->error());
  });
}

weft_status weft_reducer_bucket_count(weft_reducer* reducer, uint32_t* count) {
  return plain([&]() -> Status {
    WEFT_NOT_NULL(count);
    *count = 0;
    WEFT_TRY(usable(reducer));
    *count = reducer->rep->bucket_count();
    return {};
  });
}

weft_status weft_reducer_bucket(weft_reducer* reducer, uint32_t bucket, weft_bucket_info* info,
                                uint64_t* params, uint64_t capacity) {
  return plain([&]() -> Status {
    WEFT_TRY(usable(reducer));
    WEFT_TRY(reducer->rep->settle_finish());
    weft_bucket_info out{};
    WEFT_TRY(reducer->rep->bucket(bucket, &out, params, capacity));
    return write_struct(out, "info", info);
  });
}

weft_status weft_reducer_report(weft_reducer* reducer, char* text, uint64_t* size) {
  return plain([&]() -> Status {
    WEFT_NOT_NULL(size);
    const uint64_t room = text != nullptr ? std::exchange(*size, 0) : 0;
    WEFT_TRY(usable(reducer));
    static_cast<void>(reducer->rep->settle_finish().ok());
    return put_long_text("weft_reducer_report", reducer->rep->report(), text, room, size);
  });
}

weft_status weft_reducer_query(weft_reducer* reducer, weft_reducer_stats* stats) {
  return plain([&]() -> Status {
    WEFT_TRY(usable(reducer));
    weft_reducer_stats out{};
    reducer->rep->query(&out);
    return write_struct(out, "stats", stats);
  });
}

}  // extern "C"
