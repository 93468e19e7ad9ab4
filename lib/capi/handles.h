// The types behind weft.h's opaque pointers: each holds a shared reference to its object.
#pragma once

#include <weft/weft.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "capi/guard.h"
#include "comm/comm.h"
#include "comm/context.h"
#include "hook/hook.h"
#include "registry.h"
#include "rendezvous/invitation/open_stores.h"
#include "status/server.h"
#include "transport/request.h"

namespace weft {
class TraceRecorder;
}

struct weft_context {
  std::shared_ptr<weft::Context> rep;
  std::shared_ptr<weft::Registry> registry;
  std::shared_ptr<weft::TraceRecorder> recorder;  // lives as long as the context: events may arrive late
  std::unique_ptr<weft::StatusServer> status;     // null: none
  std::string trace_file;                         // of WEFT_TRACE; empty: none
  std::atomic<bool> traces_to_file{false};        // the trace of WEFT_TRACE runs
  weft::OpenStores stores;                        // of weft_unique_id_create
};

namespace weft::capi {
class Group;
class GroupEnd;

// The error of the last rejected call. Threads: any thread.
class Refusal {
 public:
  void note(std::string text) {
    const std::lock_guard lock(mutex_);
    text_ = std::move(text);
  }
  std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;  // guarded by mutex_
};

// Decides whether a buffer without a stream may be on a device: only once the program uses one. Checks this
// for each large buffer, and for each small one whose pages were not checked before. Threads: any thread;
// concurrent writes of an entry store either value.
class MemoryWatch {
 public:
  bool beside_devices(weft::Accelerator& accelerator, const void* start, uint64_t size);

 private:
  static constexpr size_t kEntries = 256;
  // Pages that were checked before the program used a device. Entry i holds at most one range, whose first
  // page number is i modulo kEntries: the page number, and the number of pages in the lowest 8 bits. 0: none.
  std::array<std::atomic<uint64_t>, kEntries> seen_{};
};
}  // namespace weft::capi

struct weft_comm {
  weft_comm();
  ~weft_comm();
  std::shared_ptr<weft::Comm> rep;
  std::shared_ptr<weft::Registry> registry;
  std::unique_ptr<weft::capi::Group> group;  // the open group; one thread at a time, as collectives
  weft::capi::Refusal refusal;               // of rejected calls, for weft_comm_error
  weft::capi::MemoryWatch memory_watch;
};

struct weft_hook {
  std::shared_ptr<weft::Context> context;
  std::shared_ptr<weft::Hook> rep;
};

// A request on the heap. The program's handle holds one reference, the lane another until it completes.
struct weft_request : weft::Request {
  explicit weft_request(std::shared_ptr<weft::Context> owner) : context(std::move(owner)) {
    retire = [](weft::Request* request) { static_cast<weft_request*>(request)->retired(); };
  }
  void release() {
    if (references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  // Called by the lane once the request is done.
  void retired();
  // Sets the completion callback. kState: a callback is set already.
  weft::Status set_callback(weft_complete_fn callback, void* user_data);

  const std::shared_ptr<weft::Context> context;
  weft::DeviceCall device;  // the call's stream, if any; the call leaves the gate when the request is retired
  std::atomic<int> references{2};
  // Keeps data that args points to until the request is retired.
  std::shared_ptr<void> kept;
  std::shared_ptr<weft::capi::GroupEnd> group_end;  // of the group that it belongs to
  bool tagged = false;                              // a message of lib/tagged
  std::weak_ptr<weft::Comm> sent_over;              // its communicator, if tagged

 private:
  std::mutex mutex_;
  weft_complete_fn callback_ = nullptr;  // guarded by mutex_
  void* callback_data_ = nullptr;        // guarded by mutex_
  bool retired_ = false;                 // guarded by mutex_
};

namespace weft::capi {

// Rejects objects inherited through fork, and calls from inside a callback that may make none.
inline Status check_process(const Context& context) {
  if (context.forked()) {
    return Status::error(
        Code::kForked, "this object was made before fork; a child process must create its own weft_context");
  }
  if (!CallbackMark::no_calls()) return {};
  return Status::error(Code::kState,
                       "calls of Weft are not allowed inside a log, allocator or thread-start callback");
}
// Does what check_process does, and also rejects calls from inside any callback. From here on the program may
// interrupt the call.
inline Status check_call(const Context& context) {
  if (context.forked() || CallbackMark::inside()) [[unlikely]] {
    WEFT_TRY(check_process(context));
    return Status::error(Code::kState,
                         "this call is not allowed inside a callback of Weft; weft_request_test, "
                         "weft_request_release and weft_comm_abort are");
  }
  if (context.interrupt().ask != nullptr) Interrupt::listen_to(context.interrupt());
  return {};
}

// Ends a call that made progress. In caller mode the program's callbacks run inside its calls, while no lock
// is held; not inside a callback.
inline void after_progress(Context& context) {
  if (context.engine().mode() == Engine::Mode::kCaller && !CallbackMark::inside())
    context.callbacks().run_posted();
}

inline Status usable(const weft_context* context) {
  WEFT_NOT_NULL(context);
  return check_call(*context->rep);
}

// A validated stream of the program. For a device stream the context's accelerator is loaded.
struct StreamArgs {
  int32_t kind = WEFT_DEVICE_HOST;
  int device = 0;
  DeviceStream handle = nullptr;
};
// captured: the stream must be in graph capture; otherwise it must not be.
Status check_stream(Context& context, const weft_stream* stream, StreamArgs* out, bool captured = false);
// Checks that memory is on the stream's device, as far as known. Error texts continue after a buffer's name.
Status check_memory(Context& context, MemoryWatch* watch, const StreamArgs& stream, const void* start,
                    uint64_t size);

}  // namespace weft::capi
