// How a gradient is checked, and how it reaches its bucket once it is complete. When a plan is made, each
// parameter gets one GradientCheck, and one CopyIn for each kind of step (reducer/features.h). A feature's
// copies lie in its folder.
//
// Threads: any thread: the one that claimed the parameter, before the gradient is counted, so the step is not
// over.
#pragma once

#include <weft/weft.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
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

  // Sets given->data if the gradient lies elsewhere. The error names the parameter. The step is open.
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

// The way of gradients of one kind into their buckets. Parameters share it, so that a call of ready reads
// little memory of its own parameter.
struct GradientWay {
  std::array<CopyIn*, 3> copies{};  // by StepKind
  CountLast count = nullptr;        // null: Readiness::arrive
  GradientCheck* check = nullptr;
  bool copied = false;  // a call without an address is for the one in the manifest
  // Gradients in host memory that pass without a call of the check.
  bool null_passes = false;              // those of a call without an address
  uintptr_t passes_below = UINTPTR_MAX;  // those whose address has none of these bits; all bits: none passes

  CopyIn& copy(StepKind kind) const { return *copies[static_cast<size_t>(kind)]; }
  void set(StepKind kind, CopyIn* copy) { copies[static_cast<size_t>(kind)] = copy; }
  // Sets a check that sees every gradient.
  void set_check(GradientCheck* its_check) {
    check = its_check;
    null_passes = false;
    passes_below = UINTPTR_MAX;
  }
  bool passes(const void* gradient) const {
    return gradient == nullptr ? null_passes : (reinterpret_cast<uintptr_t>(gradient) & passes_below) == 0;
  }
  bool operator==(const GradientWay&) const = default;
};

class CopyIns {
 public:
  void resize(size_t params) {
    ways_.assign(1, {});
    last_ = &ways_.front();
    way_of_.assign(params, last_);
  }
  const GradientWay& of(uint64_t param) const { return *way_of_[param]; }
  // Makes a check or a copy, for change.
  template <class Check, class... Args>
  GradientCheck* make_check(Args&&... args) {
    return checks_.emplace_back(std::make_unique<Check>(std::forward<Args>(args)...)).get();
  }
  template <class Copy, class... Args>
  CopyIn* make(Args&&... args) {
    return copies_.emplace_back(std::make_unique<Copy>(std::forward<Args>(args)...)).get();
  }
  // Changes a parameter's way: work receives a copy of it.
  template <class Work>
  void change(uint64_t param, Work&& work) {
    GradientWay way = of(param);
    work(way);
    if (!(*last_ == way)) {
      const auto found = std::find(ways_.begin(), ways_.end(), way);
      last_ = found != ways_.end() ? &*found : &ways_.emplace_back(way);
    }
    way_of_[param] = last_;
  }
  uint64_t memory_bytes() const {
    return way_of_.capacity() * sizeof(GradientWay*) + ways_.size() * sizeof(GradientWay);
  }

 private:
  std::vector<std::unique_ptr<CopyIn>> copies_;
  std::vector<std::unique_ptr<GradientCheck>> checks_;
  std::deque<GradientWay> ways_;            // does not move them
  std::vector<const GradientWay*> way_of_;  // by parameter
  const GradientWay* last_ = nullptr;       // the result of the last change; most often that of the next one
};

}  // namespace weft
