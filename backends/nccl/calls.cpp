#include "calls.h"

#include <algorithm>
#include <utility>

#include "base/dtype.h"
#include "base/round_up.h"
#include "base/text.h"

namespace weft::nccl {
namespace {

constexpr ncclDataType_t kNone = ncclNumTypes;

ncclDataType_t type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kU8:
      return ncclUint8;
    case Dtype::kI8:
      return ncclInt8;
    case Dtype::kU32:
      return ncclUint32;
    case Dtype::kI32:
      return ncclInt32;
    case Dtype::kU64:
      return ncclUint64;
    case Dtype::kI64:
      return ncclInt64;
    case Dtype::kF16:
      return ncclFloat16;
    case Dtype::kBf16:
      return ncclBfloat16;
    case Dtype::kF32:
      return ncclFloat32;
    case Dtype::kF64:
      return ncclFloat64;
    default:
      return kNone;  // u16, i16: NCCL computes with neither
  }
}

// Returns the NCCL operation. avg and premul_sum become sums, and Weft applies the scales: NCCL's own
// operations for them do not use its fastest kernels.
ncclRedOp_t op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum:
      return ncclSum;
    case ReduceOp::kProd:
      return ncclProd;
    case ReduceOp::kMin:
      return ncclMin;
    case ReduceOp::kMax:
      return ncclMax;
    default:
      return ncclNumOps;
  }
}

// Returns the reduction in types that NCCL has.
CollectiveArgs in_parts(const CollectiveArgs& args) {
  CollectiveArgs parts = args;
  if (!is_reduction(args.coll)) return parts;
  const Arithmetic as = arithmetic(args.op, args.dtype);
  parts.dtype = as.dtype;
  parts.op = as.op;
  parts.count *= as.parts;
  return parts;
}

// Sums of f16 can overflow where those of other floats do not, so their inputs are scaled. For other types
// the results are scaled.
double scale_of(const CollectiveArgs& args) {
  return is_reduction(args.coll) && is_float(args.dtype) ? args.prescale * args.postscale : 1.0;
}
bool scales_inputs(const CollectiveArgs& args) {
  return args.dtype == Dtype::kF16 && scale_of(args) != 1.0;
}

Status scale(Communicator& c, const CollectiveArgs& args, const std::byte* src, Workspace& work) {
  if (args.count == 0) return {};
  const uint64_t element = dtype_size(args.dtype);
  const uint64_t length =
      std::max(kCopyPieceElements, round_up((args.count - 1) / Workspace::kPieces + 1, 64));
  uint32_t pieces = 0;
  for (uint64_t at = 0; at < args.count; at += length, pieces++) {
    work.pieces[pieces] = {src + at * element, args.dst + at * element, std::min(length, args.count - at)};
  }
  const auto type = static_cast<uint8_t>(args.dtype);
  return c.accelerator().copy_pieces(c.device(), c.stream(),
                                     {work.pieces, pieces, type, type, scale_of(args)});
}

uint16_t as_f16(const Communicator& c, double value) {
  const auto narrow = static_cast<float>(value);
  uint16_t result = 0;
  c.host().copy({reinterpret_cast<const std::byte*>(&narrow), reinterpret_cast<std::byte*>(&result), 1,
                 Dtype::kF32, Dtype::kF16, 1.0});
  return result;
}

// One operation's arguments in NCCL's terms.
class Calls {
 public:
  Calls(Communicator& c, const CollectiveArgs& args)
      : c_(c),
        nccl_(c.nccl()),
        args_(args),
        stream_(static_cast<cudaStream_t>(c.stream())),
        block_(args.count * dtype_size(args.dtype)) {}

  // Except for all_reduce, dst has no room for scaled inputs and Weft has no other device memory for them, so
  // NCCL scales them.
  Status reduce(const std::byte* src, Workspace& work) {
    if (!scales_inputs(args_) || args_.coll == Coll::kAllReduce)
      return c_.check(name(args_.coll), reduce_by(op_of(args_.op), src));
    uint16_t factor = as_f16(c_, scale_of(args_));
    WEFT_TRY(c_.check("ncclRedOpCreatePreMulSum",
                      nccl_.ncclRedOpCreatePreMulSum(&work.own, &factor, ncclFloat16, ncclScalarHostImmediate,
                                                     c_.native())));
    return c_.check(name(args_.coll), reduce_by(work.own, src));
  }

