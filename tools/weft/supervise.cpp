#include "supervise.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "lines.h"
#include "signals.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kKillAfterS = 5;  // between SIGTERM and SIGKILL
constexpr double kDrainS = 1;      // for output that another process holds open, or that nobody reads
constexpr int kTimeoutCode = 124;  // like timeout(1)
constexpr int kCannotRunCode = 127;
constexpr size_t kLongestControl = 64;  // bytes of a line with the number of a signal
constexpr int kLostCode = 255;          // like ssh(1)

[[noreturn]] void throw_system(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

Clock::duration seconds(double s) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
}

// The end of a child.
struct End {
  bool by_signal = false;
  int number = 0;  // the signal's, or the exit code

  int code() const { return by_signal ? 128 + number : number; }
  std::string text() const {
    if (!by_signal) return "ended with exit code " + std::to_string(number);
    const char* name = ::sigabbrev_np(number);
    return name != nullptr ? std::string("was ended by SIG") + name
                           : "was ended by signal " + std::to_string(number);
  }
};

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

class Supervisor {
 public:
  Supervisor(const std::vector<Child>& children, const SuperviseOptions& options);
  ~Supervisor();
  int run();

 private:
  struct Running {
    pid_t pid = -1;  // -1: has ended and was reaped
    int input = -1;  // to a controller
  };

  void start(size_t index);
  [[noreturn]] void become(const Child& child, int input, Pipe out, Pipe err);
  void reap();
  void ended(size_t rank, End end);
  void take_signals();
  void take_control();
  void end_by(int number);
  void act_on_deadlines();
  void say(const std::string& text) { err_.add(options_.program + ": " + text + "\n"); }
  void begin_ending(int code, Clock::duration until_terminate);
  void signal_all(int number);
  void wait_and_pump(int timeout_ms);
  void drain();
  bool running() const {
    return std::any_of(running_.begin(), running_.end(), [](const Running& one) { return one.pid > 0; });
  }
  std::string running_text() const;
  int wait_ms() const;

  const std::vector<Child>& children_;
  const SuperviseOptions& options_;
  sigset_t watched_;  // blocked while the job runs
  sigset_t before_;
  int signal_fd_ = -1;
  int control_ = -1;      // -1 after its end
  std::string commands_;  // an incomplete line of it
  std::vector<Running> running_;
  Output out_{STDOUT_FILENO}, err_{STDERR_FILENO};
  std::vector<LineWriter> lines_;
  int result_ = 0;
  std::string failure_;  // the first one
  bool ending_ = false;
  bool impatient_ = false;  // a signal or the timeout has asked for the end
  Clock::time_point timeout_at_ = Clock::time_point::max();
  Clock::time_point terminate_at_ = Clock::time_point::max();
  Clock::time_point kill_at_ = Clock::time_point::max();
};

Supervisor::Supervisor(const std::vector<Child>& children, const SuperviseOptions& options)
    : children_(children), options_(options), control_(options.control), running_(children.size()) {
  sigemptyset(&watched_);
  sigaddset(&watched_, SIGCHLD);
  for (const int number : ending_signals()) sigaddset(&watched_, number);
  ::sigprocmask(SIG_BLOCK, &watched_, &before_);
  signal_fd_ = ::signalfd(-1, &watched_, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signal_fd_ < 0) throw_system("cannot watch signals: signalfd");
  if (control_ >= 0) ::fcntl(control_, F_SETFL, O_NONBLOCK);
}

Supervisor::~Supervisor() {
  signal_all(SIGKILL);
  for (Running& one : running_) {
    if (one.pid > 0) ::waitpid(one.pid, nullptr, 0);
    if (one.input >= 0) ::close(one.input);
  }
  ::close(signal_fd_);
  ::sigprocmask(SIG_SETMASK, &before_, nullptr);
}

void Supervisor::start(size_t index) {
  const Child& child = children_[index];
  const Pipe out = make_pipe();
  const Pipe err = make_pipe();
  lines_.emplace_back(out.read, &out_, child.prefix);
  lines_.emplace_back(err.read, &err_, child.prefix);
  int input[2] = {-1, -1};
  if (!child.input.empty() && ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, input) != 0)
    throw_system("cannot create a socket for the control of processes elsewhere: socketpair");
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw_system(("cannot start " + child.name + ": fork").c_str());
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(kCannotRunCode);  // it died before the line above
    become(child, input[0], out, err);
  }
  ::setpgid(pid, pid);  // here as well: signals must reach the group from now on
  running_[index] = {pid, input[1]};
  ::close(out.write);
  ::close(err.write);
  if (input[0] < 0) return;
  ::close(input[0]);
  // A socket takes more than the text has. If the child has ended already, that is found where it is reaped.
  (void)::send(input[1], child.input.data(), child.input.size(), MSG_NOSIGNAL);
}

