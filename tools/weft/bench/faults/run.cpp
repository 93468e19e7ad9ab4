#include "run.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>

#include "leftovers.h"

extern char** environ;

namespace faults {
namespace {

constexpr uint64_t kNever = UINT64_MAX;
constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kIdleMs = 30'000;      // a rank that works undisturbed
constexpr uint64_t kRunMs = 120'000;      // a whole run, which may not end even if every call returns
constexpr uint64_t kSettleMs = 100;       // after a delay: by then a wrong failure verdict would have shown
constexpr uint64_t kLookMs = 10;          // between two checks whether a rank has stopped itself
constexpr uint64_t kUnreachedMs = 5'000;  // a fail point that is never reached

class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  ~Fd() { reset(); }
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  void reset() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_;
};

Fd checked(int fd, const char* what) {
  if (fd < 0) throw std::system_error(errno, std::generic_category(), what);
  return Fd(fd);
}

std::pair<Fd, Fd> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  return {Fd(ends[0]), Fd(ends[1])};
}

// A memfd would need other flags where vm.memfd_noexec is 2.
Fd make_unnamed_file(const std::string& folder) {
  std::string path = folder + "/errors-XXXXXX";
  Fd file = checked(::mkostemp(path.data(), O_CLOEXEC), "mkostemp");
  ::unlink(path.c_str());
  return file;
}

// Returns this process's environment without variables that could change a rank's behaviour.
std::vector<std::string> rank_environment(const Draw& draw, int rank, const std::string& folder) {
  std::vector<std::string> result;
  constexpr std::string_view kOurs[] = {"WEFT_RANK=",       "WEFT_SIZE=",    "WEFT_STORE", "WEFT_SECRET",
                                        "WEFT_JOB=",        "WEFT_BACKEND=", "WEFT_ALGO",  "WEFT_HOSTS=",
                                        "WEFT_FAILPOINTS=", "TMPDIR="};
  for (char** one = environ; *one != nullptr; one++) {
    const std::string_view text = *one;
    const auto decides = [&](std::string_view name) { return text.substr(0, name.size()) == name; };
    if (std::none_of(std::begin(kOurs), std::end(kOurs), decides)) result.emplace_back(text);
  }
  result.push_back("TMPDIR=" + folder);
  if (!draw.hosts.empty()) result.push_back("WEFT_HOSTS=" + draw.hosts);
  const Fault* fault = draw.of(rank);
  if (fault != nullptr && !fault->failpoint.empty()) result.push_back("WEFT_FAILPOINTS=" + fault->failpoint);
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> result;
  for (std::string& word : words) result.push_back(word.data());
  result.push_back(nullptr);
  return result;
}

class Run {
 public:
  Run(const Draw& draw, const RunOptions& options);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  RunTrace watch();

 private:
  struct Process {
    pid_t pid = -1;
    Fd pidfd;  // invalid where the kernel refuses pidfds: wait() then looks from time to time
    Fd words;
    bool running = true;
    bool working = false;  // its last word
    bool noticed = false;  // its communicator failed, or it has ended
    uint64_t due_ns = kNever;
    std::string call;  // the call that it makes until then
    size_t have = 0;   // bytes received of the next word
    Word next;
  };
  struct Strike {
    uint64_t at_ns = kNever;
    uint64_t continue_ns = kNever;  // time to continue a stopped victim
    bool over = false;
    bool stopped = false;  // stopped until the others have noticed
  };

  void start(int rank, const std::string& store, int go);
  void wait();
  void read_words(size_t rank);
  void hear(size_t rank, const Word& word);
  void reap(size_t rank);
  void arm(Trigger trigger);
  void strike();
  void struck(size_t fault);
  void stopped(size_t fault);
  void look_at_stopped();
  void hurry();
  void end_if_over();
  void look_for_hangs();
  void kill_all();
  bool any_running() const {
    return std::any_of(processes_.begin(), processes_.end(), [](const Process& one) { return one.running; });
  }
  bool all_working() const {
    return std::all_of(processes_.begin(), processes_.end(), [](const Process& one) { return one.working; });
  }

  const Draw& draw_;
  const RunOptions& options_;
  Watch watch_;
  Fd errors_, go_;
  std::vector<Process> processes_;
  std::vector<Strike> strikes_;
  const uint64_t begun_ns_ = now_ns();
  uint64_t asked_to_end_ns_ = 0;
  uint64_t end_at_ns_ = kNever;
  uint64_t unreached_ns_ = kNever;
  RunTrace trace_;
};

