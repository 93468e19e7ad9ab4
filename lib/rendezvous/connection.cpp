#include "rendezvous/connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>

#include "base/interrupt.h"
#include "base/text.h"

namespace weft {
namespace {

// Most bytes to read before other connections get their turn.
constexpr size_t kReadOnce = 256u << 10;
constexpr size_t kChunk = 16u << 10;
constexpr size_t kMaxFds = 16;  // most descriptors that one recvmsg receives; a sender attaches one at a time

// Calls recvmsg and appends received descriptors to *fds; or calls recv, with which the kernel drops them.
// Sets *lost if the kernel dropped some although they are wanted.
ssize_t receive(int fd, std::byte* bytes, size_t size, std::vector<Fd>* fds, bool* lost) {
  if (fds == nullptr) return ::recv(fd, bytes, size, 0);
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kMaxFds * sizeof(int))> control;
  iovec part{bytes, size};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  if (got < 0) return got;
  if ((message.msg_flags & MSG_CTRUNC) != 0) *lost = true;
  std::array<Fd, kMaxFds> received;  // owned before memory is needed
  size_t count = 0;
  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr; each = CMSG_NXTHDR(&message, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    const std::byte* const numbers = reinterpret_cast<const std::byte*>(CMSG_DATA(each));
    for (size_t at = 0; at + sizeof(int) <= each->cmsg_len - CMSG_LEN(0) && count < kMaxFds;
         at += sizeof(int)) {
      int number;
      std::memcpy(&number, numbers + at, sizeof number);
      received[count++] = Fd(number);
    }
  }
  for (size_t i = 0; i < count; i++) fds->push_back(std::move(received[i]));
  return got;
}

ssize_t send_bytes(int fd, ByteView bytes, int attached) {
  if (attached < 0) return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &attached, sizeof attached);
  return ::sendmsg(fd, &message, MSG_NOSIGNAL);
}

bool again(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

}  // namespace

Status Connection::read(std::vector<Bytes>* frames, bool* closed, std::vector<Fd>* fds) {
  *closed = false;
  std::array<std::byte, kChunk> chunk;  // uninitialised
  for (size_t total = 0; total < kReadOnce;) {
    // Ignores descriptors until the handshake is done, so that unauthenticated clients cannot fill the
    // process's descriptor table.
    const ssize_t got =
        receive(fd_.get(), chunk.data(), chunk.size(), established() ? fds : nullptr, &fds_lost_);
    if (got < 0 && again(errno)) break;
    if (got <= 0) {
      *closed = true;
      break;
    }
    total += static_cast<size_t>(got);
    if (Status status = stream_->receive(ByteView(chunk).first(static_cast<size_t>(got)), frames);
        !status.ok()) {
      if (!established()) flush();  // sends the handshake's last bytes
      return status;
    }
    // The end of the stream, or what comes next, makes the socket readable again.
    if (static_cast<size_t>(got) < chunk.size()) break;
  }
  return {};
}

bool Connection::flush() {
  Bytes& out = stream_->out();
  size_t written = 0;
  bool alive = true;
  while (written < out.size()) {
    const ssize_t put = send_bytes(fd_.get(), ByteView(out).subspan(written), -1);
    if (put < 0) {
      alive = again(errno);
      if (errno == EINTR) continue;
      break;
    }
    written += static_cast<size_t>(put);
  }
  out.erase(out.begin(), out.begin() + static_cast<ptrdiff_t>(written));
  return alive;
}

Status Connection::send_with_fd(ByteView frame, int fd, Clock& clock, Deadline deadline) {
  const auto wait_for_room = [&]() -> Status {
    bool ready = false;
    WEFT_TRY(await_event(fd_.get(), POLLOUT, clock, deadline, &ready));
    if (ready) return {};
    return Status::error(Code::kTimeout, "its socket was full until the deadline, because it does not read",
                         Evidence::kDeadline);
  };
  const auto broken = [] {
    return Status::error(Code::kPeerFailed, "the connection was closed or reset", Evidence::kConnection);
  };
  while (queued() > 0) {
    if (!flush()) return broken();
    if (queued() > 0) WEFT_TRY(wait_for_room());
  }
  // The descriptor is sent with the frame's first bytes, so it has arrived when the frame is complete.
  send(frame);
  Bytes& out = stream_->out();
  for (;;) {
    const ssize_t put = send_bytes(fd_.get(), out, fd);
    if (put > 0) {
      out.erase(out.begin(), out.begin() + put);
      break;
    }
    // Also waits when too many descriptors are in flight (ETOOMANYREFS): the receivers will take some.
    if (put < 0 && !again(errno) && errno != ETOOMANYREFS) return broken();
    WEFT_TRY(wait_for_room());
  }
  return flush() ? Status() : broken();
}

short Connection::events() const {
  return static_cast<short>(POLLIN | (queued() > 0 ? POLLOUT : 0));
}

void Connection::finish_sending() {
  ::shutdown(fd_.get(), SHUT_WR);
}

void Connection::shut_down() {
  ::shutdown(fd_.get(), SHUT_RDWR);
}

void Connection::close() {
  fd_.reset();
}

Status await_event(int fd, short events, Clock& clock, Deadline deadline, bool* ready) {
  for (;;) {
    *ready = wait_for(fd, events, clock, deadline.earlier(Interrupt::next()));
    if (*ready) return {};
    WEFT_TRY(Interrupt::check());
    if (deadline.expired(clock)) return {};
  }
}

bool wait_for(int fd, short events, Clock& clock, Deadline deadline) {
  for (;;) {
    pollfd ready{fd, events, 0};
    if (::poll(&ready, 1, deadline.remaining_ms(clock)) > 0) return true;
    if (deadline.expired(clock)) return false;
  }
}

}  // namespace weft