// Runs in the child: sets up its process group, standard streams and environment.
void Supervisor::become(const Child& child, int input, Pipe out, Pipe err) {
  ::setpgid(0, 0);
  ::dup2(input >= 0 ? input : ::open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
  ::dup2(out.write, STDOUT_FILENO);
  ::dup2(err.write, STDERR_FILENO);
  for (const std::string& name : child.unset) ::unsetenv(name.c_str());
  for (const auto& [name, value] : child.environment) ::setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> arguments;
  for (const std::string& argument : child.command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  ::execvp(arguments[0], arguments.data());
  std::fprintf(stderr, "%s: cannot run %s: %s\n", options_.program.c_str(), arguments[0],
               std::strerror(errno));
  std::fflush(stderr);
  ::_exit(kCannotRunCode);
}

int Supervisor::run() {
  for (size_t i = 0; i < children_.size(); ++i) start(i);
  if (options_.timeout_s > 0) timeout_at_ = Clock::now() + seconds(options_.timeout_s);
  while (running()) {
    wait_and_pump(wait_ms());
    take_signals();
    take_control();
    reap();
    act_on_deadlines();
  }
  drain();
  return result_;
}

// All children have ended; their output is in the pipes. Passes it on, however slowly it is read, unless a
// signal or the timeout asks for the end.
void Supervisor::drain() {
  const auto open = [](const LineWriter& line) { return line.fd() >= 0; };
  auto close_at = Clock::now() + seconds(kDrainS);
  auto drop_at = Clock::time_point::max();
  for (bool finished = false;;) {
    wait_and_pump(finished && out_.empty() && err_.empty() ? 0 : 50);
    take_signals();
    take_control();
    act_on_deadlines();
    const auto now = Clock::now();
    if (impatient_) drop_at = std::min(drop_at, now + seconds(kDrainS));
    if (now >= drop_at) break;
    if (out_.full() || err_.full()) close_at = now + seconds(kDrainS);
    if (!finished && (now >= close_at || std::none_of(lines_.begin(), lines_.end(), open))) {
      for (LineWriter& line : lines_) line.finish();
      finished = true;
    }
    if (finished && out_.empty() && err_.empty()) return;
  }
  if (!out_.empty()) say("the rest of the output is lost, because it was not read");
  err_.flush();
}

std::string Supervisor::running_text() const {
  std::string text;
  for (size_t i = 0; i < running_.size(); ++i) {
    if (running_[i].pid > 0) text += " " + children_[i].number;
  }
  return text;
}

int Supervisor::wait_ms() const {
  const auto next = std::min({timeout_at_, terminate_at_, kill_at_});
  if (next == Clock::time_point::max()) return -1;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(next - Clock::now()).count() + 1;
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1000000));
}

// Waits for signals, for output, and for room for the output that was read before. Forwards what it can.
void Supervisor::wait_and_pump(int timeout_ms) {
  std::vector<pollfd> polled{{signal_fd_, POLLIN, 0}};
  if (control_ >= 0) polled.push_back({control_, POLLIN, 0});
  for (const LineWriter& line : lines_) {
    if (line.wants_data()) polled.push_back({line.fd(), POLLIN, 0});
  }
  for (const Output* output : {&out_, &err_}) {
    if (!output->empty()) polled.push_back({output->fd(), POLLOUT, 0});
  }
  ::poll(polled.data(), polled.size(), timeout_ms);
  for (LineWriter& line : lines_) line.pump();
  out_.flush();
  err_.flush();
}

