// weft_trace_*, weft_flight_*.
#include "trace/flight_file.h"
#include "trace/recorder.h"

#include "capi/call.h"
#include "capi/handles.h"

using namespace weft;
using namespace weft::capi;

extern "C" {

weft_status weft_trace_start(weft_context* context, uint64_t capacity) {
  return plain([&]() -> Status {
    WEFT_TRY(usable(context));
    if (context->traces_to_file.exchange(false)) {
      context->rep->log().warn("the program records a trace of its own, so WEFT_TRACE writes no events");
      WEFT_TRY(context->recorder->stop());
    }
    WEFT_TRY(context->recorder->start(capacity));
    context->rep->set_trace(context->recorder.get());
    context->rep->measure_clocks(false);
    return {};
  });
}

weft_status weft_trace_stop(weft_context* context) {
  return plain([&]() -> Status {
    WEFT_TRY(usable(context));
    WEFT_TRY(context->recorder->stop());
    context->rep->set_trace(nullptr);
    return {};
  });
}

weft_status weft_trace_write(weft_context* context, const char* path) {
  return plain([&]() -> Status {
    WEFT_TRY(usable(context));
    WEFT_NOT_NULL(path);
    context->rep->measure_clocks(true);
    return context->recorder->write(path, context->rep->trace_comms().list());
  });
}

weft_status weft_flight_write(weft_comm* comm, const char* folder) {
  return called(comm, [&]() -> Status {
    WEFT_NOT_NULL(comm);
    WEFT_TRY(check_call(comm->rep->context()));
    WEFT_NOT_NULL(folder);
    return write_flight(comm->rep->flight(), folder);
  });
}

}  // extern "C"
