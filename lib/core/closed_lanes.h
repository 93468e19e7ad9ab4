// Collective lanes that this rank has closed, kept to be opened again once every rank has closed them, so
// that a backend with few lanes makes any number of reducers. The ranks tell each other which ones those are
// when they agree to open lanes (Comm::agree_to_open); what they said in the last one decides, and so all of
// them take the same. Used by Comm, under its lanes_mutex_.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "core/collectives.h"

namespace weft {

class ClosedLanes {
 public:
  struct Kept {
    std::shared_ptr<CollectiveLane> impl;  // rests, and goes on where it was; null: could not be opened here
    uint64_t next_slot = 0;
  };
  using Told = std::set<std::pair<uint32_t, uint64_t>>;  // lanes, with their next slots

  void keep(uint32_t id, Kept lane) { kept_.insert_or_assign(id, std::move(lane)); }
  // What this rank says of them.
  void write(ByteWriter* message) const;
  // What a rank has said; nothing if the message is cut off. The bytes are of other processes.
  static Told read(ByteReader* message);
  // What all ranks have said, this one among them. None: nothing is known.
  void compare(const std::vector<Told>& told);
  // The lowest that every rank had closed by then, after the same number of operations; false if there is
  // none.
  bool take(uint32_t* id, Kept* lane);

 private:
  std::map<uint32_t, Kept> kept_;
  std::vector<uint32_t> everywhere_;  // of these, descending
};

}  // namespace weft
