// How the ranks agree while a reducer is created, bound or given another plan: every rank brings what it
// wants or why it cannot, and all of them get the same answer. Small when they agree: a digest each; the full
// text travels only between the ranks that differ. Threads: one thread at a time per lane that it goes over.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/status.h"
#include "core/comm.h"

namespace weft {

// What differs between the contents of two ranks, for the error's text. The bytes are of other processes.
using Difference = std::function<std::string(int rank, ByteView mine, int other_rank, ByteView theirs)>;

// What the ranks are about to do, "create the reducer", and over what they tell each other.
struct Agreement {
  Comm& comm;
  const char* doing;
  Deadline deadline;
  std::shared_ptr<Lane> lane = nullptr;  // null: the user's
  // If all agree each opens a lane: the closed ones are compared as well (Comm::agree_to_open). Not with
  // lane.
  bool opens = false;
  Comm* beside = nullptr;  // where it opens one too, or null
};

// Collective. local: this rank's own failure, which becomes everybody's (kArg as kMismatch), named by rank.
// content: what must be equal on all ranks, else kMismatch on all with difference's text about the first rank
// that differs from rank 0. Blocks until the deadline at most, which fails the communicator.
Status agree_on(const Agreement& agreement, const Status& local, ByteView content,
                const Difference& difference);

// 64 bits of a digest, for tags.
uint64_t digest64(ByteView content);

}  // namespace weft
