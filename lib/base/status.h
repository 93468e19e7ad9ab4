// The result of a function: ok, or an error with code, text and evidence. Weft passes errors only this way.
// Threads: a Status is a value; copies share one immutable record.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace weft {

// The values are those of weft_status in weft.h (checked in lib/capi/common.cpp) and never change.
enum class Code : int32_t {
  kOk = 0,
  kArg = 1,
  kState = 2,
  kNoMemory = 3,
  kUnsupported = 4,
  kUnavailable = 5,
  kTimeout = 6,
  kNotDone = 7,
  kMismatch = 8,
  kPeerFailed = 9,
  kAborted = 10,
  kCancelled = 11,
  kAuth = 12,
  kVersion = 13,
  kSystem = 14,
  kForked = 15,
  kHook = 16,
  kMinority = 17,
  kInternal = 18,
  kInterrupted = 19,
  kStepFailed = 20,
};
inline constexpr Code kLastCode = Code::kStepFailed;

const char* code_name(Code code);

// The evidence for an error; values as WEFT_EVIDENCE_*.
enum class Evidence : int32_t {
  kNone = 0,
  kLocal = 1,
  kConnection = 2,
  kProcess = 3,
  kHeartbeat = 4,
  kDeadline = 5,
  kDescriptor = 6,
  kReport = 7,
};

inline constexpr uint64_t kNoSlot = UINT64_MAX;
inline constexpr uint64_t kNoStep = UINT64_MAX;

struct ErrorInfo {
  Code code = Code::kOk;
  Evidence evidence = Evidence::kNone;
  std::string text;
  std::vector<int> ranks;  // the ranks that caused it, ascending
  uint64_t slot = kNoSlot;
  uint64_t step = kNoStep;
  const char* file = "";  // source position
  int line = 0;
};

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  explicit Status(ErrorInfo info) : info_(std::make_shared<const ErrorInfo>(std::move(info))) {}

  static Status error(Code code, std::string text, Evidence evidence = Evidence::kLocal,
                      const char* file = __builtin_FILE(), int line = __builtin_LINE());
  // Makes the error of a failed system call: "what: strerror(error_number)".
  static Status system(const std::string& what, int error_number, const char* file = __builtin_FILE(),
                       int line = __builtin_LINE());

  // Returns the error for exhausted memory, without allocating any.
  static Status out_of_memory();

  bool ok() const { return info_ == nullptr; }
  Code code() const { return info_ ? info_->code : Code::kOk; }
  const std::string& text() const;
  const ErrorInfo& info() const;

  // Return a copy of the error with added details; ok stays ok.
  Status with_ranks(std::vector<int> ranks) const;
  Status with_slot(uint64_t slot) const;
  Status with_step(uint64_t step) const;
  Status with_prefix(const std::string& prefix) const;
  Status with_suffix(const std::string& suffix) const;

 private:
  std::shared_ptr<const ErrorInfo> info_;
};

// Returns early with an error.
#define WEFT_TRY(expression)                                                                          \
  do {                                                                                                \
    if (::weft::Status weft_try_status = (expression); !weft_try_status.ok()) return weft_try_status; \
  } while (0)

}  // namespace weft
