// weft_all_reduce and the other collectives of one count.
#include "capi/call.h"

using namespace weft;
using namespace weft::capi;

extern "C" {

weft_status weft_all_reduce(weft_comm* comm, const void* src, void* dst, uint64_t count, int32_t dtype,
                            int32_t op, const weft_coll_options* options, weft_request** request) {
  return called(comm, [&]() -> Status {
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
  return called(comm, [&]() -> Status {
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
  return called(comm, [&]() -> Status {
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
  return called(comm, [&]() -> Status {
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
  return called(comm, [&]() -> Status {
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
  return called(comm, [&]() -> Status {
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
  return called(comm, [&]() -> Status {
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
  return called(comm, [&]() -> Status {
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
  return called(comm, [&]() -> Status {
    Call call{comm, {}, options, request};
    WEFT_TRY(begin(&call, Coll::kBarrier, 0, WEFT_DTYPE_U8, 0, 0));
    return submit(&call);
  });
}

weft_status weft_send(weft_comm* comm, const void* src, uint64_t count, int32_t dtype, int32_t peer,
                      const weft_coll_options* options, weft_request** request) {
  return called(comm, [&]() -> Status {
    Call call{comm, {}, options, request};
    WEFT_TRY(begin(&call, Coll::kSend, count, dtype, 0, peer));
    if (call.rank == static_cast<uint64_t>(peer))
      return Status::error(Code::kArg,
                           cat("send: peer is ", peer, ", this rank: a rank cannot send to itself"));
    WEFT_TRY(check_buffers(call, {src, count, "src"}, {}, nullptr, nullptr));
    call.args.src = bytes(src);
    return submit(&call);
  });
}

weft_status weft_recv(weft_comm* comm, void* dst, uint64_t count, int32_t dtype, int32_t peer,
                      const weft_coll_options* options, weft_request** request) {
  return called(comm, [&]() -> Status {
    Call call{comm, {}, options, request};
    WEFT_TRY(begin(&call, Coll::kRecv, count, dtype, 0, peer));
    if (call.rank == static_cast<uint64_t>(peer))
      return Status::error(Code::kArg,
                           cat("recv: peer is ", peer, ", this rank: a rank cannot receive from itself"));
    WEFT_TRY(check_buffers(call, {dst, count, "dst"}, {}, nullptr, nullptr));
    call.args.dst = bytes(dst);
    return submit(&call);
  });
}

}  // extern "C"
