#include "coll/select.h"

#include <algorithm>
#include <iterator>
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

constexpr uint64_t kUnlimited = UINT64_MAX;

Status wrong(const std::string& what) {
  return Status::error(Code::kArg, cat("WEFT_TUNE: ", what));
}

std::string range_text(uint64_t from, uint64_t end) {
  return cat(bytes_text(from), " to ", end == kUnlimited ? "inf" : bytes_text(end));
}

// Takes the text up to the separator, and the separator, from *text.
std::string_view cut(std::string_view* text, char separator) {
  const std::string_view part = text->substr(0, text->find(separator));
  text->remove_prefix(std::min(text->size(), part.size() + 1));
  return part;
}

bool parse_range(std::string_view text, uint64_t* from, uint64_t* end) {
  const size_t dash = text.find('-');
  if (dash == text.npos || !parse_bytes(text.substr(0, dash), from)) return false;
  const std::string_view last = text.substr(dash + 1);
  *end = kUnlimited;
  return (last == "inf" || parse_bytes(last, end)) && *from < *end;
}

// Finds a row of the table. Returns kArg, listing the collectives or the algorithms, if there is none.
Status find_row(std::string_view coll, std::string_view wanted, const Algorithm** found) {
  std::vector<std::string_view> known, colls;
  for (const AlgorithmRow row_of : kTable) {
    const Algorithm& row = row_of();
    if (colls.empty() || colls.back() != name(row.coll)) colls.emplace_back(name(row.coll));
    if (coll != name(row.coll)) continue;
    known.emplace_back(row.name);
    if (wanted == row.name) *found = &row;
  }
  if (known.empty()) {
    return wrong(cat("\"", coll, "\" is no collective: allowed are ", list_text(colls),
                     ", each followed by :ALGORITHM or :LOW-HIGH:ALGORITHM, and off"));
  }
  if (*found != nullptr) return {};
  return wrong(cat(coll, " has no algorithm \"", wanted, "\": allowed are ", list_text(known)));
}

// Parses "all_reduce:0-4K:doubling,4K-inf:ring", "broadcast:flat" or "off".
Status parse_entry(std::string_view entry, Forced* forced) {
  if (entry == "off") {
    forced->measure = false;
    return {};
  }
  const std::string_view coll = cut(&entry, ':');
  do {
    std::string_view choice = cut(&entry, ',');
    uint64_t from = 0, end = kUnlimited;
    if (const size_t colon = choice.find(':'); colon != choice.npos) {
      const std::string_view range = choice.substr(0, colon);
      choice.remove_prefix(colon + 1);
      if (!parse_range(range, &from, &end)) {
        return wrong(cat("\"", range,
                         "\" is no range of bytes: give LOW-HIGH with LOW below HIGH, for example ",
                         "0-4K, 4K-1M or 1M-inf"));
      }
    }
    const Algorithm* algorithm = nullptr;
    WEFT_TRY(find_row(coll, choice, &algorithm));
    WEFT_TRY(forced->add(*algorithm, from, end));
  } while (!entry.empty());
  return {};
}

}  // namespace

std::span<const AlgorithmRow> algorithms() {
  return kTable;
}

Status Forced::add(const Algorithm& algorithm, uint64_t from, uint64_t end) {
  auto at = ranges_.begin();
  for (; at != ranges_.end(); ++at) {
    if (at->algorithm->coll != algorithm.coll || at->end <= from) continue;
    if (at->from >= end) break;
    return wrong(cat(name(algorithm.coll), " has two algorithms, ", at->algorithm->name, " and ",
                     algorithm.name, ", for ", range_text(std::max(at->from, from), std::min(at->end, end)),
                     ": ranges of a collective must not overlap"));
  }
  ranges_.insert(at, {&algorithm, from, end});
  return {};
}

const Algorithm* Forced::named(Coll coll, uint64_t bytes) const {
  for (const Range& range : ranges_) {
    if (range.algorithm->coll == coll && bytes >= range.from &&
        (bytes < range.end || range.end == kUnlimited)) {
      return range.algorithm;
    }
  }
  return nullptr;
}

bool Forced::covers(Coll coll) const {
  uint64_t end = 0;
  for (const Range& range : ranges_) {
    if (range.algorithm->coll == coll && range.from == end) end = range.end;
  }
  return end == kUnlimited;
}

Status parse_forced(std::string_view text, Forced* forced) {
  while (!text.empty()) WEFT_TRY(parse_entry(cut(&text, ';'), forced));
  return {};
}

std::string text(const Forced& forced) {
  if (!forced.one_shot) return {};
  return cat("; one_shot up to ", bytes_text(*forced.one_shot), " (measured)");
}

const Algorithm& select(Coll coll, const Shape& shape, const Forced& forced) {
  const auto may_run = [&](const Algorithm& row) { return !row.partial || !shape.at_once; };
  const Algorithm* const named = forced.named(coll, shape.bytes());
  if (named != nullptr && may_run(*named)) return *named;
  // Every collective has a row that always applies.
  const auto* row = std::find_if(std::begin(kTable), std::end(kTable), [&](const AlgorithmRow row_of) {
    return row_of().coll == coll && may_run(row_of()) && row_of().applies(shape);
  });
  return (*row)();
}

}  // namespace weft::coll
