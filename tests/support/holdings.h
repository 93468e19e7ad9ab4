// Memory, descriptors and threads that a process holds. A test compares two readings to find what is left
// behind. failing_allocations.h counts the memory.
#pragma once

#include <dirent.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include "support/failing_allocations.h"

namespace weft::test {

struct Holdings {
  int64_t objects = 0;      // blocks of operator new
  int64_t blocks = 0;       // blocks of malloc
  int64_t mapped = 0;       // bytes of mmap
  int64_t descriptors = 0;  // open ones
  int64_t threads = 0;

  static Holdings now() {
    // First what needs memory itself.
    const int64_t descriptors = entries("/proc/self/fd"), threads = entries("/proc/self/task");
    return {LiveMemory::objects, LiveMemory::blocks, LiveMemory::mapped, descriptors, threads};
  }
  // A thread that was joined is in /proc for a moment longer.
  static Holdings once_threads_are(int64_t threads) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    Holdings holdings = now();
    while (holdings.threads > threads && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      holdings = now();
    }
    return holdings;
  }
  // Returns what this has and `before` did not have: "2 descriptors, 1 threads". Empty if there is nothing.
  // Without blocks of malloc: the C library keeps some for later threads.
  std::string beyond(const Holdings& before) const {
    std::string text;
    const auto add = [&](int64_t more, const char* what) {
      if (more > 0) text += (text.empty() ? "" : ", ") + std::to_string(more) + ' ' + what;
    };
    add(objects - before.objects, "objects of operator new");
    add(mapped - before.mapped, "mapped bytes");
    add(descriptors - before.descriptors, "descriptors");
    add(threads - before.threads, "threads");
    return text;
  }

 private:
  static int64_t entries(const char* folder) {
    DIR* const open = ::opendir(folder);
    int64_t count = 0;
    while (open != nullptr && ::readdir(open) != nullptr) count++;
    if (open != nullptr) ::closedir(open);
    return count;
  }
};

}  // namespace weft::test
