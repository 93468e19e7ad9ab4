#include "rank.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <numeric>

#include "word.h"
#include "work.h"

namespace faults {
namespace {

int entries(const char* folder) {
  int count = 0;
  DIR* open = ::opendir(folder);
  while (open != nullptr && ::readdir(open) != nullptr) count++;
  if (open != nullptr) ::closedir(open);
  return count;
}

void set_text(Word* word, const std::string& text) {
  std::snprintf(word->text, sizeof word->text, "%.599s", text.c_str());
}

class Rank {
 public:
  Rank(const Draw& draw, int rank, const std::string& store)
      : draw_(draw), rank_(rank), store_(store), work_(std::make_unique<Work>(draw, team_, rank)) {
    team_.members.resize(static_cast<size_t>(draw.ranks));
    std::iota(team_.members.begin(), team_.members.end(), 0);
  }
  void live();
  // Reports the descriptors and threads that are left in this process.
  void say_ended(int descriptors, int threads) const;

 private:
  bool join();
  // Meets, works until the end or a failure, and shrinks. Returns false when there is nothing more to do.
  bool one_generation();
  bool shrink();
  void leave();

  void say(Word word) const;
  void say_failed(Kind kind, weft_status status, const weft_error& error) const;
  void say_wrong(const std::string& text) const;
  void calling(const char* call, int64_t due_ms) const;
  // Calls a function that ends something; it must return WEFT_OK.
  template <class Object>
  void end(const char* call, weft_status (*destroy)(Object**), Object** object) const {
    calling(call, kDestroyMs);
    const weft_status status = destroy(object);
    if (status != WEFT_OK) say_wrong(std::string(call) + ": " + weft_status_string(status));
  }

