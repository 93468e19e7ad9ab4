#include "coll/select.h"

#include <string_view>

#include "base/text.h"

namespace weft::coll {

#define WEFT_ALGORITHM(coll, name) \
  namespace coll {                 \
  const Algorithm& name();         \
  }
#include "coll/algorithm_table.h"
#undef WEFT_ALGORITHM

namespace {

constexpr AlgorithmRow kTable[] = {
#define WEFT_ALGORITHM(coll, name) &coll::name,
#include "coll/algorithm_table.h"
#undef WEFT_ALGORITHM
};

}  // namespace

std::span<const AlgorithmRow> algorithms() {
  return kTable;
}

Status select(Coll coll, const Shape& shape, const Forced& forced, const Algorithm** algorithm) {
  const char* const wanted = forced[coll];
  for (const AlgorithmRow row_of : kTable) {
    const Algorithm& row = row_of();
    if (row.coll != coll) continue;
    if (wanted != nullptr ? std::string_view(wanted) == row.name : row.applies(shape)) {
      *algorithm = &row;
      return {};
    }
  }
  return Status::error(Code::kUnsupported,
                       cat("there is no algorithm ", wanted ? wanted : "", " for ", name(coll)));
}

}  // namespace weft::coll
