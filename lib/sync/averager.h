// Averages the values of a model's parameters every so many steps: local SGD's other half, beside the hook
// post_local_sgd. What stands behind weft_averager (weft.h is the contract).
//
// Threads: one thread at a time.
#pragma once

#include <weft/weft.h>

#include <memory>
#include <vector>

#include "core/comm.h"
#include "sync/layout.h"
#include "sync/manifest.h"

namespace weft {

class Averager {
 public:
  struct Level {
    uint64_t period = 1;
    std::shared_ptr<Comm> comm;
  };

  // Collective over comm. given: what the caller found wrong, of which the other ranks learn.
  static Status create(const std::shared_ptr<Comm>& comm, const Status& given,
                       const weft_averager_options& options, std::vector<Level> levels,
                       std::unique_ptr<Averager>* averager);
  // One step was made. *period: of the level whose communicator's ranks have averaged; 0 if none has.
  Status step(uint64_t* period);
  Comm& comm() { return *comm_; }

 private:
  // A value that is averaged where it is, or values that travel together, copied.
  struct Chunk {
    uint64_t first, end;  // values
    uint64_t count;       // elements
    bool in_place;
  };

  Averager(std::shared_ptr<Comm> comm, Manifest manifest, std::vector<Level> levels,
           const weft_averager_options& options);
  void divide(uint64_t chunk_bytes);
  Status average(Comm& comm);
  // Between the chunk's values and where they lie side by side.
  void gather(const Chunk& chunk);
  void scatter(const Chunk& chunk);

  const std::shared_ptr<Comm> comm_;
  const Manifest manifest_;
  const std::vector<Level> levels_;
  const uint64_t warmup_;
  const int64_t timeout_ms_;
  uint64_t steps_;
  std::vector<Layout> layouts_;    // as manifest_.params
  std::vector<uint32_t> order_;    // by dtype, then as listed
  std::vector<Chunk> chunks_;      // of values in that order
  std::vector<std::byte> buffer_;  // of the largest chunk that is copied
};

}  // namespace weft
