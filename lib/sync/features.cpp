#include "sync/features.h"

#include "sync/feature/absent/absent_map.h"
#include "sync/feature/norms/norms_exchange.h"
#include "sync/feature/pre_step/pre_step_exchange.h"
#include "sync/feature/uneven/handshake_exchange.h"
#include "sync/state.h"

namespace weft {
namespace {

// Each adds its exchanges if the reducer's options ask for it. The handshake comes after the pre-step,
// because it is put before that.
constexpr void (*kFeatures[])(ReducerState* state) = {
    add_pre_step,
    add_handshake,
    add_absent_map,
    add_norms,
};

}  // namespace

void add_exchanges(ReducerState* state) {
  for (const auto add : kFeatures) add(state);
}

}  // namespace weft
