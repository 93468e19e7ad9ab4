#include "coll/hierarchical/recipe.h"

namespace weft::coll {
namespace {

int nothing(const Composed&, bool) {
  return 0;
}
void meet(const Composed&, const Piece&, CollectiveArgs*) {}

}  // namespace

const Recipe& barrier_recipe() {
  static constexpr Recipe kRow{Spreads::kNever, nothing, meet, meet, meet, nullptr};
  return kRow;
}

const Recipe& recipe_of(const CollectiveArgs& args) {
  if (args.count == 0) return barrier_recipe();
  switch (args.coll) {
    case Coll::kAllReduce:
      return args.ordered ? ordered_all_reduce_recipe() : all_reduce_recipe();
    case Coll::kReduce:
      return args.ordered ? ordered_reduce_recipe() : reduce_recipe();
    case Coll::kBroadcast:
      return args.device != nullptr ? device_broadcast_recipe() : broadcast_recipe();
    case Coll::kAllGather:
      return all_gather_recipe();
    case Coll::kReduceScatter:
      return args.ordered ? ordered_reduce_scatter_recipe() : reduce_scatter_recipe();
    case Coll::kGather:
      return gather_recipe();
    case Coll::kScatter:
      return scatter_recipe();
    case Coll::kAllToAll:
      return all_to_all_recipe();
    default:
      return barrier_recipe();
  }
}

}  // namespace weft::coll
