// Parameters without a gradient in a step. Threads: any thread.
#pragma once

#include "reducer/data.h"

namespace weft {

Status declare_absent(ReducerData& r, const uint64_t* params, uint64_t count);
// Excludes a claimed parameter. True: it is absent and contributes zeros. False: it contributes what local
// steps have accumulated.
bool exclude_param(ReducerData& r, uint64_t param, uint32_t stamp);
// Refuses to leave out a parameter whose sum of local steps would be lost: the program has it, and has not
// said where.
Status check_sum(const ReducerData& r, uint64_t param);
// Returns where the program wants the result of an absent parameter, or null.
std::byte* result_place(const ReducerData& r, uint64_t param);

}  // namespace weft
