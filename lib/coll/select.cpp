#include "coll/select.h"

#include <algorithm>
#include <string_view>
#include <vector>

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

Status parse_entry(std::string_view entry, Forced* forced) {
  const size_t equals = entry.find('=');
  const std::string_view coll = entry.substr(0, equals);
  const std::string_view wanted = equals == entry.npos ? "" : entry.substr(equals + 1);
  if (entry == "off") {
    forced->measure = false;
    return {};
  }
  if (coll == "one_shot") {
    uint64_t bytes = 0;
    if (!parse_bytes(wanted, &bytes))
      return Status::error(Code::kArg, cat("WEFT_ALGORITHMS: \"", entry,
                                           "\" has no valid size: give bytes, for example one_shot=64K"));
    forced->one_shot = bytes;
    return {};
  }
  std::vector<std::string_view> known;
  const Algorithm* found = nullptr;
  for (const AlgorithmRow row_of : kTable) {
    const Algorithm& row = row_of();
    if (coll != name(row.coll)) continue;
    known.emplace_back(row.name);
    if (wanted == row.name) found = &row;
  }
  if (known.empty()) {
    return Status::error(Code::kArg,
                         cat("WEFT_ALGORITHMS: \"", entry,
                             "\" is not an entry: allowed are COLLECTIVE=ALGORITHM, one_shot=SIZE and off"));
  }
  if (found == nullptr) {
    return Status::error(Code::kArg, cat("WEFT_ALGORITHMS: ", coll, " has no algorithm \"", wanted,
                                         "\": allowed are ", list_text(known)));
  }
  (*forced)[found->coll] = found->name;
  return {};
}

}  // namespace

std::span<const AlgorithmRow> algorithms() {
  return kTable;
}

Status parse_forced(std::string_view text, Forced* forced) {
  while (!text.empty()) {
    const std::string_view entry = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), entry.size() + 1));
    WEFT_TRY(parse_entry(entry, forced));
  }
  return {};
}

std::string text(const Forced& forced) {
  if (!forced.one_shot) return {};
  return cat("; one_shot up to ", bytes_text(*forced.one_shot), forced.measured ? " (measured)" : " (given)");
}

Status select(Coll coll, const Shape& shape, const Forced& forced, const Algorithm** algorithm) {
  const char* const wanted = forced[coll];
  const Algorithm* first = nullptr;
  for (const AlgorithmRow row_of : kTable) {
    const Algorithm& row = row_of();
    if (row.coll != coll || (row.partial && shape.at_once)) continue;
    if (wanted != nullptr && std::string_view(wanted) == row.name) {
      *algorithm = &row;
      return {};
    }
    if (first == nullptr && row.applies(shape)) first = &row;
  }
  if (first != nullptr && (wanted == nullptr || shape.at_once)) {
    *algorithm = first;
    return {};
  }
  return Status::error(
      Code::kUnsupported,
      wanted ? cat(name(coll), " has no algorithm \"", wanted, "\"; correct WEFT_ALGORITHMS")
             : cat("internal: no algorithm for ", name(coll), "; report this as a bug of Weft"));
}

}  // namespace weft::coll
