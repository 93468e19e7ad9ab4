// weft_send_tagged and weft_recv_tagged.
#include "base/arguments.h"
#include "base/text.h"
#include "capi/call.h"
#include "tagged/messages.h"

namespace weft::capi {
namespace {

// Submits a send or receive. Requires begin() and validated buffers.
Status submit_tagged(Call* call, uint64_t tag, const tagged::Receipt& receipt) {
  const std::shared_ptr<Comm>& comm = call->comm->rep;
  if (call->stream.kind != WEFT_DEVICE_HOST) {
    return Status::error(Code::kUnsupported,
                         "tagged messages of device memory are not supported: pass host memory, or use "
                         "weft_send and weft_recv");
  }
  if (comm->failed()) return comm->failure();
  tagged::Messages* messages = nullptr;
  WEFT_TRY(tagged::Messages::of(*comm, &messages));
  if (call->request == nullptr) {
    Request request;
    request.args = call->args;
    request.deadline = comm->op_deadline(call->timeout_ms);
    messages->submit(&request, tag, receipt);
    messages->await(request);
    after_progress(comm->context());
    return request.result;
  }
  auto made = std::make_unique<weft_request>(comm->shared_context());
  made->args = call->args;
  made->deadline = comm->op_deadline(call->timeout_ms);
  made->tagged = true;
  made->sent_over = comm;
  messages->submit(made.get(), tag, receipt);
  *call->request = made.release();
  comm->context().engine().notify();
  return {};
}

}  // namespace
}  // namespace weft::capi

using namespace weft;
using namespace weft::capi;

extern "C" {

weft_status weft_send_tagged(weft_comm* comm, const void* src, uint64_t count, int32_t dtype, int32_t peer,
                             uint64_t tag, const weft_coll_options* options, weft_request** request) {
  return called(comm, [&]() -> Status {
    Call call{comm, {}, options, request};
    const bool any = peer == WEFT_ANY_SOURCE;
    WEFT_TRY(begin(&call, Coll::kSend, count, dtype, 0, any ? 0 : peer));
    if (any)
      return Status::error(Code::kArg, "send_tagged: peer is WEFT_ANY_SOURCE, which only a receive may give");
    if (tag == WEFT_ANY_TAG)
      return Status::error(Code::kArg, "send_tagged: tag is WEFT_ANY_TAG, which only a receive may give");
    WEFT_TRY(check_buffers(call, {src, count, "src"}, {}, nullptr, nullptr));
    call.args.src = bytes(src);
    return submit_tagged(&call, tag, {nullptr, nullptr});
  });
}

weft_status weft_recv_tagged(weft_comm* comm, void* dst, uint64_t count, int32_t dtype, int32_t peer,
                             uint64_t tag, weft_message* message, const weft_coll_options* options,
                             weft_request** request) {
  return called(comm, [&]() -> Status {
    if (request != nullptr) *request = nullptr;
    if (message != nullptr) WEFT_TRY(write_struct(weft_message{}, "message", message));
    Call call{comm, {}, options, request};
    const bool any = peer == WEFT_ANY_SOURCE;
    WEFT_TRY(begin(&call, Coll::kRecv, count, dtype, 0, 0));
    if (!any) {
      if (const Status known = check_range("peer", peer, 0, comm->rep->size() - 1); !known.ok())
        return Status::error(Code::kArg, cat(known.text(), " and WEFT_ANY_SOURCE"));
    }
    WEFT_TRY(check_buffers(call, {dst, count, "dst"}, {}, nullptr, nullptr));
    call.args.peer = any ? tagged::kAnySource : peer;
    call.args.dst = bytes(dst);
    if (message == nullptr) return submit_tagged(&call, tag, {nullptr, nullptr});
    const auto write = [](void* target, const tagged::Taken& taken) {
      weft_message value = WEFT_MESSAGE_INIT;
      value.source = taken.source;
      value.tag = taken.tag;
      value.count = taken.count;
      (void)write_struct(value, "message", static_cast<weft_message*>(target)).ok();
    };
    return submit_tagged(&call, tag, {write, message});
  });
}

}  // extern "C"
