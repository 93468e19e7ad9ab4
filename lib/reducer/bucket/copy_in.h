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

#include "reducer/bucket/layout.h"
#include "reducer/step/readiness.h"

namespace weft {

// A gradient in the program's memory, as passed to ready.
struct Given {
  void* data = nullptr;
  const Layout* layout = nullptr;        // null: the parameter's layout
  const weft_sparse* entries = nullptr;  // of a sparse gradient; null: SparseGradient::put has received them
};

class CopyIn {
 public:
  CopyIn() = default;
  virtual ~CopyIn() = default;
  CopyIn(const CopyIn&) = delete;
  CopyIn& operator=(const CopyIn&) = delete;

  // May throw std::bad_alloc. Other errors fail the communicator.
  virtual void take(uint64_t param, const Given& given, StepWord step) = 0;
};

// Kinds of steps in which gradients are copied differently.
enum class StepKind : uint8_t {
  kLocal,
  kSynchronised,
  kFused,  // synchronised, and gradients may be copied in the communication dtype (feature/fused_cast)
};

class CopyIns {
 public:
  // Makes a copy, for the parameters for which it is set.
  template <class Copy, class... Args>
  CopyIn* make(Args&&... args) {
    return all_.emplace_back(std::make_unique<Copy>(std::forward<Args>(args)...)).get();
  }
  void resize(size_t params) {
    for (std::vector<CopyIn*>& table : tables_) table.resize(params);
  }
  void set(StepKind kind, uint64_t param, CopyIn* copy) { tables_[static_cast<size_t>(kind)][param] = copy; }
  void set_all(uint64_t param, CopyIn* copy) {
    for (std::vector<CopyIn*>& table : tables_) table[param] = copy;
  }
  CopyIn& of(StepKind kind, uint64_t param) const { return *tables_[static_cast<size_t>(kind)][param]; }
  uint64_t memory_bytes() const { return tables_.size() * tables_[0].capacity() * sizeof(CopyIn*); }

 private:
  std::vector<std::unique_ptr<CopyIn>> all_;
  std::array<std::vector<CopyIn*>, 3> tables_;  // by StepKind and parameter
};

}  // namespace weft
