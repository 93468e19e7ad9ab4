#include "reducer/bucket/dense_copy.h"

#include "core/context.h"
#include "reducer/bucket/dense.h"

namespace weft {
namespace {

// The program hands over the gradient's sum later, or has it in the view.
class NoCopy final : public CopyIn {
 public:
  void take(uint64_t /*param*/, const Given& /*given*/, StepWord /*step*/) override {}
};

class DenseCopy final : public CopyIn {
 public:
  explicit DenseCopy(ReducerState& state) : s_(state) {}
  void take(uint64_t param, const Given& given, StepWord /*step*/) override {
    flatten(s_, param, given, s_.buckets->place(param), 1);
    note_destination(s_, param, given);
  }

 private:
  ReducerState& s_;
};

// In view mode only a gradient outside its view is copied.
class ViewCopy final : public CopyIn {
 public:
  explicit ViewCopy(const ReducerState& state) : s_(state) {}
  void take(uint64_t param, const Given& given, StepWord /*step*/) override {
    const Buckets::Place& place = s_.buckets->place(param);
    if (given.data != nullptr && given.data != place.memory) flatten(s_, param, given, place, 1);
  }

 private:
  const ReducerState& s_;
};

}  // namespace

// Gives each dense parameter in host memory the copy that its mode needs.
void add_dense_copies(ReducerState* s) {
  CopyIn* const none = s->copy_ins.make<NoCopy>();
  CopyIn* const dense = s->copy_ins.make<DenseCopy>(*s);
  CopyIn* const view = s->copy_ins.make<ViewCopy>(*s);
  for (uint64_t i = 0; i < s->manifest.params.size(); i++) {
    s->copy_ins.set_all(i, s->copy ? dense : view);
    if (s->copy && s->accumulation != WEFT_ACCUMULATION_REDUCER) s->copy_ins.set(StepKind::kLocal, i, none);
  }
}

}  // namespace weft
