// The memory of the explored program: what each thread has seen of every atomic word, and the accesses that
// happens-before does not order. Part of the explorer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "explorer.h"

namespace weft::model {

inline constexpr int kThreads = 6;
inline constexpr size_t kWords = 256;  // atomic words in one execution

// A vector clock: for each thread, how much of it has happened before.
struct Clocks {
  std::array<uint32_t, kThreads> at{};
  void join(const Clocks& other);
  bool covers(const Clocks& other) const;
};

// For each atomic word, the place in its modification order of the oldest store that may still be read.
struct View {
  std::array<uint32_t, kWords> at{};
};

// The knowledge that a release publishes and an acquire takes.
struct Knowledge {
  Clocks clocks;
  View view;
};

struct MutexState {
  int holder = -1;
  Knowledge released;
};

class Machine {
 public:
  Machine();
  void reset();
  void set_current(int thread) { current_ = static_cast<size_t>(thread); }
  void start(int thread, int by);
  void join(int thread);

  uint64_t load(uintptr_t address, int size, Order order, uintptr_t call);
  void store(uintptr_t address, int size, uint64_t value, Order order, uintptr_t call);
  // Returns the old value. `change` returns the new one.
  template <class Change>
  uint64_t update(uintptr_t address, int size, Order order, uintptr_t call, Change&& change) {
    const size_t word = find(address, size, call);
    note(address, static_cast<size_t>(size), Access::kAtomicStore, call);
    const size_t read = choose_updated(word, order);
    const uint64_t old = messages_[word][read].value;
    take(word, read, order);
    put(word, read + 1, change(old), order, true);
    return old;
  }
  uint64_t newest(uintptr_t address, int size) { return newest(find(address, size, 0)); }
  void fence(Order order);
  void read(uintptr_t address, size_t size, uintptr_t call) { plain(address, size, Access::kRead, call); }
  void write(uintptr_t address, size_t size, uintptr_t call) { plain(address, size, Access::kWrite, call); }
  // The memory is freed: another thread may get it without synchronising.
  void free(uintptr_t address, size_t size);
  void zero_accessed(std::byte* base, size_t bytes);
  // Adds the calls that have used words of several threads. Returns true if there were new ones.
  bool add_shared(std::set<uintptr_t>* calls) const;

  void acquire(const MutexState& mutex) { learn(self().now, mutex.released); }
  void release(MutexState& mutex);
  bool has_seen(const MutexState& mutex) { return self().now.clocks.covers(mutex.released.clocks); }

 private:
  enum class Access : uint8_t { kRead, kWrite, kAtomicLoad, kAtomicStore };
  static constexpr size_t kPlaces = size_t{1} << 14;

  // A store, in the modification order of its word.
  struct Message {
    uint64_t value = 0;
    uint32_t place = 0;    // grows along the order, with gaps
    bool updates = false;  // it follows the message that it read, at once
    Knowledge released;
  };
  struct Threaded {
    Knowledge now;
    Knowledge seen;      // by relaxed loads, for an acquire fence
    Knowledge released;  // by the last release fence
  };
  // A thread's last access of a kind to some bytes of a granule.
  struct Record {
    uint32_t clock;
    uint8_t thread;
    Access access;
    uint8_t bytes;  // one bit each
  };
  // Eight bytes of memory.
  struct Cell {
    uintptr_t granule = 0;
    uintptr_t call = 0;  // the last one
    uint32_t records = 0;
    int words = 0;      // bytes that belong to atomic words; 0: `word` is not set
    int16_t word[8]{};  // the atomic word of each byte, or -1
    std::array<Record, 24> record;

    void set_word(size_t byte, int number) {
      for (size_t b = 0; b < 8 && words == 0; b++) word[b] = -1;
      words += (number >= 0) - (word[byte] >= 0);
      word[byte] = static_cast<int16_t>(number);
    }
  };

  Threaded& self() { return threads_[current_]; }
  void learn(Knowledge& own, const Knowledge& other) const;
  size_t find(uintptr_t address, int size, uintptr_t call);
  void use(size_t word, uintptr_t call);
  uint64_t newest(size_t word) const { return messages_[word].back().value; }
  void take(size_t word, size_t message, Order order);
  uint32_t oldest(size_t word, Order order);
  size_t choose_updated(size_t word, Order order);
  // Inserts a store at an index of the modification order.
  void put(size_t word, size_t index, uint64_t value, Order order, bool update);
  void plain(uintptr_t address, size_t size, Access access, uintptr_t call);
  void note(uintptr_t address, size_t size, Access access, uintptr_t call);
  void note(Cell& its, uint8_t bytes, Access access, uintptr_t call);
  struct Place;
  Place& place_of(uintptr_t block);
  Cell& cell(uintptr_t granule);
  Cell* existing(uintptr_t granule);
  void forget(size_t word);

  size_t current_ = 0;
  std::array<Threaded, kThreads> threads_;
  size_t words_ = 0;
  std::array<std::vector<Message>, kWords> messages_;
  std::array<uintptr_t, kWords> addresses_{};
  std::array<int, kWords> sizes_{};
  std::array<uint32_t, kWords> threads_of_{};  // one bit for each thread that has used the word
  std::array<std::vector<uintptr_t>, kWords> calls_of_{};
  View ordered_;  // by sequentially consistent stores
  Knowledge fenced_;
  // A block is eight granules.
  struct Place {
    uintptr_t block = 0;
    uint32_t execution = 0;
    uint32_t cell = 0;
  };
  std::vector<Place> places_;  // a hash table
  std::vector<Cell> cells_;
  size_t used_ = 0;  // of cells_
  uint32_t execution_ = 1;
};

struct SourceLine {
  std::string file;  // from the root of the sources
  int line = 0;
  std::string text;                // as numbered_lines() returns it
  bool counts_references = false;  // in the standard library, for a shared_ptr
};
// Returns the source lines of calls: the innermost ones that are not in a header of the compiler's.
std::map<uintptr_t, SourceLine> source_lines(const std::vector<uintptr_t>& calls);
// Returns the lines of a file without indentation. If some are equal, " [2]" follows the second, and so on.
const std::vector<std::string>& numbered_lines(const std::string& path);

// Marks that the explorer's own code runs: what it calls is not part of the program.
class Inside {
 public:
  Inside();
  ~Inside();
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

bool active();
Machine& machine();
Order order_at(uintptr_t call, Kind kind, int order);
[[noreturn]] void fail(const std::string& why);
int choose(int options);
void point();
void point_before(uintptr_t call);
void count_store();
bool tracing();
int current_thread();
int start_thread(std::function<void()> body);
void join_thread(int thread);
void lock_mutex(const void* mutex);
bool try_lock_mutex(const void* mutex);
void unlock_mutex(const void* mutex);

}  // namespace weft::model
