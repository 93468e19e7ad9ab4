#include "base/interrupt.h"

#include <utility>

#include "base/callback_mark.h"
#include "base/text.h"

namespace weft {
namespace {

constexpr uint64_t kIntervalNs = static_cast<uint64_t>(Interrupt::kIntervalMs) * 1'000'000u;

// The innermost call of this thread. It is on the thread's stack, so it is not library state.
constinit thread_local Interrupt::Scope* current = nullptr;

}  // namespace

Interrupt::Scope::Scope() : thread_(current), outer_(std::exchange(thread_, this)) {}

Interrupt::Scope::~Scope() {
  thread_ = outer_;
}

void Interrupt::listen_to(const Source& source) {
  if (current != nullptr) current->source_ = source;
}

bool Interrupt::due() {
  Scope* const scope = current;
  if (scope == nullptr || scope->source_.ask == nullptr) return false;
  return scope->requested_ || next().expired(*scope->source_.clock);
}

bool Interrupt::poll() {
  return due() && ask();
}

bool Interrupt::ask() {
  Scope* const scope = current;
  if (scope == nullptr || scope->source_.ask == nullptr) return false;
  if (scope->requested_) return true;
  {
    const CallbackMark mark;
    scope->requested_ = scope->source_.ask(scope->source_.user_data) != 0;
  }
  scope->next_ns_ = scope->source_.clock->now_ns() + kIntervalNs;
  return scope->requested_;
}

bool Interrupt::requested() {
  return current != nullptr && current->requested_;
}

Deadline Interrupt::next() {
  Scope* const scope = current;
  if (scope == nullptr || scope->source_.ask == nullptr) return Deadline::never();
  if (scope->requested_) return Deadline::at(0);
  if (scope->next_ns_ == 0) scope->next_ns_ = scope->source_.clock->now_ns() + kIntervalNs;
  return Deadline::at(scope->next_ns_);
}

Status Interrupt::status() {
  return requested() ? Status::error(Code::kInterrupted, "the program interrupted the call") : Status();
}

Status Interrupt::result(Status status) {
  if (status.ok() || status.code() == Code::kInterrupted || !requested()) return status;
  ErrorInfo info = status.info();
  info.code = Code::kInterrupted;
  info.text = cat("the program interrupted the call: ", info.text);
  return Status(std::move(info));
}

}  // namespace weft
