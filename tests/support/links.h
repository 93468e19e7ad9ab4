// Ranks for tests: the same body runs as n threads of this process or as n forked processes, connected by
// socket pairs. A watchdog turns a hang into a failure. A body reports a failure by throwing (WEFT_EXPECT);
// Catch2's assertions may only run on the test case's thread.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/text.h"
#include "transport/exchange.h"
#include "transport/fd_channel.h"

namespace weft::test {

// Fails the calling rank with the text of the condition. For use in a body.
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

// Exchange and FdChannel over two socket pairs to each other rank. Threads: one thread at a time.
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
  std::vector<Fd> data_;         // by rank; invalid for this rank
  std::vector<Fd> descriptors_;  // by rank; invalid for this rank
};

// Returns the links of n ranks, in rank order.
std::vector<SocketLinks> make_links(int ranks);

using LinkedBody = std::function<void(SocketLinks& links)>;

// Runs the body on each rank and returns the failures by rank; an empty text is a success. After `seconds`
// the watchdog ends the run: it kills a rank process, which is reported, or for rank threads the whole
// program.
std::vector<std::string> run_linked_threads(int ranks, const LinkedBody& body, int seconds = 60);
std::vector<std::string> run_linked_processes(int ranks, const LinkedBody& body, int seconds = 60);

// Returns "" if all ranks succeeded, else "rank 2: ...".
std::string failure_text(const std::vector<std::string>& results);

}  // namespace weft::test
