#include "status/server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <random>
#include <utility>

#include "base/guard.h"
#include "base/text.h"
#include "rendezvous/socket.h"

namespace weft {
namespace {

constexpr int kMostTries = 4;  // with another name

}  // namespace

std::string StatusServer::name_prefix(uid_t user) {
  return cat("weft-status-", user, "-");
}

Status StatusServer::start(Answer answer, const ThreadStart& on_thread_start,
                           std::unique_ptr<StatusServer>* server) {
  static std::atomic<uint64_t> servers{0};  // a process may have several contexts
  Address address;
  address.kind = Address::Kind::kUnix;
  const std::string name = cat(name_prefix(::getuid()), ::getpid(), "-", servers.fetch_add(1));
  address.name = name;
  Fd listener;
  Address actual;
  bool in_use = false;
  Status listens = listen_at(address, false, &listener, &actual, &in_use);
  // A process of another pid namespace may have the same number, and other users may take any name.
  for (int tries = 0; in_use && tries < kMostTries; tries++) {
    address.name = cat(name, "~", std::random_device()());
    listens = listen_at(address, false, &listener, &actual, &in_use);
  }
  WEFT_TRY(listens);
  Fd wake_up(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_up.valid()) return Status::system("status server: eventfd", errno);
  std::unique_ptr<StatusServer> made(
      new StatusServer(std::move(answer), std::move(listener), std::move(wake_up)));
  StatusServer* const started = made.get();
  WEFT_TRY(start_thread("weft-status", [started] { started->run(); }, on_thread_start, &made->thread_));
  *server = std::move(made);
  return {};
}

StatusServer::StatusServer(Answer answer, Fd listener, Fd wake_up)
    : answer_(std::move(answer)), listener_(std::move(listener)), wake_up_(std::move(wake_up)) {}

StatusServer::~StatusServer() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_up_.get(), &one, sizeof one);
  if (thread_.joinable()) thread_.join();
}

void StatusServer::run() {
  std::array<pollfd, 2> polled = {{{wake_up_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}}};
  for (;;) {
    ::poll(polled.data(), polled.size(), -1);
    if (polled[0].revents != 0) return;
    if (polled[1].revents != 0) (void)guarded_run([&] { serve(); }).ok();
  }
}

// Answers the next client. Other users are disconnected without an answer.
void StatusServer::serve() {
  Fd client;
  bool exhausted = false;
  const bool accepted = accept_from(listener_.get(), &client, &exhausted).ok() && client.valid();
  if (exhausted) {  // the listener stays readable
    pollfd end{wake_up_.get(), POLLIN, 0};
    ::poll(&end, 1, static_cast<int>(kExhaustedPauseMs));
  }
  if (accepted && check_peer_user(client.get()).ok()) send_all(client.get(), answer_());
}

void StatusServer::send_all(int fd, const std::string& text) {
  const Deadline deadline = Deadline::after(clock_, kAnswerMs, 0);
  for (size_t at = 0; at < text.size();) {
    const ssize_t sent = ::send(fd, text.data() + at, text.size() - at, MSG_NOSIGNAL);
    if (sent > 0) {
      at += static_cast<size_t>(sent);
      continue;
    }
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return;
    std::array<pollfd, 2> polled = {{{wake_up_.get(), POLLIN, 0}, {fd, POLLOUT, 0}}};
    if (deadline.expired(clock_)) return;
    ::poll(polled.data(), polled.size(), deadline.remaining_ms(clock_));
    if (polled[0].revents != 0) return;
  }
}

}  // namespace weft
