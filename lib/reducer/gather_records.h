// Exchanges a record of each rank on the reducer's own lane, between steps. Collective. Threads: one thread
// at a time, as begin and finish.
#pragma once

#include <vector>

#include "comm/comm.h"
#include "reducer/state.h"

namespace weft {

// mine: sent as raw bytes. all: receives the record of each rank; they come from other processes.
template <class Record>
Status gather_records(const ReducerState& s, const Record& mine, std::vector<Record>* all,
                      Deadline deadline) {
  all->resize(static_cast<size_t>(s.comm->size()));
  CollectiveArgs args;
  args.coll = Coll::kAllGather;
  args.dtype = Dtype::kU8;
  args.count = sizeof mine;
  args.src = reinterpret_cast<const std::byte*>(&mine);
  args.dst = reinterpret_cast<std::byte*>(all->data());
  return s.comm->run(s.lane, args, deadline);
}

}  // namespace weft
