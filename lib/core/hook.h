// How a bucket is communicated: stages of computing between declared collectives. Built-in hooks derive from
// Hook, each in its folder under hooks/; a user's function table becomes one in lib/core/hook_table.cpp. The
// structs are those of weft.h.
#pragma once

#include <weft/weft.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/buffer.h"
#include "base/dtype.h"
#include "base/status.h"
#include "core/device.h"
#include "core/hook_turn.h"
#include "core/stage_gate.h"

namespace weft {

class Comm;
class Log;

// What a hook's stages compute, and so who runs them (core/stage_worker.h).
enum class StageKind : uint8_t {
  kNothing,  // or next to it: whoever polls, under the drive lock
  kFinite,   // the worker, or who waits for the step
  kForeign,  // the program's code, which may never return: the worker alone
};

// What a hook with error feedback holds back of a bucket after a step: its error memory.
struct ErrorMemory {
  double ratio = 0;      // its norm over that of this rank's gradients in the step
  bool growing = false;  // it keeps growing: error feedback does not converge
};

// Threads: calls never overlap: each is made with the hook's turn taken (with_turn, Step), in `caller` mode
// under the engine's drive lock; gate(), turn() and name() any thread.
class Hook {
 public:
  virtual ~Hook() = default;
  // Name and parameters as one string, agreed across ranks.
  virtual std::string name() const = 0;
  // Declare the collectives and the scratch of a bucket. Called when a plan is made.
  virtual Status plan(const weft_bucket& bucket, weft_hook_plan* plan) = 0;
  // Compute before collective stage->index and after the one before it.
  virtual Status stage(const weft_bucket& bucket, weft_stage* stage) = 0;
  // One averaged all-reduce of the bucket in place, and stages that do nothing: it may travel in parts.
  virtual bool plain() const { return false; }
  // The type to which its first stage rounds the bucket, divided, before its only collective, a sum; its last
  // stage rounds the sum back. Who copies gradients may do both on the way, and call neither. Any thread.
  virtual std::optional<Dtype> narrows() const { return {}; }
  // Nothing but copies has to lie between gradients and its only collective.
  bool copies_suffice() const { return plain() || narrows().has_value(); }
  // Whether plan and stage are called for sparse gradients too (WEFT_HOOK_SPARSE).
  virtual bool takes_sparse() const { return false; }
  // If not, whether they travel without the hook: noop keeps them.
  virtual bool sends_sparse() const { return true; }
  virtual StageKind stage_kind() const { return StageKind::kFinite; }
  // Which step it is, in the descriptors of this bucket's collectives: a hook that draws from its own number
  // of the step, as all ranks must alike, says that one. Called behind each stage.
  virtual uint64_t step_of(const weft_bucket& bucket) const { return bucket.step; }
  // Whether every rank has the same results after it.
  virtual bool equal_results() const { return true; }
  // The error memory of a bucket, after its last stage; nothing without error feedback.
  virtual std::optional<ErrorMemory> error_memory(const weft_bucket& /*bucket*/) { return {}; }
  // replan() makes it follow another plan: what it keeps does not depend on which bucket a parameter is in.
  virtual bool can_replan() const { return true; }
  virtual Status replan(uint64_t /*bucket_count*/) { return {}; }
  virtual Status join(const weft_bucket& /*bucket*/) { return {}; }
  virtual Status rebind(int /*rank*/, int /*size*/) { return {}; }
  virtual Status save(Bytes* state) {
    state->clear();
    return {};
  }
  virtual Status load(ByteView /*state*/) { return {}; }
  virtual uint64_t memory_bytes() const { return 0; }  // of its state

  // Over whose ranks its collectives go, and its averages; null: the reducer's. Set before its first plan.
  const std::shared_ptr<Comm>& comm() const { return comm_; }
  void set_comm(std::shared_ptr<Comm> comm) { comm_ = std::move(comm); }

  // Where a stage that set `pending` is completed, with the generation of its token.
  virtual StageGate& gate() { return gate_; }
  virtual HookTurn& turn() { return turn_; }

 private:
  StageGate gate_;
  HookTurn turn_;
  std::shared_ptr<Comm> comm_;
};

// What a built-in hook is made of.
struct HookArgs {
  std::string_view options;     // weft_hook_params.options
  std::shared_ptr<Hook> inner;  // of a hook around another one, else null
  const DeviceOps& host;        // outlives the hook
  std::shared_ptr<Log> log;     // null: none
  std::shared_ptr<Comm> comm;   // over which it works; null: the reducer's
};

// A built-in hook's entry in the table of lib/registry.cpp.
struct HookFactory {
  const char* name;
  const char* summary;
  bool wraps;  // it is around another hook
  Status (*make)(const HookArgs& args, std::shared_ptr<Hook>* hook);
};

}  // namespace weft
