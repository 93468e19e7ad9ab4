// How a gradient that is complete reaches its bucket. When a plan is made, each parameter gets one CopyIn for
// each kind of step (reducer/features.h). A feature's copies lie in its folder.
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

// Kinds of steps in which gradients are copied differently.
enum class StepKind : uint8_t {
  kLocal,
  kSynchronised,
  kFresh,  // synchronised, and StepStart::fresh
};

class CopyIns {
 public:
  void resize(size_t params) { copies_.resize(params); }
  // Makes a copy, for set and set_all.
  template <class Copy, class... Args>
  CopyIn* make(Args&&... args) {
    return all_.emplace_back(std::make_unique<Copy>(std::forward<Args>(args)...)).get();
  }
  void set(StepKind kind, uint64_t param, CopyIn* copy) { copies_[param][static_cast<size_t>(kind)] = copy; }
  void set_all(uint64_t param, CopyIn* copy) { copies_[param].fill(copy); }
  CopyIn& of(StepKind kind, uint64_t param) const { return *copies_[param][static_cast<size_t>(kind)]; }
  uint64_t memory_bytes() const { return copies_.capacity() * sizeof(copies_[0]); }

 private:
  std::vector<std::unique_ptr<CopyIn>> all_;
  std::vector<std::array<CopyIn*, 3>> copies_;  // by parameter and StepKind
};

}  // namespace weft
