// weft_group_begin, weft_group_end.
#include "capi/group.h"

#include <algorithm>
#include <utility>

namespace weft::capi {

void GroupEnd::completed(const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (first_.ok()) first_ = status;
    if (--left_ > 0) return;
  }
  request_->complete(std::move(first_));
}

Status Group::add(Call* call) {
  if (!owned())
    return Status::error(Code::kState,
                         "another thread has opened a group on the communicator: until weft_group_end only "
                         "that thread may call collectives");
  const std::shared_ptr<Comm>& comm = comm_.rep;
  if (comm->failed()) return comm->failure();
  auto request = std::make_unique<weft_request>(comm->shared_context());
  request->args = call->args;
  if (call->stream.kind != WEFT_DEVICE_HOST) {
    WEFT_TRY(prepare_on_device(*call, &request->device));
    request->args.device = &request->device;
  }
  request->kept = std::move(call->kept);
  queued_.push_back({request.get(), call->timeout_ms});
  if (call->request != nullptr) {
    *call->request = request.release();
  } else {
    request.release()->release();
  }
  return {};
}

bool Group::on_streams() const {
  return std::any_of(queued_.begin(), queued_.end(),
                     [](const Queued& q) { return q.request->args.device != nullptr; });
}

// Keeps calls of a group on one stream from waiting for each other: records the event of every call before
// the first call holds its stream.
void Group::order_with_streams(std::vector<Queued>* queued) {
  StreamGate& gate = comm_.rep->context().gate();
  for (Queued& q : *queued) {
    if (q.request->args.device == nullptr) continue;
    DeviceCall& device = q.request->device;
    q.refused = guarded([&] { return gate.enter(device.device, device.stream, &device); });
  }
  for (Queued& q : *queued) {
    if (q.request->args.device == nullptr || !q.refused.ok() || !gate.holds_streams()) continue;
    q.refused = guarded([&] { return gate.hold(q.request->device); });
  }
}

void Group::launch(const std::shared_ptr<GroupEnd>& end) {
  const std::shared_ptr<Comm> comm = comm_.rep;
  std::vector<Queued> all = std::exchange(queued_, {});
  order_with_streams(&all);
  for (Queued& queued : all) {
    weft_request* const request = queued.request;
    request->group_end = end;
    request->deadline = comm->op_deadline(queued.timeout_ms);
    std::shared_ptr<Lane> lane;
    // Every request completes, whatever throws.
    if (queued.refused.ok()) queued.refused = guarded([&] { return comm->lane_for(request->args, &lane); });
    if (queued.refused.ok()) {
      lane->submit(request);
    } else {
      request->complete(std::move(queued.refused));
    }
  }
  comm->context().engine().notify();
}

}  // namespace weft::capi

weft_comm::weft_comm() = default;
weft_comm::~weft_comm() = default;

using namespace weft;
using namespace weft::capi;

extern "C" {

weft_status weft_group_begin(weft_comm* comm) {
  return called(comm, [&]() -> Status {
    WEFT_NOT_NULL(comm);
    WEFT_TRY(check_call(comm->rep->context()));
    WEFT_TRY(no_group(*comm));
    comm->group = std::make_unique<Group>(*comm);
    return {};
  });
}

weft_status weft_group_end(weft_comm* comm, weft_request** request) {
  return called(comm, [&]() -> Status {
    if (request != nullptr) *request = nullptr;
    WEFT_NOT_NULL(comm);
    WEFT_TRY(check_call(comm->rep->context()));
    if (comm->group == nullptr)
      return Status::error(
          Code::kState, "weft_group_end: no group is open on the communicator; call weft_group_begin first");
    if (!comm->group->owned())
      return Status::error(Code::kState,
                           "weft_group_end: another thread has opened the group, and must end it");
    const std::shared_ptr<Context> context = comm->rep->shared_context();
    auto whole = std::make_unique<weft_request>(context);
    const auto end = std::make_shared<GroupEnd>(whole.get(), comm->group->size());
    weft_request* const all = whole.release();
    const std::unique_ptr<Group> group = std::move(comm->group);
    const bool waits = request == nullptr || (group->on_streams() && !context->gate().holds_streams());
    group->launch(end);
    end->completed({});
    if (waits) await(*comm->rep, *all, "a group of calls");
    if (request != nullptr) {
      *request = all;
      return {};
    }
    const Status status = all->result;
    all->release();
    return status;
  });
}

}  // extern "C"
