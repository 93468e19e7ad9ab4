// Wraps a user's function table as a Hook. Used by weft_hook_create_custom.
#pragma once

#include <weft/weft.h>

#include <memory>

#include "base/status.h"
#include "hook/hook.h"

namespace weft {

// Message buffer size that weft.h guarantees the table's functions.
inline constexpr size_t kHookMessageBytes = 256;

// Creates the hook. Copies the table, whose size lib/capi has validated. user_data is freed with the hook,
// unless this fails. kArg if the table lacks a required function. Threads: any thread.
Status make_hook_table(const weft_hook_table& table, void* user_data, std::shared_ptr<Hook>* hook);

// Completes a pending stage, as weft_hook_stage_complete. message: NULL for none. Late completions have no
// effect. Any thread.
void complete_stage(Hook& hook, const weft_stage_token& token, weft_status result,
                    const char* message = nullptr);

}  // namespace weft
