// Ranks as threads of one process that use only the public header. Each has its own context and communicator;
// they bootstrap over an all-gather in memory.
#pragma once

#include <weft/weft.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "support/sanitized.h"

namespace weft_test {

// Collects failures that ranks' bodies find on any thread.
struct Findings {
  std::atomic<int> wrong{0};
  void expect(bool ok) {
    if (!ok) wrong++;
  }
};

inline constexpr const char* kBackends[] = {"loopback", "shm"};
inline constexpr int32_t kModes[] = {WEFT_PROGRESS_THREAD, WEFT_PROGRESS_CALLER};

// An all-gather among threads, for WEFT_BOOTSTRAP_CALLBACK.
class Gathering {
 public:
  explicit Gathering(int size) : size_(size) {}

  void all_gather(int rank, const void* mine, uint64_t bytes, void* all) {
    std::unique_lock lock(mutex_);
    // A round ends when all ranks have copied its result; no rank enters the next round before.
    changed_.wait(lock, [&] { return copies_left_ == 0; });
    buffer_.resize(static_cast<size_t>(size_) * bytes);
    if (bytes > 0) std::memcpy(buffer_.data() + static_cast<size_t>(rank) * bytes, mine, bytes);
    const uint64_t round = round_;
    if (++arrived_ == size_) {
      arrived_ = 0;
      copies_left_ = size_;
      round_++;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round; });
    if (!buffer_.empty()) std::memcpy(all, buffer_.data(), buffer_.size());
    if (--copies_left_ == 0) changed_.notify_all();
  }

 private:
  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<char> buffer_;
  uint64_t round_ = 0;
  int arrived_ = 0;
  int copies_left_ = 0;
};

struct Member {
  Gathering* gathering;
  int rank;
};

inline int32_t gather(void* user_data, const void* mine, uint64_t bytes, void* all) {
  const auto* member = static_cast<const Member*>(user_data);
  member->gathering->all_gather(member->rank, mine, bytes, all);
  return 0;
}

struct Rank {
  weft_context* context = nullptr;
  weft_comm* comm = nullptr;
  int rank = 0;
  int size = 0;
};

// The flags of contexts: streams wait, which is the harder way. With WEFT_TEST_HOST_WAITS the host waits,
// which is the default and what a real device needs; cases about waiting streams are tagged [stream_waits].
inline uint64_t stream_waits() {
  return std::getenv("WEFT_TEST_HOST_WAITS") == nullptr ? WEFT_CONTEXT_STREAM_WAITS : 0;
}

// Runs the body on `size` threads. Each rank's context and communicator are created before the body and
// destroyed after it. prepare runs between the two creations. heartbeat_ms is the communicator's; configure
// changes the options of a rank's context. Returns the errors of the creation. Catch2's assertions are not
// safe on other threads, so bodies report failures through their own results.
inline std::string run(
    const char* backend, int size, int32_t progress, const char* module_path,
    const std::function<void(Rank&)>& body, const std::function<void(Rank&)>& prepare = [](Rank&) {},
    int64_t heartbeat_ms = 0,
    const std::function<void(int rank, weft_context_options&)>& configure = [](int,
                                                                               weft_context_options&) {}) {
  Gathering gathering(size);
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; r++) {
    threads.emplace_back([&, r] {
      Rank rank;
      rank.rank = r;
      rank.size = size;
      Member member{&gathering, r};
      weft_error error = WEFT_ERROR_INIT;
      weft_context_options context_options = WEFT_CONTEXT_OPTIONS_INIT;
      context_options.progress = progress;
      context_options.module_path = module_path;
      context_options.flags = stream_waits();
      configure(r, context_options);
      if (weft_context_create(&context_options, &rank.context, &error) != WEFT_OK) {
        errors[static_cast<size_t>(r)] = error.text;
        return;
      }
      prepare(rank);
      weft_comm_options options = WEFT_COMM_OPTIONS_INIT;
      options.bootstrap = WEFT_BOOTSTRAP_CALLBACK;
      options.rank = r;
      options.size = size;
      options.all_gather = gather;
      options.all_gather_user_data = &member;
      options.backend = backend;
      options.init_timeout_ms = 20000;
      options.op_timeout_ms = 20000;
      options.heartbeat_timeout_ms = heartbeat_ms;
      if (weft::test::kThreadSanitizer) options.arena_limit_bytes = weft::test::kMostArenaBytes;
      if (weft_comm_create(rank.context, &options, &rank.comm, &error) == WEFT_OK) {
        body(rank);
      } else {
        errors[static_cast<size_t>(r)] = error.text;
      }
      weft_comm_destroy(&rank.comm);
      weft_context_destroy(&rank.context);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::string all;
  for (const std::string& error : errors) all += error;
  return all;
}

inline std::string run(const char* backend, int size, int32_t progress,
                       const std::function<void(Rank&)>& body) {
  return run(backend, size, progress, nullptr, body);
}

}  // namespace weft_test
