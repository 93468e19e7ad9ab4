// The module libweft-jax.so: runs Weft's collectives inside programs that XLA has compiled.
// weftsync/jax/_module.py loads it, and registers weft_jax_collective with XLA's foreign function interface
// (FFI) for the platform cpu.
//
// It uses XLA's C interface alone (xla/ffi/api/c_api.h of jaxlib), whose binary form is stable within a major
// version, and the C ABI of Weft. XLA calls the handler on threads of its own, or on the one that started the
// program.

#include <signal.h>
#include <unistd.h>
#include <weft/weft.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "xla/ffi/api/c_api.h"

#define WEFT_JAX_API extern "C" __attribute__((visibility("default")))

namespace {

// The version of XLA's interface that the module says it was compiled for. All that the module uses of the
// interface is in version 0.1 and at the same places in later ones, so it may say any of them. Tests compile
// it for versions that do not exist.
#ifndef WEFT_JAX_TEST_MAJOR
#define WEFT_JAX_TEST_MAJOR XLA_FFI_API_MAJOR
#endif
#ifndef WEFT_JAX_TEST_MINOR
#define WEFT_JAX_TEST_MINOR XLA_FFI_API_MINOR
#endif
constexpr int major_version = WEFT_JAX_TEST_MAJOR, newest_minor = WEFT_JAX_TEST_MINOR;
std::atomic<int> minor_version{newest_minor};
static_assert(XLA_FFI_API_MAJOR == 0, "another interface than the one that this file was written for");

// A communicator that compiled programs may use. The Python object's handle becomes null when it is
// destroyed.
struct Entry {
  weft_comm* const* handle = nullptr;
  pid_t process = 0;    // which created the communicator
  bool closed = false;  // guarded by turn
  std::mutex turn;      // held during a collective: a communicator is for one thread at a time
};

// Communicators by number. A number is never used twice, so that an old program cannot reach a new
// communicator.
std::mutex entries_lock;
std::map<int64_t, std::shared_ptr<Entry>> entries;  // guarded by entries_lock

std::shared_ptr<Entry> entry_of(int64_t number) {
  const std::lock_guard<std::mutex> hold(entries_lock);
  const auto found = entries.find(number);
  return found == entries.end() ? nullptr : found->second;
}

// Returns null in a child made by fork, where another thread of the parent may hold the entry's lock for
// ever.
std::shared_ptr<Entry> entry_of_this_process(int64_t number) {
  const std::shared_ptr<Entry> entry = entry_of(number);
  return entry != nullptr && entry->process == getpid() ? entry : nullptr;
}

// Numbers of the attribute "collective". _calls.py has the same ones.
enum class Collective : int64_t {
  all_reduce = 0,
  reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  all_to_all,
  barrier
};

const char* const collective_names[] = {"all_reduce",     "reduce",     "broadcast", "all_gather",
                                        "reduce_scatter", "all_to_all", "barrier"};

struct Call {
  int64_t comm = 0, collective = 0, op = 0, root = 0, timeout_ms = 0;
};

XLA_FFI_Error* make_error(const XLA_FFI_CallFrame* frame, XLA_FFI_Error_Code code, const std::string& text) {
  XLA_FFI_Error_Create_Args arguments = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, text.c_str(), code};
  return frame->api->XLA_FFI_Error_Create(&arguments);
}

XLA_FFI_Error* invalid(const XLA_FFI_CallFrame* frame, const std::string& text) {
  return make_error(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT, "weftsync.jax: " + text);
}

