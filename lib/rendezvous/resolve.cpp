#include "rendezvous/resolve.h"

#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "base/fd.h"
#include "base/text.h"
#include "rendezvous/connection.h"
#include "rendezvous/socket.h"

namespace weft {
namespace {

// Shared with the thread, which may outlive the call, its clock and its context.
struct Question {
  std::string host;
  Fd answered;  // an eventfd; what is below is the caller's once it can be read
  Status status;
  std::string numeric;
};

void ask(Question& question) {
  question.status = first_address(question.host, false, &question.numeric);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(question.answered.get(), &one, sizeof one);
}

}  // namespace

Status resolve(const std::string& host, Clock& clock, Deadline deadline, const ThreadStart& on_thread_start,
               std::string* numeric) {
  if (first_address(host, true, numeric).ok()) {
    *numeric = host;  // as it was given: it may name an interface as well
    return {};
  }
  Status late = Status::error(Code::kTimeout, cat("host ", host, ": no name server answered in time"),
                              Evidence::kDeadline);
  if (deadline.expired(clock)) return late;
  const auto question = std::make_shared<Question>();
  question->host = host;
  question->answered = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!question->answered.valid()) return Status::system("eventfd", errno);
  std::thread thread;
  WEFT_TRY(start_thread("weft-resolve", [question] { ask(*question); }, on_thread_start, &thread));
  bool answered = false;
  const Status waited = await_event(question->answered.get(), POLLIN, clock, deadline, &answered);
  if (!answered) {
    thread.detach();
    return waited.ok() ? late : waited;
  }
  thread.join();
  *numeric = question->numeric;
  return question->status;
}

}  // namespace weft
