#include "base/status.h"

#include <cstddef>
#include <cstring>
#include <new>
#include <system_error>

namespace weft {

const char* code_name(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kArg:
      return "invalid argument";
    case Code::kState:
      return "not allowed in this state";
    case Code::kNoMemory:
      return "out of memory";
    case Code::kUnsupported:
      return "not supported";
    case Code::kUnavailable:
      return "not available";
    case Code::kTimeout:
      return "deadline passed";
    case Code::kNotDone:
      return "not done yet";
    case Code::kMismatch:
      return "ranks disagree";
    case Code::kPeerFailed:
      return "another rank failed";
    case Code::kAborted:
      return "aborted";
    case Code::kCancelled:
      return "cancelled";
    case Code::kAuth:
      return "authentication failed";
    case Code::kVersion:
      return "incompatible version";
    case Code::kSystem:
      return "system call failed";
    case Code::kForked:
      return "object inherited by fork";
    case Code::kHook:
      return "communication hook failed";
    case Code::kMinority:
      return "survivors are a minority";
    case Code::kInternal:
      return "internal error";
    case Code::kInterrupted:
      return "interrupted";
    case Code::kStepFailed:
      return "step failed by the program";
  }
  return "unknown status";
}

Status Status::error(Code code, std::string text, Evidence evidence, const char* file, int line) {
  ErrorInfo info;
  info.code = code;
  info.evidence = evidence;
  info.text = std::move(text);
  info.file = file;
  info.line = line;
  return Status(std::move(info));
}

Status Status::system(const std::string& what, int error_number, const char* file, int line) {
  return error(Code::kSystem, what + ": " + std::generic_category().message(error_number), Evidence::kLocal,
               file, line);
}

Status Status::out_of_memory() {
  // Never destroyed: usable during exit. The text is short enough for std::string's inline buffer.
  alignas(ErrorInfo) static std::byte memory[sizeof(ErrorInfo)];
  static const ErrorInfo* const kInfo = [] {
    auto* const info = new (memory) ErrorInfo;
    info->code = Code::kNoMemory;
    info->evidence = Evidence::kLocal;
    info->text = "out of memory";
    return info;
  }();
  Status status;
  status.info_ = std::shared_ptr<const ErrorInfo>(std::shared_ptr<void>(), kInfo);  // owns nothing
  return status;
}

const ErrorInfo& Status::info() const {
  alignas(ErrorInfo) static std::byte memory[sizeof(ErrorInfo)];
  static const ErrorInfo* const kOk = new (memory) ErrorInfo;  // never destroyed: usable during exit
  return info_ ? *info_ : *kOk;
}

const std::string& Status::text() const {
  return info().text;
}

Status Status::with_ranks(std::vector<int> ranks) const {
  if (ok()) return *this;
  ErrorInfo copy = *info_;
  copy.ranks = std::move(ranks);
  return Status(std::move(copy));
}

Status Status::with_slot(uint64_t slot) const {
  if (ok()) return *this;
  ErrorInfo copy = *info_;
  copy.slot = slot;
  return Status(std::move(copy));
}

Status Status::with_step(uint64_t step) const {
  if (ok()) return *this;
  ErrorInfo copy = *info_;
  copy.step = step;
  return Status(std::move(copy));
}

Status Status::with_prefix(const std::string& prefix) const {
  if (ok()) return *this;
  ErrorInfo copy = *info_;
  copy.text = prefix + copy.text;
  return Status(std::move(copy));
}

Status Status::with_suffix(const std::string& suffix) const {
  if (ok()) return *this;
  ErrorInfo copy = *info_;
  copy.text += suffix;
  return Status(std::move(copy));
}

}  // namespace weft