weft_dtype dtype_of(XLA_FFI_DataType type) {
  switch (type) {
    case XLA_FFI_DataType_PRED:
      return WEFT_DTYPE_BOOL;
    case XLA_FFI_DataType_S8:
      return WEFT_DTYPE_I8;
    case XLA_FFI_DataType_S16:
      return WEFT_DTYPE_I16;
    case XLA_FFI_DataType_S32:
      return WEFT_DTYPE_I32;
    case XLA_FFI_DataType_S64:
      return WEFT_DTYPE_I64;
    case XLA_FFI_DataType_U8:
      return WEFT_DTYPE_U8;
    case XLA_FFI_DataType_U16:
      return WEFT_DTYPE_U16;
    case XLA_FFI_DataType_U32:
      return WEFT_DTYPE_U32;
    case XLA_FFI_DataType_U64:
      return WEFT_DTYPE_U64;
    case XLA_FFI_DataType_F16:
      return WEFT_DTYPE_F16;
    case XLA_FFI_DataType_BF16:
      return WEFT_DTYPE_BF16;
    case XLA_FFI_DataType_F32:
      return WEFT_DTYPE_F32;
    case XLA_FFI_DataType_F64:
      return WEFT_DTYPE_F64;
    case XLA_FFI_DataType_C64:
      return WEFT_DTYPE_C64;
    case XLA_FFI_DataType_C128:
      return WEFT_DTYPE_C128;
    default:
      return 0;
  }
}

size_t size_of(weft_dtype dtype) {
  switch (dtype) {
    case WEFT_DTYPE_BOOL:
    case WEFT_DTYPE_I8:
    case WEFT_DTYPE_U8:
      return 1;
    case WEFT_DTYPE_I16:
    case WEFT_DTYPE_U16:
    case WEFT_DTYPE_F16:
    case WEFT_DTYPE_BF16:
      return 2;
    case WEFT_DTYPE_I32:
    case WEFT_DTYPE_U32:
    case WEFT_DTYPE_F32:
      return 4;
    case WEFT_DTYPE_C128:
      return 16;
    default:
      return 8;
  }
}

XLA_FFI_Error_Code code_of(weft_status status) {
  switch (status) {
    case WEFT_ERR_ARG:
    case WEFT_ERR_MISMATCH:
      return XLA_FFI_Error_Code_INVALID_ARGUMENT;
    case WEFT_ERR_TIMEOUT:
      return XLA_FFI_Error_Code_DEADLINE_EXCEEDED;
    case WEFT_ERR_PEER_FAILED:
    case WEFT_ERR_UNAVAILABLE:
      return XLA_FFI_Error_Code_UNAVAILABLE;
    case WEFT_ERR_STATE:
    case WEFT_ERR_FORKED:
      return XLA_FFI_Error_Code_FAILED_PRECONDITION;
    case WEFT_ERR_ABORTED:
      return XLA_FFI_Error_Code_ABORTED;
    case WEFT_ERR_CANCELLED:
    case WEFT_ERR_INTERRUPTED:
      return XLA_FFI_Error_Code_CANCELLED;
    case WEFT_ERR_UNSUPPORTED:
      return XLA_FFI_Error_Code_UNIMPLEMENTED;
    case WEFT_ERR_NOMEM:
      return XLA_FFI_Error_Code_RESOURCE_EXHAUSTED;
    default:
      return XLA_FFI_Error_Code_INTERNAL;
  }
}

// Reads the attributes, which are all of type int64. Returns the name of one that is missing, or null.
const char* read_attributes(const XLA_FFI_Attrs& attributes, Call& call) {
  const struct {
    const char* name;
    int64_t* value;
  } wanted[] = {{"comm", &call.comm},
                {"collective", &call.collective},
                {"op", &call.op},
                {"root", &call.root},
                {"timeout_ms", &call.timeout_ms}};
  for (const auto& one : wanted) {
    bool found = false;
    for (int64_t i = 0; i < attributes.size && !found; i++) {
      const XLA_FFI_ByteSpan* name = attributes.names[i];
      if (attributes.types[i] != XLA_FFI_AttrType_SCALAR ||
          std::string_view(name->ptr, name->len) != one.name)
        continue;
      const auto* scalar = static_cast<const XLA_FFI_Scalar*>(attributes.attrs[i]);
      if (scalar->dtype != XLA_FFI_DataType_S64) return one.name;
      std::memcpy(one.value, scalar->value, sizeof *one.value);
      found = true;
    }
    if (!found) return one.name;
  }
  return nullptr;
}

