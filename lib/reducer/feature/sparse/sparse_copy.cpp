#include "reducer/feature/sparse/sparse_feature.h"

#include "base/text.h"
#include "core/context.h"
#include "reducer/bucket/copy_in.h"
#include "reducer/state.h"

namespace weft {
namespace {

class SparseCopy final : public CopyIn {
 public:
  explicit SparseCopy(ReducerState& state) : s_(state) {}
  // Without memory the step fails, because the other ranks count on it.
  void take(uint64_t param, const Given& given, StepWord step) override {
    // In local steps the program adds up, and hands its sum over later.
    if (step.local() && s_.accumulation != WEFT_ACCUMULATION_REDUCER) return;
    SparseGradient& gradient = *s_.sparse->of(param);
    Status taken = given.entries != nullptr ? gradient.put(*given.entries, s_.holds_sum(param)) : Status();
    if (taken.ok()) taken = gradient.complete(s_.comm->context().host());
    if (taken.ok()) return;
    s_.comm->fail(taken
                      .with_prefix(cat("rank ", s_.comm->rank(), ", parameter ", param, " ('",
                                       s_.manifest.params[param].name, "'): "))
                      .with_ranks({s_.comm->rank()}));
  }

 private:
  ReducerState& s_;
};

}  // namespace

void add_sparse_copies(ReducerState* s) {
  if (!s->sparse) return;
  CopyIn* const copy = s->copy_ins.make<SparseCopy>(*s);
  for (uint64_t i = 0; i < s->manifest.params.size(); i++) {
    if (s->manifest.params[i].sparse()) s->copy_ins.set_all(i, copy);
  }
}

const StepFeature kSparse{.copies = add_sparse_copies, .works = add_scale_work};

}  // namespace weft
