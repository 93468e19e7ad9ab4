// What the opaque pointers of weft.h point to: a shared reference to the object behind each.
#pragma once

#include <weft/weft.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "capi/guard.h"
#include "core/comm.h"
#include "core/context.h"
#include "core/hook.h"
#include "core/request.h"
#include "registry.h"

namespace weft {
class TraceRecorder;
}

struct weft_context {
  std::shared_ptr<weft::Context> rep;
  std::shared_ptr<weft::Registry> registry;
  std::shared_ptr<weft::TraceRecorder> recorder;  // lives as long as the context: events may come late
};

namespace weft::capi {
class Group;
class GroupEnd;

// What was wrong with the last call that was refused. Threads: any thread.
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

// Tells whether a buffer without a stream might lie on a device all the same: once the program uses one. That
// is looked for with each large buffer, and with each small one whose pages were not seen before. Threads:
// any thread; an entry that two threads write is one of theirs.
class MemoryWatch {
 public:
  bool beside_devices(weft::Accelerator& accelerator, const void* start, uint64_t size);

 private:
  static constexpr size_t kEntries = 256;
  // Pages that were seen before the program used a device, at most one range for each number of a first page
  // modulo kEntries: that number, and in the lowest 8 bits how many pages. 0: none.
  std::array<std::atomic<uint64_t>, kEntries> seen_{};
};
}  // namespace weft::capi

struct weft_comm {
  weft_comm();
  ~weft_comm();
  std::shared_ptr<weft::Comm> rep;
  std::shared_ptr<weft::Registry> registry;
  std::unique_ptr<weft::capi::Group> group;  // the open one; one thread at a time, as collectives
  weft::capi::Refusal refusal;               // of collectives, while the communicator works
  weft::capi::MemoryWatch memory_watch;
};

struct weft_hook {
  std::shared_ptr<weft::Context> context;
  std::shared_ptr<weft::Hook> rep;
};

// A request on the heap: one reference is the program's handle, one the lane's until it completes.
struct weft_request : weft::Request {
  explicit weft_request(std::shared_ptr<weft::Context> owner) : context(std::move(owner)) {
    retire = [](weft::Request* request) { static_cast<weft_request*>(request)->retired(); };
  }
  void release() {
    if (references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  // Called by the lane once the request is done.
  void retired();
  // kState when there is one already.
  weft::Status set_callback(weft_complete_fn callback, void* user_data);

  const std::shared_ptr<weft::Context> context;
  weft::DeviceCall device;  // of its stream, if it has one; left when it is retired
  std::atomic<int> references{2};
  std::shared_ptr<void> kept;                       // what args point to, until it is retired
  std::shared_ptr<weft::capi::GroupEnd> group_end;  // of the group that it is part of

 private:
  std::mutex mutex_;
  weft_complete_fn callback_ = nullptr;  // guarded by mutex_
  void* callback_data_ = nullptr;        // guarded by mutex_
  bool retired_ = false;                 // guarded by mutex_
};

namespace weft::capi {

// Refuse objects inherited by fork, and calls from inside a callback that may make none.
inline Status check_process(const Context& context) {
  if (context.forked()) {
    return Status::error(
        Code::kForked, "this object was made before fork; a child process must create its own weft_context");
  }
  if (!CallbackMark::no_calls()) return {};
  return Status::error(Code::kState, "not allowed inside a log, allocator or thread-start callback");
}
// The same, and calls from inside any callback. From here on the program may interrupt the call.
inline Status check_call(const Context& context) {
  if (context.forked() || CallbackMark::inside()) [[unlikely]] {
    WEFT_TRY(check_process(context));
    return Status::error(Code::kState, "not allowed inside a callback: only test, release and abort are");
  }
  if (context.interrupt().ask != nullptr) Interrupt::listen_to(context.interrupt());
  return {};
}

inline Status usable(const weft_context* context) {
  WEFT_NOT_NULL(context);
  return check_call(*context->rep);
}

// A stream of the program's, checked. On a device: the context's accelerator is loaded.
struct StreamArgs {
  int32_t kind = WEFT_DEVICE_HOST;
  int device = 0;
  DeviceStream handle = nullptr;
};
// captured: it must be one that is being captured into a graph, which otherwise it must not.
Status check_stream(Context& context, const weft_stream* stream, StreamArgs* out, bool captured = false);
// Whether memory lies where the stream says, as far as can be told: texts go on after a buffer's name.
Status check_memory(Context& context, MemoryWatch* watch, const StreamArgs& stream, const void* start,
                    uint64_t size);

}  // namespace weft::capi
