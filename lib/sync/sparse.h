// A sparse gradient's way through a step. What a rank's program hands over is kept as entries, each row once.
// Then the ranks exchange how many they have, the rows, and the values; every rank merges the others' lists,
// which are sorted, and adds up values of the same row in the order of ranks. Where entries would move more
// than the whole gradient, that is reduced instead.
//
// Threads: check any thread; put and complete whoever claimed the parameter in Readiness (put under a lock,
// because while uses are learned nobody does); what follows under the engine's drive lock, in a step whose
// gradient has arrived; result by the program's thread after the step.
#pragma once

#include <weft/weft.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "core/collectives.h"
#include "sync/entries.h"

namespace weft {

class SparseGradient {
 public:
  // fixed: rows are those of the first step, and stay. total: see Grown.
  SparseGradient(const Param& param, const HostAllocator& allocator, bool fixed, std::atomic<uint64_t>* total)
      : shape_(param),
        fixed_(fixed),
        mine_(allocator, total),
        rows_(allocator, total),
        values_(allocator, total),
        fixed_rows_(allocator, total),
        result_rows_(allocator, total),
        result_values_(allocator, total),
        result_indices_(allocator, total),
        shown_rows_(allocator, total),
        shown_values_(allocator, total) {
    hide();
  }

  Status check(const weft_sparse& entries) const { return shape_.check(entries); }
  // The entries of this step, instead of those of an earlier call: alone, or beside what was accumulated.
  Status put(const weft_sparse& entries, bool accumulated);
  // They are complete, and become part of what is accumulated.
  Status complete(const DeviceOps& ops);

  // What is known of the step when its bucket is launched.
  struct Terms {
    int rank = 0;
    int size = 1;
    double factor = 1;   // of this rank's values
    double divisor = 1;  // of the sums
    bool absent = false;
    bool sends = true;  // else every rank keeps its own
  };
  // Counts, rows, values; stage k comes before collective k, the last one after all. Without `sends` there is
  // one stage.
  static constexpr uint32_t kCollectives = 3;
  void begin(const Terms& terms);
  // A stage begins: what must be known and had. kMismatch, naming the rank, for what others cannot have sent;
  // kNoMemory.
  Status enter(uint32_t stage);
  // A piece of its work. True when it is done.
  bool work(const DeviceOps& ops);
  // Whether the collective after the stage takes place, alike on all ranks.
  bool takes_place(uint32_t collective) const { return takes_place_[collective]; }
  void fill(uint32_t collective, CollectiveArgs* args);

  // For hooks that see entries: what weft_bucket.entries points at, without any.
  weft_bucket_entries* hide();
  weft_bucket_entries* shown() { return &shown_; }
  // After begin, on the thread of the hook's stage: a copy of this rank's entries, as they will travel, for
  // what was handed over stays for a retry. kNoMemory.
  Status show_own(const DeviceOps& ops);
  // What the hook left of them travels. kHook for what is no list of entries.
  Status take_shown();
  // After the last stage: the result.
  void show_result();

  void result(weft_sparse* result) const;
  std::byte* values() const { return result_values_.data(); }  // of the result, for Step
  uint64_t result_bytes() const {
    return result_count_ * (sizeof(int64_t) * shape_.extents.size() + shape_.row_bytes);
  }
  uint64_t result_elements() const { return result_count_ * shape_.row_elements; }
  // The ranks are others.
  void forget_fixed() { known_ = false; }
  // The step fails: nothing is contributed, whatever was put, and nothing is promised of it.
  void leave_empty();

 private:
  enum class Way : uint8_t { kNothing, kEntries, kWhole, kAlone };
  struct List {
    const int64_t* rows = nullptr;
    const std::byte* values = nullptr;
    uint64_t count = 0;
  };

  Way choose() const;
  Status check_unchanged() const;
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
  // Null while there is no room, because no rank has sent any.
  int64_t* own_rows() const {
    auto* const rows = rows_.as<int64_t>();
    return rows == nullptr ? nullptr : rows + static_cast<uint64_t>(terms_.rank) * most_;
  }

  const SparseShape shape_;
  const bool fixed_;
  std::mutex mutex_;
  Entries mine_;           // the complete ones first
  uint64_t complete_ = 0;  // of them
  bool empty_ = false;     // leave_empty() in place of complete()

  Terms terms_;
  uint32_t stage_ = 0;
  bool takes_place_[kCollectives] = {};
  List own_;                      // what travels of this rank's
  std::vector<uint64_t> counts_;  // of all ranks
  uint64_t most_ = 0;             // the largest of them: a rank's block in rows_ and values_
  Way way_ = Way::kNothing;
  bool known_ = false;  // fixed: counts, way and rows stand
  Grown rows_;          // of all ranks
  Grown values_;
  Grown fixed_rows_;          // this rank's
  uint64_t row_ = 0;          // the work's place
  std::vector<uint64_t> at_;  // in each list
  std::vector<const std::byte*> inputs_;

  uint64_t result_count_ = 0;
  Grown result_rows_;
  Grown result_values_;
  Grown result_indices_;  // where several dimensions are named

  weft_bucket_entries shown_;
  Grown shown_rows_;
  Grown shown_values_;
};

// Those of a reducer.
class SparseGradients {
 public:
  SparseGradients(const Manifest& manifest, const HostAllocator& allocator, bool fixed);
  // Null for a parameter that is not sparse.
  SparseGradient* of(uint64_t param) const { return gradients_[param].get(); }
  void forget_fixed();
  uint64_t memory_bytes() const { return bytes_.load(std::memory_order_relaxed); }  // any thread

 private:
  std::atomic<uint64_t> bytes_{0};
  std::vector<std::unique_ptr<SparseGradient>> gradients_;
};

}  // namespace weft
