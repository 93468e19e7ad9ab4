// Answers `weft status`: a unix socket of the process, on which a process of the same user gets one text. A
// thread of its own answers, so that it works while the program, its hooks or other ranks hang. Threads: one
// thread at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"
#include "base/thread.h"

namespace weft {

class StatusServer {
 public:
  // Returns the text. Called on the server's thread.
  using Answer = std::function<std::string()>;

  static Status start(Answer answer, const ThreadStart& on_thread_start,
                      std::unique_ptr<StatusServer>* server);
  // Ends the thread. Waits for an answer that it is giving, at most kAnswerMs and as long as Answer takes.
  ~StatusServer();
  StatusServer(const StatusServer&) = delete;
  StatusServer& operator=(const StatusServer&) = delete;

  // Names in the abstract namespace begin with this, followed by the process's number, "-" and a number. If
  // that name is taken, "~" and a random number follow.
  static std::string name_prefix(uid_t user);
  static constexpr int64_t kAnswerMs = 2000;  // for a client that does not read

 private:
  StatusServer(Answer answer, Fd listener, Fd wake_up);
  void run();
  void serve();
  void send_all(int fd, const std::string& text);

  const Answer answer_;
  const Fd listener_;
  const Fd wake_up_;  // readable once the server is to end
  SystemClock clock_;
  std::thread thread_;
};

}  // namespace weft
