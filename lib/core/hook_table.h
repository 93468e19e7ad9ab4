// A user's function table as a Hook. Made by weft_hook_create_custom.
#pragma once

#include <weft/weft.h>

#include <memory>

#include "base/status.h"
#include "core/hook.h"

namespace weft {

inline constexpr size_t kHookMessageBytes = 256;  // what weft.h promises the table's functions

// The table, whose size lib/capi has read, is copied; user_data is freed with the hook, unless this fails.
// kArg for a table that lacks what is required. Threads: any thread.
Status make_hook_table(const weft_hook_table& table, void* user_data, std::shared_ptr<Hook>* hook);

// Complete a pending stage, as weft_hook_stage_complete does. Late completions do nothing. Any thread.
void complete_stage(Hook& hook, const weft_stage_token& token, weft_status result);

}  // namespace weft
