// A sparse gradient in a step. It keeps the entries that the program passes, with unique rows. The ranks then
// exchange their counts, the rows, and the values. Every rank merges the sorted lists of the others, and sums
// values of the same row in the order of ranks. If the entries would need more traffic than the whole
// gradient, the whole is reduced instead.
//
// Threads: check by any thread. put and complete by the thread that claimed the parameter in Readiness (put
// under a lock, because while uses are learned no thread claims it). The calls after these under the engine's
// progress lock, in a step whose gradient has arrived. result by the program's thread after the step.
#pragma once

#include <weft/weft.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "reducer/feature/sparse/entries.h"
#include "reducer/step/schedule.h"
#include "transport/collectives.h"

namespace weft {

class SparseGradient {
 public:
  // total: see Grown.
  SparseGradient(const Param& param, const HostAllocator& allocator, std::atomic<uint64_t>* total)
      : shape_(param),
        mine_(allocator, total),
        rows_(allocator, total),
        values_(allocator, total),
        result_rows_(allocator, total),
        result_values_(allocator, total),
        result_indices_(allocator, total),
        shown_rows_(allocator, total),
        shown_values_(allocator, total) {
    hide();
  }

  Status check(const weft_sparse& entries) const { return shape_.check(entries); }
  // Stores the entries of this step, replacing those of an earlier call: alone, or in addition to accumulated
  // ones.
  Status put(const weft_sparse& entries, bool accumulated);
  // Completes the step's entries: they become part of the accumulated ones.
  Status complete(const DeviceOps& ops);

  // The parameters of the exchange, known when the bucket is launched.
  struct Terms {
    int rank = 0;
    int size = 1;
    double factor = 1;   // of this rank's values
    double divisor = 1;  // of the sums
    bool absent = false;
    bool sends = true;  // false: every rank keeps its own entries
  };
  // The collectives are counts, rows, values. Stage k comes before collective k, and the last stage after
  // all. Without `sends` there is only one stage.
  static constexpr uint32_t kCollectives = 3;
  void begin(const Terms& terms);
  // Begins a stage: checks what was received and allocates memory. kMismatch, naming the rank, for invalid
  // data from another rank; kNoMemory.
  Status enter(uint32_t stage);
  // Does a piece of the stage's work. True when the stage is done.
  bool work(const DeviceOps& ops);
  // Returns whether the collective after the stage takes place; equal on all ranks.
  bool takes_place(uint32_t collective) const { return takes_place_[collective]; }
  void fill(uint32_t collective, CollectiveArgs* args);

  // For hooks that receive entries: hide() and shown() return the struct to which weft_bucket.entries points.
  // hide() removes the entries from it.
  weft_bucket_entries* hide();
  weft_bucket_entries* shown() { return &shown_; }
  // Copies this rank's entries for the hook, scaled as for communication. Called after begin, on the thread
  // of the hook's stage. A copy, because a retry needs the original entries. kNoMemory.
  Status show_own(const DeviceOps& ops);
  // Uses the entries that the hook left. kHook for an invalid list.
  Status take_shown();
  // Shows the result to the hook after the last stage.
  void show_result();

  void result(weft_sparse* result) const;
  std::byte* values() const { return result_values_.data(); }  // of the result, for Step
  uint64_t result_bytes() const {
    return result_count_ * (sizeof(int64_t) * shape_.extents.size() + shape_.row_bytes);
  }
  uint64_t result_elements() const { return result_count_ * shape_.row_elements; }
  // Drops all entries, because the step fails.
  void leave_empty();

 private:
  enum class Way : uint8_t { kNothing, kEntries, kWhole, kAlone };
  struct List {
    const int64_t* rows = nullptr;
    const std::byte* values = nullptr;
    uint64_t count = 0;
  };

  Way choose() const;
  Status check_received() const;
  Status take_counts();
  Status make_room_for_values();
  Status make_room_for_result();
  bool write_values(const DeviceOps& ops);
  bool write_whole(const DeviceOps& ops);
  bool merge(const DeviceOps& ops);
  void end();
  List list(size_t rank) const;
  uint64_t piece() const;  // rows
  // Returns this rank's block of rows; null if it is empty, because no rank has sent rows.
  int64_t* own_rows() const {
    auto* const rows = rows_.as<int64_t>();
    return rows == nullptr ? nullptr : rows + static_cast<uint64_t>(terms_.rank) * most_;
  }

  const SparseShape shape_;
  std::mutex mutex_;
  Entries mine_;           // the complete entries come first
  uint64_t complete_ = 0;  // number of complete entries

  Terms terms_;
  uint32_t stage_ = 0;
  bool takes_place_[kCollectives] = {};
  List own_;                      // the entries of this rank that are communicated
  std::vector<uint64_t> counts_;  // of all ranks
  uint64_t most_ = 0;             // the largest count: the size of a rank's block in rows_ and values_
  Way way_ = Way::kNothing;
  Grown rows_;  // of all ranks
  Grown values_;
  uint64_t row_ = 0;          // the work's progress
  std::vector<uint64_t> at_;  // position in each list
  std::vector<const std::byte*> inputs_;

  uint64_t result_count_ = 0;
  Grown result_rows_;
  Grown result_values_;
  Grown result_indices_;  // used if indices name several dimensions

  weft_bucket_entries shown_;
  Grown shown_rows_;
  Grown shown_values_;
};

// The sparse gradients of a reducer.
class SparseGradients final : public HookEntries {
 public:
  SparseGradients(const Manifest& manifest, const HostAllocator& allocator);
  // Returns the sparse gradient of a parameter; null for a parameter that is not sparse.
  SparseGradient* of(uint64_t param) const { return gradients_[param].get(); }
  weft_bucket_entries* shown(uint64_t param) const override { return of(param)->hide(); }
  uint64_t memory_bytes() const { return bytes_.load(std::memory_order_relaxed); }  // any thread

 private:
  std::atomic<uint64_t> bytes_{0};
  std::vector<std::unique_ptr<SparseGradient>> gradients_;
};

}  // namespace weft
