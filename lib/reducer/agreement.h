// Agreement of the ranks while a reducer is created, bound or re-planned. Each rank contributes its request,
// or the error that prevents it, and all ranks get the same result. Traffic is small when they agree: one
// digest each. The full text is sent only between ranks that differ. Threads: one thread at a time per lane.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/comm.h"

namespace weft {

// Describes how the contents of two ranks differ, for the error's text. Either may come from another process.
using Difference = std::function<std::string(int rank, ByteView mine, int other_rank, ByteView theirs)>;

// Names the subject of an agreement, "create the reducer", and the communicator and lane that the ranks use.
struct Agreement {
  Comm& comm;
  const char* doing;
  Deadline deadline;
  std::shared_ptr<Lane> lane = nullptr;  // null: the user's lane
  // After an agreement each rank opens a lane: closed lanes are compared as well (Comm::agree_to_open).
  // Excludes `lane`.
  bool opens = false;
  Comm* beside = nullptr;  // a second communicator on which it opens a lane, or null
};

// Lets the ranks agree. Collective. local: this rank's own failure. It becomes every rank's error, which
// names the rank; kArg is turned into kMismatch. content: must be equal on all ranks. Otherwise every rank
// gets kMismatch, with difference's text about the first rank that differs from rank 0. Blocks at most until
// the deadline, which fails the communicator.
Status agree_on(const Agreement& agreement, const Status& local, ByteView content,
                const Difference& difference);

// Returns 64 bits of a digest, for tags.
uint64_t digest64(ByteView content);

}  // namespace weft
