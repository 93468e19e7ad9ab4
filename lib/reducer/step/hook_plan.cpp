#include "reducer/step/hook_plan.h"

#include "base/arguments.h"
#include "base/text.h"
#include "comm/context.h"
#include "reducer/state.h"

namespace weft {
namespace {

constexpr uint64_t kMaxScratch = uint64_t{1} << 40;

// The range of bytes that one side of a collective covers.
struct Extent {
  int32_t space = WEFT_SPACE_BUCKET;
  uint64_t begin = 0;
  uint64_t bytes = 0;
  uint64_t end() const { return begin + bytes; }
};

// Checks what the hook declared for one bucket.
class Checker {
 public:
  // own: the hook has a communicator of its own.
  Checker(const weft_bucket& bucket, const weft_hook_plan& plan, bool own)
      : bucket_(bucket), plan_(plan), own_(own) {}

  Status plan() const {
    if (plan_.collective_count > WEFT_HOOK_COLLECTIVES) {
      return bad(cat("weft_hook_plan.collective_count is ", plan_.collective_count, "; at most ",
                     WEFT_HOOK_COLLECTIVES, " are allowed"));
    }
    WEFT_TRY(check_scratch(plan_.scratch_bytes));
    Extent result;
    const auto dtype = static_cast<Dtype>(bucket_.dtype);
    WEFT_TRY(extent(plan_.result_space, plan_.result_offset_bytes, dtype, bucket_.count, "result", &result));
    return {};
  }

  Status collective(uint32_t index, Slot* slot) const {
    const Status status = convert(plan_.collectives[index], slot);
    slot->index = index;
    slot->bucket = bucket_.index;
    return status.with_prefix(cat("collective ", index, ": "));
  }

 private:
  static Status bad(const std::string& what, Code code = Code::kArg) { return Status::error(code, what); }

  Status convert(const weft_hook_collective& c, Slot* slot) const {
    CollectiveArgs& args = slot->args;
    constexpr NamedValue kFlags[] = {WEFT_NAMED(WEFT_HOOK_COLLECTIVE_DYNAMIC),
                                     WEFT_NAMED(WEFT_HOOK_COLLECTIVE_OPTIONAL),
                                     WEFT_NAMED(WEFT_HOOK_COLLECTIVE_WORLD)};
    WEFT_TRY(check_flags("weft_hook_collective.flags", c.flags, kFlags));
    slot->own = own_ && (c.flags & WEFT_HOOK_COLLECTIVE_WORLD) == 0;
    slot->optional = (c.flags & WEFT_HOOK_COLLECTIVE_OPTIONAL) != 0;
    slot->dynamic = (c.flags & WEFT_HOOK_COLLECTIVE_DYNAMIC) != 0;
    if (slot->optional && slot->dynamic)
      return bad(
          "weft_hook_collective.flags: WEFT_HOOK_COLLECTIVE_DYNAMIC includes OPTIONAL; set only one of them");
    for (const uint64_t reserved : c.reserved) {
      if (reserved != 0)
        return bad(cat("weft_hook_collective.reserved contains ", reserved, ", but must be 0"));
    }
    constexpr NamedValue kCollectives[] = {
        WEFT_NAMED(WEFT_COLL_ALL_REDUCE), WEFT_NAMED(WEFT_COLL_BROADCAST), WEFT_NAMED(WEFT_COLL_ALL_GATHER),
        WEFT_NAMED(WEFT_COLL_REDUCE_SCATTER), WEFT_NAMED(WEFT_COLL_ALL_TO_ALL)};
    switch (c.coll) {
      case WEFT_COLL_ALL_REDUCE:
      case WEFT_COLL_REDUCE_SCATTER:
      case WEFT_COLL_ALL_GATHER:
      case WEFT_COLL_ALL_TO_ALL:
      case WEFT_COLL_BROADCAST:
        args.coll = static_cast<Coll>(c.coll);
        break;
      default:
        return check_choice("weft_hook_collective.coll", c.coll, kCollectives);
    }
    WEFT_TRY(check_constants("weft_hook_collective.dtype", c.dtype, WEFT_NAMED(WEFT_DTYPE_U8),
                             WEFT_NAMED(WEFT_DTYPE_F64)));
    args.dtype = static_cast<Dtype>(c.dtype);
    WEFT_TRY(convert_op(c, slot));
    if (args.coll == Coll::kBroadcast) {
      if (c.root < 0 || c.root >= bucket_.size)
        return check_range("weft_hook_collective.root", c.root, 0, bucket_.size - 1);
      args.peer = c.root;
    }
    args.count = c.count;
    return convert_memory(c, slot);
  }

  Status convert_op(const weft_hook_collective& c, Slot* slot) const {
    if (!is_reduction(slot->args.coll)) return {};
    WEFT_TRY(check_constants("weft_hook_collective.op", c.op, WEFT_NAMED(WEFT_OP_SUM),
                             WEFT_NAMED(WEFT_OP_PREMUL_SUM)));
    const auto op = static_cast<ReduceOp>(c.op);
    if (op == ReduceOp::kPremulSum) {
      return bad(
          "weft_hook_collective.op is WEFT_OP_PREMUL_SUM, which hooks cannot use: scale in a stage and use "
          "WEFT_OP_SUM",
          Code::kUnsupported);
    }
    WEFT_TRY(check_reduction(op, slot->args.dtype));
    slot->average = op == ReduceOp::kAvg;
    slot->args.op = slot->average ? ReduceOp::kSum : op;
    return {};
  }

