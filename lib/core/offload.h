// Collectives that a transport's own library executes by itself (MPI's non-blocking ones), beside its
// messages. They cannot be taken back, so they are given memory of Weft's alone: lib/coll/offload_lane calls
// this, implemented by backends whose transport has it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "core/collectives.h"

namespace weft {

// Threads: with the drive lock held, except ended() (any thread). A lane is an order of operations, equal on
// all ranks, independent of the others; an operation is cut into parts.
class Offload {
 public:
  static constexpr size_t kDepth = 2;  // parts of a lane that are under way at most, one in each place

  virtual ~Offload() = default;
  virtual const char* name() const = 0;  // of what it is called when a query asks for the algorithm; static
  virtual uint32_t lanes() const = 0;
  // A function of what the ranks compare (Descriptor), so the same on all.
  virtual bool executes(const CollectiveArgs& args) const = 0;
  // All ranks start the same parts of a lane in the same order, and all of them will. src == dst: in place.
  // The memory is the library's until test says done, or for ever.
  virtual Status start(uint32_t lane, size_t place, const CollectiveArgs& part) = 0;
  virtual Status test(uint32_t lane, size_t place, bool* done) = 0;
  // This rank is done with an operation. The library goes on with it for the others (Transport::settled).
  virtual void end(uint32_t lane) = 0;
  virtual uint64_t ended() const = 0;  // operations, of all lanes
};

}  // namespace weft
