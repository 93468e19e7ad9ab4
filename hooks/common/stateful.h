// Base of built-in hooks with state for parameters: saves and loads it, and adapts it to another
// communicator. Calls never overlap (hook/hook.h).
#pragma once

#include <memory>
#include <utility>

#include "common/state.h"
#include "hook/hook.h"

namespace weft {

class StatefulHook : public Hook {
 public:
  explicit StatefulHook(std::shared_ptr<Log> log) : state_(std::move(log)) {}

  // Clears the error memory: it is unknown what the other ranks received in a step that failed.
  Status rebind(int rank, int size) override {
    state_.set_rank(rank, size);
    state_.clear(HookState::kError);
    state_.clear(HookState::kWatch);
    return {};
  }
  Status save(Bytes* state) override {
    state_.save(state);
    return {};
  }
  Status load(ByteView state) override { return state_.load(state); }
  uint64_t memory_bytes() const override { return state_.memory_bytes(); }

 protected:
  HookState state_;
};

}  // namespace weft
