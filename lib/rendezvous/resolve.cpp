#include "rendezvous/resolve.h"

#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <map>
#include <memory>
#include <mutex>

#include "base/fd.h"
#include "base/guard.h"
#include "base/text.h"
#include "rendezvous/connection.h"
#include "rendezvous/socket.h"

namespace weft {
// Shared with the thread, which may outlive the call, its clock and its context.
struct Resolver::Question {
  // Runs on the thread.
  void ask() {
    status = guarded([&] { return addresses_of(host, false, &addresses); });
    complete.store(true, std::memory_order_release);
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(answered.get(), &one, sizeof one);
  }

  std::string host;
  Fd answered;                         // an eventfd, readable once `complete` is set
  std::atomic<bool> complete = false;  // the fields below may be read
  Status status;
  std::vector<std::string> addresses;
};

struct Resolver::Questions {
  // Returns the running query of this host, or starts one.
  Status find(const std::string& host, const ThreadStart& on_thread_start, std::shared_ptr<Question>* found) {
    const std::lock_guard lock(mutex);
    std::shared_ptr<Question>& open = by_host[host];
    Status status;
    if (open == nullptr) status = begin(host, on_thread_start, &open);
    *found = open;
    if (!status.ok()) by_host.erase(host);
    return status;
  }
  // Removes an answered query: the next call starts a new one.
  void close(const std::shared_ptr<Question>& question) {
    const std::lock_guard lock(mutex);
    const auto it = by_host.find(question->host);
    if (it != by_host.end() && it->second == question) by_host.erase(it);
  }
  static Status begin(const std::string& host, const ThreadStart& on_thread_start,
                      std::shared_ptr<Question>* begun) {
    const auto question = std::make_shared<Question>();
    question->host = host;
    question->answered = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!question->answered.valid()) return Status::system("eventfd", errno);
    std::thread thread;
    WEFT_TRY(start_thread("weft-resolve", [question] { question->ask(); }, on_thread_start, &thread));
    thread.detach();
    *begun = question;
    return {};
  }

  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Question>> by_host;  // guarded by mutex
};

Resolver::Resolver() : questions_(std::make_shared<Questions>()) {}

Status Resolver::resolve(const std::string& host, Clock& clock, Deadline deadline,
                         const ThreadStart& on_thread_start, std::vector<std::string>* addresses) const {
  if (addresses_of(host, true, addresses).ok()) {
    *addresses = {host};  // unchanged: it may contain an interface name
    return {};
  }
  Status late =
      Status::error(Code::kTimeout, cat("host ", host, ": no name server answered before the deadline"),
                    Evidence::kDeadline);
  if (deadline.expired(clock)) return late;
  std::shared_ptr<Question> question;
  WEFT_TRY(questions_->find(host, on_thread_start, &question));
  bool answered = false;
  const Status waited = await_event(question->answered.get(), POLLIN, clock, deadline, &answered);
  if (!answered || !question->complete.load(std::memory_order_acquire)) return waited.ok() ? late : waited;
  questions_->close(question);
  *addresses = question->addresses;
  return question->status;
}

}  // namespace weft
