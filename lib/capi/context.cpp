// weft_context_*, weft_backend_*, weft_capability.
#include <utility>

#include "base/arguments.h"
#include "base/guard.h"
#include "capi/handles.h"
#include "capi/status.h"
#include "comm/capability.h"
#include "environment/config.h"
#include "kernels/host_ops.h"
#include "trace/flight_file.h"
#include "trace/recorder.h"

namespace weft::capi {
namespace {

// Compares the program's header with this library. Before 1.0 a minor version may change the meaning of
// structs and calls.
Status check_version(uint32_t header) {
  constexpr uint32_t kKept = WEFT_VERSION_MAJOR > 0 ? 10000 : 100;
  if (header == 0 || header / kKept == WEFT_VERSION_NUMBER / kKept) return {};
  return Status::error(Code::kVersion, cat("the program was compiled with weft.h ", header / 10000, ".",
                                           header / 100 % 100, ", this library is ", WEFT_VERSION_MAJOR, ".",
                                           WEFT_VERSION_MINOR, ": compile it with this library's weft.h"));
}

Status context_options(const weft_context_options* given, ContextOptions* options, Libraries* libraries,
                       std::string* trace_file) {
  weft_context_options read;
  WEFT_TRY(read_struct(given, "weft_context_options", &read));
  WEFT_TRY(check_version(read.version));
  constexpr NamedValue kModes[] = {
      {0, "the default"}, WEFT_NAMED(WEFT_PROGRESS_THREAD), WEFT_NAMED(WEFT_PROGRESS_CALLER)};
  WEFT_TRY(check_choice("weft_context_options.progress", read.progress, kModes));
  WEFT_TRY(check_constants("weft_context_options.log_level", read.log_level, WEFT_NAMED(WEFT_LOG_OFF),
                           WEFT_NAMED(WEFT_LOG_DEBUG)));
  if ((read.host_alloc == nullptr) != (read.host_free == nullptr) ||
      (read.device_alloc == nullptr) != (read.device_free == nullptr)) {
    const bool host = (read.host_alloc == nullptr) != (read.host_free == nullptr);
    return Status::error(Code::kArg, cat("one of weft_context_options.",
                                         host ? "host_alloc and host_free" : "device_alloc and device_free",
                                         " is NULL: set both functions, or none"));
  }
  if (read.device_alloc != nullptr) {
    return Status::error(Code::kUnsupported,
                         "weft_context_options.device_alloc is set, but this version of Weft allocates no "
                         "device memory by callbacks: leave it NULL");
  }
  constexpr NamedValue kFlags[] = {WEFT_NAMED(WEFT_CONTEXT_STREAM_WAITS)};
  WEFT_TRY(check_flags("weft_context_options.flags", read.flags, kFlags));
  options->stream_waits = (read.flags & WEFT_CONTEXT_STREAM_WAITS) != 0;
  options->mode = read.progress == WEFT_PROGRESS_CALLER ? Engine::Mode::kCaller : Engine::Mode::kThread;
  options->host = &host_ops();
  options->host_allocator = {read.host_alloc, read.host_free, read.host_alloc_user_data};
  if (read.log != nullptr) {
    options->log_sink = [log = read.log, user_data = read.log_user_data](LogLevel level, const char* line) {
      log(user_data, static_cast<int32_t>(level), line);
    };
    options->log_level =
        read.log_level == WEFT_LOG_OFF ? LogLevel::kWarn : static_cast<LogLevel>(read.log_level);
  }
  if (read.thread_start != nullptr) {
    options->thread_start = [start = read.thread_start,
                             user_data = read.thread_start_user_data](const char* name) {
      const CallbackMark mark(CallbackMark::Calls::kNone);
      start(user_data, name);
    };
  }
  options->interrupt = {read.interrupt, read.interrupt_user_data, nullptr};
  if (read.module_path != nullptr) options->module_path = read.module_path;
  if (read.flight_path != nullptr) options->flight_path = read.flight_path;
  options->write_flight = write_flight;
  const Settings settings = process_settings();
  Launch launch;
  const bool launched = process_launch(&launch).ok();
  WEFT_TRY(parse_log(settings, launched ? launch.rank : -1, &options->environment_log));
  ObserverSettings observers;
  WEFT_TRY(parse_observers(settings, launch, &observers));
  options->metrics_file = {observers.metrics_file, observers.metrics_seconds};
  options->status = observers.status;
  *trace_file = observers.trace_file;
  const std::string runtime = read.cuda_runtime != nullptr ? read.cuda_runtime : settings.cuda_runtime;
  options->accelerator =
      Registry::load_accelerator(options->module_path, runtime, &options->accelerator_status);
  if (read.nccl_library != nullptr) libraries->nccl = read.nccl_library;
  return {};
}

// Variables that nothing reads are mostly misspelt. Only those that resemble one are reported: programs may
// have others.
void warn_of_misspelt(Log& log) {
  if (!log.enabled(LogLevel::kWarn)) return;
  for (const std::string& variable : unknown_variables()) {
    const std::string similar = similar_variable(variable);
    if (!similar.empty())
      log.warn(
          cat("the variable ", variable, " is set, but Weft does not read it; did you mean ", similar, "?"));
  }
}

// Starts the trace of WEFT_TRACE. Writes the file at once, so that a folder that takes no files is an error
// now.
Status start_trace(weft_context& context) {
  if (context.trace_file.empty()) return {};
  WEFT_TRY(context.recorder->write(context.trace_file, {}));
  WEFT_TRY(context.recorder->start(0));
  context.rep->set_trace(context.recorder.get());
  context.traces_to_file = true;
  return {};
}

// Ends the trace of WEFT_TRACE, unless the program has started one of its own.
void end_trace(weft_context& context) {
  if (!context.traces_to_file.exchange(false)) return;
  context.rep->measure_clocks(true);
  context.rep->set_trace(nullptr);
  const Status written = guarded([&]() -> Status {
    WEFT_TRY(context.recorder->stop());
    return context.recorder->write(context.trace_file, context.rep->trace_comms().list());
  });
  if (!written.ok()) context.rep->log().warn(cat("trace: ", written.text()));
}

Status probe_backend(weft_context& context, const BackendEntry& entry, std::string* detail) {
  WEFT_TRY(context.registry->probe(entry, detail));
  std::string device;
  if (needs_device(*entry.backend)) return context.rep->probe_accelerator(&device);
  return {};
}

}  // namespace
}  // namespace weft::capi

