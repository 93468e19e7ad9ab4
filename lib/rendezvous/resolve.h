// From a host's name to its address, by a deadline. The system's resolver asks name servers for as long as
// its configuration says, and cannot be called off: it runs on a thread of its own, which is left to itself
// when the deadline comes first. Called by who forms a communicator, before it connects.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"

namespace weft {

// Asks for each name once at a time, whoever wants to know: a name server that does not answer holds one
// thread for each name, however often the program tries again. Copies share their questions. Threads: any
// thread.
class Resolver {
 public:
  Resolver();

  // *numeric: an IPv4 address of `host` if it has one, else an IPv6 address; `host` itself if it is an
  // address already, and then nothing is asked. kSystem when there is no such host now, kTimeout; then the
  // answer goes to the next call for this host.
  Status resolve(const std::string& host, Clock& clock, Deadline deadline, const ThreadStart& on_thread_start,
                 std::string* numeric) const;

 private:
  struct Questions;
  std::shared_ptr<Questions> questions_;
};

}  // namespace weft
