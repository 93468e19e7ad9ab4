// weft_request_*.
#include <utility>

#include "base/arguments.h"
#include "capi/group.h"
#include "capi/handles.h"
#include "tagged/messages.h"

void weft_request::retired() {
  context->gate().leave(&device);
  weft_complete_fn callback = nullptr;
  void* data = nullptr;
  {
    const std::lock_guard lock(mutex_);
    retired_ = true;
    callback = callback_;
    data = callback_data_;
  }
  if (callback != nullptr) {
    context->callbacks().post(
        [callback, data, status = weft::capi::code_of(result)] { callback(data, status); });
  }
  kept.reset();  // the program may keep the handle for long
  if (const std::shared_ptr<weft::capi::GroupEnd> end = std::move(group_end)) end->completed(result);
  release();
}

weft::Status weft_request::set_callback(weft_complete_fn callback, void* user_data) {
  {
    const std::lock_guard lock(mutex_);
    if (callback_ != nullptr)
      return weft::Status::error(
          weft::Code::kState,
          "weft_request_on_complete: the request has a callback already, and takes only one");
    if (!retired_) context->callbacks().promise();
    callback_ = callback;
    callback_data_ = user_data;
    if (!retired_) return {};
  }
  weft::Callbacks::run([&] { callback(user_data, weft::capi::code_of(result)); });
  return {};
}

using namespace weft;
using namespace weft::capi;

namespace {

Status usable(const weft_request* request) {
  WEFT_NOT_NULL(request);
  return check_process(*request->context);
}

}  // namespace

extern "C" {

weft_status weft_request_wait(weft_request* request, int64_t timeout_ms) {
  return plain([&]() -> Status {
    WEFT_TRY(usable(request));
    WEFT_TRY(check_call(*request->context));
    if (timeout_ms < WEFT_TIMEOUT_POLL) return check_timeout("timeout_ms", timeout_ms, true);
    Engine& engine = request->context->engine();
    const Deadline deadline = Deadline::after(engine.clock(), timeout_ms, WEFT_DEFAULT_OP_TIMEOUT_MS);
    const Waiter waiter(*request);
    const bool done = engine.wait([&] { return request->done(); }, deadline);
    after_progress(*request->context);
    if (!done) return Status::error(Code::kNotDone, "the operation of this request is not complete yet");
    return request->result;
  });
}

weft_status weft_request_test(weft_request* request, uint8_t* done) {
  return plain([&]() -> Status {
    WEFT_NOT_NULL(done);
    *done = 0;
    WEFT_TRY(usable(request));
    if (!request->done() && request->context->engine().mode() == Engine::Mode::kCaller &&
        !Callbacks::inside()) {
      bool had_lock = false;
      request->context->engine().poll_tasks(&had_lock);
      after_progress(*request->context);
    }
    *done = request->done() ? 1 : 0;
    return *done != 0 ? request->result : Status();
  });
}

weft_status weft_request_on_complete(weft_request* request, weft_complete_fn callback, void* user_data) {
  return plain([&]() -> Status {
    WEFT_TRY(usable(request));
    WEFT_NOT_NULL(callback);
    return request->set_callback(callback, user_data);
  });
}

weft_status weft_request_error(weft_request* request, weft_error* error) {
  return plain([&]() -> Status {
    WEFT_TRY(usable(request));
    WEFT_NOT_NULL(error);
    if (!request->done())
      return Status::error(Code::kNotDone, "the operation of this request is not complete yet");
    fill_error(request->result, error);
    return request->result;
  });
}

weft_status weft_request_cancel(weft_request* request) {
  return plain([&]() -> Status {
    WEFT_TRY(usable(request));
    WEFT_TRY(check_call(*request->context));
    if (!request->tagged)
      return Status::error(
          Code::kUnsupported,
          "weft_request_cancel: only requests of weft_send_tagged and weft_recv_tagged can be cancelled");
    const std::shared_ptr<Comm> comm = request->sent_over.lock();
    if (!comm || request->done()) return {};
    tagged::Messages* messages = nullptr;
    if (!tagged::Messages::of(*comm, &messages).ok()) return {};
    messages->cancel(*request);
    after_progress(*request->context);
    return {};
  });
}

weft_status weft_request_release(weft_request** request) {
  return plain([&]() -> Status {
    WEFT_NOT_NULL(request);
    if (*request == nullptr) return {};
    if (!(*request)->context->forked()) {
      WEFT_TRY(usable(*request));
      (*request)->release();
    }
    *request = nullptr;
    return {};
  });
}

}  // extern "C"
