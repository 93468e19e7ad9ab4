// Collective lanes that this rank has closed, kept to be opened again once every rank has closed them, so
// that a backend with few lanes makes any number of reducers. The ranks tell each other which ones those are
// with every agreement; what they said in the last one decides, and so all of them take the same. Used by
// Comm, under its lanes_mutex_.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "core/collectives.h"

namespace weft {

class ClosedLanes {
 public:
  struct Kept {
    std::shared_ptr<CollectiveLane> impl;  // rests, and goes on where it was
    uint64_t next_slot = 0;
  };

  void keep(uint32_t id, Kept lane) { kept_.insert_or_assign(id, std::move(lane)); }
  // What this rank says of them, in front of what else it has to say in an agreement.
  void write(ByteWriter* message) const;
  // What all ranks have said; of each message the rest is left. The bytes are of other processes.
  void compare(std::vector<Bytes>* messages);
  // The lowest that every rank had closed by then, after the same number of operations; false if there is
  // none.
  bool take(uint32_t* id, Kept* lane);

 private:
  std::map<uint32_t, Kept> kept_;
  std::vector<uint32_t> everywhere_;  // of these, descending
};

}  // namespace weft
