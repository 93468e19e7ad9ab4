// weft_hook_*.
#include <string_view>

#include "capi/handles.h"
#include "hook/hook_blob.h"
#include "hook/hook_table.h"

using namespace weft;
using namespace weft::capi;

namespace {

constexpr size_t kMaxHookOptions = 1024;

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

// Returns the context's log; the pointer keeps the context alive.
std::shared_ptr<Log> log_of(const weft_context& context) {
  return {context.rep, &context.rep->log()};
}

// Runs `work` between stages. A running stage has 10 s to return (turn_deadline); between steps none is
// running.
template <class Work>
Status between_stages(Context& context, Hook& hook, Work&& work) {
  return with_turn(context, hook, Deadline::never(), work);
}

// Reads the hook's parameters, except options.
Status read_args(const weft_context& context, const weft_hook_params& params, HookArgs* args) {
  if (params.inner != nullptr && params.inner->context != context.rep) {
    return Status::error(
        Code::kArg, "weft_hook_params.inner belongs to another context: create both hooks in one context");
  }
  if (params.inner != nullptr) args->inner = params.inner->rep;
  if (params.comm != nullptr) args->comm = params.comm->rep;
  if (args->comm != nullptr && &args->comm->context() != context.rep.get()) {
    return Status::error(
        Code::kArg,
        "weft_hook_params.comm belongs to another context: create hook and communicator in one context");
  }
  return {};
}

// Creates the hook of that name, or without a name the saved one, and loads the saved state.
Status make_saved(Context& context, const char* name, HookArgs args, ByteView blob,
                  std::shared_ptr<Hook>* made) {
  HookBlob read;
  WEFT_TRY(read_hook(blob, &read));
  if (name != nullptr) {
    WEFT_TRY(Registry::make_hook(name, std::move(args), made));
  } else if (!args.options.empty() || args.inner != nullptr) {
    return Status::error(Code::kArg,
                         "without a name the saved hook keeps its own options and inner hook: leave "
                         "weft_hook_params.options and inner empty, or give the name");
  } else if (read.own_comm && args.comm == nullptr) {
    return Status::error(Code::kArg, cat("the saved hook '", read.name,
                                         "' had a communicator of its own: create it by weft_hook_create, "
                                         "with weft_hook_params.saved and .comm"));
  } else {
    WEFT_TRY(Registry::make_hook_again(read.name, args, made));
  }
  return between_stages(context, **made, [&] { return load_hook(**made, blob); });
}

}  // namespace

extern "C" {

weft_status weft_hook_create(weft_context* context, const char* name, const void* params, weft_hook** hook) {
  weft_hook_params read{};
  const Status status = in_call([&] {
    return make_hook(context, hook, [&](std::shared_ptr<Hook>* made) -> Status {
      WEFT_TRY(read_struct(static_cast<const weft_hook_params*>(params), "weft_hook_params", &read));
      const std::string_view options = read.options == nullptr ? "" : read.options;
      if (options.size() > kMaxHookOptions) {
        return Status::error(Code::kArg, cat("weft_hook_params.options has ", options.size(),
                                             " characters; at most ", kMaxHookOptions, " are allowed"));
      }
      HookArgs args{options, nullptr, context->rep->host(), log_of(*context)};
      WEFT_TRY(read_args(*context, read, &args));
      if (read.saved != nullptr) {
        const ByteView blob(static_cast<const std::byte*>(read.saved), read.saved_size);
        return make_saved(*context->rep, name, std::move(args), blob, made);
      }
      if (read.saved_size > 0) {
        return Status::error(Code::kArg,
                             cat("weft_hook_params.saved is NULL, but saved_size is ", read.saved_size));
      }
      WEFT_NOT_NULL(name);
      return Registry::make_hook(name, std::move(args), made);
    });
  });
  fill_error(status, read.error);
  return ended(status);
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

weft_status weft_hook_stage_complete(weft_hook* hook, const weft_stage_token* token, weft_status result,
                                     const char* message) {
  return plain([&]() -> Status {
    WEFT_NOT_NULL(hook);
    WEFT_NOT_NULL(token);
    WEFT_TRY(check_process(*hook->context));
    complete_stage(*hook->rep, *token, result, message);
    return {};
  });
}

weft_status weft_hook_save(weft_hook* hook, void* buffer, uint64_t* size, weft_error* error) {
  return reported(error, [&]() -> Status {
    WEFT_NOT_NULL(hook);
    WEFT_NOT_NULL(size);
    WEFT_TRY(check_call(*hook->context));
    Bytes blob;
    WEFT_TRY(between_stages(*hook->context, *hook->rep, [&] { return save_hook(*hook->rep, &blob); }));
    const uint64_t capacity = *size;
    *size = blob.size();
    if (buffer == nullptr) return {};
    if (capacity < blob.size()) {
      return Status::error(Code::kArg, cat("weft_hook_save: the hook's state has ", blob.size(),
                                           " bytes, but *size, the size of the buffer, is ", capacity));
    }
    std::memcpy(buffer, blob.data(), blob.size());
    return {};
  });
}

weft_status weft_hook_load(weft_hook* hook, const void* buffer, uint64_t size, weft_error* error) {
  return reported(error, [&]() -> Status {
    WEFT_NOT_NULL(hook);
    WEFT_NOT_NULL(buffer);
    WEFT_TRY(check_call(*hook->context));
    const ByteView blob(static_cast<const std::byte*>(buffer), size);
    return between_stages(*hook->context, *hook->rep, [&] { return load_hook(*hook->rep, blob); });
  });
}

weft_status weft_hook_create_saved(weft_context* context, const void* buffer, uint64_t size, weft_hook** hook,
                                   weft_error* error) {
  return reported(error, [&] {
    return make_hook(context, hook, [&](std::shared_ptr<Hook>* made) -> Status {
      WEFT_NOT_NULL(buffer);
      const ByteView blob(static_cast<const std::byte*>(buffer), size);
      return make_saved(*context->rep, nullptr, {{}, nullptr, context->rep->host(), log_of(*context)}, blob,
                        made);
    });
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
