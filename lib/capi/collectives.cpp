// weft_all_reduce and the other collectives: arguments are checked here, once; backends get valid ones.
#include "capi/handles.h"

namespace weft::capi {
namespace {

// One buffer of a call.
struct Span {
  const void* start = nullptr;
  uint64_t count = 0;  // elements
  const char* name = "";
};

struct Call {
  weft_comm* comm = nullptr;
  CollectiveArgs args;
  const weft_coll_options* options = nullptr;
  weft_request** request = nullptr;
  int64_t timeout_ms = 0;
  uint64_t size = 0;  // of the comm
  uint64_t rank = 0;
  StreamArgs stream = {};
};

// The checks that all collectives share. *call is complete but for the buffers.
Status begin(Call* call, Coll coll, uint64_t count, int32_t dtype, int32_t op, int32_t peer) {
  if (call->request != nullptr) *call->request = nullptr;
  WEFT_TRY(call->comm == nullptr ? null_argument("comm") : Status());
  Comm& comm = *call->comm->rep;
  WEFT_TRY(check_call(comm.context()));
  call->size = static_cast<uint64_t>(comm.size());
  call->rank = static_cast<uint64_t>(comm.rank());
  if (dtype < 1 || dtype > kDtypeCount) return Status::error(Code::kArg, cat("unknown dtype ", dtype));
  CollectiveArgs& args = call->args;
  args.coll = coll;
  args.dtype = static_cast<Dtype>(dtype);
  args.count = count;
  args.peer = peer;
  if (count > (uint64_t{1} << 62) / call->size / dtype_size(args.dtype)) {
    return Status::error(Code::kArg, cat("count ", count, " is too large"));
  }
  if (peer < 0 || peer >= comm.size()) {
    return Status::error(Code::kArg,
                         cat(has_root(coll) ? "root " : "peer ", peer, " is not a rank of ", call->size));
  }
  weft_coll_options read;
  WEFT_TRY(read_struct(call->options, "weft_coll_options", &read));
  if (read.flags != 0) return Status::error(Code::kArg, cat("unknown flags ", read.flags));
  if (read.timeout_ms < WEFT_TIMEOUT_INFINITE)
    return Status::error(Code::kArg, cat("timeout_ms is ", read.timeout_ms));
  WEFT_TRY(check_stream(comm.context(), read.stream, &call->stream));
  call->timeout_ms = read.timeout_ms;
  if (!is_reduction(coll)) return {};
  if (op < 1 || op > kReduceOpCount) return Status::error(Code::kArg, cat("unknown op ", op));
  args.op = static_cast<ReduceOp>(op);
  WEFT_TRY(check_reduction(args.op, args.dtype));
  if (args.op == ReduceOp::kAvg) args.postscale = 1.0 / static_cast<double>(call->size);
  if (args.op == ReduceOp::kPremulSum) {
    if (read.factor == 0.0)
      return Status::error(Code::kArg, "premul_sum needs weft_coll_options.factor, not 0");
    args.prescale = read.factor;
  }
  return {};
}

// src and dst must be there if they hold anything, be aligned to their elements, and may overlap only where
// in_place points.
Status check_buffers(const Call& call, const Span& src, const Span& dst, const void* in_place_src,
                     const void* in_place_dst) {
  const uint64_t element = dtype_size(call.args.dtype);
  for (const Span* span : {&src, &dst}) {
    if (span->count == 0) continue;
    if (span->start == nullptr) return null_argument(span->name);
    if (reinterpret_cast<uintptr_t>(span->start) % element != 0) {
      return Status::error(Code::kArg, cat(name(call.args.coll), ": ", span->name, " is not aligned to its ",
                                           element, "-byte elements"));
    }
    WEFT_TRY(check_memory(call.comm->rep->context(), call.stream, span->start, span->count * element)
                 .with_prefix(cat(name(call.args.coll), ": ", span->name, " ")));
  }
  if (src.count == 0 || dst.count == 0) return {};
  if (in_place_src != nullptr && in_place_src == in_place_dst) return {};
  const auto a = reinterpret_cast<uintptr_t>(src.start);
  const auto b = reinterpret_cast<uintptr_t>(dst.start);
  if (a < b + dst.count * element && b < a + src.count * element) {
    return Status::error(Code::kArg,
                         cat(name(call.args.coll), ": src and dst overlap, and not as \"in place\" allows"));
  }
  return {};
}

// The same for buffers on a device, in the order of its stream.
Status submit_on_device(Call* call) {
  const std::shared_ptr<Comm>& comm = call->comm->rep;
  Context& context = comm->context();
  if (comm->failed()) return comm->failure();
  std::shared_ptr<Lane> lane;
  WEFT_TRY(comm->lane_for(call->args, &lane));
  const StreamArgs& stream = call->stream;
  DeviceCall device = {WEFT_DEVICE_CUDA, stream.device, context.accelerator(), stream.handle};
  WEFT_TRY(lane->prepare(device));
  WEFT_TRY(context.gate().enter(stream.device, stream.handle, &device));
  if (call->request == nullptr) {
    call->args.device = &device;
    Status status = comm->run(call->args, call->timeout_ms);
    context.gate().leave(&device);
    if (context.engine().mode() == Engine::Mode::kCaller) context.callbacks().run_posted();
    return status;
  }
  Status held = context.gate().hold(device);
  if (!held.ok()) {
    context.gate().leave(&device);
    return held;
  }
  auto* const request = new weft_request(comm->shared_context());
  request->device = device;
  request->args = call->args;
  request->args.device = &request->device;
  request->deadline = comm->op_deadline(call->timeout_ms);
  *call->request = request;
  lane->submit(request);
  context.engine().notify();
  return {};
}

Status submit(Call* call) {
  const std::shared_ptr<Comm>& comm = call->comm->rep;
  if (call->stream.kind != WEFT_DEVICE_HOST) return submit_on_device(call);
  if (call->request == nullptr) {
    Status status = comm->run(call->args, call->timeout_ms);
    Context& context = comm->context();
    if (context.engine().mode() == Engine::Mode::kCaller) context.callbacks().run_posted();
    return status;
  }
  if (comm->failed()) return comm->failure();
  std::shared_ptr<Lane> lane;
  WEFT_TRY(comm->lane_for(call->args, &lane));
  auto* const request = new weft_request(comm->shared_context());
  request->args = call->args;
  request->deadline = comm->op_deadline(call->timeout_ms);
  *call->request = request;
  lane->submit(request);
  comm->context().engine().notify();
  return {};
}

const std::byte* bytes(const void* pointer) {
  return static_cast<const std::byte*>(pointer);
}
std::byte* bytes(void* pointer) {
  return static_cast<std::byte*>(pointer);
}

}  // namespace
}  // namespace weft::capi

