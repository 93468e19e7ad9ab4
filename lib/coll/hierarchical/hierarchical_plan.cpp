#include "coll/hierarchical/hierarchical_plan.h"

namespace weft::coll {
namespace {

void synchronise(const Composed&, const Piece&, CollectiveArgs*) {}

}  // namespace

const HierarchicalPlan& barrier_plan() {
  static constexpr HierarchicalPlan kRow{Spreads::kNever, no_scratch,  synchronise,
                                         synchronise,     synchronise, nullptr};
  return kRow;
}

const HierarchicalPlan& plan_of(const CollectiveArgs& args) {
  if (args.count == 0) return barrier_plan();
  switch (args.coll) {
    case Coll::kAllReduce:
      return args.ordered ? ordered_all_reduce_plan() : all_reduce_plan();
    case Coll::kReduce:
      return args.ordered ? ordered_reduce_plan() : reduce_plan();
    case Coll::kBroadcast:
      return args.device != nullptr ? device_broadcast_plan() : broadcast_plan();
    case Coll::kAllGather:
      return all_gather_plan();
    case Coll::kReduceScatter:
      return args.ordered ? ordered_reduce_scatter_plan() : reduce_scatter_plan();
    case Coll::kGather:
      return gather_plan();
    case Coll::kScatter:
      return scatter_plan();
    case Coll::kAllToAll:
      return all_to_all_plan();
    default:
      return barrier_plan();
  }
}

}  // namespace weft::coll
