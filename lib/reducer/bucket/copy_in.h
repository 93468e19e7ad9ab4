// How a gradient is checked, and how it reaches its bucket once it is complete. When a plan is made, each
// parameter gets one GradientCheck, and one CopyIn for each kind of step (reducer/features.h). A feature's
// copies lie in its folder.
//
// Threads: any thread: the one that claimed the parameter, before the gradient is counted, so the step is not
// over.
#pragma once

#include <weft/weft.h>

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "reducer/bucket/buckets.h"
#include "reducer/step/readiness.h"

namespace weft {

struct ReducerState;

// A gradient in the program's memory, as passed to ready.
struct Given {
  void* data = nullptr;
  const Layout* layout = nullptr;        // null: the parameter's layout
  const weft_sparse* entries = nullptr;  // of a sparse gradient; null: SparseGradient::put has received them
};

// A gradient that is complete, and where it goes.
struct Arrival {
  uint64_t param = 0;
  const Buckets::Place& place;
  const Given& given;
  StepWord step;
};

class CopyIn {
 public:
  CopyIn() = default;
  virtual ~CopyIn() = default;
  CopyIn(const CopyIn&) = delete;
  CopyIn& operator=(const CopyIn&) = delete;

  virtual const char* name() const = 0;  // for the report
  // May throw std::bad_alloc. Other errors fail the communicator.
  virtual void copy(ReducerState& state, const Arrival& arrival) = 0;
};

// Finds and checks the gradient of a ready call, before the call counts. Each parameter has one.
class GradientCheck {
 public:
  GradientCheck() = default;
  virtual ~GradientCheck() = default;
  GradientCheck(const GradientCheck&) = delete;
  GradientCheck& operator=(const GradientCheck&) = delete;

  // Sets given->data if the call has no address. The error names the parameter. The step is open.
  virtual Status check(ReducerState& state, uint64_t param, const weft_stream* stream, StepWord step,
                       Given* given) = 0;
};

// Counts a gradient of a bucket in place of Readiness::arrive, where the last one needs work before that.
using CountLast = void (*)(const std::shared_ptr<ReducerState>& state, uint32_t bucket);

// Kinds of steps in which gradients are copied differently.
enum class StepKind : uint8_t {
  kLocal,
  kSynchronised,
  kFresh,  // synchronised, and StepStart::fresh
};

class CopyIns {
 public:
  void resize(size_t params, size_t buckets) {
    entries_.resize(params);
    counts_.resize(buckets);
  }
  // Makes a check, for set_check.
  template <class Check, class... Args>
  GradientCheck* make_check(Args&&... args) {
    return checks_.emplace_back(std::make_unique<Check>(std::forward<Args>(args)...)).get();
  }
  void set_check(uint64_t param, GradientCheck* check) { entries_[param].check = check; }
  GradientCheck& check(uint64_t param) const { return *entries_[param].check; }
  void set_counts(uint32_t bucket, CountLast count) { counts_[bucket] = count; }
  CountLast counts(uint32_t bucket) const { return counts_[bucket]; }
  // Makes a copy, for set and set_all.
  template <class Copy, class... Args>
  CopyIn* make(Args&&... args) {
    return all_.emplace_back(std::make_unique<Copy>(std::forward<Args>(args)...)).get();
  }
  void set(StepKind kind, uint64_t param, CopyIn* copy) {
    entries_[param].copies[static_cast<size_t>(kind)] = copy;
  }
  void set_all(uint64_t param, CopyIn* copy) { entries_[param].copies.fill(copy); }
  CopyIn& of(StepKind kind, uint64_t param) const {
    return *entries_[param].copies[static_cast<size_t>(kind)];
  }
  uint64_t memory_bytes() const {
    return entries_.capacity() * sizeof(Entry) + counts_.capacity() * sizeof(CountLast);
  }

 private:
  struct Entry {
    GradientCheck* check = nullptr;
    std::array<CopyIn*, 3> copies{};  // by StepKind
  };
  std::vector<std::unique_ptr<CopyIn>> all_;
  std::vector<std::unique_ptr<GradientCheck>> checks_;
  std::vector<Entry> entries_;     // by parameter
  std::vector<CountLast> counts_;  // by bucket; null: Readiness::arrive
};

}  // namespace weft