using namespace weft;
using namespace weft::capi;

extern "C" {

weft_status weft_context_create(const weft_context_options* options, weft_context** context,
                                weft_error* error) {
  return reported(error, [&]() -> Status {
    WEFT_NOT_NULL(context);
    *context = nullptr;
    ContextOptions made;
    Libraries libraries;
    auto handle = std::make_unique<weft_context>();
    WEFT_TRY(context_options(options, &made, &libraries, &handle->trace_file));
    handle->registry = std::make_shared<Registry>(made.module_path, std::move(libraries));
    WEFT_TRY(Context::create(std::move(made), &handle->rep));
    warn_of_misspelt(handle->rep->log());
    handle->recorder = std::make_shared<TraceRecorder>(handle->rep->clock());
    handle->rep->keep(handle->recorder);
    WEFT_TRY(start_trace(*handle));
    start_status(*handle);
    *context = handle.release();
    return {};
  });
}

weft_status weft_context_destroy(weft_context** context) {
  return plain([&]() -> Status {
    WEFT_NOT_NULL(context);
    if (*context == nullptr) return {};
    if (!(*context)->rep->forked()) {
      WEFT_TRY(check_call(*(*context)->rep));
      (*context)->status.reset();
      end_trace(**context);
      const Status closed = (*context)->rep->close();
      delete std::exchange(*context, nullptr);
      return closed;
    }
    *context = nullptr;  // a forked child does not touch the object: its threads do not exist there
    return {};
  });
}

weft_status weft_backend_count(weft_context* context, uint64_t* count) {
  return plain([&]() -> Status {
    WEFT_NOT_NULL(count);
    *count = 0;
    WEFT_TRY(usable(context));
    *count = context->registry->backends().size();
    return {};
  });
}

weft_status weft_backend_query(weft_context* context, uint64_t index, weft_backend_info* info) {
  return plain([&]() -> Status {
    WEFT_TRY(usable(context));
    const auto& backends = context->registry->backends();
    if (index >= backends.size()) {
      return Status::error(Code::kArg, cat("weft_backend_query: index is ", index, ", but there are ",
                                           backends.size(), " backends"));
    }
    const BackendEntry& entry = backends[index];
    weft_backend_info out{};
    std::string detail;
    const Status status = probe_backend(*context, entry, &detail);
    put_text(entry.name, out.name);
    put_text(status.ok() ? detail : status.text(), out.reason);
    out.available = status.ok() ? 1 : 0;
    out.is_module = entry.is_module ? 1 : 0;
    return write_struct(out, "info", info);
  });
}

weft_status weft_device_query(weft_context* context, int32_t device_kind, weft_device_info* info) {
  return plain([&]() -> Status {
    WEFT_TRY(usable(context));
    if (device_kind != WEFT_DEVICE_CUDA)
      return Status::error(Code::kArg, cat("device_kind is ", device_kind, ": allowed is WEFT_DEVICE_CUDA (",
                                           WEFT_DEVICE_CUDA, ")"));
    weft_device_info out{};
    std::string detail;
    const Status status = context->rep->probe_accelerator(&detail);
    put_text(status.ok() ? detail : status.text(), out.reason);
    out.available = status.ok() ? 1 : 0;
    out.device_count = status.ok() ? context->rep->accelerator()->device_count() : 0;
    return write_struct(out, "info", info);
  });
}

weft_status weft_capability(weft_context* context, const char* backend, int32_t coll, int32_t dtype,
                            int32_t op, int32_t device_kind, uint8_t* supported) {
  return plain([&]() -> Status {
    WEFT_NOT_NULL(supported);
    *supported = 0;
    WEFT_TRY(usable(context));
    WEFT_NOT_NULL(backend);
    const BackendEntry* entry = context->registry->find(backend);
    if (entry == nullptr)
      return Status::error(Code::kArg,
                           cat("unknown backend \"", backend, "\"; known: ", context->registry->names()));
    const auto c = static_cast<Coll>(coll);
    const auto d = static_cast<Dtype>(dtype);
    const auto o = static_cast<ReduceOp>(op);
    if (coll < 1 || coll > kCollCount || dtype < 1 || dtype > kDtypeLast || !valid(d) || op < 0 ||
        op > kReduceOpLast || device_kind < WEFT_DEVICE_HOST || device_kind > WEFT_DEVICE_CUDA) {
      return Status::error(Code::kArg, cat("coll is ", coll, " (allowed: 1 to ", kCollCount, "), dtype ",
                                           dtype, " (WEFT_DTYPE_*, 1 to ", kDtypeLast, "), op ", op,
                                           " (0 to ", kReduceOpLast, "), device_kind ", device_kind, " (",
                                           WEFT_DEVICE_HOST, " to ", WEFT_DEVICE_CUDA, ")"));
    }
    if (is_reduction(c) != (op != 0))
      return Status::error(Code::kArg,
                           cat("op is ", op, ", but ", name(c),
                               is_reduction(c) ? " needs one of WEFT_OP_*" : " takes no op: give 0"));
    const bool exists = check_capability({c, d, o, device_kind}).ok();
    std::string detail;
    const bool available = probe_backend(*context, *entry, &detail).ok();
    const bool memory = device_kind == WEFT_DEVICE_HOST || context->rep->probe_accelerator(&detail).ok();
    *supported = exists && available && memory ? 1 : 0;
    return {};
  });
}

}  // extern "C"
