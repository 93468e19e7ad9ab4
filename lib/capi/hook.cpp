// weft_hook_*.
#include <string_view>

#include "capi/handles.h"
#include "core/hook_table.h"

using namespace weft;
using namespace weft::capi;

namespace {

template <class Make>
Status make_hook(weft_context* context, weft_hook** hook, Make&& make) {
  WEFT_NOT_NULL(hook);
  *hook = nullptr;
  WEFT_NOT_NULL(context);
  WEFT_TRY(check_call(*context->rep));
  auto handle = std::make_unique<weft_hook>();
  handle->context = context->rep;
  WEFT_TRY(make(&handle->rep));
  *hook = handle.release();
  return {};
}

}  // namespace

extern "C" {

weft_status weft_hook_create(weft_context* context, const char* name, const void* params, weft_hook** hook) {
  return plain([&] {
    return make_hook(context, hook, [&](std::shared_ptr<Hook>* made) -> Status {
      WEFT_NOT_NULL(name);
      const HookFactory* factory = Registry::find_hook(name);
      if (factory == nullptr) {
        return Status::error(Code::kArg, cat("there is no hook \"", std::string_view(name).substr(0, 64),
                                             "\"; there are ", Registry::hook_names()));
      }
      return factory->make(params, context->rep->host(), made);
    });
  });
}

weft_status weft_hook_create_custom(weft_context* context, const weft_hook_table* table, void* user_data,
                                    weft_hook** hook) {
  return plain([&] {
    return make_hook(context, hook, [&](std::shared_ptr<Hook>* made) -> Status {
      WEFT_NOT_NULL(table);
      weft_hook_table read;
      WEFT_TRY(read_struct(table, "weft_hook_table", &read));
      return make_hook_table(read, user_data, made);
    });
  });
}

weft_status weft_hook_stage_complete(weft_hook* hook, const weft_stage_token* token, weft_status result) {
  return plain([&]() -> Status {
    WEFT_NOT_NULL(hook);
    WEFT_NOT_NULL(token);
    WEFT_TRY(check_process(*hook->context));
    complete_stage(*hook->rep, *token, result);
    return {};
  });
}

weft_status weft_hook_destroy(weft_hook** hook) {
  return plain([&]() -> Status {
    WEFT_NOT_NULL(hook);
    if (*hook == nullptr) return {};
    if (!(*hook)->context->forked()) {
      WEFT_TRY(check_call(*(*hook)->context));
      delete *hook;
    }
    *hook = nullptr;
    return {};
  });
}

}  // extern "C"
