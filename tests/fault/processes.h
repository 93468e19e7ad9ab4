// Ranks as processes that can be killed. They are forked from a test case; each reports marks and a final
// word through a pipe. A watchdog ends the whole group, so a hang is a failed test and never blocks the
// suite.
#pragma once

#include <weft/weft.h>

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace weft_test {

inline uint64_t now_ms() {
  using namespace std::chrono;
  return static_cast<uint64_t>(duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count());
}

// A message from a rank to the test: a mark that it has reached (mark > 0), or its final result (mark 0).
struct Word {
  int32_t mark = 0;
  int32_t status = 0;
  int32_t evidence = 0;
  int32_t failed_rank = -1;
  uint64_t at_ms = 0;
  char text[400] = {};
};

// A rank's end of the pipe.
class Reporter {
 public:
  explicit Reporter(int fd) : fd_(fd) {}
  void mark(int value) {
    Word word;
    word.mark = value;
    say(word);
  }
  void end(weft_status status, const weft_error& error) {
    Word word;
    word.status = status;
    word.evidence = error.evidence;
    word.failed_rank = error.failed_count > 0 ? error.failed_ranks[0] : -1;
    std::snprintf(word.text, sizeof word.text, "%.399s", error.text);
    say(word);
  }

 private:
  void say(Word& word) {
    word.at_ms = now_ms();
    if (::write(fd_, &word, sizeof word) != static_cast<ssize_t>(sizeof word)) _exit(99);
  }
  int fd_;
};

class Processes {
 public:
  Processes(int size, const std::function<void(int rank, Reporter&)>& body) {
    for (int r = 0; r < size; r++) {
      int ends[2];
      if (pipe(ends) != 0) _exit(98);
      const pid_t pid = fork();
      if (pid < 0) _exit(98);  // kill(-1) would signal every process
      if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        ::close(ends[0]);
        Reporter reporter(ends[1]);
        body(r, reporter);
        _exit(0);
      }
      ::close(ends[1]);
      ranks_.push_back({pid, ends[0], false});
    }
  }
  ~Processes() {
    for (One& rank : ranks_) {
      if (!rank.gone) {
        ::kill(rank.pid, SIGKILL);
        waitpid(rank.pid, nullptr, 0);
      }
      ::close(rank.fd);
    }
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  // Waits until the rank has sent this mark or a higher one. Returns false at the bound, or if the rank ended
  // before.
  bool wait_for_mark(int rank, int mark, int bound_ms) {
    const uint64_t until = now_ms() + static_cast<uint64_t>(bound_ms);
    Word word;
    while (next(at(rank), until, &word)) {
      if (word.mark == 0) return false;
      if (word.mark >= mark) return true;
    }
    return false;
  }
  void kill(int rank, int signal = SIGKILL) { ::kill(at(rank).pid, signal); }
  // Waits for the rank's final word. Returns false at the bound.
  bool last_word(int rank, int bound_ms, Word* word) {
    const uint64_t until = now_ms() + static_cast<uint64_t>(bound_ms);
    while (next(at(rank), until, word)) {
      if (word->mark == 0) return true;
    }
    return false;
  }
  // Returns true if the process exits by itself with code 0 within the bound.
  bool exited_cleanly(int rank, int bound_ms) {
    const uint64_t until = now_ms() + static_cast<uint64_t>(bound_ms);
    One& one = at(rank);
    int state = 0;
    while (now_ms() < until) {
      if (waitpid(one.pid, &state, WNOHANG) == one.pid) {
        one.gone = true;
        return WIFEXITED(state) && WEXITSTATUS(state) == 0;
      }
      ::poll(nullptr, 0, 5);
    }
    return false;
  }

 private:
  struct One {
    pid_t pid;
    int fd;
    bool gone;
  };
  One& at(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  static bool next(One& rank, uint64_t until, Word* word) {
    size_t have = 0;
    while (have < sizeof *word) {
      const uint64_t now = now_ms();
      pollfd waiting{rank.fd, POLLIN, 0};
      if (now >= until || ::poll(&waiting, 1, static_cast<int>(until - now)) <= 0) return false;
      const ssize_t got = ::read(rank.fd, reinterpret_cast<char*>(word) + have, sizeof *word - have);
      if (got <= 0) return false;
      have += static_cast<size_t>(got);
    }
    return true;
  }
  std::vector<One> ranks_;
};

// Returns the available backends that guarantee to survive the death of a rank.
inline std::vector<std::string> backends() {
  std::vector<std::string> found;
  weft_context* context = nullptr;
  uint64_t count = 0;
  if (weft_context_create(nullptr, &context, nullptr) != WEFT_OK) return found;
  weft_backend_count(context, &count);
  for (uint64_t i = 0; i < count; i++) {
    weft_backend_info info{};
    info.struct_size = sizeof info;
    if (weft_backend_query(context, i, &info) != WEFT_OK) continue;
    const std::string name = info.name;
    if (name != "shm" && name != "ucx" && name != "shm+ucx") continue;
    if (info.available != 0) {
      found.push_back(name);
    } else {
      std::fprintf(stderr, "%s is left out: %s\n", info.name, info.reason);
    }
  }
  weft_context_destroy(&context);
  return found;
}

// Returns a store name that no other test uses.
inline std::string store_name() {
  static int count = 0;
  return "unix:@weft-test-" + std::to_string(getpid()) + "-" + std::to_string(count++);
}

// A test's communicator options; 0: Weft's default.
struct Terms {
  int64_t init_timeout_ms = 20'000;
  int64_t op_timeout_ms = 60'000;
  int64_t heartbeat_timeout_ms = 0;
  int32_t progress = 0;
};

// Simulates two ranks a host, for backends that distinguish hosts.
inline void simulate_hosts(int size) {
  std::string hosts = "0";
  for (int r = 1; r < size; r++) hosts += "," + std::to_string(r / 2);
  setenv("WEFT_HOSTS", hosts.c_str(), 1);
}

// A context and a communicator over a store of rank 0. Each rank is a process.
struct Joined {
  weft_context* context = nullptr;
  weft_comm* comm = nullptr;
  weft_error error = WEFT_ERROR_INIT;
  weft_status status = WEFT_OK;

  Joined(const char* backend, int rank, int size, const std::string& store, const Terms& terms = {}) {
    if (std::string(backend) == "shm+ucx") simulate_hosts(size);
    weft_context_options context_options = WEFT_CONTEXT_OPTIONS_INIT;
    context_options.progress = terms.progress;
    status = weft_context_create(&context_options, &context, &error);
    if (status != WEFT_OK) return;
    weft_comm_options options = WEFT_COMM_OPTIONS_INIT;
    options.bootstrap = WEFT_BOOTSTRAP_STORE;
    options.rank = rank;
    options.size = size;
    options.store = store.c_str();
    options.backend = backend;
    options.init_timeout_ms = terms.init_timeout_ms;
    options.op_timeout_ms = terms.op_timeout_ms;
    options.heartbeat_timeout_ms = terms.heartbeat_timeout_ms;
    status = weft_comm_create(context, &options, &comm, &error);
  }
};

}  // namespace weft_test