  const Draw& draw_;
  const int rank_;
  const std::string store_;
  Team team_;
  std::unique_ptr<Work> work_;
  std::vector<weft_comm*> old_;  // failed communicators, kept to the end
};

void Rank::say(Word word) const {
  word.generation = team_.generation;
  word.at_ns = now_ns();
  if (::write(STDOUT_FILENO, &word, sizeof word) != static_cast<ssize_t>(sizeof word)) ::_exit(99);
}

void Rank::calling(const char* call, int64_t due_ms) const {
  Word word;
  word.due_ms = static_cast<uint64_t>(due_ms + kSlackMs);
  set_text(&word, call);
  say(word);
}

void Rank::say_failed(Kind kind, weft_status status, const weft_error& error) const {
  Word word;
  word.kind = kind;
  word.status = status;
  word.evidence = error.evidence;
  word.due_ms = kSlackMs;
  for (uint64_t i = 0; i < error.failed_count && i < WEFT_ERROR_RANKS; i++) {
    const auto failed = static_cast<size_t>(error.failed_ranks[i]);
    if (failed >= team_.members.size()) continue;
    word.ranks |= team_.members[failed] >= 0 ? uint64_t{1} << team_.members[failed] : kUnknownRank;
  }
  set_text(&word, error.text);
  say(word);
}

void Rank::say_wrong(const std::string& text) const {
  Word word;
  word.kind = Kind::kWrong;
  word.due_ms = kSlackMs;
  set_text(&word, text);
  say(word);
}

bool Rank::join() {
  weft_error error = WEFT_ERROR_INIT;
  weft_context_options context_options = WEFT_CONTEXT_OPTIONS_INIT;
  if (draw_.caller_mode) context_options.progress = WEFT_PROGRESS_CALLER;
  weft_status status = weft_context_create(&context_options, &team_.context, &error);
  if (status != WEFT_OK) {
    say_wrong(std::string("weft_context_create: ") + error.text);
    return false;
  }
  const std::string secret = "no secret to anybody: " + std::to_string(draw_.seed) + store_;
  weft_comm_options options = WEFT_COMM_OPTIONS_INIT;
  options.bootstrap = WEFT_BOOTSTRAP_STORE;
  options.rank = rank_;
  options.size = draw_.ranks;
  options.store = store_.c_str();
  options.backend = draw_.backend.c_str();
  options.init_timeout_ms = draw_.phase == Phase::kForming ? kFormingInitMs : kInitMs;
  options.op_timeout_ms = kOperationMs;
  options.heartbeat_timeout_ms = draw_.heartbeat_ms;
  options.arena_limit_bytes = uint64_t{1} << 30;
  if (draw_.secret) {
    options.secret = secret.data();
    options.secret_bytes = secret.size();
  }
  calling("weft_comm_create", options.init_timeout_ms);
  status = weft_comm_create(team_.context, &options, &team_.comm, &error);
  if (status != WEFT_OK) say_failed(Kind::kRefused, status, error);
  return status == WEFT_OK;
}

bool Rank::one_generation() {
  Word working;
  working.kind = Kind::kWorking;
  calling("meet", kOperationMs);
  Outcome outcome = meet(&team_, rank_, draw_.count, &working.bits);
  if (outcome.status == WEFT_OK && outcome.wrong.empty()) {
    for (const int member : team_.members) working.ranks |= uint64_t{1} << (member & 63);
    say(working);
    WorkHooks hooks;
    hooks.asked_to_end = [] {
      pollfd end{STDIN_FILENO, 0, 0};
      return ::poll(&end, 1, 0) > 0;
    };
    hooks.fault_comes = [this] {
      Word fault;
      fault.kind = Kind::kFault;
      fault.due_ms = static_cast<uint64_t>(kOperationMs + kSlackMs);
      say(fault);
    };
    hooks.bound = [this, members = working.ranks](uint64_t next_step) {
      Word bound;
      bound.kind = Kind::kBound;
      bound.ranks = members;
      bound.bits = next_step;
      say(bound);
    };
    outcome = work_->run(hooks);
  }
  if (!outcome.wrong.empty()) say_wrong(outcome.wrong);
  if (outcome.status == WEFT_OK) return false;
  say_failed(Kind::kFailed, outcome.status, outcome.error);
  return !draw_.ends_with_fault() && shrink();
}

bool Rank::shrink() {
  weft_shrink_options options = WEFT_SHRINK_OPTIONS_INIT;
  options.timeout_ms = kShrinkMs;
  if (draw_.last_of_two) options.flags = WEFT_SHRINK_LAST_OF_TWO;
  weft_comm* next = nullptr;
  weft_error error = WEFT_ERROR_INIT;
  calling("weft_comm_shrink", kShrinkMs);
  const weft_status status = weft_comm_shrink(team_.comm, &options, &next, &error);
  if (status != WEFT_OK) {
    say_failed(Kind::kShrunk, status, error);
    return false;
  }
  if (draw_.keep_old) {
    old_.push_back(team_.comm);
  } else {
    end("weft_comm_destroy of the failed one", weft_comm_destroy, &team_.comm);
  }
  team_.comm = next;
  team_.generation++;
  return true;
}

void Rank::leave() {
  calling("weft_reducer_destroy", kDestroyMs);
  work_.reset();
  if (team_.comm != nullptr) end("weft_comm_destroy", weft_comm_destroy, &team_.comm);
  for (weft_comm*& old : old_) end("weft_comm_destroy of an old one", weft_comm_destroy, &old);
  if (team_.context != nullptr) end("weft_context_destroy", weft_context_destroy, &team_.context);
}

void Rank::live() {
  if (join()) {
    while (one_generation()) {
    }
  }
  leave();
}

void Rank::say_ended(int descriptors, int threads) const {
  Word word;
  word.kind = Kind::kEnded;
  word.due_ms = kSlackMs;
  if (descriptors > 0)
    set_text(&word, std::to_string(descriptors) +
                        " file descriptors are open after the communicators and the context were destroyed");
  if (threads > 0)
    set_text(&word,
             std::to_string(threads) + " threads run after the communicators and the context were destroyed");
  say(word);
}

}  // namespace

int be_rank(const Draw& draw, int rank, const std::string& store, int parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) return 99;
  const int descriptors = entries("/proc/self/fd");
  const int threads = entries("/proc/self/task");
  Rank life(draw, rank, store);
  life.live();
  // A joined thread stays in the list for another moment.
  const uint64_t until = now_ns() + 1'000'000'000;
  while (entries("/proc/self/task") > threads && now_ns() < until) ::poll(nullptr, 0, 1);
  life.say_ended(entries("/proc/self/fd") - descriptors, entries("/proc/self/task") - threads);
  return 0;
}

}  // namespace faults
