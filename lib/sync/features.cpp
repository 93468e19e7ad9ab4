#include "sync/features.h"

#include "sync/dense_copy.h"
#include "sync/feature/absent/absent_map.h"
#include "sync/feature/absent/absent_work.h"
#include "sync/feature/convert/convert_work.h"
#include "sync/feature/devices/device_copy.h"
#include "sync/feature/devices/device_return_work.h"
#include "sync/feature/devices/fetch_work.h"
#include "sync/feature/fused_cast/fused_cast.h"
#include "sync/feature/in_place_slices/in_place_slices.h"
#include "sync/feature/norms/measure_work.h"
#include "sync/feature/norms/norms_exchange.h"
#include "sync/feature/pre_step/pre_step_exchange.h"
#include "sync/feature/retain/retain_work.h"
#include "sync/feature/sparse/scale_work.h"
#include "sync/feature/sparse/sparse_copy.h"
#include "sync/feature/uneven/handshake_exchange.h"
#include "sync/feature/weights/weighting.h"
#include "sync/return_work.h"
#include "sync/state.h"

namespace weft {
namespace {

// Each adds its exchanges if the reducer's options ask for it. The handshake comes after the pre-step,
// because it is put before that.
constexpr void (*kExchanges[])(ReducerState* state) = {
    add_pre_step,
    add_handshake,
    add_absent_map,
    add_norms,
};
// Each sets the copies of its parameters: a later one replaces what an earlier one has set.
constexpr void (*kCopies[])(ReducerState* state) = {
    add_dense_copies, add_weighed_copies, add_fused_copies,
    add_slice_copies, add_sparse_copies,  add_device_copies,
};
// In the order in which a bucket needs them: what is converted can no longer be retained.
constexpr void (*kWorks[])(ReducerState* state) = {
    add_absent_work,  add_fetch_work,  add_retain_work,        add_convert_work,
    add_measure_work, add_return_work, add_device_return_work, add_scale_work,
};

}  // namespace

void add_exchanges(ReducerState* state) {
  for (const auto add : kExchanges) add(state);
}

void add_copies_and_works(ReducerState* state) {
  state->copy_ins.resize(state->manifest.params.size());
  for (const auto add : kCopies) add(state);
  const size_t buckets = state->plan.buckets.size();
  for (BucketWorks::List* list : {&state->works.prepare, &state->works.review, &state->works.give_back})
    list->resize(buckets);
  for (const auto add : kWorks) add(state);
}

}  // namespace weft
