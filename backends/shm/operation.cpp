#include "operation.h"

namespace weft::shm {

Operation Operation::of(const CollectiveArgs& args, uint64_t slot, int rank, int size) {
  Operation op;
  op.args = args;
  op.slot = slot;
  op.element = dtype_size(args.dtype);
  op.bytes = args.coll == Coll::kBarrier ? 0 : args.count * op.element;
  op.rank = rank;
  op.size = size;
  const bool root = rank == args.peer;
  switch (args.coll) {
    case Coll::kAllReduce:
      op.gives = true;
      op.take = Take::kFold;
      break;
    case Coll::kReduce:
      op.gives = !root;
      op.take = root ? Take::kFold : Take::kNothing;
      break;
    case Coll::kBroadcast:
      op.gives = root;
      op.take = Take::kRoot;
      break;
    case Coll::kAllGather:
      op.gives = true;
      op.take = Take::kEach;
      break;
    case Coll::kReduceScatter:
      op.src_blocks = size;
      op.gives = true;
      op.take = Take::kFold;
      break;
    case Coll::kGather:
      op.gives = !root;
      op.take = root ? Take::kEach : Take::kNothing;
      break;
    case Coll::kScatter:
      op.src_blocks = size;
      op.gives = root;
      op.take = Take::kRoot;
      break;
    case Coll::kAllToAll:
      op.src_blocks = size;
      op.gives = true;
      op.take = Take::kEach;
      break;
    default:  // a barrier; sends and receives have their own lanes, other collectives are composed
      break;
  }
  if (size == 1) op.gives = false;
  return op;
}

}  // namespace weft::shm
