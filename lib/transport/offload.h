// Collectives that a transport's own library executes (MPI's non-blocking ones), besides its messages. They
// cannot be cancelled, so they only get memory that Weft owns. lib/coll/offload_lane calls this interface;
// backends whose transport has such collectives implement it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "transport/collectives.h"

namespace weft {

// Threads: with the progress lock held, except ended() (any thread). Each lane is an ordered sequence of
// operations, equal on all ranks and independent of other lanes. An operation is split into parts.
class Offload {
 public:
  static constexpr size_t kDepth = 2;  // most parts of a lane that run at the same time, one in each place

  virtual ~Offload() = default;
  virtual const char* name() const = 0;  // the algorithm name that queries return; static
  virtual uint32_t lanes() const = 0;
  // Returns true if the library executes this operation. The answer depends only on what ranks compare
  // (Descriptor), so it is the same on all ranks.
  virtual bool executes(const CollectiveArgs& args) const = 0;
  // Starts a part. All ranks start the same parts of a lane in the same order, and every rank starts all of
  // them. src == dst: in place. The library uses the memory until test sets *done, possibly for ever.
  virtual Status start(uint32_t lane, size_t place, const CollectiveArgs& part) = 0;
  virtual Status test(uint32_t lane, size_t place, bool* done) = 0;
  // Ends this rank's part of an operation. The library may continue it for the other ranks
  // (Transport::settled).
  virtual void end(uint32_t lane) = 0;
  virtual uint64_t ended() const = 0;  // number of operations on all lanes
};

}  // namespace weft
