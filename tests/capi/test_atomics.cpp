// Counts the atomic operations of weft_reducer_ready. A parent process single-steps a child through the call
// and examines each instruction. Only for x86-64, where atomic operations are instructions with a lock
// prefix, and exchanges with memory.
#include <cstdint>
#include <memory>
#include <vector>

#include "capi/ranks.h"
#include "support/catch.h"
#ifdef WEFT_TEST_CUDA
#include "capi/cuda.h"
#endif

#if defined(__x86_64__) && defined(__linux__)
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace {

constexpr uint64_t kParams = 8;
constexpr int kNotAllowed = 77;  // ptrace fails: a container may forbid it

// Returns true if the instruction at this address reads and writes memory atomically.
bool is_atomic(const unsigned char* code) {
  bool locked = false;
  for (;; code++) {
    if (*code == 0xf0) {
      locked = true;
    } else if (*code != 0x66 && *code != 0x67 && *code != 0xf2 && *code != 0xf3 && (*code & 0xf0) != 0x40) {
      break;  // no prefix: this byte is the opcode
    }
  }
  const bool exchange = (*code == 0x86 || *code == 0x87) && code[1] < 0xc0;
  return locked || exchange;
}

// A kind of step, and the number of atomic operations that it may use.
struct Kind {
  const char* name;
  int atomics;             // in one call of ready
  uint64_t flags = 0;      // of begin
  uint32_t uses = 1;       // uses of each parameter; one of its calls is watched
  bool last = true;        // the watched call is the parameter's last one
  uint64_t reducer = 0;    // flags
  bool elsewhere = false;  // view mode: the gradient lies outside its view
  bool device = false;     // view mode: gradients lie on a (fake) CUDA device, all on one stream
  weft_accumulation accumulation = WEFT_ACCUMULATION_REDUCER;  // copy mode
};
constexpr Kind kKinds[] = {
    {.name = "plain", .atomics = 2},
    {.name = "recorded", .atomics = 2, .flags = WEFT_BEGIN_RECORD},
    {.name = "counted", .atomics = 2, .uses = 2},
    {.name = "counted, not the last", .atomics = 1, .uses = 2, .last = false},
    {.name = "counted and recorded", .atomics = 2, .flags = WEFT_BEGIN_RECORD, .uses = 3},
    {.name = "static", .atomics = 2, .uses = 2, .reducer = WEFT_REDUCER_STATIC},
    {.name = "local", .atomics = 1, .flags = WEFT_BEGIN_LOCAL},
    {.name = "local, added up by the program",
     .atomics = 1,
     .flags = WEFT_BEGIN_LOCAL,
     .accumulation = WEFT_ACCUMULATION_PROGRAM},
    {.name = "local and counted", .atomics = 1, .flags = WEFT_BEGIN_LOCAL, .uses = 2},
    {.name = "with absent ones", .atomics = 2, .reducer = WEFT_REDUCER_ABSENT},
    {.name = "uneven", .atomics = 2, .reducer = WEFT_REDUCER_UNEVEN},
    {.name = "retained, with norms", .atomics = 2, .reducer = WEFT_REDUCER_RETAIN | WEFT_REDUCER_NORMS},
#ifdef WEFT_TEST_CUDA
    {.name = "on a device", .atomics = 2, .device = true},
    {.name = "on a device, counted", .atomics = 2, .uses = 2, .device = true},
    {.name = "on a device, counted, not the last", .atomics = 1, .uses = 2, .last = false, .device = true},
#endif
    {.name = "strays", .atomics = 2, .reducer = WEFT_REDUCER_COPY_STRAYS, .elsewhere = true}};

// Provides a stream of the device, if there is a device.
struct Where {
#ifdef WEFT_TEST_CUDA
  explicit Where(bool device) {
    if (device) stream = std::make_unique<weft_test::Stream>(0);
  }
  const weft_stream* view() const { return stream ? stream->view() : nullptr; }
  std::unique_ptr<weft_test::Stream> stream;
#else
  explicit Where(bool) {}
  const weft_stream* view() const { return nullptr; }
#endif
};

// The child: runs a step of one rank and stops before and after one call of ready. This call is for neither
// the first nor the last gradient of the bucket. Exits with 0 if all checks pass.
[[noreturn]] void child(int32_t mode, const Kind& kind) {
  bool ok = false;
#ifdef WEFT_TEST_CUDA
  std::unique_ptr<weft_test::FakeCuda> fake;
  if (kind.device) fake = std::make_unique<weft_test::FakeCuda>();
#endif
  const std::string error = weft_test::run("loopback", 1, WEFT_PROGRESS_CALLER, [&](weft_test::Rank& r) {
    const Where where(kind.device);
    const int64_t shape = 4;
    float gradients[kParams][4] = {};
    std::vector<weft_param> params(kParams, weft_param WEFT_PARAM_INIT);
    const char* const names[kParams] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    for (uint64_t i = 0; i < kParams; i++) {
      params[i].name = names[i];
      params[i].dtype = WEFT_DTYPE_F32;
      params[i].ndim = 1;
      params[i].shape = &shape;
      params[i].device_kind = kind.device ? WEFT_DEVICE_CUDA : WEFT_DEVICE_HOST;
      params[i].uses = (kind.reducer & WEFT_REDUCER_STATIC) != 0 ? 1 : kind.uses;
    }
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = params.data();
    options.param_count = kParams;
    options.mode = mode;
    if (mode == WEFT_GRADIENT_COPY) options.accumulation = kind.accumulation;
    options.flags = kind.reducer;
    weft_reducer* reducer = nullptr;
    if (weft_reducer_create(r.comm, &options, &reducer, nullptr) != WEFT_OK) return;
    int32_t status = WEFT_OK;
    for (int step = 0; step < 3; step++) {
      weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
      begin.flags = kind.flags;
      status |= weft_reducer_begin(reducer, &begin);
      for (uint64_t i = 0; i < kParams; i++) {
        const bool given = mode == WEFT_GRADIENT_COPY || kind.elsewhere;
        void* const gradient = given ? gradients[i] : nullptr;
        for (uint32_t use = 1; use <= kind.uses; use++) {
          // By the third step all one-time work is done, for example the binding of symbols.
          const bool watched = step == 2 && i == 4 && use == (kind.last ? kind.uses : 1);
          if (watched && ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(kNotAllowed);
          if (watched) raise(SIGSTOP);
          status |= weft_reducer_ready(reducer, i, gradient, where.view());
          if (watched) raise(SIGSTOP);
        }
      }
      status |= weft_reducer_finish(reducer, nullptr);
    }
    ok = status == WEFT_OK && weft_reducer_destroy(&reducer) == WEFT_OK;
  });
  _exit(ok && error.empty() ? 0 : 1);
}

// Counts the atomic operations between the child's two stops; -1 if ptrace is forbidden here.
int count(pid_t pid, std::string* problem) {
  int status = 0;
  const pid_t thread = waitpid(-1, &status, __WALL);
  if (thread > 0 && WIFEXITED(status) && WEXITSTATUS(status) == kNotAllowed) return -1;
  if (thread <= 0 || !WIFSTOPPED(status)) {
    *problem = "the child did not stop";
    return -1;
  }
  int atomics = 0;
  for (int steps = 0; steps < 1'000'000; steps++) {
    user_regs_struct registers{};
    if (ptrace(PTRACE_GETREGS, thread, nullptr, &registers) != 0) break;
    unsigned char code[16];
    for (size_t at = 0; at < sizeof code; at += sizeof(long)) {
      const long word = ptrace(PTRACE_PEEKTEXT, thread, registers.rip + at, nullptr);
      std::memcpy(code + at, &word, sizeof word);
    }
    atomics += is_atomic(code);
    if (ptrace(PTRACE_SINGLESTEP, thread, nullptr, nullptr) != 0) break;
    if (waitpid(thread, &status, __WALL) != thread || !WIFSTOPPED(status)) break;
    if (WSTOPSIG(status) != SIGSTOP) continue;
    ptrace(PTRACE_DETACH, thread, nullptr, nullptr);
    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      *problem = "the child's step went wrong";
    }
    return atomics;
  }
  kill(pid, SIGKILL);
  waitpid(pid, &status, 0);
  *problem = "the child could not be followed";
  return -1;
}

}  // namespace

TEST_CASE("ready makes at most two atomic operations in every kind of step") {
  for (const Kind& kind : kKinds) {
    for (const int32_t mode : {WEFT_GRADIENT_VIEW, WEFT_GRADIENT_COPY}) {
      // Skipped: in copy mode a gradient on a device makes Weft query the driver about its memory.
      if ((kind.elsewhere || kind.device) && mode == WEFT_GRADIENT_COPY) continue;
      const pid_t pid = fork();
      REQUIRE(pid >= 0);
      if (pid == 0) child(mode, kind);
      std::string problem;
      const int atomics = count(pid, &problem);
      INFO(kind.name << ", mode " << mode << ": " << problem);
      CHECK(problem.empty());
      if (atomics < 0 && problem.empty()) {
        WARN("a process may not watch another one here");
      } else {
        CHECK(atomics <= 2);
#ifdef __OPTIMIZE__
        CHECK(atomics == kind.atomics);  // otherwise a plain store is compiled as an exchange
#endif
      }
    }
  }
}
#else
TEST_CASE("ready makes at most two atomic operations in every kind of step") {
  WARN("counted on x86-64 alone");
}
#endif
