// Random programs for a reducer, and what they must give: a model, and windows of steps in which every rank
// draws for itself what is ready, in which order, what is absent, whether it has data at all. A function of
// the seed, so that every rank knows what all others do.
#pragma once

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
  std::vector<std::vector<bool>> locals;  // per local step, per parameter: ready
  std::vector<bool> ready;                // per parameter, in the synchronised step; otherwise absent
  bool rest = false;                      // absent by WEFT_FINISH_REST_ABSENT
  bool places = false;                    // begin says where results of absent parameters go
  bool skip = false;                      // it asks to skip the step
  uint64_t order = 0;                     // seed of the order of readiness

  // It contributes something.
  bool active() const {
    const auto has_any = [](const std::vector<bool>& local) {
      return std::find(local.begin(), local.end(), true) != local.end();
    };
    return data || std::any_of(locals.begin(), locals.end(), has_any);
  }
};

struct Window {
  uint32_t micro_batches = 1;
  uint64_t locals = 0;  // of all ranks; where they are uneven each has its own number
  bool fixed = false;
  bool replan = false;                      // before the synchronised step
  std::vector<std::vector<uint32_t>> plan;  // as the program says; empty: by the order of readiness
  uint64_t limit = 0;                       // of buckets by order
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
  bool homes = false;  // the list of parameters says where gradients are
  bool asks = false;   // the hook is one that is shown sparse gradients
  // How often each rank says in a step that a parameter is ready, where it does. Without
  // WEFT_REDUCER_STATIC equal on all ranks, and declared.
  std::vector<std::vector<uint32_t>> uses;
  // WEFT_REDUCER_BUFFERS: two buffers are behind the parameters.
  int32_t buffers_root = 0;
  uint32_t check_interval = 0;
  std::vector<Window> windows;

  static ReducerCase draw(uint64_t seed, int ranks, Random& random);
  bool mapped() const { return (rig.flags & WEFT_REDUCER_ABSENT) != 0; }
  bool buffers() const { return (rig.flags & WEFT_REDUCER_BUFFERS) != 0; }
  bool norms() const { return (rig.flags & WEFT_REDUCER_NORMS) != 0; }
  bool sharded() const { return (rig.flags & WEFT_REDUCER_SHARDED) != 0; }
  bool learns() const { return (rig.flags & WEFT_REDUCER_STATIC) != 0; }
  bool strays() const { return (rig.flags & WEFT_REDUCER_COPY_STRAYS) != 0; }
  bool sparse_fixed() const { return (rig.flags & WEFT_REDUCER_SPARSE_FIXED) != 0; }
  bool uneven() const { return (rig.flags & WEFT_REDUCER_UNEVEN) != 0; }
  // Whose buffers all ranks have once a window's synchronised step has begun, -1: each its own; and the
  // window in which that rank has last changed them.
  int buffers_source(size_t window, int last_active, size_t* changed) const;
  // The type in which a gradient travels, and that in which its bucket holds it before.
  Dtype travels_as(Dtype gradient) const;
  Dtype held_as(Dtype gradient) const;
  std::string text() const;
};

// Whether a rank's sparse gradient has entries of this row.
inline bool touches(uint64_t seed, int rank, size_t param, uint64_t row) {
  return value(seed + 77, rank, param, row) > 3;
}
// Whether a rank's sparse gradient of a step has entries of this row; with WEFT_REDUCER_SPARSE_FIXED those of
// all its steps do.
inline bool has_row(const ReducerCase& program, uint64_t seed, int rank, size_t param, uint64_t row) {
  return touches(program.sparse_fixed() ? program.seed : seed, rank, param, row);
}

// An element of a gradient.
inline double element(const ReducerCase& program, uint64_t seed, int rank, size_t param, uint64_t k) {
  const TestParam& p = program.params[param];
  if (p.sparse_ndim > 0 && !has_row(program, seed, rank, param, k / row_elements(p))) return 0;
  return value(seed, rank, param, k);
}

// What the serial reference says of one window.
class Expected {
 public:
  Expected(const Model& model, const ReducerCase& program, size_t window);
  double divisor() const { return divisor_; }
  uint32_t active() const { return active_; }
  int last_active() const { return last_active_; }
  // The rank contributes nothing of its own.
  bool absent(int rank, size_t param) const;
  bool absent_everywhere(size_t param) const;
  // Elements in row-major order.
  const Bytes& result(size_t param) const { return results_[param]; }

 private:
  // What a rank's gradient of this window adds up to; empty if it has none.
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

// The seed of the values that a rank's gradients have in a window's step: its local ones, then the last.
inline uint64_t step_seed(const ReducerCase& program, size_t window, size_t step) {
  return program.seed * 1'000'003 + window * 101 + step;
}

}  // namespace weft::test