uint64_t count_of(const XLA_FFI_Buffer& buffer) {
  uint64_t count = 1;
  for (int64_t i = 0; i < buffer.rank; i++) count *= static_cast<uint64_t>(buffer.dims[i]);
  return count;
}

weft_status run(weft_comm* comm, int32_t rank, uint64_t size, const Call& call, const XLA_FFI_Buffer& src,
                const XLA_FFI_Buffer& dst, weft_dtype dtype) {
  weft_coll_options options = WEFT_COLL_OPTIONS_INIT;
  options.timeout_ms = call.timeout_ms;
  const auto op = static_cast<weft_op>(call.op);
  const auto root = static_cast<int32_t>(call.root);
  const bool is_root = rank == root;
  const uint64_t count = count_of(src), result = count_of(dst);
  switch (static_cast<Collective>(call.collective)) {
    case Collective::all_reduce:
      return weft_all_reduce(comm, src.data, dst.data, count, dtype, op, &options, nullptr);
    case Collective::reduce:
      if (!is_root) std::memset(dst.data, 0, result * size_of(dtype));
      return weft_reduce(comm, src.data, is_root ? dst.data : nullptr, count, dtype, op, root, &options,
                         nullptr);
    case Collective::broadcast:
      if (is_root && count > 0) std::memcpy(dst.data, src.data, count * size_of(dtype));
      return weft_broadcast(comm, dst.data, count, dtype, root, &options, nullptr);
    case Collective::all_gather:
      return weft_all_gather(comm, src.data, dst.data, count, dtype, &options, nullptr);
    case Collective::reduce_scatter:
      return weft_reduce_scatter(comm, src.data, dst.data, result, dtype, op, &options, nullptr);
    case Collective::all_to_all:
      return weft_all_to_all(comm, src.data, dst.data, count / size, dtype, &options, nullptr);
    case Collective::barrier:
      return weft_barrier(comm, &options, nullptr);
  }
  return WEFT_ERR_ARG;
}

// True if the shapes are those that Python gave the call. A program that was compiled for another number of
// ranks differs.
bool sizes_fit(const Call& call, uint64_t src, uint64_t dst, uint64_t size) {
  switch (static_cast<Collective>(call.collective)) {
    case Collective::all_gather:
      return dst == src * size;
    case Collective::reduce_scatter:
      return src == dst * size;
    case Collective::all_to_all:
      return src == dst && src % size == 0;
    default:
      return src == dst;
  }
}

// ---- Ctrl-C ----
// XLA runs most programs on its own threads, while Python's main thread waits in XLA and runs no signal
// handlers. So the module counts Ctrl-C itself, and a collective that waits asks whether the main thread runs
// Python code.

using SignalHandler = void (*)(int);
using PendingCall = int (*)(void*);
std::atomic<int (*)(PendingCall, void*)> add_pending_call{nullptr};  // Py_AddPendingCall
std::atomic<SignalHandler> python_handler{nullptr};                  // Python's, which the module's calls
std::atomic<uint64_t> interrupts{0};                                 // received by this process
std::atomic<uint64_t> handled{0};  // so many of them were received before the main thread ran Python code
// For functions of other libraries that the main thread may be in, such as a product of matrices.
constexpr std::chrono::seconds patience{1};

// The collective that a thread runs.
struct Waiting {
  uint64_t interrupts_before = interrupts.load();
  uint64_t asked_for = 0;  // value of `interrupts` when the main thread was asked
  std::chrono::steady_clock::time_point asked_at;
};
thread_local Waiting* waiting = nullptr;

void on_interrupt(int number) {
  interrupts.fetch_add(1);
  python_handler.load()(number);
}

