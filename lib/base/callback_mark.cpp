#include "base/callback_mark.h"

namespace weft {
namespace {

// Nesting depths of callbacks on this thread. They describe the thread, not an object, so they are not
// library state.
struct Depths {
  int all = 0;
  int no_calls = 0;
};
constinit thread_local Depths depths;

}  // namespace

CallbackMark::CallbackMark(Calls calls) : calls_(calls) {
  Depths& d = depths;
  d.all++;
  if (calls_ == Calls::kNone) d.no_calls++;
}

CallbackMark::~CallbackMark() {
  Depths& d = depths;
  d.all--;
  if (calls_ == Calls::kNone) d.no_calls--;
}

bool CallbackMark::inside() {
  return depths.all > 0;
}

bool CallbackMark::no_calls() {
  return depths.no_calls > 0;
}

}  // namespace weft
