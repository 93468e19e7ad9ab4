#include "hook/hook_table.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "base/arguments.h"
#include "base/text.h"
#include "engine/callbacks.h"
#include "hook/hook_guard.h"

namespace weft {
namespace {

constexpr size_t kMaxHookName = 255;

// Buffer into which a function of the table writes its error text; termination is not assumed.
class Message {
 public:
  char* data() { return text_.data(); }
  std::string text() const { return {text_.data(), strnlen(text_.data(), text_.size())}; }

 private:
  std::array<char, kHookMessageBytes> text_{};
};

class HookTable final : public Hook {
 public:
  HookTable(const weft_hook_table& table, void* user_data)
      : table_(table), name_(table.name), user_data_(user_data) {
    table_.name = name_.c_str();
  }
  ~HookTable() override {
    const Callbacks::Mark mark;
    const auto free = [&] {
      if (table_.free_user_data != nullptr) table_.free_user_data(user_data_);
      return Status();
    };
    guard_hook(*this, "free_user_data", free).ok();  // no caller is left to report an error to
  }
  HookTable(const HookTable&) = delete;
  HookTable& operator=(const HookTable&) = delete;

  std::string name() const override { return name_; }
  StageKind stage_kind() const override { return StageKind::kForeign; }
  bool takes_sparse() const override { return (table_.flags & WEFT_HOOK_SPARSE) != 0; }
  bool takes_shares() const override { return (table_.flags & WEFT_HOOK_SHARES) != 0; }
  Status plan(const weft_bucket& bucket, weft_hook_plan* plan) override {
    return call("plan", table_.plan, &bucket, plan);
  }
  Status stage(const weft_bucket& bucket, weft_stage* stage) override {
    return call("stage", table_.stage, &bucket, stage);
  }
  bool can_replan() const override { return table_.replan != nullptr; }
  Status replan(uint64_t bucket_count) override { return call("replan", table_.replan, bucket_count); }
  Status join(const weft_bucket& bucket) override { return call("join", table_.join, &bucket); }
  Status rebind(int rank, int size) override { return call("rebind", table_.rebind, rank, size); }
  Status save(Bytes* state) override {
    state->clear();
    uint64_t size = 0;
    WEFT_TRY(call("save", table_.save, nullptr, &size));
    if (size > kMaxState)
      return failed(
          "save", WEFT_ERR_ARG,
          cat("its state has ", bytes_text(size), ", at most ", bytes_text(kMaxState), " are allowed"));
    state->resize(size);
    WEFT_TRY(call("save", table_.save, state->data(), &size));
    if (size > state->size()) {
      return failed("save", WEFT_ERR_ARG,
                    cat("its state grew from ", state->size(), " to ", size, " bytes between two calls"));
    }
    state->resize(size);
    return {};
  }
  Status load(ByteView state) override {
    return call("load", table_.load, state.data(), uint64_t{state.size()});
  }

 private:
  static constexpr uint64_t kMaxState = uint64_t{1} << 40;

  // Calls one function of the table, if it is set.
  template <class Function, class... Args>
  Status call(const char* what, Function function, Args... args) {
    if (function == nullptr) return {};
    Message message;
    const Callbacks::Mark mark;
    const weft_status status = function(user_data_, args..., message.data());
    return status == WEFT_OK ? Status() : failed(what, status, message.text());
  }
  Status failed(const char* what, weft_status status, const std::string& message) const {
    return Status::error(Code::kHook, cat("hook '", name_, "' failed in ", what, ": ",
                                          message.empty() ? "no message" : message, " (",
                                          code_name(static_cast<Code>(status)), ")"));
  }

  weft_hook_table table_;
  const std::string name_;
  void* const user_data_;
};

}  // namespace

Status make_hook_table(const weft_hook_table& table, void* user_data, std::shared_ptr<Hook>* hook) {
  hook->reset();
  if (table.name == nullptr || table.name[0] == 0)
    return Status::error(Code::kArg, "weft_hook_table.name is missing: set it to a non-empty name");
  if (strnlen(table.name, kMaxHookName + 1) > kMaxHookName) {
    return Status::error(Code::kArg, cat("weft_hook_table.name is longer than the limit of ", kMaxHookName,
                                         " bytes: use a shorter name"));
  }
  constexpr NamedValue kFlags[] = {WEFT_NAMED(WEFT_HOOK_SPARSE), WEFT_NAMED(WEFT_HOOK_SHARES)};
  WEFT_TRY(check_flags(cat("hook '", table.name, "': weft_hook_table.flags"), table.flags, kFlags));
  for (const auto& [set, function] :
       {std::pair{table.plan != nullptr, "plan"}, {table.stage != nullptr, "stage"}}) {
    if (!set)
      return Status::error(Code::kArg, cat("hook '", table.name, "': weft_hook_table.", function,
                                           " is NULL: set it to a function"));
  }
  *hook = std::make_shared<HookTable>(table, user_data);
  return {};
}

void complete_stage(Hook& hook, const weft_stage_token& token, weft_status result, const char* message) {
  Status status;
  if (result != WEFT_OK) {
    const std::string text =
        message == nullptr ? "" : std::string(message, strnlen(message, kHookMessageBytes));
    status = Status::error(Code::kHook, cat("hook '", hook.name(), "' completed its stage with an error: ",
                                            text.empty() ? "no message" : text, " (",
                                            code_name(static_cast<Code>(result)), ")"));
  }
  hook.gate().complete(token.generation, std::move(status));
}

}  // namespace weft
