#include "base/thread.h"

#include <pthread.h>
#include <csignal>

#include <cstring>
#include <system_error>
#include <utility>

#include "base/text.h"

namespace weft {
namespace {

// Blocks all signals on this thread while it lives; a thread started meanwhile inherits the mask.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

Status start_thread(const char* name, std::function<void()> body, const ThreadStart& on_start,
                    std::thread* thread) {
  const SignalsBlocked blocked;
  try {
    *thread = std::thread([name, on_start, body = std::move(body)] {
      pthread_setname_np(pthread_self(), name);
      if (on_start) on_start(name);
      body();
    });
  } catch (const std::system_error& error) {
    return Status::system(cat("cannot start thread ", name), error.code().value());
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory();
  }
  return {};
}

}  // namespace weft
