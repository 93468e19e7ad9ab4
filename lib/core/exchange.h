// All-gather of small byte strings while a comm is being formed: over the store, over the caller's callback,
// or over the control channel of a parent comm.
#pragma once

#include <vector>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/interrupt.h"
#include "base/status.h"

namespace weft {

// Threads: one thread at a time.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // What the program that forms the comm calls a rank, in errors: its rank in the communicator that this one
  // comes of, if there is one.
  virtual int name(int rank) const { return rank; }
  // Blocks until every rank has given its bytes (at most kMaxBytes), or fails: kTimeout naming the absent,
  // kPeerFailed. all->size() == size(). Every rank calls it the same number of times.
  virtual Status all_gather(ByteView mine, std::vector<Bytes>* all, Deadline deadline) = 0;

  // The comm is formed: from here on this rank's going is no failure. An Exchange that is destroyed without
  // it tells the other ranks, where it can, that this one has given up.
  virtual void finish() {}
  // This rank cannot go on: tell the others why, before this object is destroyed. They fail with it where
  // they cannot complete what they wait for. The first call counts.
  virtual void fail(const Status& /*why*/) {}
  // For loops that wait for something else while the comm is formed: a descriptor that becomes readable when
  // another rank may have failed (-1: there is none), and whether to go on waiting; never blocks.
  // kInterrupted: the program ends the call.
  virtual int watch_fd() const { return -1; }
  // Virtual for modules: the program's call is known to libweft.so alone, whose exchange it is.
  virtual Status check() {
    WEFT_TRY(Interrupt::check());
    return news();
  }

  static constexpr size_t kMaxBytes = 1u << 20;

 private:
  // What has come of other ranks' failures; never blocks.
  virtual Status news() { return {}; }
};

// Every rank learns every rank's result: all fail if one does. The first failing rank's text is the one that
// is told.
Status agree_on(Exchange& exchange, const Status& mine, Deadline deadline);

}  // namespace weft
