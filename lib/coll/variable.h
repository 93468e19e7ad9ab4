// Collectives of blocks of different sizes: what such a call keeps until it is complete, and how it is made
// of ordinary collectives where a backend does not execute it itself. Called by lib/capi and tests; the
// programs run on lanes (core/program.h).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/collectives.h"
#include "core/program.h"

namespace weft::coll {

// Copies of the call's arrays, and its program. Any thread; outlives the operation.
class VariableCall {
 public:
  // `from` and `to` as in Blocks; offsets that are null: blocks lie one after the other. Fills args' blocks,
  // count, tag and program, and leaves the rest, which is complete. Counts were checked: their sums are small
  // enough. on_device: the call will have a device when it runs.
  VariableCall(const Collectives& collectives, int rank, int size, const BlockList& from, const BlockList& to,
               CollectiveArgs* args, bool on_device = false);

 private:
  BlockList keep(std::vector<uint64_t>& arrays, const BlockList& list, int size) const;

  std::vector<uint64_t> from_, to_;  // counts and offsets
  Blocks blocks_;
  std::unique_ptr<Program> program_;
};

}  // namespace weft::coll
