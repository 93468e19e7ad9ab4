#include "transport/collectives.h"

#include <bit>

#include "base/splitmix.h"
#include "base/text.h"
#include "device/accelerator.h"

namespace weft {
namespace {

uint64_t mix(uint64_t h, uint64_t value) {
  return scramble((h ^ value) + kSplitMixStep);
}

bool equal_but_for_tag(Descriptor a, const Descriptor& b) {
  a.tag = b.tag;
  return a == b;
}

// Returns advice on what all ranks must do so that the two calls agree.
const char* remedy(const Descriptor& a, const Descriptor& b) {
  const auto kind = static_cast<Coll>(a.coll);
  const bool same_slot = a.tag / kTagSlot == b.tag / kTagSlot && a.tag >= kTagSlot;
  if (equal_but_for_tag(a, b)) {
    if (has_blocks(kind)) return "pass the same block counts";
    if (kind == Coll::kSparseAllReduce) return "pass the same shape";
    if (!same_slot && a.tag != 0 && b.tag != 0) return "reduce the same buckets in the same order";
    if (same_slot && a.tag / kTagStep != b.tag / kTagStep) return "make the same synchronised steps";
    if (same_slot) return "make the same number of local steps before a synchronised one";
  }
  const bool divide_differently = has_root(kind) ? a.scale != b.scale : a.root != b.root;
  if (same_slot && a.coll == b.coll && divide_differently) {
    return "begin the step with the same micro_batches";
  }
  return "make the same calls in the same order";
}

}  // namespace

Descriptor Descriptor::of(const CollectiveArgs& args) {
  if (args.whole != nullptr) return args.whole->descriptor;
  Descriptor d;
  // A send and its receive are one message, and all other fields of their descriptors are equal.
  d.coll = static_cast<uint8_t>(args.coll == Coll::kRecv ? Coll::kSend : args.coll);
  d.dtype = static_cast<uint8_t>(args.dtype);
  d.op = static_cast<uint8_t>(args.op);
  d.root = has_root(args.coll) ? args.peer : static_cast<int32_t>(args.micro_batches);
  d.count = args.count;
  d.scale = args.prescale * args.postscale;
  d.tag = args.tag;
  if (args.device != nullptr) d.device = args.device->kind;
  return d;
}

std::string call_text(const CollectiveArgs& args) {
  Descriptor call = Descriptor::of(args);
  const bool message = args.coll == Coll::kSend || args.coll == Coll::kRecv;
  if (!message || args.whole != nullptr) return call.text();
  call.coll = static_cast<uint8_t>(args.coll);
  if (args.peer < 0) return cat(call.text(), " from any rank");
  return cat(call.text(), args.coll == Coll::kSend ? " to rank " : " from rank ", args.peer);
}

Status CollectiveLane::prepare(const DeviceCall& /*call*/) {
  return Status::error(Code::kUnsupported,
                       "this communicator does not support device memory: pass host memory, or create it "
                       "with a backend for CUDA memory");
}

uint64_t Descriptor::hash() const {
  uint64_t h = mix(0, static_cast<uint64_t>(coll) | static_cast<uint64_t>(dtype) << 8 |
                          static_cast<uint64_t>(op) << 16 | static_cast<uint64_t>(device) << 24 |
                          static_cast<uint64_t>(static_cast<uint32_t>(root)) << 32);
  h = mix(h, count);
  h = mix(h, std::bit_cast<uint64_t>(scale));
  h = mix(h, tag);
  return h == 0 ? 1 : h;
}

std::string Descriptor::text() const {
  const auto kind = static_cast<Coll>(coll);
  if (!valid(kind)) return cat("an unknown collective (", static_cast<int>(coll), ")");
  if (kind == Coll::kBarrier) return "barrier";
  std::string out = weft::name(kind);
  if (is_reduction(kind)) out += cat(" ", weft::name(static_cast<ReduceOp>(op)));
  out += cat(" ", weft::name(static_cast<Dtype>(dtype)));
  if (kind != Coll::kAllToAllV && kind != Coll::kSparseAllReduce) out += cat(" x ", count);
  if (kind == Coll::kBroadcast || kind == Coll::kScatter || kind == Coll::kScatterV) {
    out += cat(" from rank ", root);
  }
  if (kind == Coll::kReduce || kind == Coll::kGather || kind == Coll::kGatherV) out += cat(" to rank ", root);
  if (device != 0) out += device == kCudaDevices ? " of CUDA memory" : " of unknown memory";
  const bool divides = !has_root(kind) && root > 0;
  if (static_cast<ReduceOp>(op) == ReduceOp::kUser) {
    if (scale != 1.0) out += cat(" in units of ", scale);
  } else if (scale != 1.0 && !divides) {
    out += cat(" scaled by ", scale);
  }
  if (has_blocks(kind)) {
    out += " in blocks";
  } else if (tag != 0 && kind != Coll::kSparseAllReduce) {
    const uint64_t step = tag / kTagStep % (kTagSteps + 1), locals = tag & kTagLocalSteps;
    out += step != 0 ? cat(" of a reducer's step ", step - 1) : " of a reducer";
    if (locals != 0) out += cat(" after ", locals, locals == 1 ? " local step" : " local steps");
    if (divides) out += cat(" with micro_batches ", root);
  }
  return out;
}

Status Collectives::allocate_on_device(int device, uint64_t /*size*/, std::shared_ptr<std::byte>* memory) {
  memory->reset();
  return Status::error(Code::kUnsupported,
                       cat("backend '", name(), "' does not support memory of CUDA device ", device));
}

Status Collectives::open_graph_lane(int device, std::shared_ptr<GraphLane>* lane) {
  lane->reset();
  return Status::error(Code::kUnsupported,
                       cat("backend '", name(), "' does not support graphs of CUDA device ", device,
                           ": graphs require backend nccl, and the device that was current when the "
                           "communicator was created"));
}

Status mismatch(uint64_t slot, int rank, const Descriptor& mine, int other_rank, const Descriptor& theirs) {
  std::string text = cat("operation ", slot, ": rank ", rank, " calls ", mine.text(), ", rank ", other_rank,
                         " calls ", theirs.text(), "; every rank must ", remedy(mine, theirs));
  return Status::error(Code::kMismatch, std::move(text), Evidence::kDescriptor)
      .with_slot(slot)
      .with_ranks({other_rank});
}

}  // namespace weft
