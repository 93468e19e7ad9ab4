// All-reduces that are put on a stream while it is captured into a graph, and run whenever that is launched:
// on a communicator of their own, because what is in graphs must not meet other operations of its
// communicator. Implemented by backends that work on devices (backends/nccl); used by lib/sync/captures. Made
// collectively: all ranks identify, connect with what rank 0 has said, and ask until they are connected.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/status.h"
#include "core/accelerator.h"
#include "core/collectives.h"

namespace weft {

// Threads: one at a time, health and give_up excepted: any thread. None of them may be called with locks that
// its caller takes to answer other calls.
class GraphLane {
 public:
  // Graphs that hold operations of it may still exist: what these need stays until they are destroyed.
  // Bounded.
  virtual ~GraphLane() = default;
  virtual Status identify(Bytes* id) = 0;
  virtual Status connect(ByteView id) = 0;
  virtual Status connected(bool* done) = 0;

  // Memory of the device, for buffers; freed once neither this object nor any graph is left.
  virtual Status allocate(uint64_t size, std::byte** memory) = 0;
  // On which it works: joined to the capture by an event of one that is captured. Constant.
  virtual DeviceStream stream() const = 0;
  // An all-reduce in place that Collectives::takes, on that stream: where it has joined a capture, part of
  // that on return. table: pinned memory of so many bytes, read with every launch; null where nothing is
  // scaled.
  virtual uint64_t table_bytes() const = 0;
  virtual Status put(const CollectiveArgs& args, std::byte* table, Deadline deadline) = 0;

  // What has failed, also in launches. Never blocks.
  virtual Status health() = 0;
  // End what is under way, without waiting; later launches do nothing.
  virtual void give_up(const Status& why) = 0;
};

}  // namespace weft
