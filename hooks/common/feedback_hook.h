// Base of built-in hooks that may keep what they do not send; watches their error memory. Calls never overlap
// (hook/hook.h).
#pragma once

#include <optional>

#include "common/error_watch.h"
#include "common/stateful.h"

namespace weft {

class FeedbackHook : public StatefulHook {
 public:
  // rescue: requires feedback.
  FeedbackHook(const HookArgs& args, bool feedback, bool rescue)
      : StatefulHook(args.log), feedback_(feedback), watch_(state_, args.host, rescue) {}

  std::optional<ErrorMemory> error_memory(const weft_bucket& bucket) override {
    if (!feedback_) return {};
    return watch_.of(bucket);
  }
  Status replan(uint64_t /*buckets*/) override {
    watch_.replan();
    return {};
  }
  uint64_t memory_bytes() const override { return StatefulHook::memory_bytes() + watch_.memory_bytes(); }

 protected:
  const bool feedback_;
  ErrorWatch watch_;
};

}  // namespace weft
