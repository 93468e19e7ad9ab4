// weft_all_gather_v and the other collectives of blocks of different sizes.
#include <algorithm>
#include <numeric>

#include "capi/call.h"
#include "coll/variable.h"

namespace weft::capi {
namespace {

// The blocks of one buffer, as passed by the caller.
struct Given {
  const char* name = "";
  const uint64_t* counts = nullptr;
  const uint64_t* offsets = nullptr;
  // Filled by read().
  std::vector<uint64_t> starts;
  uint64_t end = 0;  // one past the last element of all blocks

  BlockList list() const { return {counts, starts.data()}; }
};

// Computes the starts of the blocks, and rejects sums and ends that overflow.
Status read(const Call& call, Given* given) {
  if (given->counts == nullptr) {
    return Status::error(Code::kArg, cat(name(call.args.coll), ": the counts of ", given->name,
                                         " are NULL: give one for each rank"));
  }
  const uint64_t limit = (uint64_t{1} << 62) / call.size / dtype_size(call.args.dtype);
  uint64_t sum = 0;
  for (uint64_t r = 0; r < call.size; r++) {
    const uint64_t count = given->counts[r];
    const uint64_t start = given->offsets != nullptr ? given->offsets[r] : sum;
    if (count > limit || start > limit || count > limit - sum) {
      return Status::error(Code::kArg, cat(name(call.args.coll), ": block ", r, " of ", given->name, " has ",
                                           count, " elements at offset ", start,
                                           ": an offset, and the counts together, may be at most ", limit));
    }
    sum += count;
    given->starts.push_back(start);
    if (count > 0) given->end = std::max(given->end, start + count);
  }
  return {};
}

// Rejects overlapping blocks in a buffer that is written.
Status check_apart(const Call& call, const Given& given) {
  if (given.offsets == nullptr) return {};
  std::vector<size_t> order(given.starts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::erase_if(order, [&](size_t r) { return given.counts[r] == 0; });
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return given.starts[a] < given.starts[b]; });
  for (size_t i = 1; i < order.size(); i++) {
    const size_t before = order[i - 1];
    if (given.starts[before] + given.counts[before] <= given.starts[order[i]]) continue;
    return Status::error(Code::kArg, cat(name(call.args.coll), ": blocks ", before, " and ", order[i], " of ",
                                         given.name, " overlap: block ", before, " ends at element ",
                                         given.starts[before] + given.counts[before], ", block ", order[i],
                                         " starts at ", given.starts[order[i]]));
  }
  return {};
}

// Submits the call. Requires begin() and validated buffers.
Status submit_blocks(Call* call, const BlockList& from, const BlockList& to, const void* src, void* dst) {
  call->args.src = bytes(src);
  call->args.dst = bytes(dst);
  const Collectives& collectives = call->comm->rep->collectives();
  const bool on_device = call->stream.kind != WEFT_DEVICE_HOST;
  if (on_device && !collectives.executes_on_device(call->args.coll)) {
    return Status::error(
        Code::kUnsupported,
        cat(name(call->args.coll), " of device memory is not supported by ", collectives.name()));
  }
  call->kept =
      std::make_shared<coll::VariableCall>(collectives, static_cast<int>(call->rank),
                                           static_cast<int>(call->size), from, to, &call->args, on_device);
  return submit(call);
}

const void* place(const Call& call, const void* buffer, const Given& given) {
  if (buffer == nullptr) return nullptr;
  return bytes(buffer) + given.starts[call.rank] * dtype_size(call.args.dtype);
}

// Executes all_gather_v and gather_v: every rank contributes one block, and all ranks, or only the root,
// receive all blocks. takes: this rank receives.
Status gather(Call* call, const void* src, void* dst, Given to, bool takes) {
  if (!takes) to.offsets = nullptr;
  WEFT_TRY(read(*call, &to));
  WEFT_TRY(check_apart(*call, to));
  const uint64_t own = to.counts[call->rank];
  WEFT_TRY(
      check_buffers(*call, {src, own, "src"}, {dst, takes ? to.end : 0, "dst"}, src, place(*call, dst, to)));
  return submit_blocks(call, {to.counts, nullptr}, to.list(), src, takes ? dst : nullptr);
}

// Executes reduce_scatter_v and scatter_v: every rank receives one block. gives: this rank has all blocks.
Status scatter(Call* call, const void* src, void* dst, Given from, bool gives) {
  if (!gives) from.offsets = nullptr;
  WEFT_TRY(read(*call, &from));
  const uint64_t own = from.counts[call->rank];
  // In place, dst is one of the blocks in src, so the blocks must not overlap.
  if (own > 0 && place(*call, src, from) == dst) WEFT_TRY(check_apart(*call, from));
  WEFT_TRY(check_buffers(*call, {src, gives ? from.end : 0, "src"}, {dst, own, "dst"},
                         place(*call, src, from), dst));
  return submit_blocks(call, from.list(), {from.counts, nullptr}, gives ? src : nullptr, dst);
}

}  // namespace
}  // namespace weft::capi