  Status move() {
    const void* const src = args_.src;
    switch (args_.coll) {
      case Coll::kBroadcast: {
        // There is one buffer, which the root may pass as src or dst.
        const void* const from = src != nullptr ? src : args_.dst;
        void* const to = args_.dst != nullptr ? args_.dst : const_cast<std::byte*>(args_.src);
        return c_.check("broadcast",
                        nccl_.ncclBroadcast(from, to, block_, ncclUint8, args_.peer, c_.native(), stream_));
      }
      case Coll::kAllGather:
        return c_.check("all_gather",
                        nccl_.ncclAllGather(src, args_.dst, block_, ncclUint8, c_.native(), stream_));
      case Coll::kAllToAll:
        if (nccl_.all_to_all == nullptr) return exchange(true, true);
        return c_.check("all_to_all",
                        nccl_.all_to_all(src, args_.dst, block_, ncclUint8, c_.native(), stream_));
      case Coll::kGather:
        if (nccl_.gather == nullptr) return exchange(false, c_.rank() == args_.peer);
        return c_.check("gather",
                        nccl_.gather(src, args_.dst, block_, ncclUint8, args_.peer, c_.native(), stream_));
      default:
        if (nccl_.scatter == nullptr) return exchange(c_.rank() == args_.peer, false);
        return c_.check("scatter",
                        nccl_.scatter(src, args_.dst, block_, ncclUint8, args_.peer, c_.native(), stream_));
    }
  }

 private:
  ncclResult_t reduce_by(ncclRedOp_t op, const std::byte* src) {
    const ncclDataType_t type = type_of(args_.dtype);
    if (args_.coll == Coll::kAllReduce)
      return nccl_.ncclAllReduce(src, args_.dst, args_.count, type, op, c_.native(), stream_);
    if (args_.coll == Coll::kReduceScatter)
      return nccl_.ncclReduceScatter(src, args_.dst, args_.count, type, op, c_.native(), stream_);
    return nccl_.ncclReduce(src, args_.dst, args_.count, type, op, args_.peer, c_.native(), stream_);
  }

  // Executes all_to_all, gather and scatter as a group of messages. The arguments tell whether this rank
  // sends, or receives, several blocks.
  Status exchange(bool gives_all, bool takes_all) {
    const bool rooted = args_.coll != Coll::kAllToAll;
    const bool gives = args_.coll != Coll::kScatter || gives_all;
    const bool takes = args_.coll != Coll::kGather || takes_all;
    WEFT_TRY(c_.check("ncclGroupStart", nccl_.ncclGroupStart()));
    ncclResult_t result = ncclSuccess;
    const auto keep = [&](ncclResult_t next) {
      if (result == ncclSuccess || result == ncclInProgress) result = next;
    };
    for (int peer = 0; peer < c_.size() && block_ > 0; peer++) {
      const auto block = static_cast<uint64_t>(peer) * block_;
      const std::byte* const from = args_.src + (gives_all ? block : 0);
      std::byte* const to = args_.dst + (takes_all ? block : 0);
      const bool sends = gives && (gives_all || peer == args_.peer);
      const bool receives = takes && (takes_all || peer == args_.peer);
      // The own block of an in-place root is already in its place.
      if (peer == c_.rank() && rooted && sends && receives && from == to) continue;
      if (sends) keep(nccl_.ncclSend(from, block_, ncclUint8, peer, c_.native(), stream_));
      if (receives) keep(nccl_.ncclRecv(to, block_, ncclUint8, peer, c_.native(), stream_));
    }
    keep(nccl_.ncclGroupEnd());
    return c_.check(name(args_.coll), result);
  }

  Communicator& c_;
  const Library& nccl_;
  const CollectiveArgs& args_;
  const cudaStream_t stream_;
  const uint64_t block_;  // bytes
};

}  // namespace

bool executes(const CollectiveArgs& whole) {
  const CollectiveArgs args = in_parts(whole);
  switch (args.coll) {
    case Coll::kAllReduce:
    case Coll::kReduce:
    case Coll::kReduceScatter:
      return !args.ordered && type_of(args.dtype) != kNone && op_of(args.op) != ncclNumOps;
    case Coll::kBroadcast:
    case Coll::kAllGather:
    case Coll::kGather:
    case Coll::kScatter:
    case Coll::kAllToAll:
      return true;
    default:
      return false;
  }
}

Status launch(Communicator& communicator, const CollectiveArgs& whole, Workspace& work) {
  const CollectiveArgs args = in_parts(whole);
  const std::byte* src = args.src;
  if (scales_inputs(args) && args.coll == Coll::kAllReduce) {
    WEFT_TRY(scale(communicator, args, src, work));
    src = args.dst;
  }
  return communicator.accelerator().within(communicator.device(), [&] {
    Calls calls(communicator, args);
    return is_reduction(args.coll) ? calls.reduce(src, work) : calls.move();
  });
}

Status launch_rest(Communicator& communicator, const CollectiveArgs& whole, Workspace& work) {
  const CollectiveArgs args = in_parts(whole);
  if (const ncclRedOp_t own = std::exchange(work.own, ncclNumOps); own != ncclNumOps) {
    const Library& library = communicator.nccl();
    WEFT_TRY(communicator.check("ncclRedOpDestroy", library.ncclRedOpDestroy(own, communicator.native())));
  }
  const bool holds = args.coll != Coll::kReduce || communicator.rank() == args.peer;
  if (!holds || scale_of(args) == 1.0 || scales_inputs(args)) return {};
  return scale(communicator, args, args.dst, work);
}

}  // namespace weft::nccl
