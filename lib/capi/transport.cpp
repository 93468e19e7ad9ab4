// weft_context_add_transport.
#include <weft/weft_transport.h>

#include "base/arguments.h"
#include "capi/handles.h"

using namespace weft;
using namespace weft::capi;

weft_status weft_context_add_transport(weft_context* context, const weft_transport* transport,
                                       weft_error* error) {
  return reported(error, [&]() -> Status {
    WEFT_NOT_NULL(context);
    WEFT_NOT_NULL(transport);
    WEFT_TRY(check_call(*context->rep));
    weft_transport table;
    WEFT_TRY(read_struct(transport, "weft_transport", &table));
    WEFT_TRY(check_flags("weft_transport.flags", table.flags, {}));
    const std::pair<bool, const char*> needed[] = {
        {table.name != nullptr, "name"},         {table.open != nullptr, "open"},
        {table.connect != nullptr, "connect"},   {table.send != nullptr, "send"},
        {table.progress != nullptr, "progress"}, {table.close_peer != nullptr, "close_peer"},
        {table.close != nullptr, "close"}};
    for (const auto& [there, what] : needed) {
      if (!there) return Status::error(Code::kArg, cat("weft_transport.", what, " is NULL"));
    }
    return context->registry->add(table);
  });
}