// Puts the module's handler before Python's, if that is installed.
void watch_interrupts() {
  struct sigaction current = {};
  if (sigaction(SIGINT, nullptr, &current) != 0 || (current.sa_flags & SA_SIGINFO) != 0) return;
  const SignalHandler handler = current.sa_handler, known = python_handler.load();
  if (handler == SIG_DFL || handler == SIG_IGN || handler == on_interrupt) return;
  // Not before a later handler of another library, which may call the module's.
  if (known != nullptr && handler != known) return;
  python_handler.store(handler);
  current.sa_handler = on_interrupt;
  sigaction(SIGINT, &current, nullptr);
}

// Runs on Python's main thread, after the handlers of the signals that it has received.
int main_thread_runs(void* count) {
  handled.store(reinterpret_cast<uintptr_t>(count));
  return 0;
}

XLA_FFI_Error* execute(const XLA_FFI_CallFrame* frame) {
  Call call;
  if (const char* missing = read_attributes(frame->attrs, call))
    return invalid(frame, std::string("the call has no int64 attribute ") + missing);
  if (call.collective < 0 || call.collective > static_cast<int64_t>(Collective::barrier))
    return invalid(frame, "unknown collective " + std::to_string(call.collective));
  const std::string name = collective_names[call.collective];
  if (frame->args.size != 2 || frame->rets.size != 2)
    return invalid(frame, name + " has " + std::to_string(frame->args.size) + " arguments and " +
                              std::to_string(frame->rets.size) + " results, expected 2 of each");
  const auto& src = *static_cast<const XLA_FFI_Buffer*>(frame->args.args[0]);
  const auto& dst = *static_cast<const XLA_FFI_Buffer*>(frame->rets.rets[0]);
  const auto& token = *static_cast<const XLA_FFI_Buffer*>(frame->rets.rets[1]);
  const weft_dtype dtype = dtype_of(src.dtype);
  if (dtype == 0 || src.dtype != dst.dtype || token.dtype != XLA_FFI_DataType_F32 || count_of(token) != 1)
    return invalid(frame, name + " got an element type that Weft does not have, or results of another type");

  const std::shared_ptr<Entry> entry = entry_of(call.comm);
  const std::string number = std::to_string(call.comm);
  if (entry == nullptr)
    return make_error(frame, XLA_FFI_Error_Code_FAILED_PRECONDITION,
                      "weftsync.jax: " + name + ": this process has no communicator with the number " +
                          number + "; the program was compiled in another process");
  // Before the lock, which a thread that the child does not have may hold.
  if (entry->process != getpid())
    return make_error(frame, XLA_FFI_Error_Code_FAILED_PRECONDITION,
                      "weftsync.jax: " + name + ": " + weft_status_string(WEFT_ERR_FORKED));
  const std::lock_guard<std::mutex> hold(entry->turn);
  weft_comm* comm = entry->closed ? nullptr : *entry->handle;
  if (comm == nullptr)
    return make_error(frame, XLA_FFI_Error_Code_FAILED_PRECONDITION,
                      "weftsync.jax: " + name +
                          ": the communicator was closed after the function was traced; trace it "
                          "again with an open one");
  int32_t rank = 0, size = 0;
  if (weft_comm_rank(comm, &rank) != WEFT_OK || weft_comm_size(comm, &size) != WEFT_OK)
    return invalid(frame, name + ": the communicator has no rank and size");
  if (!sizes_fit(call, count_of(src), count_of(dst), static_cast<uint64_t>(size)))
    return invalid(
        frame, name + ": the program was compiled for another number of ranks than " + std::to_string(size));
  Waiting mine;
  waiting = &mine;
  const weft_status status = run(comm, rank, static_cast<uint64_t>(size), call, src, dst, dtype);
  waiting = nullptr;
  if (status != WEFT_OK) {
    weft_error error = WEFT_ERROR_INIT;
    const bool details = weft_last_error(&error) == status && error.text[0] != 0;
    return make_error(frame, code_of(status),
                      "weftsync.jax: " + name + ": " + (details ? error.text : weft_status_string(status)));
  }
  const float zero = 0;
  std::memcpy(token.data, &zero, sizeof zero);
  return nullptr;
}

}  // namespace

