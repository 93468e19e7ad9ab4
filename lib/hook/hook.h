// A communication hook: how a bucket is communicated, as compute stages between declared collectives.
// Built-in hooks derive from Hook, each in its folder under hooks/. lib/hook/hook_table.cpp wraps a user's
// function table. The structs are those of weft.h.
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
#include "device/device.h"
#include "hook/hook_turn.h"
#include "hook/stage_gate.h"

namespace weft {

class Comm;
class Log;

// The kind of work in a hook's stages; it decides which thread runs them (hook/stage_worker.h).
enum class StageKind : uint8_t {
  kNothing,  // little or no work: the thread that polls runs it, under the progress lock
  kFinite,   // the stage worker, or a thread that waits for the step
  kForeign,  // the program's code, which may never return: only the stage worker
};

// The error memory of a bucket after a step, for hooks with error feedback.
struct ErrorMemory {
  double ratio = 0;      // its norm relative to that of this rank's gradients in the step
  bool growing = false;  // it keeps growing: error feedback does not converge
};

// Threads: calls never overlap. Each is made with the hook's turn taken (with_turn, Step), and in `caller`
// mode under the progress lock. gate(), turn() and name(): any thread.
class Hook {
 public:
  virtual ~Hook() = default;
  // Returns name and options as one string, which must be equal on all ranks.
  virtual std::string name() const = 0;
  // Declares the collectives and the scratch memory of a bucket. Called when a plan is made.
  virtual Status plan(const weft_bucket& bucket, weft_hook_plan* plan) = 0;
  // Computes before collective stage->index and after the previous one.
  virtual Status stage(const weft_bucket& bucket, weft_stage* stage) = 0;
  // Returns true if the hook is one averaged in-place all-reduce of the bucket and its stages do nothing.
  // They are then not called, and the bucket may be sent in parts.
  virtual bool plain() const { return false; }
  // Fused cast: returns the type to which the first stage rounds the bucket, after dividing it, into the
  // beginning of the scratch, before the only collective, an in-place all-reduce sum of that; the last stage
  // converts the sum back. The code that copies gradients may do both and skip the stages, and the elements
  // may be sent in parts. Any thread.
  virtual std::optional<Dtype> cast_dtype() const { return {}; }
  // Returns true if copies alone replace all stages around the only collective.
  bool copies_suffice() const { return plain() || cast_dtype().has_value(); }
  // Returns true if plan and stage are called for sparse gradients too (WEFT_HOOK_SPARSE).
  virtual bool takes_sparse() const { return false; }
  // If takes_sparse() is false: returns whether sparse gradients are sent without the hook. noop leaves
  // them unreduced.
  virtual bool sends_sparse() const { return true; }
  // Returns true if the hook obeys weft_bucket.shares.
  virtual bool takes_shares() const { return false; }
  virtual StageKind stage_kind() const { return StageKind::kFinite; }
  // Returns the step number in the descriptors of this bucket's collectives. A hook that draws random numbers
  // by its own step number, which must be equal on all ranks, returns that number. Called after each stage.
  virtual uint64_t step_of(const weft_bucket& bucket) const { return bucket.step; }
  // Returns true if every rank has the same results after the hook.
  virtual bool equal_results() const { return true; }
  // Returns the error memory of a bucket after its last stage; empty without error feedback.
  virtual std::optional<ErrorMemory> error_memory(const weft_bucket& /*bucket*/) { return {}; }
  // Returns true if replan() can switch to another plan: the hook's state does not depend on which bucket a
  // parameter is in.
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

  // Returns the communicator of its collectives and averages; null: the reducer's. Set before its first plan.
  const std::shared_ptr<Comm>& comm() const { return comm_; }
  void set_comm(std::shared_ptr<Comm> comm) { comm_ = std::move(comm); }

  // Returns the gate through which pending stages complete: it finds a stage by the generation of its token.
  virtual StageGate& gate() { return gate_; }
  virtual HookTurn& turn() { return turn_; }

 private:
  StageGate gate_;
  HookTurn turn_;
  std::shared_ptr<Comm> comm_;
};

// Arguments that create a built-in hook.
struct HookArgs {
  std::string_view options;     // weft_hook_params.options
  std::shared_ptr<Hook> inner;  // for a hook around another hook; otherwise null
  const DeviceOps& host;        // outlives the hook
  std::shared_ptr<Log> log;     // null: none
  std::shared_ptr<Comm> comm;   // the communicator it uses; null: the reducer's
};

// A built-in hook's entry in the table of lib/registry.cpp.
struct HookFactory {
  const char* name;
  const char* summary;
  bool wraps;  // it wraps another hook
  Status (*make)(const HookArgs& args, std::shared_ptr<Hook>* hook);
};

}  // namespace weft
