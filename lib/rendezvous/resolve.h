// Host name resolution with a deadline. The system's resolver queries name servers for as long as its
// configuration allows and cannot be cancelled. It runs on its own thread, which is detached if the deadline
// comes first. Called on the thread that creates a communicator, before it connects.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"

namespace weft {

// Runs one query per name at a time, for all callers: an unresponsive name server occupies one thread per
// name, however often the program retries. Copies share their queries. Threads: any thread.
class Resolver {
 public:
  Resolver();

  // *addresses: those of `host`, IPv4 first; at least one. An address is returned unchanged, without a query.
  // kSystem: the host does not exist at present. kTimeout: the answer is kept for the next call for this
  // host.
  Status resolve(const std::string& host, Clock& clock, Deadline deadline, const ThreadStart& on_thread_start,
                 std::vector<std::string>* addresses) const;

 private:
  struct Question;
  struct Questions;
  std::shared_ptr<Questions> questions_;
};

}  // namespace weft
