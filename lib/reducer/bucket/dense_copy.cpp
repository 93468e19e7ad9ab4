#include "reducer/bucket/dense_copy.h"

#include "comm/context.h"
#include "reducer/bucket/dense.h"
#include "reducer/bucket/dense_check.h"

namespace weft {
namespace {

// The program hands over the gradient's sum later, or has it in the view.
class NoCopy final : public CopyIn {
 public:
  const char* name() const override { return "none"; }
  void copy(ReducerState& /*s*/, const Arrival& /*arrival*/) override {}
};

class DenseCopy final : public CopyIn {
 public:
  const char* name() const override { return "copy"; }
  void copy(ReducerState& s, const Arrival& arrival) override {
    flatten(s, arrival, arrival.place, 1);
    note_destination(s, arrival);
  }
};

// In view mode only a gradient outside its view is copied.
class StrayCopy final : public CopyIn {
 public:
  const char* name() const override { return "copy unless in its view"; }
  void copy(ReducerState& s, const Arrival& arrival) override {
    const void* const data = arrival.given.data;
    if (data != nullptr && data != arrival.place.memory) flatten(s, arrival, arrival.place, 1);
  }
};

}  // namespace

// Gives each dense parameter in host memory the check and the copy that its mode needs.
void add_dense_copies(ReducerState* s) {
  add_dense_checks(s);
  CopyIn* const none = s->copy_ins.make<NoCopy>();
  CopyIn* const dense = s->copy ? s->copy_ins.make<DenseCopy>() : s->copy_ins.make<StrayCopy>();
  for (uint64_t i = 0; i < s->manifest.params.size(); i++) {
    s->copy_ins.change(i, [&](GradientWay& way) {
      way.copies.fill(dense);
      if (s->copy && s->options.accumulation != WEFT_ACCUMULATION_REDUCER) way.set(StepKind::kLocal, none);
    });
  }
}

}  // namespace weft