// The handler. Returns null or an error, which XLA owns. XLA catches no exceptions.
WEFT_JAX_API XLA_FFI_Error* weft_jax_collective(XLA_FFI_CallFrame* frame) {
  if (frame->extension_start != nullptr && frame->extension_start->type == XLA_FFI_Extension_Metadata) {
    // XLA asks at registration for which version of the interface the handler was compiled.
    auto* metadata = reinterpret_cast<XLA_FFI_Metadata_Extension*>(frame->extension_start)->metadata;
    metadata->api_version.major_version = major_version;
    metadata->api_version.minor_version = minor_version.load();
    return nullptr;
  }
  if (frame->stage != XLA_FFI_ExecutionStage_EXECUTE)
    return make_error(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT, "weftsync.jax: called in an unknown stage");
  try {
    return execute(frame);
  } catch (...) {
    return make_error(frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "weftsync.jax: out of memory");
  }
}

// Makes a communicator known under a number that was not used before. handle: the caller's handle, valid as
// long as the process lives; weft_comm_destroy sets it to null. Returns 0, or 1 without memory. Threads: any.
WEFT_JAX_API int32_t weft_jax_add(int64_t number, weft_comm* const* handle) {
  try {
    auto entry = std::make_shared<Entry>();
    entry->handle = handle;
    entry->process = getpid();
    const std::lock_guard<std::mutex> hold(entries_lock);
    entries[number] = std::move(entry);
    return 0;
  } catch (...) {
    return 1;
  }
}

// Ends the use of a communicator, before it is destroyed: waits for the collective that is running, which has
// a deadline. Later calls fail. Does nothing for unknown numbers, and in a child of the process. Threads:
// any.
WEFT_JAX_API void weft_jax_close(int64_t number) {
  if (const auto entry = entry_of_this_process(number)) {
    const std::lock_guard<std::mutex> hold(entry->turn);
    entry->closed = true;
  }
}

// Keeps compiled programs from a communicator until weft_jax_release, on the same thread: for calls outside
// jit. Waits for the collective that is running. Both do nothing for unknown numbers, and in a child of the
// process.
WEFT_JAX_API void weft_jax_hold(int64_t number) {
  if (const auto entry = entry_of_this_process(number)) entry->turn.lock();
}
WEFT_JAX_API void weft_jax_release(int64_t number) {
  if (const auto entry = entry_of_this_process(number)) entry->turn.unlock();
}

// Watches Ctrl-C from now on. add: Py_AddPendingCall. Threads: any that holds Python's lock, which keeps the
// program from changing its signal handlers meanwhile.
WEFT_JAX_API void weft_jax_watch(int (*add)(int (*)(void*), void*)) {
  add_pending_call.store(add);
  watch_interrupts();
}

// Returns 1 if Ctrl-C has come during the collective of the calling thread, and Python's main thread has not
// run its handlers for a second, because it waits in other code. Returns 0 on threads without a collective.
// Threads: any that holds Python's lock.
WEFT_JAX_API int32_t weft_jax_interrupted() {
  if (waiting == nullptr) return 0;
  watch_interrupts();  // again, if the program has set another handler
  const uint64_t count = interrupts.load();
  if (count == waiting->interrupts_before || count == handled.load()) return 0;
  const auto now = std::chrono::steady_clock::now();
  if (waiting->asked_for == count) return now - waiting->asked_at > patience ? 1 : 0;
  if (add_pending_call.load()(main_thread_runs, reinterpret_cast<void*>(count)) == 0) {
    waiting->asked_for = count;
    waiting->asked_at = now;
  }
  return 0;
}

// Returns the version of XLA's interface that the module was compiled for: major * 1000 + minor.
WEFT_JAX_API int32_t weft_jax_interface() {
  return major_version * 1000 + newest_minor;
}

// Lets the module say an older minor version, from 1, because XLA refuses newer ones than its own. Threads:
// one, before the handler is registered.
WEFT_JAX_API void weft_jax_offer(int32_t minor) {
  minor_version.store(minor);
}
