// Ranks for tests: the same body as n threads of this process or as n forked processes, connected by socket
// pairs, with a watchdog, so that a hang is red. A body reports a failure by throwing (WEFT_EXPECT); Catch2's
// own assertions are for the thread of the test case.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/text.h"
#include "core/exchange.h"
#include "core/fd_channel.h"

namespace weft::test {

// In a body: fail the rank with the text of the condition.
#define WEFT_EXPECT(condition)                                                                   \
  do {                                                                                           \
    if (!(condition)) {                                                                          \
      throw std::runtime_error(::weft::cat(__FILE__, ":", __LINE__, ": expected ", #condition)); \
    }                                                                                            \
  } while (0)
#define WEFT_EXPECT_OK(expression)                                                                        \
  do {                                                                                                    \
    if (const ::weft::Status weft_expect_status = (expression); !weft_expect_status.ok()) {               \
      throw std::runtime_error(                                                                           \
          ::weft::cat(__FILE__, ":", __LINE__, ": " #expression " failed: ", weft_expect_status.text())); \
    }                                                                                                     \
  } while (0)

// Exchange and FdChannel over two socket pairs for each other rank. Threads: one thread at a time.
class SocketLinks final : public Exchange, public FdChannel {
 public:
  SocketLinks(int rank, std::vector<Fd> data, std::vector<Fd> descriptors)
      : rank_(rank), data_(std::move(data)), descriptors_(std::move(descriptors)) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(data_.size()); }
  Status all_gather(ByteView mine, std::vector<Bytes>* all, Deadline deadline) override;

  bool same_host(int /*rank*/) const override { return true; }
  Status send_fd(int rank, int fd) override;
  Status receive_fd(int rank, Fd* fd, Deadline deadline) override;

 private:
  int rank_;
  std::vector<Fd> data_;         // of every rank; invalid for the own one
  std::vector<Fd> descriptors_;  // likewise
};

// Links of n ranks, in rank order.
std::vector<SocketLinks> make_links(int ranks);

using LinkedBody = std::function<void(SocketLinks& links)>;

// What went wrong on each rank; empty texts are successes. After `seconds` the watchdog ends it: a rank that
// is a process is killed and says so, a rank that is a thread takes the program with it.
std::vector<std::string> run_linked_threads(int ranks, const LinkedBody& body, int seconds = 60);
std::vector<std::string> run_linked_processes(int ranks, const LinkedBody& body, int seconds = 60);

// "" if all succeeded, else "rank 2: ...".
std::string failure_text(const std::vector<std::string>& results);

}  // namespace weft::test