using namespace weft;
using namespace weft::capi;

extern "C" {

weft_status weft_all_reduce(weft_comm* comm, const void* src, void* dst, uint64_t count, int32_t dtype,
                            int32_t op, const weft_coll_options* options, weft_request** request) {
  return plain([&]() -> Status {
    Call call{comm, {}, options, request};
    WEFT_TRY(begin(&call, Coll::kAllReduce, count, dtype, op, 0));
    WEFT_TRY(check_buffers(call, {src, count, "src"}, {dst, count, "dst"}, src, dst));
    call.args.src = bytes(src);
    call.args.dst = bytes(dst);
    return submit(&call);
  });
}

weft_status weft_reduce(weft_comm* comm, const void* src, void* dst, uint64_t count, int32_t dtype,
                        int32_t op, int32_t root, const weft_coll_options* options, weft_request** request) {
  return plain([&]() -> Status {
    Call call{comm, {}, options, request};
    WEFT_TRY(begin(&call, Coll::kReduce, count, dtype, op, root));
    const bool is_root = call.rank == static_cast<uint64_t>(root);
    WEFT_TRY(check_buffers(call, {src, count, "src"}, {dst, is_root ? count : 0, "dst"}, src, dst));
    call.args.src = bytes(src);
    call.args.dst = is_root ? bytes(dst) : nullptr;
    return submit(&call);
  });
}

weft_status weft_broadcast(weft_comm* comm, void* buffer, uint64_t count, int32_t dtype, int32_t root,
                           const weft_coll_options* options, weft_request** request) {
  return plain([&]() -> Status {
    Call call{comm, {}, options, request};
    WEFT_TRY(begin(&call, Coll::kBroadcast, count, dtype, 0, root));
    WEFT_TRY(check_buffers(call, {buffer, count, "buffer"}, {}, nullptr, nullptr));
    call.args.src = bytes(buffer);
    call.args.dst = bytes(buffer);
    return submit(&call);
  });
}

weft_status weft_all_gather(weft_comm* comm, const void* src, void* dst, uint64_t count, int32_t dtype,
                            const weft_coll_options* options, weft_request** request) {
  return plain([&]() -> Status {
    Call call{comm, {}, options, request};
    WEFT_TRY(begin(&call, Coll::kAllGather, count, dtype, 0, 0));
    const void* own = dst == nullptr ? nullptr : bytes(dst) + call.rank * count * dtype_size(call.args.dtype);
    WEFT_TRY(check_buffers(call, {src, count, "src"}, {dst, count * call.size, "dst"}, src, own));
    call.args.src = bytes(src);
    call.args.dst = bytes(dst);
    return submit(&call);
  });
}

weft_status weft_reduce_scatter(weft_comm* comm, const void* src, void* dst, uint64_t count, int32_t dtype,
                                int32_t op, const weft_coll_options* options, weft_request** request) {
  return plain([&]() -> Status {
    Call call{comm, {}, options, request};
    WEFT_TRY(begin(&call, Coll::kReduceScatter, count, dtype, op, 0));
    const void* own = src == nullptr ? nullptr : bytes(src) + call.rank * count * dtype_size(call.args.dtype);
    WEFT_TRY(check_buffers(call, {src, count * call.size, "src"}, {dst, count, "dst"}, own, dst));
    call.args.src = bytes(src);
    call.args.dst = bytes(dst);
    return submit(&call);
  });
}

weft_status weft_gather(weft_comm* comm, const void* src, void* dst, uint64_t count, int32_t dtype,
                        int32_t root, const weft_coll_options* options, weft_request** request) {
  return plain([&]() -> Status {
    Call call{comm, {}, options, request};
    WEFT_TRY(begin(&call, Coll::kGather, count, dtype, 0, root));
    const bool is_root = call.rank == static_cast<uint64_t>(root);
    const void* own = dst == nullptr ? nullptr : bytes(dst) + call.rank * count * dtype_size(call.args.dtype);
    WEFT_TRY(
        check_buffers(call, {src, count, "src"}, {dst, is_root ? count * call.size : 0, "dst"}, src, own));
    call.args.src = bytes(src);
    call.args.dst = is_root ? bytes(dst) : nullptr;
    return submit(&call);
  });
}

weft_status weft_scatter(weft_comm* comm, const void* src, void* dst, uint64_t count, int32_t dtype,
                         int32_t root, const weft_coll_options* options, weft_request** request) {
  return plain([&]() -> Status {
    Call call{comm, {}, options, request};
    WEFT_TRY(begin(&call, Coll::kScatter, count, dtype, 0, root));
    const bool is_root = call.rank == static_cast<uint64_t>(root);
    const void* own = src == nullptr ? nullptr : bytes(src) + call.rank * count * dtype_size(call.args.dtype);
    WEFT_TRY(
        check_buffers(call, {src, is_root ? count * call.size : 0, "src"}, {dst, count, "dst"}, own, dst));
    call.args.src = is_root ? bytes(src) : nullptr;
    call.args.dst = bytes(dst);
    return submit(&call);
  });
}

weft_status weft_all_to_all(weft_comm* comm, const void* src, void* dst, uint64_t count, int32_t dtype,
                            const weft_coll_options* options, weft_request** request) {
  return plain([&]() -> Status {
    Call call{comm, {}, options, request};
    WEFT_TRY(begin(&call, Coll::kAllToAll, count, dtype, 0, 0));
    WEFT_TRY(check_buffers(call, {src, count * call.size, "src"}, {dst, count * call.size, "dst"}, nullptr,
                           nullptr));
    call.args.src = bytes(src);
    call.args.dst = bytes(dst);
    return submit(&call);
  });
}

weft_status weft_barrier(weft_comm* comm, const weft_coll_options* options, weft_request** request) {
  return plain([&]() -> Status {
    Call call{comm, {}, options, request};
    WEFT_TRY(begin(&call, Coll::kBarrier, 0, WEFT_DTYPE_U8, 0, 0));
    return submit(&call);
  });
}

weft_status weft_send(weft_comm* comm, const void* src, uint64_t count, int32_t dtype, int32_t peer,
                      const weft_coll_options* options, weft_request** request) {
  return plain([&]() -> Status {
    Call call{comm, {}, options, request};
    WEFT_TRY(begin(&call, Coll::kSend, count, dtype, 0, peer));
    if (call.rank == static_cast<uint64_t>(peer))
      return Status::error(Code::kArg, "a rank cannot send to itself");
    WEFT_TRY(check_buffers(call, {src, count, "src"}, {}, nullptr, nullptr));
    call.args.src = bytes(src);
    return submit(&call);
  });
}

weft_status weft_recv(weft_comm* comm, void* dst, uint64_t count, int32_t dtype, int32_t peer,
                      const weft_coll_options* options, weft_request** request) {
  return plain([&]() -> Status {
    Call call{comm, {}, options, request};
    WEFT_TRY(begin(&call, Coll::kRecv, count, dtype, 0, peer));
    if (call.rank == static_cast<uint64_t>(peer))
      return Status::error(Code::kArg, "a rank cannot receive from itself");
    WEFT_TRY(check_buffers(call, {dst, count, "dst"}, {}, nullptr, nullptr));
    call.args.dst = bytes(dst);
    return submit(&call);
  });
}

}  // extern "C"