  Status convert_memory(const weft_hook_collective& c, Slot* slot) const {
    const Coll coll = slot->args.coll;
    const auto ranks = static_cast<uint64_t>(bucket_.size);
    const bool wide_src = coll == Coll::kReduceScatter || coll == Coll::kAllToAll;
    const bool wide_dst = coll == Coll::kAllGather || coll == Coll::kAllToAll;
    uint64_t wide = 0;
    if (__builtin_mul_overflow(c.count, ranks, &wide))
      return bad(cat("count ", c.count, " is too large: times ", ranks, " ranks it exceeds 64 bits"));
    Extent src, dst;
    const Dtype dtype = slot->args.dtype;
    WEFT_TRY(extent(c.src_space, c.src_offset_bytes, dtype, wide_src ? wide : c.count, "source", &src));
    WEFT_TRY(extent(c.dst_space, c.dst_offset_bytes, dtype, wide_dst ? wide : c.count, "destination", &dst));
    const bool overlap = src.space == dst.space && src.begin < dst.end() && dst.begin < src.end();
    if (overlap && slot->dynamic && (wide_src || wide_dst)) {
      return bad(
          "source and destination overlap, but a dynamic collective cannot be in place: its counts decide "
          "where blocks are");
    }
    if (overlap && !in_place(coll, src, dst))
      return bad(
          "source and destination overlap, and are not at the offsets of this collective's in-place form");
    if (coll == Coll::kBroadcast && (src.space != dst.space || src.begin != dst.begin)) {
      return bad("a broadcast has one buffer: space and offset of source and destination must be equal");
    }
    slot->space = {c.src_space, c.dst_space};
    slot->offset = {c.src_offset_bytes, c.dst_offset_bytes};
    return {};
  }

  bool in_place(Coll coll, const Extent& src, const Extent& dst) const {
    const auto rank = static_cast<uint64_t>(bucket_.rank);
    switch (coll) {
      case Coll::kAllReduce:
      case Coll::kBroadcast:
        return src.begin == dst.begin;
      case Coll::kAllGather:
        return src.begin == dst.begin + rank * src.bytes;
      case Coll::kReduceScatter:
        return dst.begin == src.begin + rank * dst.bytes;
      default:
        return false;
    }
  }

  Status extent(int32_t space, uint64_t offset, Dtype dtype, uint64_t count, const char* what,
                Extent* out) const {
    uint64_t room = 0;
    if (space == WEFT_SPACE_BUCKET) {
      room = bucket_.count * dtype_size(static_cast<Dtype>(bucket_.dtype));
    } else if (space == WEFT_SPACE_SCRATCH) {
      room = plan_.scratch_bytes;
    } else {
      return bad(cat("the space of the ", what, " is ", space, "; allowed are WEFT_SPACE_BUCKET (",
                     WEFT_SPACE_BUCKET, ") and WEFT_SPACE_SCRATCH (", WEFT_SPACE_SCRATCH, ")"));
    }
    if (offset % dtype_size(dtype) != 0) {
      return bad(cat("offset ", offset, " of the ", what, " is not a multiple of its element size, ",
                     dtype_size(dtype), " bytes"));
    }
    uint64_t bytes = 0;
    uint64_t end = 0;
    if (__builtin_mul_overflow(count, dtype_size(dtype), &bytes) ||
        __builtin_add_overflow(bytes, offset, &end) || end > room) {
      return bad(cat("the ", what, " (", count, " x ", weft::name(dtype), " at byte ", offset,
                     ") extends beyond the ", space == WEFT_SPACE_BUCKET ? "bucket's " : "scratch's ", room,
                     " bytes"));
    }
    *out = {space, offset, bytes};
    return {};
  }

  const weft_bucket& bucket_;
  const weft_hook_plan& plan_;
  const bool own_;
};

}  // namespace

Status check_scratch(uint64_t bytes) {
  if (bytes <= kMaxScratch) return {};
  return Status::error(Code::kArg, cat("weft_hook_plan.scratch_bytes is ", bytes, "; at most ",
                                       bytes_text(kMaxScratch), " is allowed"));
}

Status read_hook_plan(const weft_bucket& bucket, const weft_hook_plan& plan, bool own,
                      std::vector<Slot>* slots) {
  const Checker check(bucket, plan, own);
  WEFT_TRY(check.plan());
  for (uint32_t k = 0; k < plan.collective_count; k++) {
    WEFT_TRY(check.collective(k, &slots->emplace_back()));
  }
  return {};
}

std::unique_ptr<HookViews> make_views(const ReducerState& s) {
  const Comm& seen = s.hook->comm() != nullptr ? *s.hook->comm() : *s.comm;
  auto views = std::make_unique<HookViews>(s.manifest, s.plan, seen.rank(), seen.size(),
                                           s.hook->takes_sparse() ? s.sparse.get() : nullptr);
  const bool shares = s.ownership != nullptr && s.hook->takes_shares();
  for (uint32_t b = 0; shares && b < s.plan.buckets.size(); b++) views->share(b, s.ownership->begins(b));
  return views;
}

Status plan_again(const ReducerState& state, Deadline deadline) {
  const std::unique_ptr<HookViews> views = make_views(state);
  Schedule schedule;  // discarded: the current one stays in use
  return with_turn(state.comm->context(), *state.hook, deadline, [&] {
    WEFT_TRY(state.hook->replan(state.plan.buckets.size()));
    return make_schedule(*state.hook, state.manifest, state.plan, views.get(), &schedule);
  });
}

}  // namespace weft
