#include "capi/call.h"

#include <memory>
#include <utility>

#include "base/arguments.h"
#include "capi/group.h"
#include "coll/user_reduction.h"
#include "comm/capability.h"

namespace weft::capi {
namespace {

// Two pieces of one unit per rank are allocated at once.
constexpr uint64_t kMostUnitBytes = uint64_t{1} << 30;

constexpr NamedValue kCollectiveDtypes[] = {
    WEFT_NAMED(WEFT_DTYPE_U8),      WEFT_NAMED(WEFT_DTYPE_I8),   WEFT_NAMED(WEFT_DTYPE_U16),
    WEFT_NAMED(WEFT_DTYPE_I16),     WEFT_NAMED(WEFT_DTYPE_U32),  WEFT_NAMED(WEFT_DTYPE_I32),
    WEFT_NAMED(WEFT_DTYPE_U64),     WEFT_NAMED(WEFT_DTYPE_I64),  WEFT_NAMED(WEFT_DTYPE_F16),
    WEFT_NAMED(WEFT_DTYPE_BF16),    WEFT_NAMED(WEFT_DTYPE_F32),  WEFT_NAMED(WEFT_DTYPE_F64),
    WEFT_NAMED(WEFT_DTYPE_C64),     WEFT_NAMED(WEFT_DTYPE_C128), WEFT_NAMED(WEFT_DTYPE_F8_E4M3),
    WEFT_NAMED(WEFT_DTYPE_F8_E5M2), WEFT_NAMED(WEFT_DTYPE_BOOL)};

// Makes the composite operation of WEFT_OP_USER.
Status take_reduction(Call* call, const weft_reduction* given) {
  if (given == nullptr)
    return Status::error(
        Code::kArg, "weft_coll_options.reduction is NULL, but WEFT_OP_USER needs the program's reduction");
  weft_reduction how;
  WEFT_TRY(read_struct(given, "weft_reduction", &how));
  if (how.combine == nullptr) return null_argument("weft_reduction.combine");
  how.unit = std::max<uint64_t>(how.unit, 1);
  CollectiveArgs& args = call->args;
  if (args.count % how.unit != 0) {
    return Status::error(Code::kArg,
                         cat(name(args.coll), ": count is ", args.count,
                             ", expected a multiple of weft_reduction.unit, which is ", how.unit));
  }
  if (how.unit > kMostUnitBytes / dtype_size(args.dtype)) {
    return Status::error(Code::kArg,
                         cat("weft_reduction.unit is ", how.unit, ": allowed are 1 to ",
                             kMostUnitBytes / dtype_size(args.dtype), " elements of ", name(args.dtype)));
  }
  args.prescale = static_cast<double>(how.unit);
  call->reduction = how;
  return {};
}

}  // namespace

void note_refusal(weft_comm* comm, const Status& status) noexcept {
  static_cast<void>(guarded([&]() -> Status {
                      if (comm == nullptr || comm->rep->context().forked() || comm->rep->failed()) return {};
                      comm->refusal.note(status.text());
                      return {};
                    }).ok());
}

Status with_places(const Comm& comm, const Status& status) noexcept {
  Status placed = status;  // it stays as it is without memory for a longer text
  if (const auto& members = comm.options().members; members != nullptr && !status.ok())
    (void)guarded_run([&] { placed = members->with_places(status); }).ok();
  return placed;
}

Status begin(Call* call, Coll coll, uint64_t count, int32_t dtype, int32_t op, int32_t peer) {
  if (call->request != nullptr) *call->request = nullptr;
  WEFT_TRY(call->comm == nullptr ? null_argument("comm") : Status());
  Comm& comm = *call->comm->rep;
  WEFT_TRY(check_call(comm.context()));
  call->size = static_cast<uint64_t>(comm.size());
  call->rank = static_cast<uint64_t>(comm.rank());
  if (dtype < 1 || dtype > kDtypeLast || !valid(static_cast<Dtype>(dtype)))
    return check_choice("dtype", dtype, kCollectiveDtypes);
  CollectiveArgs& args = call->args;
  args.coll = coll;
  args.dtype = static_cast<Dtype>(dtype);
  args.count = count;
  args.peer = peer;
  if (const uint64_t most = (uint64_t{1} << 62) / call->size / dtype_size(args.dtype); count > most) {
    return Status::error(Code::kArg, cat(name(coll), ": count is ", count, ": allowed are 0 to ", most,
                                         " elements of ", name(args.dtype), " on ", call->size, " ranks"));
  }
  if (peer < 0 || peer >= comm.size()) {
    return check_range(has_root(coll) ? "root" : "peer", peer, 0, comm.size() - 1);
  }
  weft_coll_options read;
  WEFT_TRY(read_struct(call->options, "weft_coll_options", &read));
  if (read.flags != 0) return check_flags("weft_coll_options.flags", read.flags, {});
  if (read.timeout_ms < WEFT_TIMEOUT_INFINITE)
    return check_timeout("weft_coll_options.timeout_ms", read.timeout_ms);
  WEFT_TRY(check_stream(comm.context(), read.stream, &call->stream));
  call->timeout_ms = read.timeout_ms;
  if (is_reduction(coll)) {
    if (op < 1 || op > kReduceOpLast)
      return check_constants("op", op, WEFT_NAMED(WEFT_OP_SUM), WEFT_NAMED(WEFT_OP_USER));
    args.op = static_cast<ReduceOp>(op);
  }
  WEFT_TRY(check_capability({coll, args.dtype, args.op, call->stream.kind}));
  if (args.op == ReduceOp::kAvg) args.postscale = 1.0 / static_cast<double>(call->size);
  if (args.op == ReduceOp::kPremulSum) {
    if (read.factor == 0.0)
      return Status::error(
          Code::kArg,
          "weft_coll_options.factor is 0, but WEFT_OP_PREMUL_SUM multiplies by it: set another value");
    args.prescale = read.factor;
  }
  if (args.op != ReduceOp::kPremulSum && read.factor != 0.0)
    return Status::error(Code::kArg, cat("weft_coll_options.factor is ", read.factor,
                                         ", which only WEFT_OP_PREMUL_SUM uses: set it to 0"));
  if (args.op == ReduceOp::kUser) return take_reduction(call, read.reduction);
  if (read.reduction != nullptr)
    return Status::error(Code::kArg,
                         "weft_coll_options.reduction is set, but only WEFT_OP_USER uses it: set it to NULL");
  return {};
}

Status check_buffers(const Call& call, const Span& src, const Span& dst, const void* in_place_src,
                     const void* in_place_dst) {
  const uint64_t element = dtype_size(call.args.dtype), alignment = dtype_alignment(call.args.dtype);
  for (const Span* span : {&src, &dst}) {
    if (span->count == 0) continue;
    if (span->start == nullptr) return null_argument(span->name);
    if (reinterpret_cast<uintptr_t>(span->start) % alignment != 0) {
      return Status::error(Code::kArg,
                           cat(name(call.args.coll), ": ", span->name, " is not aligned to ", alignment,
                               " bytes, as elements of ", name(call.args.dtype), " must be"));
    }
    Status memory = check_memory(call.comm->rep->context(), &call.comm->memory_watch, call.stream,
                                 span->start, span->count * element);
    if (!memory.ok()) return memory.with_prefix(cat(name(call.args.coll), ": ", span->name, " "));
  }
  if (src.count == 0 || dst.count == 0) return {};
  if (in_place_src != nullptr && in_place_src == in_place_dst) return {};
  const auto a = reinterpret_cast<uintptr_t>(src.start);
  const auto b = reinterpret_cast<uintptr_t>(dst.start);
  if (a < b + dst.count * element && b < a + src.count * element) {
    return Status::error(Code::kArg, cat(name(call.args.coll),
                                         ": src and dst overlap, but not at the in-place position: give "
                                         "separate buffers, or the exact position"));
  }
  return {};
}

Status prepare_on_device(const Call& call, DeviceCall* device) {
  Comm& comm = *call.comm->rep;
  std::shared_ptr<Lane> lane;
  WEFT_TRY(comm.lane_for(call.args, &lane));
  *device = {WEFT_DEVICE_CUDA, call.stream.device, comm.context().accelerator(), call.stream.handle};
  return lane->prepare(*device);
}

namespace {

// Does what submit() does, for buffers on a device: the call runs in the order of its stream.
Status submit_on_device(Call* call) {
  const std::shared_ptr<Comm>& comm = call->comm->rep;
  Context& context = comm->context();
  if (comm->failed()) return comm->failure();
  const StreamArgs& stream = call->stream;
  DeviceCall device;
  WEFT_TRY(prepare_on_device(*call, &device));
  std::shared_ptr<Lane> lane;
  WEFT_TRY(comm->lane_for(call->args, &lane));
  // Allocated before the stream waits for the operation: nothing may fail between that and the submission.
  std::unique_ptr<weft_request> made;
  if (call->request != nullptr) made = std::make_unique<weft_request>(comm->shared_context());
  WEFT_TRY(context.gate().enter(stream.device, stream.handle, &device));
  if (call->request == nullptr) {
    CollectiveArgs args = call->args;
    args.device = &device;
    Status status = comm->run(args, call->timeout_ms);
    context.gate().leave(&device);
    after_progress(context);
    return status;
  }
  const bool holds = context.gate().holds_streams();
  Status held = holds ? context.gate().hold(device) : Status();
  if (!held.ok()) {
    context.gate().leave(&device);
    return held;
  }
  weft_request* const request = made.release();
  request->device = device;
  request->args = call->args;
  request->args.device = &request->device;
  request->kept = std::move(call->kept);
  request->deadline = comm->op_deadline(call->timeout_ms);
  *call->request = request;
  lane->submit(request);
  context.engine().notify();
  if (!holds) await(*comm, *request, name(call->args.coll));
  return {};
}

}  // namespace

// The operation's own deadline fails the communicator, which completes the request.
void await(Comm& comm, const weft_request& request, const char* what) {
  Context& context = comm.context();
  comm.complete([&] { return request.done(); }, [&] { return what; });
  after_progress(context);
}

Status submit(Call* call) {
  const std::shared_ptr<Comm>& comm = call->comm->rep;
  if (call->args.op == ReduceOp::kUser) {
    const std::shared_ptr<Composite> made = coll::user_reduction(
        call->args, call->reduction, static_cast<int>(call->rank), static_cast<int>(call->size));
    call->args.composite = made.get();
    call->kept = made;
  }
  if (call->comm->group != nullptr) return call->comm->group->add(call);
  if (call->stream.kind != WEFT_DEVICE_HOST) return submit_on_device(call);
  if (call->request == nullptr) {
    Status status = comm->run(call->args, call->timeout_ms);
    Context& context = comm->context();
    after_progress(context);
    return status;
  }
  if (comm->failed()) return comm->failure();
  std::shared_ptr<Lane> lane;
  WEFT_TRY(comm->lane_for(call->args, &lane));
  auto* const request = new weft_request(comm->shared_context());
  request->args = call->args;
  request->kept = std::move(call->kept);
  request->deadline = comm->op_deadline(call->timeout_ms);
  *call->request = request;
  lane->submit(request);
  comm->context().engine().notify();
  return {};
}

}  // namespace weft::capi
