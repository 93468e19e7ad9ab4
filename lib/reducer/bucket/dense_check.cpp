#include "reducer/bucket/dense_check.h"

#include "base/text.h"
#include "reducer/host_stream.h"

namespace weft {
namespace {

bool is_aligned(const void* gradient, const Buckets::Place& place) {
  return reinterpret_cast<uintptr_t>(gradient) % place.gradient_bytes == 0;
}

Status not_aligned(const void* gradient, const Buckets::Place& place) {
  return Status::error(Code::kArg, cat("the gradient at ", gradient, " is not aligned to its ",
                                       int{place.gradient_bytes}, "-byte elements"));
}

// Copy mode.
class CopiedCheck final : public GradientCheck {
 public:
  Status check(ReducerState& s, uint64_t param, const weft_stream* stream, StepWord /*step*/,
               Given* given) override {
    const Buckets::Place& place = s.buckets->place(param);
    const bool there = given->data != nullptr || place.count == 0;
    if (there && is_aligned(given->data, place) && on_host(stream)) [[likely]]
      return {};
    if (!on_host(stream)) return no_streams().with_prefix(cat(s.manifest.named(param), ": "));
    if (there) return not_aligned(given->data, place).with_prefix(cat(s.manifest.named(param), ": "));
    return Status::error(Code::kArg, "the gradient is NULL: pass its address, or set weft_param.gradient")
        .with_prefix(cat(s.manifest.named(param), ": "));
  }
};

// View mode: the gradient is in its view or, with WEFT_REDUCER_COPY_STRAYS, anywhere else but in the buckets,
// where views from before a re-plan were.
class ViewCheck final : public GradientCheck {
 public:
  Status check(ReducerState& s, uint64_t param, const weft_stream* stream, StepWord /*step*/,
               Given* given) override {
    const Buckets::Place& place = s.buckets->place(param);
    const void* const gradient = given->data;
    if ((gradient == nullptr || gradient == place.memory) && on_host(stream)) [[likely]]
      return {};
    if (!on_host(stream)) return no_streams().with_prefix(cat(s.manifest.named(param), ": "));
    const Status stray = check_stray(s, gradient, place);
    return stray.ok() ? stray : stray.with_prefix(cat(s.manifest.named(param), ": "));
  }

 private:
  static Status check_stray(const ReducerState& s, const void* gradient, const Buckets::Place& place) {
    const auto* const view = static_cast<const void*>(place.memory);
    if (!s.has(WEFT_REDUCER_COPY_STRAYS)) {
      return Status::error(
          Code::kArg,
          cat("the gradient is at ", gradient, ", expected at ", view,
              ", which is its view (weft_reducer_grad_view; a re-plan moves the views) or, in place, "
              "weft_param.gradient. Compute it there, or create a reducer in view mode with "
              "WEFT_REDUCER_COPY_STRAYS"));
    }
    if (s.buckets->hold(gradient)) {
      return Status::error(
          Code::kArg,
          cat("the gradient is at ", gradient, ", inside the reducer's buckets, but its view is at ", view,
              ": a re-plan moves the views, so ask weft_reducer_grad_view again"));
    }
    return is_aligned(gradient, place) ? Status() : not_aligned(gradient, place);
  }
};

class NoGradientCheck final : public GradientCheck {
 public:
  Status check(ReducerState& s, uint64_t param, const weft_stream* /*stream*/, StepWord /*step*/,
               Given* /*given*/) override {
    return check_param(s.manifest, param);
  }
};

}  // namespace

Status no_dense_gradient(const ReducerState& s, uint64_t param) {
  return Status::error(Code::kArg, cat(s.manifest.named(param),
                                       ": its gradient is sparse: use weft_reducer_ready_sparse and "
                                       "weft_reducer_sparse_result"));
}

void add_dense_checks(ReducerState* s) {
  GradientCheck* const none = s->copy_ins.make_check<NoGradientCheck>();
  GradientCheck* const dense =
      s->copy ? s->copy_ins.make_check<CopiedCheck>() : s->copy_ins.make_check<ViewCheck>();
  for (uint64_t i = 0; i < s->manifest.params.size(); i++) {
    const bool has = has_bucket(*s, i);
    s->copy_ins.change(i, [&](GradientWay& way) {
      way.set_check(has ? dense : none);
      way.copied = has && s->copy;
      way.null_passes = has && !s->copy;
      if (has && s->copy) way.passes_below = uintptr_t{s->buckets->place(i).gradient_bytes} - 1;
    });
  }
}

}  // namespace weft
