#include "launch.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "lines.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kKillAfterS = 5;  // between SIGTERM and SIGKILL
constexpr double kDrainS = 1;  // for output that a process outside the launcher's control still holds open
constexpr int kTimeoutCode = 124;  // like timeout(1)
constexpr int kCannotRunCode = 127;

[[noreturn]] void throw_system(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

Clock::duration seconds(double s) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
}

std::string exit_text(int code) {
  if (code <= 128) return "ended with exit code " + std::to_string(code);
  const char* name = ::sigabbrev_np(code - 128);
  return name != nullptr ? std::string("was ended by SIG") + name
                         : "was ended by signal " + std::to_string(code - 128);
}

struct Pipe {
  int read = -1;
  int write = -1;
};

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_system("cannot create a pipe for a rank's output");
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {ends[0], ends[1]};
}

class Launch {
 public:
  explicit Launch(const LaunchOptions& options);
  ~Launch();
  int run();

 private:
  struct Rank {
    pid_t pid = -1;  // -1: has ended and was reaped
    int code = 0;
  };

  void start(int rank, const std::string& store, const std::string& secret);
  [[noreturn]] void become(int rank, const std::string& store, const std::string& secret, Pipe out, Pipe err);
  bool elsewhere() const { return options_.size > options_.ranks; }
  int global(size_t index) const { return options_.first_rank + static_cast<int>(index); }
  void reap();
  void ended(size_t rank, int code);
  void take_signals();
  void act_on_deadlines();
  void begin_ending(int code, Clock::duration until_terminate);
  void signal_all(int number);
  void wait_and_pump(int timeout_ms);
  bool running() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.pid > 0; });
  }
  std::string running_text() const;
  int wait_ms() const;

  const LaunchOptions& options_;
  sigset_t watched_;  // blocked while the job runs
  sigset_t before_;
  int signal_fd_ = -1;
  std::vector<Rank> ranks_;
  std::vector<LineWriter> lines_;
  int result_ = 0;
  std::string failure_;  // the first one
  bool ending_ = false;
  Clock::time_point timeout_at_ = Clock::time_point::max();
  Clock::time_point terminate_at_ = Clock::time_point::max();
  Clock::time_point kill_at_ = Clock::time_point::max();
};

Launch::Launch(const LaunchOptions& options) : options_(options) {
  sigemptyset(&watched_);
  for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&watched_, number);
  ::sigprocmask(SIG_BLOCK, &watched_, &before_);
  signal_fd_ = ::signalfd(-1, &watched_, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signal_fd_ < 0) throw_system("cannot watch signals: signalfd");
  ranks_.resize(static_cast<size_t>(options.ranks));
}

Launch::~Launch() {
  signal_all(SIGKILL);
  for (Rank& rank : ranks_) {
    if (rank.pid > 0) ::waitpid(rank.pid, nullptr, 0);
  }
  ::close(signal_fd_);
  ::sigprocmask(SIG_SETMASK, &before_, nullptr);
}

void Launch::start(int rank, const std::string& store, const std::string& secret) {
  const Pipe out = make_pipe();
  const Pipe err = make_pipe();
  const bool plain = options_.prefix == Prefix::kNone || (options_.prefix == Prefix::kOthers && rank == 0);
  const std::string prefix = plain ? "" : "[" + std::to_string(rank) + "] ";
  lines_.emplace_back(out.read, STDOUT_FILENO, prefix);
  lines_.emplace_back(err.read, STDERR_FILENO, prefix);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw_system("cannot start a process for a rank: fork");
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(kCannotRunCode);  // it died before the line above
    become(rank, store, secret, out, err);
  }
  ::setpgid(pid, pid);  // here as well: signals must reach the group from now on
  ranks_[static_cast<size_t>(rank - options_.first_rank)].pid = pid;
  ::close(out.write);
  ::close(err.write);
}

// Runs in the child: sets up its process group, empties standard input, and sets the rank's environment.
void Launch::become(int rank, const std::string& store, const std::string& secret, Pipe out, Pipe err) {
  ::setpgid(0, 0);
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::dup2(null, STDIN_FILENO);
  ::dup2(out.write, STDOUT_FILENO);
  ::dup2(err.write, STDERR_FILENO);
  ::setenv("WEFT_RANK", std::to_string(rank).c_str(), 1);
  ::setenv("WEFT_SIZE", std::to_string(std::max(options_.size, options_.ranks)).c_str(), 1);
  ::setenv("WEFT_LOCAL_SIZE", std::to_string(options_.ranks).c_str(), 1);
  ::setenv("WEFT_STORE", store.c_str(), 1);
  // If some ranks are elsewhere, the secret and the job's id are those that the user gave to all of them.
  if (!elsewhere()) {
    ::setenv("WEFT_SECRET", secret.c_str(), 1);
    for (const char* stale : {"WEFT_STORE_EXTERNAL", "WEFT_JOB", "WEFT_SECRET_FILE"}) ::unsetenv(stale);
  }
  for (const auto& [name, value] : options_.environment) ::setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> arguments;
  for (const std::string& argument : options_.command)
    arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  ::execvp(arguments[0], arguments.data());
  std::fprintf(stderr, "weft run: cannot run %s: %s\n", arguments[0], std::strerror(errno));
  std::fflush(stderr);
  ::_exit(kCannotRunCode);
}

