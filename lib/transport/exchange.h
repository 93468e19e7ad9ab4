// All-gather of small byte strings while a communicator is being created: through the store, the caller's
// callback, or the control channel of a parent communicator.
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
  // Returns the name of a rank in errors: its rank in the parent communicator, if there is one.
  virtual int name(int rank) const { return rank; }
  // Blocks until every rank has contributed its bytes (at most kMaxBytes), or fails. kTimeout names the
  // absent ranks; kPeerFailed. all->size() == size(). Every rank calls it the same number of times.
  virtual Status all_gather(ByteView mine, std::vector<Bytes>* all, Deadline deadline) = 0;

  // Ends the group setup successfully: from here on this rank's departure is not a failure. If an Exchange is
  // destroyed without finish(), it reports to the other ranks, where it can, that this rank has given up.
  virtual void finish() {}
  // Reports to the other ranks why this rank cannot continue. Called before this object is destroyed. The
  // other ranks fail with this error where they cannot complete their wait. Only the first call counts.
  virtual void fail(const Status& /*why*/) {}
  // watch_fd and check() serve loops that wait for something else during group setup. The descriptor from
  // watch_fd becomes readable when another rank may have failed (-1: none). While check() returns ok the wait
  // may continue; it never blocks. kInterrupted: the program ends the call.
  virtual int watch_fd() const { return -1; }
  // check() is virtual for the sake of modules: only libweft.so, which owns the exchange, can see the
  // program's interrupt.
  virtual Status check() {
    WEFT_TRY(Interrupt::check());
    return news();
  }

  static constexpr size_t kMaxBytes = 1u << 20;

 private:
  // Returns failures that other ranks have reported; never blocks.
  virtual Status news() { return {}; }
};

// Exchanges results: every rank gets every rank's result, and all fail if one does. All return the error text
// of the first failing rank.
Status agree_on(Exchange& exchange, const Status& mine, Deadline deadline);

}  // namespace weft
