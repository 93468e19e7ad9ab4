// The calls in a step that is captured into a CUDA graph: checks their arguments and calls Captures. Threads:
// as the calls of the same names without capture.
#pragma once

#include "reducer/data.h"

namespace weft {

Status begin_captured(ReducerData& r, const weft_begin_options& options);
Status ready_captured(ReducerState& s, uint64_t param, void* gradient, const weft_stream* stream);
Status finish_captured(ReducerData& r, const weft_finish_options& options, const Status& given);
// True while a captured step is open. Any thread.
inline bool is_capturing(const ReducerState& s) {
  return s.captures && s.captures->open();
}
// Rejects calls that are only valid between steps.
Status outside_capture(const ReducerState& s, const char* what);

}  // namespace weft
