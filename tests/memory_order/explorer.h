// Runs small programs over the library's real code in every order that the C++ memory model allows, within
// limits. The code is compiled with -fsanitize=thread and linked with this explorer instead of the sanitizer.
// The compiler turns every atomic operation, fence and plain access into a call of the explorer. The explorer
// chooses the thread that runs next and, for each atomic load, the store that it reads.
//
// The model is C++20's without load buffering, as in RC11: a load reads any store that coherence and
// happens-before leave visible. Releases, acquires, release sequences (continued by read-modify-writes
// only), fences and sequentially consistent operations work as in the standard. A store may come earlier in
// its word's modification order than others that were executed before it. Plain accesses of two threads that
// happens-before does not order are data races, whatever the processor. So a program that passes is correct
// on ARM64, whose instructions for these orders are at least as strong.
//
// Limits: an execution deviates at most `deviations` times from the default, in which a thread runs until
// it waits, the next one that can run continues, a load reads the newest store, and a store is the newest. A
// deviation is a switch to another thread, or a load or store that is not the newest.
//
// Threads: not thread-safe; model threads are fibers of the calling thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace weft::model {

enum class Order : uint8_t { kRelaxed, kConsume, kAcquire, kRelease, kAcqRel, kSeqCst };
enum class Kind : uint8_t { kLoad, kStore, kUpdate, kFailedUpdate, kFence };

// Operations of one kind on one source line.
struct Site {
  std::string file;  // from the root of the sources
  int line = 0;
  std::string text;  // the source line, as numbered_lines() returns it
  Kind kind = Kind::kLoad;
  Order order = Order::kRelaxed;
  bool counts_references = false;  // of the standard library's
  std::vector<uintptr_t> calls;    // return addresses of the operations
  std::string name() const;        // "lib/x.h: text (load acquire)"
};

// Executes the operations at a site with another order.
struct Mutant {
  Site site;
  Order order = Order::kRelaxed;
};

struct Limits {
  int deviations = 3;
  uint64_t executions = 100'000;  // the exploration of a correct program ends here
  // try_lock may fail although the mutex is free, as the standard allows, unless the thread has seen the
  // unlock.
  bool weak_try_lock = false;
};

struct Result {
  bool passed = true;
  bool complete = true;  // all executions within the limit of deviations were run
  std::string failure;   // what the first failed execution violated
  uint64_t executions = 0;
};

// Explores a program. It must be deterministic apart from its threads, and clean up what it makes.
Result explore(const std::function<void()>& program, const Limits& limits = {},
               const Mutant* mutant = nullptr);
// Returns the sites that the explorations since the last call executed, with relaxed ones.
std::vector<Site> sites();

// ---- for programs
// Runs the bodies on a thread each, and waits for them.
void run(const std::vector<std::function<void()>>& bodies);
// Fails the execution unless the condition is true.
void require(bool condition, const char* what);
// Returns a clock whose waits are known to the explorer. Its time stands still.
Clock& clock();
// Returns `bytes` bytes of zeros, aligned to a page. They are valid until the exploration ends, and each
// execution begins with zeros where the last one accessed them.
std::byte* memory(size_t bytes);

}  // namespace weft::model
