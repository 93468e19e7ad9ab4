// Reads the caller's list of parameters, of any header version. For calls that take one.
#pragma once

#include <vector>

#include "capi/guard.h"
#include "reducer/manifest/manifest.h"

namespace weft::capi {

// size: the size of an array element as the caller states it; 0: the struct_size of the first element.
inline Status read_params(const weft_param* given, uint64_t count, uint64_t size,
                          std::vector<weft_param>* params) {
  if (count == 0) return Status::error(Code::kArg, "param_count is 0: give at least one parameter");
  if (given == nullptr) return null_argument("params");
  const uint64_t stride = size != 0 ? size : given->struct_size;
  if (stride < sizeof(size_t) || stride > kMaxStructSize) {
    return Status::error(Code::kArg, cat(size != 0 ? "param_size" : "params[0].struct_size", " is ", stride,
                                         "; set it to sizeof(weft_param)"));
  }
  if (count > kMaxParams) {
    return Status::error(Code::kArg, cat("param_count is ", count, ": allowed are 1 to ", kMaxParams));
  }
  params->resize(count);
  const auto* at = reinterpret_cast<const unsigned char*>(given);
  for (weft_param& param : *params) {
    WEFT_TRY(read_struct(reinterpret_cast<const weft_param*>(at), "weft_param", &param, stride));
    at += stride;
  }
  return {};
}

}  // namespace weft::capi