Run::Run(const Draw& draw, const RunOptions& options)
    : draw_(draw),
      options_(options),
      watch_("weft-faults-" + std::to_string(::getpid()) + "-" + std::to_string(draw.number),
             options.private_shm),
      errors_(make_unnamed_file(watch_.folder())),
      strikes_(draw.faults.size()) {
  trace_.struck_ns.resize(draw.faults.size());
  trace_.ranks.resize(static_cast<size_t>(draw.ranks));
  ::fcntl(errors_.get(), F_SETFL, O_APPEND);
  auto [hear_end, go] = make_pipe();
  go_ = std::move(go);
  processes_.resize(static_cast<size_t>(draw.ranks));
  const std::string store = "unix:@" + watch_.name();
  for (int rank = 0; rank < draw.ranks; rank++) start(rank, store, hear_end.get());
  arm(Trigger::kStarted);
}

Run::~Run() {
  kill_all();
}

void Run::start(int rank, const std::string& store, int go) {
  Process& process = processes_[static_cast<size_t>(rank)];
  auto [words, say] = make_pipe();
  ::fcntl(words.get(), F_SETFL, O_NONBLOCK);
  process.words = std::move(words);
  std::vector<std::string> command = options_.words;
  for (const std::string& word : {"--only=" + std::to_string(draw_.number), "--rank=" + std::to_string(rank),
                                  "--store=" + store, "--parent=" + std::to_string(::getpid())}) {
    command.push_back(word);
  }
  std::vector<std::string> environment = rank_environment(draw_, rank, watch_.folder());

  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_adddup2(&files, go, STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&files, say.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&files, errors_.get(), STDERR_FILENO);
  ::posix_spawn_file_actions_addchdir_np(&files, watch_.folder().c_str());
  sigset_t none;
  sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  const int failed = ::posix_spawn(&process.pid, "/proc/self/exe", &files, &attributes,
                                   pointers(command).data(), pointers(environment).data());
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  if (failed != 0) throw std::system_error(failed, std::generic_category(), "posix_spawn");
  process.pidfd = Fd(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  watch_.add(process.pid);
  process.due_ns = now_ns() + kIdleMs * kMs;
  process.call = "the start of its process";
}

void Run::arm(Trigger trigger) {
  if (asked_to_end_ns_ != 0 && trigger != Trigger::kStopping) return;  // too late: ranks end without it
  const uint64_t now = now_ns();
  for (size_t i = 0; i < strikes_.size(); i++) {
    const Fault& fault = draw_.faults[i];
    if (fault.trigger == trigger && strikes_[i].at_ns == kNever)
      strikes_[i].at_ns = now + fault.after_us * 1000;
  }
}

// Sends the signals that are due.
void Run::strike() {
  const uint64_t now = now_ns();
  for (size_t i = 0; i < strikes_.size(); i++) {
    const Fault& fault = draw_.faults[i];
    const Process& victim = processes_[static_cast<size_t>(fault.victim)];
    Strike& strike = strikes_[i];
    if (strike.at_ns <= now && trace_.struck_ns[i] == 0 && !strike.over) {
      if (!victim.running) {  // it had already ended
        strike.over = true;
        continue;
      }
      const bool delay = fault.action == Action::kDelay;
      const bool stop = fault.action == Action::kStop;
      trace_.struck_ns[i] = now_ns();
      ::kill(victim.pid, delay || stop ? SIGSTOP : SIGKILL);
      if (delay) strike.continue_ns = now + fault.delay_ms * kMs;
      if (stop) stopped(i);
      if (!delay) hurry();
    }
    if (strike.continue_ns <= now) {
      ::kill(victim.pid, SIGCONT);
      strike.continue_ns = kNever;
      strike.over = true;
    }
  }
}

// The victim of the fault does nothing until the others have noticed.
void Run::stopped(size_t fault) {
  strikes_[fault].stopped = true;
  Process& victim = processes_[static_cast<size_t>(draw_.faults[fault].victim)];
  victim.working = false;
  victim.due_ns = kNever;
  victim.noticed = true;
}

// Kills or continues stopped ranks once the others have noticed.
void Run::look_at_stopped() {
  for (size_t i = 0; i < strikes_.size(); i++) {
    const Fault& fault = draw_.faults[i];
    Strike& strike = strikes_[i];
    Process& victim = processes_[static_cast<size_t>(fault.victim)];
    if (fault.action != Action::kStop || strike.over || !victim.running) continue;
    siginfo_t info{};
    const bool looks = fault.trigger == Trigger::kFailpoint && trace_.struck_ns[i] == 0;
    if (looks && ::waitid(P_PID, static_cast<id_t>(victim.pid), &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid == victim.pid) {
      struck(i);
      stopped(i);
    }
    const bool all_noticed =
        std::all_of(processes_.begin(), processes_.end(), [](const Process& one) { return one.noticed; });
    if (!strike.stopped || !all_noticed) continue;
    strike.over = true;
    victim.due_ns = now_ns() + static_cast<uint64_t>(kDestroyMs + kSlackMs) * kMs;
    ::kill(victim.pid, fault.wakes ? SIGCONT : SIGKILL);
  }
}

// Records a fault that the victim makes itself.
void Run::struck(size_t fault) {
  if (trace_.struck_ns[fault] == 0) trace_.struck_ns[fault] = now_ns();
  hurry();
}

// Every working rank must notice within an operation's deadline.
void Run::hurry() {
  const uint64_t due = now_ns() + static_cast<uint64_t>(kOperationMs + kSlackMs) * kMs;
  for (Process& process : processes_) {
    if (process.working) process.due_ns = std::min(process.due_ns, due);
  }
}

void Run::hear(size_t rank, const Word& word) {
  Process& process = processes_[rank];
  trace_.ranks[rank].words.push_back(word);
  process.working = word.kind == Kind::kWorking || word.kind == Kind::kBound;
  process.due_ns = now_ns() + (word.due_ms != 0 ? word.due_ms : kIdleMs) * kMs;
  if (word.kind == Kind::kCalling) process.call = word.text;
  if (process.working) process.call = "its work";
  if (asked_to_end_ns_ != 0) hurry();
  for (size_t i = 0; i < draw_.faults.size(); i++) {
    const Fault& fault = draw_.faults[i];
    if (fault.victim != static_cast<int>(rank) || fault.leaves()) continue;
    const bool failed = word.kind == Kind::kFailed || word.kind == Kind::kRefused;
    if (failed && fault.trigger == Trigger::kFailpoint) struck(i);
    if (failed && trace_.struck_ns[i] > word.at_ns) trace_.struck_ns[i] = word.at_ns;
    if (failed && fault.action != Action::kDelay) strikes_[i].over = true;
  }
  if (word.kind == Kind::kFault) {
    for (size_t i = 0; i < draw_.faults.size(); i++) {
      if (draw_.faults[i].victim == static_cast<int>(rank)) trace_.struck_ns[i] = word.at_ns;
    }
  }
  process.noticed |= word.kind == Kind::kFailed || word.kind == Kind::kRefused;
  if (word.kind == Kind::kFailed || word.kind == Kind::kFault) hurry();
  if (word.kind == Kind::kFailed) arm(Trigger::kFailed);
  if (process.working && word.generation > 0) arm(Trigger::kRecovered);
  if (process.working && word.generation == 0 && all_working()) {
    arm(Trigger::kWorking);
    unreached_ns_ = now_ns() + kUnreachedMs * kMs;
    for (size_t i = 0; i < draw_.faults.size(); i++) {
      const Fault& fault = draw_.faults[i];
      if (fault.action != Action::kDelay || fault.trigger != Trigger::kFailpoint) continue;
      const uint64_t reached = draw_.phase == Phase::kForming ? 0 : kSettleMs + fault.delay_ms;
      end_at_ns_ = now_ns() + reached * kMs;  // a delay is invisible from outside
    }
    if (draw_.phase == Phase::kLeaving) end_at_ns_ = now_ns();
  }
}

void Run::read_words(size_t rank) {
  Process& process = processes_[rank];
  for (;;) {
    const ssize_t got = ::read(process.words.get(), reinterpret_cast<char*>(&process.next) + process.have,
                               sizeof(Word) - process.have);
    if (got == 0) process.words.reset();
    if (got <= 0) return;
    process.have += static_cast<size_t>(got);
    if (process.have < sizeof(Word)) continue;
    process.have = 0;
    process.next.text[sizeof process.next.text - 1] = 0;
    hear(rank, process.next);
  }
}

void Run::reap(size_t rank) {
  Process& process = processes_[rank];
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(process.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid == 0) {
    return;
  }
  if (process.words.get() >= 0) read_words(rank);
  watch_.ended(process.pid);
  ::waitpid(process.pid, nullptr, 0);
  process.running = false;
  process.working = false;
  process.noticed = true;
  process.due_ns = kNever;
  trace_.ranks[rank].exit_code = info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
  for (size_t i = 0; i < draw_.faults.size(); i++) {
    if (draw_.faults[i].victim != static_cast<int>(rank)) continue;
    const bool by_itself = draw_.faults[i].trigger == Trigger::kFailpoint && info.si_code == CLD_KILLED;
    if (by_itself && draw_.faults[i].ends_process()) struck(i);
    strikes_[i].over = true;
  }
}

// Asks the ranks to end when nothing more will happen.
void Run::end_if_over() {
  if (asked_to_end_ns_ != 0) return;
  const uint64_t now = now_ns();
  const bool over = std::all_of(strikes_.begin(), strikes_.end(), [](const Strike& one) { return one.over; });
  if (over && end_at_ns_ == kNever) {
    const bool delay = std::any_of(draw_.faults.begin(), draw_.faults.end(),
                                   [](const Fault& fault) { return fault.action == Action::kDelay; });
    end_at_ns_ = now + (delay ? kSettleMs * kMs : 0);
  }
  if (now < end_at_ns_ && now < unreached_ns_) return;
  asked_to_end_ns_ = now;
  go_.reset();
  hurry();
  arm(Trigger::kStopping);
}

void Run::look_for_hangs() {
  const uint64_t now = now_ns();
  for (size_t rank = 0; rank < processes_.size(); rank++) {
    const Process& process = processes_[rank];
    if (now >= process.due_ns) trace_.ranks[rank].hang = process.call;
    if (process.running && now >= begun_ns_ + kRunMs * kMs)
      trace_.ranks[rank].hang = process.call + " within the time of a run";
  }
  const auto hung = [](const RankTrace& one) { return !one.hang.empty(); };
  if (std::any_of(trace_.ranks.begin(), trace_.ranks.end(), hung)) kill_all();
}

void Run::kill_all() {
  for (size_t rank = 0; rank < processes_.size(); rank++) {
    Process& process = processes_[rank];
    if (!process.running || process.pid <= 0) continue;
    trace_.ranks[rank].killed = true;
    ::kill(-process.pid, SIGKILL);
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(process.pid), &info, WEXITED | WNOWAIT);
    watch_.ended(process.pid);
    ::waitpid(process.pid, nullptr, 0);
    process.running = false;
    process.due_ns = kNever;
  }
}

// Waits until a process writes something or ends, or a time is due.
void Run::wait() {
  uint64_t next = std::min(end_at_ns_, unreached_ns_);
  if (asked_to_end_ns_ != 0) next = kNever;
  for (size_t i = 0; i < strikes_.size(); i++) {
    const bool unseen =
        draw_.faults[i].action == Action::kStop && draw_.faults[i].trigger == Trigger::kFailpoint;
    if (trace_.struck_ns[i] == 0 && unseen) next = std::min(next, now_ns() + kLookMs * kMs);
    if (trace_.struck_ns[i] == 0 && !strikes_[i].over) next = std::min(next, strikes_[i].at_ns);
    next = std::min(next, strikes_[i].continue_ns);
  }
  std::vector<pollfd> polled;
  for (const Process& process : processes_) {
    if (process.running && process.pidfd.get() >= 0) polled.push_back({process.pidfd.get(), POLLIN, 0});
    if (process.running && process.pidfd.get() < 0) next = std::min(next, now_ns() + kLookMs * kMs);
    if (process.words.get() >= 0) polled.push_back({process.words.get(), POLLIN, 0});
    next = std::min(next, process.due_ns);
  }
  const uint64_t now = now_ns();
  const uint64_t left = next > now ? std::min(next - now, 100 * kMs) : 0;  // the user may want to end it
  const timespec timeout{0, static_cast<long>(left)};
  ::ppoll(polled.data(), polled.size(), &timeout, nullptr);
}

RunTrace Run::watch() {
  while (any_running()) {
    wait();
    strike();
    for (size_t rank = 0; rank < processes_.size(); rank++) {
      if (processes_[rank].words.get() >= 0) read_words(rank);
      if (processes_[rank].running) reap(rank);
    }
    look_at_stopped();
    end_if_over();
    look_for_hangs();
    if (*options_.stop) {
      trace_.interrupted = true;
      kill_all();
    }
  }
  char text[8192];
  const ssize_t length = ::pread(errors_.get(), text, sizeof text, 0);
  if (length > 0) trace_.errors.assign(text, static_cast<size_t>(length));
  trace_.leftovers = watch_.leftovers();
  return std::move(trace_);
}

}  // namespace

RunTrace run(const Draw& draw, const RunOptions& options) {
  return Run(draw, options).watch();
}

}  // namespace faults
