#include "schedules/operation.h"

#include <stdexcept>
#include <string>

#include "base/text.h"
#include "coll/select.h"
#include "framed/wire.h"

namespace weft::bench {

using namespace weft::coll;

static_assert(kHeaderBytes == sizeof(framed::Header));

namespace {

bool is_offered(const Algorithm& row) {
  return row.coll != Coll::kSend && row.coll != Coll::kRecv && !has_blocks(row.coll);
}

}  // namespace

const Algorithm& find_algorithm(std::string_view collective, std::string_view name) {
  std::string known;
  for (const AlgorithmRow row_of : algorithms()) {
    const Algorithm& row = row_of();
    if (!is_offered(row)) continue;
    if (collective == weft::name(row.coll) && name == row.name) return row;
    known += cat(known.empty() ? "" : ", ", weft::name(row.coll), " ", row.name);
  }
  throw std::invalid_argument(
      cat("there is no algorithm \"", name, "\" of \"", collective, "\": allowed are ", known));
}

Schedule schedule_of(const Operation& operation, int rank) {
  Shape shape;
  shape.rank = rank;
  shape.size = operation.size;
  shape.count = operation.count;
  shape.element = operation.element;
  Schedule schedule;
  operation.algorithm->build(shape, schedule);
  if (needs_handshake(*operation.algorithm, shape)) {
    schedule.add_handshake(rank, shape.size, operation.algorithm->synchronises);
  }
  return schedule;
}

uint64_t touched_bytes(const Work& work, uint64_t element) {
  if (work.kind == WorkKind::kCopy) return 2 * work.count;
  return (uint64_t{work.input_count} + 1) * work.count * element;
}

}  // namespace weft::bench
