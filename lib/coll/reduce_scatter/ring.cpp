// Blocks pass around a ring, where each rank adds its part. Each rank sends n-1 blocks to one neighbour.
// While a chunk is folded, the next ones are being sent.
#include <array>

#include "coll/algorithm.h"

namespace weft::coll::reduce_scatter {
namespace {

constexpr uint64_t kMostBytes = 128 * 1024;  // of a chunk

// Blocks are sent in windows of kPipeline chunks, because scratch memory holds the partial results of a
// window. Within a window, chunk c is message r * kPipeline + c, if it is sent in round r of the ring.
void build_ring(const Shape& shape, Schedule& schedule) {
  const int n = shape.size;
  if (n == 1) {
    const Ref own[] = {source()};
    schedule.fold(own, target(), shape.count);
    return schedule.end_round();
  }
  const uint64_t most = pipeline_elements(shape, shape.count);
  const bool pipelined = chunks_of(shape.count, most) >= kPipeline;
  const uint64_t chunk = std::min(most, kMostBytes / shape.element);
  const uint64_t window = pipelined ? kPipeline : 1;
  const uint64_t windows = chunks_of(chunks_of(shape.count, chunk), window);
  const auto rounds = static_cast<uint64_t>(n - 1);
  const uint64_t messages = windows * rounds * window;
  const auto round_of = [&](uint64_t message) { return message / window % rounds; };
  // The part of block rank - behind - round that a message has.
  const auto part_of = [&](uint64_t message, int behind) {
    const uint64_t c = message / (window * rounds) * window + message % window;
    Slice part = chunk_of({0, shape.count}, c, chunk);
    const int block = (shape.rank - behind - static_cast<int>(round_of(message)) + 2 * n) % n;
    part.begin += static_cast<uint64_t>(block) * shape.count;
    return part;
  };
  std::array<Ref, 3> rooms;
  std::array<Ref, kPipeline> sums;
  const uint64_t bytes = std::min(shape.count, chunk) * shape.element;
  for (Ref& room : rooms) room = schedule.scratch(bytes);
  for (uint64_t i = 0; i < window; i++) sums[i] = schedule.scratch(bytes);
  const auto fold = [&](uint64_t message) {
    const Slice part = part_of(message, 2);
    const Ref inputs[] = {rooms[message % rooms.size()], source(part.begin * shape.element)};
    if (round_of(message) + 1 == rounds) {
      const uint64_t first = static_cast<uint64_t>(shape.rank) * shape.count;
      schedule.fold(inputs, target((part.begin - first) * shape.element), part.count);
    } else {
      schedule.add(inputs, sums[message % window], part.count);
    }
  };
  const When when = pipelined ? When::kAhead : When::kInRound;
  for (uint64_t message = 0; message < messages; message++) {
    const Slice out = part_of(message, 1), in = part_of(message, 2);
    const auto step = static_cast<uint32_t>(message);
    schedule.send((shape.rank + 1) % n, step,
                  round_of(message) == 0 ? source(out.begin * shape.element) : sums[message % window],
                  out.count * shape.element, when);
    schedule.receive((shape.rank + n - 1) % n, step, rooms[message % rooms.size()], in.count * shape.element,
                     when);
    if (pipelined && message > 0) {
      fold(message - 1);
      schedule.meanwhile();
    }
    if (!pipelined || message + 1 == messages) fold(message);
    schedule.end_round();
  }
}

}  // namespace

const Algorithm& ring() {
  static constexpr Algorithm kRow{Coll::kReduceScatter, "ring", never, build_ring, true, true};
  return kRow;
}

}  // namespace weft::coll::reduce_scatter
