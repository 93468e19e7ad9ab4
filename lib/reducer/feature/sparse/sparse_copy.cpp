#include "reducer/feature/sparse/sparse.h"

#include "base/text.h"
#include "comm/context.h"
#include "reducer/bucket/dense_check.h"
#include "reducer/host_stream.h"
#include "reducer/state.h"

namespace weft {
namespace {

// Without memory the step fails, because the other ranks count on it.
class SparseCopy final : public CopyIn {
 public:
  const char* name() const override { return "take entries"; }
  void copy(ReducerState& s, const Arrival& arrival) override {
    // In local steps the program adds up, and hands its sum over later.
    if (arrival.step.local() && s.options.accumulation != WEFT_ACCUMULATION_REDUCER) return;
    const weft_sparse* const entries = arrival.given.entries;
    SparseGradient& gradient = *s.sparse->of(arrival.param);
    Status taken = entries != nullptr ? gradient.put(*entries, s.holds_sum(arrival.param)) : Status();
    if (taken.ok()) taken = gradient.complete(s.comm->context().host());
    if (!taken.ok()) fail_arrival(s, arrival.param, taken);
  }
};

class SparseCheck final : public GradientCheck {
 public:
  Status check(ReducerState& s, uint64_t param, const weft_stream* stream, StepWord /*step*/,
               Given* /*given*/) override {
    if (on_host(stream)) return no_dense_gradient(s, param);
    return no_streams().with_prefix(cat(s.manifest.named(param), ": "));
  }
};

}  // namespace

void add_sparse_copies(ReducerState* s) {
  if (!s->sparse) return;
  CopyIn* const entries = s->copy_ins.make<SparseCopy>();
  GradientCheck* const check = s->copy_ins.make_check<SparseCheck>();
  for (uint64_t i = 0; i < s->manifest.params.size(); i++) {
    if (!s->manifest.params[i].sparse()) continue;
    s->copy_ins.change(i, [&](GradientWay& way) {
      way.set_check(check);
      way.copies.fill(entries);
    });
  }
}

}  // namespace weft
