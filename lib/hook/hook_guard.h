// Converts exceptions of a hook into errors, so that an exception neither ends the process nor leaves other
// ranks waiting in an agreement. Used around every call of a hook's functions, by with_turn and StageJob.
#pragma once

#include <exception>
#include <new>

#include "base/guard.h"
#include "base/status.h"
#include "base/text.h"
#include "hook/hook.h"

namespace weft {

// what: "a stage", for the error text.
template <class Call>
Status guard_hook(const Hook& hook, const char* what, Call&& call) noexcept {
  return guarded([&]() -> Status {
    try {
      return call();
    } catch (const std::bad_alloc&) {  // a built-in hook's state grows in its calls
      return Status::error(Code::kNoMemory, cat("no memory for ", what, " of hook '", hook.name(), "'"));
    } catch (const std::exception& error) {
      return Status::error(Code::kHook,
                           cat("hook '", hook.name(), "' threw an exception in ", what, ": ", error.what()));
    } catch (...) {
      stay_if_thread_ends();
      return Status::error(Code::kHook, cat("hook '", hook.name(), "' threw an exception in ", what));
    }
  });
}

}  // namespace weft
