// Limits of a process: descriptors, locked memory, address space, threads.
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <latch>
#include <system_error>
#include <thread>

#include "base/text.h"
#include "finding.h"

namespace doctor {
namespace {

using weft::cat;

// A rank starts a progress thread, and UCX or NCCL start some more.
constexpr int kThreads = 4;

constexpr int64_t kLargeJob = 64;  // ranks

// Returns how many descriptors a rank's first communicator opens, and a few more: each other rank costs two
// over shared memory and a third one over UCX.
int64_t files_needed(int64_t ranks, bool over_ucx) {
  return over_ucx ? 20 + 3 * ranks : 12 + 2 * ranks;
}

// Returns the address space below which no communicator over shm can be created. With less than an arena's
// 64 GiB it is created with a smaller arena.
int64_t space_needed(int64_t ranks) {
  return (int64_t{48} + 32 * ranks) << 20;
}

std::string try_threads() {
  std::vector<std::thread> started;
  std::latch go(1);
  std::string result = kWorks;
  try {
    for (int i = 0; i < kThreads; ++i) started.emplace_back([&go] { go.wait(); });
  } catch (const std::system_error& error) {
    result = error.code().message();
  }
  go.count_down();
  for (std::thread& thread : started) thread.join();
  return result;
}

int64_t count_open_files() {
  std::error_code error;
  int64_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    static_cast<void>(entry);
    count++;
  }
  return count;
}

}  // namespace

void read(Limits* limits) {
  limits->open_files = soft_limit(RLIMIT_NOFILE);
  limits->files_open_now = count_open_files();
  limits->locked_bytes = soft_limit(RLIMIT_MEMLOCK);
  limits->address_space_bytes = soft_limit(RLIMIT_AS);
  limits->threads = try_threads();
}

void open_files(const Inspection& inspection, std::vector<Finding>* found) {
  for (const Facts& rank : inspection.ranks) {
    const int64_t limit = rank.limits.open_files;
    if (limit == kUnknown || limit == kUnlimited) continue;
    const int64_t ranks = std::max(rank.size, 2);
    const bool over_ucx = inspection.spans_hosts() || rank.software.wanted.find("ucx") != std::string::npos;
    const int64_t needed = files_needed(ranks, over_ucx), large = files_needed(kLargeJob, true);
    if (limit < needed) {
      found->push_back({Severity::kError,
                        {rank.rank},
                        cat("a process may open ", limit, " files, but one communicator of ", ranks,
                            " ranks needs about ", needed)});
    } else if (limit < large) {
      found->push_back({Severity::kNote,
                        {rank.rank},
                        cat("a process may open ", limit, " files; a communicator of ", kLargeJob,
                            " ranks over UCX needs about ", large)});
    }
  }
}

void locked_memory(const Inspection& inspection, std::vector<Finding>* found) {
  constexpr int64_t kLeast = int64_t{64} << 20;
  for (const Facts& rank : inspection.ranks) {
    const int64_t limit = rank.limits.locked_bytes;
    // Only RDMA devices lock memory by this limit. CUDA's pinned memory does not count, and shm locks
    // nothing.
    if (rank.network.rdma.empty() || limit == kUnknown || limit == kUnlimited) continue;
    found->push_back(
        {limit < kLeast ? Severity::kError : Severity::kWarning,
         {rank.rank},
         cat("a process may lock ", weft::bytes_text(static_cast<uint64_t>(limit)),
             " of memory, and UCX and NCCL lock all that they send over ", rank.network.rdma[0])});
  }
}

void address_space(const Inspection& inspection, std::vector<Finding>* found) {
  for (const Facts& rank : inspection.ranks) {
    const int64_t limit = rank.limits.address_space_bytes;
    if (limit == kUnknown || limit == kUnlimited) continue;
    found->push_back(
        {limit < space_needed(std::max(rank.size, 2)) ? Severity::kError : Severity::kWarning,
         {rank.rank},
         cat("a process may use ", weft::bytes_text(static_cast<uint64_t>(limit)),
             " of address space: weft_comm_alloc and reducers get less memory than they reserve")});
  }
}

void threads(const Inspection& inspection, std::vector<Finding>* found) {
  for (const Facts& rank : inspection.ranks) {
    if (rank.limits.threads == kWorks) continue;
    found->push_back({Severity::kError,
                      {rank.rank},
                      cat("this process cannot start ", kThreads, " threads: ", rank.limits.threads)});
  }
}

}  // namespace doctor
