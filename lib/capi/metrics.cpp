// weft_metrics_text.
#include <utility>

#include "capi/guard.h"
#include "capi/handles.h"

using namespace weft;
using namespace weft::capi;

extern "C" {

weft_status weft_metrics_text(weft_context* context, char* text, uint64_t* size) {
  return plain([&]() -> Status {
    WEFT_NOT_NULL(size);
    const uint64_t room = text != nullptr ? std::exchange(*size, 0) : 0;
    WEFT_NOT_NULL(context);
    WEFT_TRY(check_call(*context->rep));
    return put_long_text("weft_metrics_text", context->rep->metrics().text(), text, room, size);
  });
}

}  // extern "C"