using namespace weft;
using namespace weft::capi;

extern "C" {

weft_status weft_all_gather_v(weft_comm* comm, const void* src, void* dst, const uint64_t* counts,
                              const uint64_t* offsets, int32_t dtype, const weft_coll_options* options,
                              weft_request** request) {
  return called(comm, [&]() -> Status {
    Call call{comm, {}, options, request};
    WEFT_TRY(begin(&call, Coll::kAllGatherV, 0, dtype, 0, 0));
    return gather(&call, src, dst, {"dst", counts, offsets}, true);
  });
}

weft_status weft_reduce_scatter_v(weft_comm* comm, const void* src, void* dst, const uint64_t* counts,
                                  const uint64_t* offsets, int32_t dtype, int32_t op,
                                  const weft_coll_options* options, weft_request** request) {
  return called(comm, [&]() -> Status {
    Call call{comm, {}, options, request};
    WEFT_TRY(begin(&call, Coll::kReduceScatterV, 0, dtype, op, 0));
    return scatter(&call, src, dst, {"src", counts, offsets}, true);
  });
}

weft_status weft_gather_v(weft_comm* comm, const void* src, void* dst, const uint64_t* counts,
                          const uint64_t* offsets, int32_t dtype, int32_t root,
                          const weft_coll_options* options, weft_request** request) {
  return called(comm, [&]() -> Status {
    Call call{comm, {}, options, request};
    WEFT_TRY(begin(&call, Coll::kGatherV, 0, dtype, 0, root));
    return gather(&call, src, dst, {"dst", counts, offsets}, call.rank == static_cast<uint64_t>(root));
  });
}

weft_status weft_scatter_v(weft_comm* comm, const void* src, void* dst, const uint64_t* counts,
                           const uint64_t* offsets, int32_t dtype, int32_t root,
                           const weft_coll_options* options, weft_request** request) {
  return called(comm, [&]() -> Status {
    Call call{comm, {}, options, request};
    WEFT_TRY(begin(&call, Coll::kScatterV, 0, dtype, 0, root));
    return scatter(&call, src, dst, {"src", counts, offsets}, call.rank == static_cast<uint64_t>(root));
  });
}

weft_status weft_all_to_all_v(weft_comm* comm, const void* src, const uint64_t* src_counts,
                              const uint64_t* src_offsets, void* dst, const uint64_t* dst_counts,
                              const uint64_t* dst_offsets, int32_t dtype, const weft_coll_options* options,
                              weft_request** request) {
  return called(comm, [&]() -> Status {
    Call call{comm, {}, options, request};
    WEFT_TRY(begin(&call, Coll::kAllToAllV, 0, dtype, 0, 0));
    Given from{"src", src_counts, src_offsets}, to{"dst", dst_counts, dst_offsets};
    WEFT_TRY(read(call, &from));
    WEFT_TRY(read(call, &to));
    WEFT_TRY(check_apart(call, to));
    WEFT_TRY(check_buffers(call, {src, from.end, "src"}, {dst, to.end, "dst"}, nullptr, nullptr));
    return submit_blocks(&call, from.list(), to.list(), src, dst);
  });
}

}  // extern "C"
