// Random programs for a reducer, and their expected results. A program has a model and windows of steps. In
// each window every rank draws which gradients are ready, in which order, which are absent, and whether it
// has data at all. All is a function of the seed, so every rank knows what the other ranks do.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "../unit/sparse_rig.h"
#include "support/simulation.h"

namespace weft::test {

// One rank's part in one window: local steps, then a synchronised one.
struct RankPart {
  bool joined = false;
  bool data = true;  // in the synchronised step
  double weight = 1;
  std::vector<std::vector<bool>> locals;  // ready in the local step; by local step, by parameter
  std::vector<bool> ready;                // ready in the synchronised step, by parameter; otherwise absent
  bool rest = false;                      // absent by WEFT_FINISH_REST_ABSENT
  bool places = false;                    // begin sets where results of absent parameters are stored
  bool skip = false;                      // the rank asks to skip the step
  uint64_t order = 0;                     // seed of the order of readiness

  // Returns true if the rank contributes something.
  bool active() const {
    const auto has_any = [](const std::vector<bool>& local) {
      return std::find(local.begin(), local.end(), true) != local.end();
    };
    return data || std::any_of(locals.begin(), locals.end(), has_any);
  }
};

struct Window {
  uint32_t micro_batches = 1;
  uint64_t locals = 0;  // local steps of all ranks; with uneven inputs each rank has its own number
  bool fixed = false;
  bool replan = false;                      // re-plans before the synchronised step
  std::vector<std::vector<uint32_t>> plan;  // the program's plan; empty: planned by the order of readiness
  uint64_t limit = 0;                       // bucket limit of a plan by order
  bool record = false;
  std::vector<RankPart> ranks;

  bool skipped() const {
    return std::any_of(ranks.begin(), ranks.end(), [](const RankPart& part) { return part.skip; });
  }
};

struct ReducerCase {
  uint64_t seed = 0;
  int ranks = 2;
  std::vector<TestParam> params;
  RigOptions rig;
  bool homes = false;  // the list of parameters gives the addresses of gradients
  bool asks = false;   // the hook asks to see sparse gradients
  // How often each rank calls ready for a parameter in a step that uses it. Without WEFT_REDUCER_STATIC the
  // numbers are declared, and equal on all ranks.
  std::vector<std::vector<uint32_t>> uses;
  // WEFT_REDUCER_BUFFERS: two buffers follow the parameters in the list.
  int32_t buffers_root = 0;
  uint32_t check_interval = 0;
  std::vector<Window> windows;

  static ReducerCase draw(uint64_t seed, int ranks, Random& random);
  bool view() const { return rig.mode == WEFT_GRADIENT_VIEW; }
  // The program adds up local steps, and not the reducer.
  bool adds() const { return rig.accumulation == WEFT_ACCUMULATION_PROGRAM; }
  bool sparse() const {
    return std::any_of(params.begin(), params.end(), [](const TestParam& p) { return p.sparse_ndim > 0; });
  }
  bool mapped() const { return (rig.flags & WEFT_REDUCER_ABSENT) != 0; }
  bool buffers() const { return (rig.flags & WEFT_REDUCER_BUFFERS) != 0; }
  bool norms() const { return (rig.flags & WEFT_REDUCER_NORMS) != 0; }
  bool sharded() const { return (rig.flags & WEFT_REDUCER_SHARDED) != 0; }
  bool learns() const { return (rig.flags & WEFT_REDUCER_STATIC) != 0; }
  bool strays() const { return (rig.flags & WEFT_REDUCER_COPY_STRAYS) != 0; }
  bool uneven() const { return (rig.flags & WEFT_REDUCER_UNEVEN) != 0; }
  // Returns the rank whose buffers all ranks have once a window's synchronised step has begun; -1: each keeps
  // its own. Stores the window in which that rank changed them last.
  int buffers_source(size_t window, int last_active, size_t* changed) const;
  // The type in which a gradient is communicated, and the type in which its bucket holds it before.
  Dtype travels_as(Dtype gradient) const;
  Dtype held_as(Dtype gradient) const;
  std::string text() const;
};

// Returns true if a rank's sparse gradient has entries of this row.
inline bool has_row(uint64_t seed, int rank, size_t param, uint64_t row) {
  return value(seed + 77, rank, param, row) > 3;
}

// Returns an element of a gradient.
inline double element(const ReducerCase& program, uint64_t seed, int rank, size_t param, uint64_t k) {
  const TestParam& p = program.params[param];
  if (p.sparse_ndim > 0 && !has_row(seed, rank, param, k / row_elements(p))) return 0;
  return value(seed, rank, param, k);
}

// The serial reference's results for one window.
class Expected {
 public:
  Expected(const Model& model, const ReducerCase& program, size_t window);
  double divisor() const { return divisor_; }
  uint32_t active() const { return active_; }
  int last_active() const { return last_active_; }
  // Returns true if the rank contributes nothing to this parameter.
  bool absent(int rank, size_t param) const;
  bool absent_everywhere(size_t param) const;
  // Elements in row-major order.
  const Bytes& result(size_t param) const { return results_[param]; }

 private:
  // Returns the sum of a rank's gradients in this window; empty if it has none.
  std::vector<double> contribution(int rank, size_t param) const;

  const Model& model_;
  const ReducerCase& program_;
  const Window& window_;
  const size_t number_;
  double divisor_ = 1;
  uint32_t active_ = 0;
  int last_active_ = -1;
  std::vector<Bytes> results_;
};

// Returns the seed of a rank's gradient values in a step of a window: its local steps come first, then the
// synchronised one.
inline uint64_t step_seed(const ReducerCase& program, size_t window, size_t step) {
  return program.seed * 1'000'003 + window * 101 + step;
}

}  // namespace weft::test
