// Shared by tests of sharded reducers.
#pragma once

#include <vector>

#include "reducer_rig.h"

namespace weft::test {

inline constexpr uint64_t kWhole = WEFT_REDUCER_SHARDED | WEFT_REDUCER_OWN_WHOLE;

inline std::vector<TestParam> params() {
  std::vector<TestParam> out = mixed_params();
  out.push_back({"large", {3'000, 7}});
  return out;
}

inline std::vector<weft_slice> slices_of(Rank& self, Reducer& reducer, int rank) {
  uint64_t count = 0;
  self.expect(reducer.owned(rank, nullptr, &count), "how many slices");
  std::vector<weft_slice> out(count);
  self.expect(reducer.owned(rank, out.data(), &count), "slices");
  return out;
}

}  // namespace weft::test
