// Collective lanes that this rank has closed and keeps for reuse once every rank has closed them. So a
// backend with few lanes can create any number of reducers. The ranks exchange their closed lanes when they
// agree to open lanes (Comm::agree_to_open). The last such exchange decides which lane is reused, so all
// ranks take the same one. Used by CommTasks, under its mutex_.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "transport/collectives.h"

namespace weft {

class ClosedLanes {
 public:
  struct Entry {
    // The closed lane, whose memory is released (rest()); it continues at next_slot. Null: it could not be
    // opened on this rank.
    std::shared_ptr<CollectiveLane> impl;
    uint64_t next_slot = 0;
  };
  using Published = std::set<std::pair<uint32_t, uint64_t>>;  // lanes, with their next slots

  void keep(uint32_t id, Entry lane) { kept_.insert_or_assign(id, std::move(lane)); }
  // Writes this rank's closed lanes.
  void write(ByteWriter* message) const;
  // Reads a rank's closed lanes; returns an empty set for a truncated message. The bytes come from other
  // processes and are not trusted.
  static Published read(ByteReader* message);
  // Compares the closed lanes of all ranks, this one included. published: by rank; empty if they are unknown,
  // so that no lane is reused.
  void compare(const std::vector<Published>& published);
  // Takes the lowest lane that, at the last compare(), every rank had closed after the same number of
  // operations. Returns false if there is none.
  bool take(uint32_t* id, Entry* lane);

 private:
  std::map<uint32_t, Entry> kept_;
  std::vector<uint32_t> everywhere_;  // lanes of kept_ that all ranks have closed; descending
};

}  // namespace weft
