// A rank of a benchmark or of `weft doctor`: owns its context and communicator, and throws Weft's errors as
// exceptions.
#pragma once

#include <weft/weft.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

class Job {
 public:
  // Joins the ranks that the environment describes. backend: empty for Weft's choice.
  explicit Job(const std::string& backend, int64_t heartbeat_timeout_ms = 0);
  // Creates the communicator with these options.
  explicit Job(const weft_comm_options& options);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  weft_comm* comm() { return comm_; }
  weft_context* context() { return context_; }
  weft_comm_info info() const;

  // Throws std::runtime_error with Weft's text unless status is WEFT_OK.
  void check(weft_status status, const char* call) const;
  void barrier() { check(weft_barrier(comm_, nullptr, nullptr), "weft_barrier"); }
  // Returns every rank's numbers, in rank order.
  std::vector<uint64_t> all_gather(const std::vector<uint64_t>& mine);
  // True if it is true on every rank.
  bool all(bool mine);

 private:
  weft_context* context_ = nullptr;
  weft_comm* comm_ = nullptr;
  int32_t rank_ = 0;
  int32_t size_ = 1;
};

// Memory of one buffer: the communicator's arena, or this process's own.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Job& job, uint64_t bytes, bool arena);
  ~Buffer();
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  Job* arena_of_ = nullptr;  // null: from the heap
};

// Binds the calling thread, and threads that it starts later, to the rank-th core that this process may use
// (modulo their number). Returns the core.
int pin_to_core(int rank);
