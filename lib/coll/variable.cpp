#include "coll/variable.h"

#include <numeric>

#include "base/splitmix.h"
#include "coll/variable_composites.h"

namespace weft::coll {
namespace {

// Returns the number that stands for the counts in a descriptor; never 0.
uint64_t digest(const BlockList& list, int size) {
  uint64_t h = 0x766172;
  for (int r = 0; r < size; r++) h = scramble((h ^ list.count(r)) + kSplitMixStep);
  return h == 0 ? 1 : h;
}

}  // namespace

VariableCall::VariableCall(const Collectives& collectives, int rank, int size, const BlockList& from,
                           const BlockList& to, CollectiveArgs* args, bool on_device) {
  blocks_.from = keep(from_, from, size);
  blocks_.to = keep(to_, to, size);
  args->blocks = &blocks_;
  const bool agreed = args->coll != Coll::kAllToAllV;
  args->count = agreed ? std::accumulate(from_.begin(), from_.begin() + size, uint64_t{0}) : 0;
  args->tag = agreed ? digest(blocks_.from, size) : 0;
  bool executes = on_device ? collectives.executes_on_device(args->coll) : collectives.executes(args->coll);
  // The composition for skewed blocks also works on device memory, and pads nothing.
  if (on_device && skewed(*args, size)) executes = false;
  if (!executes || !agreed) composite_ = variable_composite(*args, rank, size, executes);
  args->composite = composite_.get();
}

BlockList VariableCall::keep(std::vector<uint64_t>& arrays, const BlockList& list, int size) const {
  const auto n = static_cast<size_t>(size);
  arrays.resize(2 * n);
  std::copy_n(list.counts, n, arrays.begin());
  if (list.offsets != nullptr) {
    std::copy_n(list.offsets, n, arrays.begin() + size);
  } else {
    std::exclusive_scan(arrays.begin(), arrays.begin() + size, arrays.begin() + size, uint64_t{0});
  }
  return {arrays.data(), arrays.data() + n};
}

}  // namespace weft::coll
