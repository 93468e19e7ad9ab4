// Version, status texts, and shared functions of this folder.
#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/dtype.h"
#include "capi/handles.h"

namespace weft::capi {

// The internal enumerations have the public values.
static_assert(static_cast<int>(Dtype::kU8) == WEFT_DTYPE_U8 &&
              static_cast<int>(Dtype::kF64) == WEFT_DTYPE_F64 &&
              static_cast<int>(Dtype::kC128) == WEFT_DTYPE_C128 &&
              static_cast<int>(Dtype::kBool) == WEFT_DTYPE_BOOL);
static_assert(static_cast<int>(Dtype::kF16) == WEFT_DTYPE_F16 &&
              static_cast<int>(Dtype::kBf16) == WEFT_DTYPE_BF16);
static_assert(static_cast<int>(ReduceOp::kSum) == WEFT_OP_SUM &&
              static_cast<int>(ReduceOp::kMax) == WEFT_OP_MAX);
static_assert(static_cast<int>(ReduceOp::kPremulSum) == WEFT_OP_PREMUL_SUM &&
              static_cast<int>(ReduceOp::kUser) == WEFT_OP_USER);
static_assert(static_cast<int>(Coll::kAllReduce) == WEFT_COLL_ALL_REDUCE &&
              static_cast<int>(Coll::kAllToAll) == WEFT_COLL_ALL_TO_ALL &&
              static_cast<int>(Coll::kRecv) == WEFT_COLL_RECV);
static_assert(static_cast<int>(Code::kArg) == WEFT_ERR_ARG &&
              static_cast<int>(Code::kStepFailed) == WEFT_ERR_STEP_FAILED);
static_assert(static_cast<int>(Code::kMismatch) == WEFT_ERR_MISMATCH &&
              static_cast<int>(Code::kForked) == WEFT_ERR_FORKED);
static_assert(static_cast<int>(Evidence::kReport) == WEFT_EVIDENCE_REPORT);
static_assert(static_cast<int>(LogLevel::kDebug) == WEFT_LOG_DEBUG);

void fill_error(const Status& status, weft_error* out, const std::string& otherwise) {
  if (out == nullptr) return;
  const ErrorInfo& info = status.info();
  weft_error error{};
  error.code = static_cast<int32_t>(info.code);
  error.evidence = static_cast<int32_t>(info.evidence);
  error.slot = info.slot;
  error.step = info.step;
  error.failed_count = info.ranks.size();
  for (size_t i = 0; i < std::min<size_t>(info.ranks.size(), WEFT_ERROR_RANKS); i++) {
    error.failed_ranks[i] = info.ranks[i];
  }
  put_text(status.ok() ? otherwise : info.text, error.text);
  (void)write_struct(error, "error", out).ok();
}

namespace {

// The details of the thread's last failed call: a plain struct, because the library has no destructors.
thread_local weft_error last_error = WEFT_ERROR_INIT;

}  // namespace

weft_status ended(const Status& status) noexcept {
  if (!status.ok() && status.code() != Code::kNotDone) fill_error(status, &last_error);
  return code_of(status);
}

Status put_long_text(const char* call, const std::string& whole, char* text, uint64_t room, uint64_t* size) {
  *size = whole.size() + 1;
  if (text == nullptr) return {};
  if (room > 0) {
    const uint64_t fits = std::min<uint64_t>(whole.size(), room - 1);
    std::memcpy(text, whole.data(), fits);
    text[fits] = 0;
  }
  if (room >= *size) return {};
  return Status::error(Code::kArg, cat(call, ": the text has ", *size,
                                       " bytes, but *size, the size of the buffer, is ", room));
}

}  // namespace weft::capi

using namespace weft;
using namespace weft::capi;

extern "C" {

uint32_t weft_version(void) {
  return WEFT_VERSION_NUMBER;
}

const char* weft_status_string(weft_status status) {
  return code_name(static_cast<Code>(status));
}

weft_status weft_last_error(weft_error* error) {
  if (error != nullptr) (void)write_struct(last_error, "error", error).ok();
  return last_error.code;
}

}  // extern "C"