// Checks every child, because several SIGCHLD may arrive as one. Of the children that ended since the last
// check, a signal's victims come first: the others ended because of them.
void Supervisor::reap() {
  std::vector<std::pair<size_t, End>> ended_now;  // with the child's index
  for (size_t i = 0; i < running_.size(); ++i) {
    const pid_t pid = running_[i].pid;
    siginfo_t info{};
    if (pid <= 0) continue;
    if (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0) {
      if (errno != ECHILD) continue;
      running_[i].pid = -1;  // the number may be another process's by now
      throw_system("the exit code of a process is lost, because something else waited for it: waitid");
    }
    if (info.si_pid != pid) continue;
    ::kill(-pid, SIGKILL);  // ends what it left running; until the wait below its number cannot be reused
    ::waitpid(pid, nullptr, 0);
    running_[i].pid = -1;
    ended_now.emplace_back(i, End{info.si_code != CLD_EXITED, info.si_status});
  }
  std::stable_partition(ended_now.begin(), ended_now.end(),
                        [](const auto& one) { return one.second.by_signal; });
  for (const auto& [index, end] : ended_now) ended(index, end);
}

void Supervisor::ended(size_t index, End end) {
  const int code = end.code();
  if (code == 0 || ending_) return;
  const Child& child = children_[index];
  // A signal's victim cannot report itself; a child that chose its exit code has reported the reason. So has
  // the controller of processes elsewhere.
  failure_ = child.name + " " + end.text();
  if (end.by_signal && child.input.empty()) say(failure_);
  if (code == kLostCode && !child.input.empty())
    say(child.name + ": the connection failed or was lost (its command ended with exit code 255)");
  begin_ending(code, seconds(options_.grace_s));
}

// Begins to end the job. The first failure decides the exit code. The other children first get time to notice
// it themselves.
void Supervisor::begin_ending(int code, Clock::duration until_terminate) {
  if (!ending_) result_ = code;
  ending_ = true;
  timeout_at_ = Clock::time_point::max();
  terminate_at_ = Clock::now() + until_terminate;
}

void Supervisor::take_signals() {
  signalfd_siginfo info{};
  while (::read(signal_fd_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    const int number = static_cast<int>(info.ssi_signo);
    if (number != SIGCHLD) end_by(number);
  }
}

// Takes signals from the process that controls this one. The end of the stream means that it, or the
// connection to it, has ended.
void Supervisor::take_control() {
  char bytes[64];
  while (control_ >= 0) {
    const ssize_t got = ::read(control_, bytes, sizeof bytes);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      control_ = -1;
      end_by(SIGTERM);
      return;
    }
    commands_.append(bytes, static_cast<size_t>(got));
    if (commands_.size() > kLongestControl && commands_.find('\n') == commands_.npos) commands_.clear();
    for (size_t end = commands_.find('\n'); end != commands_.npos; end = commands_.find('\n')) {
      const int number = std::atoi(commands_.substr(0, end).c_str());
      commands_.erase(0, end + 1);
      if (number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGKILL) end_by(number);
    }
  }
}

// Passes the signal on to the children, which then have kKillAfterS to end. A second request kills at once.
void Supervisor::end_by(int number) {
  signal_all(kill_at_ == Clock::time_point::max() ? number : SIGKILL);
  if (!ending_) result_ = 128 + number;
  ending_ = true;
  impatient_ = true;
  terminate_at_ = timeout_at_ = Clock::time_point::max();
  kill_at_ = std::min(kill_at_, Clock::now() + seconds(kKillAfterS));
}

void Supervisor::act_on_deadlines() {
  const auto now = Clock::now();
  if (now >= timeout_at_) {
    char text[80];
    std::snprintf(text, sizeof text, "the job has not ended within %g s, the limit of --timeout",
                  options_.timeout_s);
    failure_ = text;
    impatient_ = true;
    begin_ending(kTimeoutCode, seconds(0));
  }
  if (now >= terminate_at_ && running()) {
    say(failure_ + "; ending those that still run:" + running_text());
    signal_all(SIGTERM);
    terminate_at_ = Clock::time_point::max();
    kill_at_ = now + seconds(kKillAfterS);
  }
  if (now >= kill_at_) signal_all(SIGKILL);
}

// Sends a signal to the children's process groups. Continues stopped children, so that they can end.
void Supervisor::signal_all(int number) {
  for (Running& one : running_) {
    if (one.pid <= 0) continue;
    if (one.input >= 0 && number != SIGKILL) {
      const std::string line = std::to_string(number) + "\n";
      (void)::send(one.input, line.data(), line.size(), MSG_NOSIGNAL);
      continue;
    }
    ::kill(-one.pid, number);
    ::kill(-one.pid, SIGCONT);
  }
}

}  // namespace

int supervise(const std::vector<Child>& children, const SuperviseOptions& options) {
  Supervisor job(children, options);
  return job.run();
}
