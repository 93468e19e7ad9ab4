// Averages the values of a model's parameters periodically, every `period` steps of a level. It is the second
// half of local SGD, next to the hook post_local_sgd. Implements weft_averager (weft.h is the contract).
//
// Threads: one thread at a time.
#pragma once

#include <weft/weft.h>

#include <memory>
#include <vector>

#include "comm/comm.h"
#include "reducer/bucket/layout.h"
#include "reducer/manifest/manifest.h"

namespace weft {

class Averager {
 public:
  struct Level {
    uint64_t period = 1;
    std::shared_ptr<Comm> comm;
  };

  // Creates an averager. Collective over comm. given: an error that the caller found; the other ranks receive
  // it.
  static Status create(const std::shared_ptr<Comm>& comm, const Status& given,
                       const weft_averager_options& options, std::vector<Level> levels,
                       std::unique_ptr<Averager>* averager);
  // Counts one step and averages when it is due. *period: the period of the level whose ranks averaged, or 0.
  Status step(uint64_t* period);
  Comm& comm() { return *comm_; }

 private:
  // A value that is averaged in place, or several values that are copied into one message.
  struct Chunk {
    uint64_t first, end;  // positions in order_
    uint64_t count;       // elements
    bool in_place;
  };

  Averager(std::shared_ptr<Comm> comm, Manifest manifest, std::vector<Level> levels,
           const weft_averager_options& options);
  void divide(uint64_t chunk_bytes);
  Status average(Comm& comm);
  // Copies between the chunk's values and the packed buffer.
  void gather(const Chunk& chunk);
  void scatter(const Chunk& chunk);

  const std::shared_ptr<Comm> comm_;
  const Manifest manifest_;
  const std::vector<Level> levels_;
  const uint64_t warmup_;
  const int64_t timeout_ms_;
  uint64_t steps_;
  std::vector<Layout> layouts_;    // as manifest_.params
  std::vector<uint32_t> order_;    // parameters by dtype, then as listed
  std::vector<Chunk> chunks_;      // of the values in order_
  std::vector<std::byte> buffer_;  // for the largest chunk that is copied
};

}  // namespace weft
