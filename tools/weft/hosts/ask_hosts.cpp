#include "ask_hosts.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>

#include "base/fd.h"
#include "base/text.h"
#include "weft/foreign_file.h"

extern char** environ;

namespace {

using Clock = std::chrono::steady_clock;
using weft::cat;

constexpr size_t kMostOutput = size_t{64} << 20;  // of one host's answer
constexpr size_t kMostSaid = size_t{64} << 10;    // of its standard error

// One stream of a host. Threads: one thread at a time.
struct HostStream {
  weft::Fd fd;
  std::string text;
  size_t most = 0;

  // Reads what has arrived. Closes the descriptor at the end of the stream, and when it gets too long.
  void take() {
    char bytes[65536];
    while (fd.valid()) {
      const ssize_t got = ::read(fd.get(), bytes, sizeof bytes);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got > 0 && text.size() + static_cast<size_t>(got) <= most) {
        text.append(bytes, static_cast<size_t>(got));
      } else {
        too_long = got > 0;
        fd = weft::Fd();
      }
    }
  }
  bool too_long = false;
};

struct AskedHost {
  pid_t pid = -1;
  HostStream out, err;
};

// Returns the end to read from; *write gets the other one, which children inherit.
weft::Fd open_pipe(weft::Fd* write) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw std::system_error(errno, std::generic_category(),
                            "cannot ask all hosts at once (raise ulimit -n, or name fewer hosts): pipe2");
  }
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  *write = weft::Fd(ends[1]);
  return weft::Fd(ends[0]);
}

AskedHost start_asking(const std::vector<std::string>& command) {
  AskedHost asked;
  weft::Fd out, err;
  asked.out = {open_pipe(&out), {}, kMostOutput};
  asked.err = {open_pipe(&err), {}, kMostSaid};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, out.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, err.get(), STDERR_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const int error = ::posix_spawnp(&asked.pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::system_error(error, std::generic_category(), "cannot run " + command[0]);
  return asked;
}

// Waits until all answers have ended, or until the deadline. A program in place of ssh may leave processes
// that keep standard error open, so its end is not waited for.
void read_answers(std::vector<AskedHost>& all, Clock::time_point deadline) {
  for (;;) {
    std::vector<pollfd> polled;
    bool waits = false;
    for (AskedHost& asked : all) {
      for (HostStream* stream : {&asked.out, &asked.err}) {
        stream->take();
        if (stream->fd.valid()) polled.push_back({stream->fd.get(), POLLIN, 0});
      }
      waits |= asked.out.fd.valid();
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (!waits || left <= 0) return;
    ::poll(polled.data(), polled.size(), static_cast<int>(std::min<int64_t>(left, 60'000)));
  }
}

std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of("\r\n");
  if (end == text.npos) return {};
  const size_t before = text.find_last_of("\r\n", end);
  return printable(text.substr(before == text.npos ? 0 : before + 1, std::min<size_t>(end - before, 300)));
}

// Ends the host's process if it still runs at the deadline. Returns the reason why its answer is not whole;
// empty: it is.
std::string end_asking(AskedHost& asked, Clock::time_point deadline, double wait_s) {
  bool late = asked.out.fd.valid();
  int code = 0;
  // It may run on, although it has closed its standard output.
  while (!late && !asked.out.too_long && ::waitpid(asked.pid, &code, WNOHANG) == 0) {
    late = Clock::now() >= deadline;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (late || asked.out.too_long) {
    ::kill(asked.pid, SIGKILL);
    while (::waitpid(asked.pid, &code, 0) < 0 && errno == EINTR) continue;
  }
  asked.err.take();
  if (asked.out.too_long) return cat("it has more than ", kMostOutput >> 20, " MiB");
  const std::string said = last_line(asked.err.text);
  if (late) return cat("none within ", wait_s, " s (--wait)", said.empty() ? "" : ": ", said);
  if (code == 0) return {};
  return said.empty() ? std::string("ssh or weft failed there") : said;
}

}  // namespace

HostAnswers ask_hosts(const HostsOptions& on, const std::vector<std::string>& words, double wait_s) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(wait_s * 1000));
  std::vector<AskedHost> all;
  for (const HostRanks& host : on.hosts) all.push_back(start_asking(host_command(on, host, words)));
  read_answers(all, deadline);
  HostAnswers answers;
  for (size_t i = 0; i < all.size(); ++i) {
    std::string reason = end_asking(all[i], deadline, wait_s);
    if (!reason.empty()) answers.problems.push_back({on.hosts[i].host, std::move(reason)});
    answers.text += all[i].out.text;
  }
  return answers;
}
