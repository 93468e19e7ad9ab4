#include "support/links.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/clock.h"

namespace weft::test {
namespace {

Status wait_readable(int fd, Deadline deadline, int rank) {
  SystemClock clock;
  pollfd entry{fd, POLLIN, 0};
  const int ready = ::poll(&entry, 1, deadline.remaining_ms(clock));
  if (ready > 0) return {};
  return Status::error(Code::kTimeout, cat("rank ", rank, " sent nothing")).with_ranks({rank});
}

Status lost(int rank) {
  return Status::error(Code::kPeerFailed, cat("rank ", rank, " is gone"), Evidence::kConnection)
      .with_ranks({rank});
}

Status read_exactly(int fd, void* to, size_t size, Deadline deadline, int rank) {
  auto* at = static_cast<std::byte*>(to);
  while (size > 0) {
    WEFT_TRY(wait_readable(fd, deadline, rank));
    const ssize_t got = ::recv(fd, at, size, 0);
    if (got <= 0) return lost(rank);
    at += got;
    size -= static_cast<size_t>(got);
  }
  return {};
}

Status write_exactly(int fd, const void* from, size_t size, int rank) {
  const auto* at = static_cast<const std::byte*>(from);
  while (size > 0) {
    const ssize_t sent = ::send(fd, at, size, MSG_NOSIGNAL);
    if (sent <= 0) return lost(rank);
    at += sent;
    size -= static_cast<size_t>(sent);
  }
  return {};
}

std::string run_body(const LinkedBody& body, SocketLinks& links) {
  try {
    body(links);
    return {};
  } catch (const std::exception& error) {
    return *error.what() != '\0' ? error.what() : "an exception without a text";
  }
}

}  // namespace

Status SocketLinks::all_gather(ByteView mine, std::vector<Bytes>* all, Deadline deadline) {
  const auto length = static_cast<uint32_t>(mine.size());
  for (int r = 0; r < size(); r++) {
    if (r == rank_) continue;
    const int fd = data_[static_cast<size_t>(r)].get();
    WEFT_TRY(write_exactly(fd, &length, sizeof length, r));
    WEFT_TRY(write_exactly(fd, mine.data(), mine.size(), r));
  }
  all->assign(data_.size(), {});
  for (int r = 0; r < size(); r++) {
    Bytes& bytes = (*all)[static_cast<size_t>(r)];
    if (r == rank_) {
      bytes.assign(mine.begin(), mine.end());
      continue;
    }
    const int fd = data_[static_cast<size_t>(r)].get();
    uint32_t theirs = 0;
    WEFT_TRY(read_exactly(fd, &theirs, sizeof theirs, deadline, r));
    bytes.resize(theirs);
    WEFT_TRY(read_exactly(fd, bytes.data(), bytes.size(), deadline, r));
  }
  return {};
}

Status SocketLinks::send_fd(int rank, int fd) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  return ::sendmsg(descriptors_[static_cast<size_t>(rank)].get(), &message, MSG_NOSIGNAL) == 1 ? Status()
                                                                                               : lost(rank);
}

Status SocketLinks::receive_fd(int rank, Fd* fd, Deadline deadline) {
  const int socket = descriptors_[static_cast<size_t>(rank)].get();
  WEFT_TRY(wait_readable(socket, deadline, rank));
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return lost(rank);
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return lost(rank);
  int received = -1;
  std::memcpy(&received, CMSG_DATA(header), sizeof received);
  *fd = Fd(received);
  return {};
}

std::vector<SocketLinks> make_links(int ranks) {
  const auto count = static_cast<size_t>(ranks);
  std::vector<std::vector<Fd>> data(count);
  std::vector<std::vector<Fd>> descriptors(count);
  for (size_t i = 0; i < count; i++) {
    data[i].resize(count);
    descriptors[i].resize(count);
  }
  for (size_t i = 0; i < count; i++) {
    for (size_t j = i + 1; j < count; j++) {
      for (auto* matrix : {&data, &descriptors}) {
        int ends[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
          throw std::runtime_error(cat("socketpair: ", std::strerror(errno)));
        }
        (*matrix)[i][j] = Fd(ends[0]);
        (*matrix)[j][i] = Fd(ends[1]);
      }
    }
  }
  std::vector<SocketLinks> links;
  for (size_t i = 0; i < count; i++) {
    links.emplace_back(static_cast<int>(i), std::move(data[i]), std::move(descriptors[i]));
  }
  return links;
}

std::vector<std::string> run_linked_threads(int ranks, const LinkedBody& body, int seconds) {
  std::vector<SocketLinks> links = make_links(ranks);
  std::vector<std::string> results(links.size());
  std::mutex mutex;
  std::condition_variable done;
  size_t running = links.size();
  std::vector<std::thread> threads;
  for (size_t r = 0; r < links.size(); r++) {
    threads.emplace_back([&, r] {
      std::string result = run_body(body, links[r]);
      const std::lock_guard lock(mutex);
      results[r] = std::move(result);
      running--;
      done.notify_all();
    });
  }
  {
    std::unique_lock lock(mutex);
    if (!done.wait_for(lock, std::chrono::seconds(seconds), [&] { return running == 0; })) {
      std::fprintf(stderr, "%zu of %d ranks hang after %d s; others: %s\n", running, ranks, seconds,
                   failure_text(results).c_str());
      std::abort();
    }
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

std::vector<std::string> run_linked_processes(int ranks, const LinkedBody& body, int seconds) {
  std::vector<SocketLinks> links = make_links(ranks);
  std::vector<std::string> results(links.size());
  std::vector<pid_t> children(links.size());
  std::vector<Fd> reports(links.size());
  for (size_t r = 0; r < links.size(); r++) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("pipe");
    children[r] = ::fork();
    if (children[r] < 0) throw std::runtime_error("fork");  // kill(-1) would signal every process
    if (children[r] == 0) {
      SocketLinks mine = std::move(links[r]);
      links.clear();  // closes the parent's descriptors, so that ranks see a peer's death
      const std::string result = run_body(body, mine);
      const char verdict = result.empty() ? '+' : '-';
      if (::write(ends[1], &verdict, 1) != 1 || ::write(ends[1], result.data(), result.size()) < 0)
        ::_exit(2);
      ::_exit(0);
    }
    ::close(ends[1]);
    reports[r] = Fd(ends[0]);
  }
  links.clear();
  SystemClock clock;
  const Deadline deadline = Deadline::after(clock, seconds * 1000, 0);
  for (size_t r = 0; r < reports.size(); r++) {
    std::string text;
    char buffer[1024];
    for (;;) {
      pollfd entry{reports[r].get(), POLLIN, 0};
      if (::poll(&entry, 1, deadline.remaining_ms(clock)) <= 0) {
        results[r] = cat("hangs after ", seconds, " s");
        break;
      }
      const ssize_t got = ::read(reports[r].get(), buffer, sizeof buffer);
      if (got <= 0) break;
      text.append(buffer, static_cast<size_t>(got));
    }
    if (!results[r].empty()) continue;
    results[r] = text.empty() ? "died" : text.substr(1);
  }
  for (size_t r = 0; r < children.size(); r++) {
    if (results[r].rfind("hangs", 0) == 0) ::kill(children[r], SIGKILL);
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
  }
  return results;
}

std::string failure_text(const std::vector<std::string>& results) {
  std::string text;
  for (size_t r = 0; r < results.size(); r++) {
    if (!results[r].empty()) text += cat("rank ", r, ": ", results[r], "\n");
  }
  return text;
}

}  // namespace weft::test
