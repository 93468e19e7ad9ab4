// Collectives of blocks of different sizes: what such a call keeps until it completes, and its composition of
// ordinary collectives where a backend does not execute it itself. Called by lib/capi and tests; the
// composite operations run on lanes (engine/composite.h).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/composite.h"
#include "transport/collectives.h"

namespace weft::coll {

// Holds copies of the call's arrays, and its composite operation. Any thread; outlives the operation.
class VariableCall {
 public:
  // `from` and `to` are as in Blocks; if their offsets are null, blocks lie one after the other. Fills args'
  // blocks, count, tag and composite; the caller has filled the rest. The caller has checked the counts:
  // their sums are small enough. on_device: the call will have a device when it runs.
  VariableCall(const Collectives& collectives, int rank, int size, const BlockList& from, const BlockList& to,
               CollectiveArgs* args, bool on_device = false);

 private:
  BlockList keep(std::vector<uint64_t>& arrays, const BlockList& list, int size) const;

  std::vector<uint64_t> from_, to_;  // counts and offsets
  Blocks blocks_;
  std::unique_ptr<Composite> composite_;
};

}  // namespace weft::coll
