// How a gradient that is complete reaches its bucket. When a plan is made, each parameter gets one CopyIn for
// each kind of step (reducer/features.h). A feature's copies lie in its folder.
//
// Threads: any thread: the one that claimed the parameter, before the gradient is counted, so the step is not
// over.
#pragma once

#include <weft/weft.h>

#include <array>
#include <cstdint>
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

// May throw std::bad_alloc. Other errors fail the communicator.
using CopyIn = void (*)(ReducerState& state, const Arrival& arrival);

// Kinds of steps in which gradients are copied differently.
enum class StepKind : uint8_t {
  kLocal,
  kSynchronised,
  kFused,  // synchronised, and gradients may be copied in the communication dtype (feature/fused_cast)
};

class CopyIns {
 public:
  void resize(size_t params) { copies_.resize(params); }
  void set(StepKind kind, uint64_t param, CopyIn copy) { copies_[param][static_cast<size_t>(kind)] = copy; }
  void set_all(uint64_t param, CopyIn copy) { copies_[param].fill(copy); }
  CopyIn of(StepKind kind, uint64_t param) const { return copies_[param][static_cast<size_t>(kind)]; }
  uint64_t memory_bytes() const { return copies_.capacity() * sizeof(copies_[0]); }

 private:
  std::vector<std::array<CopyIn, 3>> copies_;  // by parameter and StepKind
};

}  // namespace weft