int Launch::run() {
  const std::string store = options_.store.empty() ? "unix:@weft-" + random_hex(16) : options_.store;
  const std::string secret = random_hex(32);
  for (int i = 0; i < options_.ranks; ++i) start(options_.first_rank + i, store, secret);
  if (options_.timeout_s > 0) timeout_at_ = Clock::now() + seconds(options_.timeout_s);
  while (running()) {
    wait_and_pump(wait_ms());
    take_signals();
    reap();
    act_on_deadlines();
  }
  // All ranks have ended; their output is in the pipes.
  const auto give_up = Clock::now() + seconds(kDrainS);
  const auto open = [](const LineWriter& line) { return line.fd() >= 0; };
  do {
    wait_and_pump(50);
  } while (Clock::now() < give_up && std::any_of(lines_.begin(), lines_.end(), open));
  for (LineWriter& line : lines_) line.finish();
  return result_;
}

std::string Launch::running_text() const {
  std::string text;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].pid > 0) text += " " + std::to_string(global(rank));
  }
  return text;
}

int Launch::wait_ms() const {
  const auto next = std::min({timeout_at_, terminate_at_, kill_at_});
  if (next == Clock::time_point::max()) return -1;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(next - Clock::now()).count() + 1;
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1000000));
}

// Waits for signals and output, and forwards the available output.
void Launch::wait_and_pump(int timeout_ms) {
  std::vector<pollfd> polled{{signal_fd_, POLLIN, 0}};
  for (const LineWriter& line : lines_) {
    if (line.fd() >= 0) polled.push_back({line.fd(), POLLIN, 0});
  }
  ::poll(polled.data(), polled.size(), timeout_ms);
  for (LineWriter& line : lines_) line.pump();
}

// Checks every rank, because several SIGCHLD may arrive as one. Of the ranks that ended since the last check,
// a signal's victims come first: the others ended because of them.
void Launch::reap() {
  std::vector<std::pair<size_t, int>> ended_now;  // rank, code
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const pid_t pid = ranks_[rank].pid;
    siginfo_t info{};
    if (pid <= 0 || ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0)
      continue;
    if (info.si_pid != pid) continue;
    ::kill(-pid, SIGKILL);  // ends what it left running; until the wait below its number cannot be reused
    ::waitpid(pid, nullptr, 0);
    ranks_[rank].pid = -1;
    ended_now.emplace_back(rank, info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status);
  }
  std::stable_partition(ended_now.begin(), ended_now.end(), [](const auto& one) { return one.second > 128; });
  for (const auto& [rank, code] : ended_now) ended(rank, code);
}

void Launch::ended(size_t rank, int code) {
  ranks_[rank].code = code;
  if (code == 0 || ending_) return;
  // A signal's victim cannot report itself; a rank that chose its exit code has reported the reason.
  failure_ = "rank " + std::to_string(global(rank)) + " " + exit_text(code);
  if (code > 128) std::fprintf(stderr, "weft run: %s\n", failure_.c_str());
  begin_ending(code, seconds(options_.grace_s));
}

// Begins to end the job. The first failure decides the exit code. The other ranks first get time to notice it
// themselves.
void Launch::begin_ending(int code, Clock::duration until_terminate) {
  if (!ending_) result_ = code;
  ending_ = true;
  timeout_at_ = Clock::time_point::max();
  terminate_at_ = Clock::now() + until_terminate;
}

void Launch::take_signals() {
  signalfd_siginfo info{};
  while (::read(signal_fd_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    const int number = static_cast<int>(info.ssi_signo);
    if (number == SIGCHLD) continue;
    signal_all(kill_at_ == Clock::time_point::max() ? number : SIGKILL);  // a second request kills at once
    if (!ending_) result_ = 128 + number;
    ending_ = true;
    terminate_at_ = timeout_at_ = Clock::time_point::max();
    kill_at_ = std::min(kill_at_, Clock::now() + seconds(kKillAfterS));
  }
}

void Launch::act_on_deadlines() {
  const auto now = Clock::now();
  if (now >= timeout_at_) {
    char text[80];
    std::snprintf(text, sizeof text, "the job has not ended within %g s, the limit of --timeout",
                  options_.timeout_s);
    failure_ = text;
    begin_ending(kTimeoutCode, seconds(0));
  }
  if (now >= terminate_at_ && running()) {
    std::fprintf(stderr, "weft run: %s; ending the ranks that still run:%s\n", failure_.c_str(),
                 running_text().c_str());
    signal_all(SIGTERM);
    terminate_at_ = Clock::time_point::max();
    kill_at_ = now + seconds(kKillAfterS);
  }
  if (now >= kill_at_) signal_all(SIGKILL);
}

// Sends a signal to the ranks' process groups. Continues stopped ranks, so that they can end.
void Launch::signal_all(int number) {
  for (const Rank& rank : ranks_) {
    if (rank.pid <= 0) continue;
    ::kill(-rank.pid, number);
    ::kill(-rank.pid, SIGCONT);
  }
}

}  // namespace

std::string random_hex(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    unsigned char byte = 0;
    if (::getrandom(&byte, 1, 0) != 1)
      throw_system("cannot draw random bytes for the secret or the store's name: getrandom");
    constexpr char kDigits[] = "0123456789abcdef";
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

int launch(const LaunchOptions& options) {
  Launch job(options);
  return job.run();
}
