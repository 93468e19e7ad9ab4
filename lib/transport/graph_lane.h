// All-reduces on a stream that is being captured into a graph; they run whenever the graph is launched. They
// use their own communicator, because operations in graphs must not interleave with other operations. Device
// backends implement this (backends/nccl); lib/reducer/feature/graph/captures uses it. Creation is
// collective: all ranks call identify, then connect with rank 0's id, then poll connected().
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/status.h"
#include "device/accelerator.h"
#include "transport/collectives.h"

namespace weft {

// Threads: calls must not overlap, except health and give_up, which any thread may call at any time. Calls
// may block, so the caller holds no lock that its own other entry points take.
class GraphLane {
 public:
  // Destroys the lane. Graphs with its operations may still exist: resources that these need stay until they
  // are destroyed. Takes a bounded time.
  virtual ~GraphLane() = default;
  virtual Status identify(Bytes* id) = 0;
  virtual Status connect(ByteView id) = 0;
  virtual Status connected(bool* done) = 0;

  // Allocates device memory for buffers. It is freed once neither this object nor any graph is left.
  virtual Status allocate(uint64_t size, std::byte** memory) = 0;
  // Returns the stream on which it works; constant. The stream joins a capture by waiting for an event that
  // was recorded in it.
  virtual DeviceStream stream() const = 0;
  // Enqueues an in-place all-reduce that Collectives::takes on stream(). If stream() has joined a capture,
  // the operation is part of that capture on return. table: table_bytes() of pinned memory, read at every
  // launch; null if nothing is scaled.
  virtual uint64_t table_bytes() const = 0;
  virtual Status put(const CollectiveArgs& args, std::byte* table, Deadline deadline) = 0;

  // Returns failures, including those of launches. Never blocks.
  virtual Status health() = 0;
  // Ends running operations without waiting; later launches do nothing.
  virtual void give_up(const Status& why) = 0;
};

}  // namespace weft
