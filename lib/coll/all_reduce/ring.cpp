// Slices pass around a ring, where each rank adds its part; then the results pass around once more. Each rank
// sends 2 (n-1)/n of the vector, to one neighbour. While a chunk is folded, the next ones are being sent.
#include <array>

#include "coll/algorithm.h"

namespace weft::coll::all_reduce {
namespace {

// A slice's chunk c is message number r * chunks + c, if it is sent in round r of the ring. Its sum is sent
// `chunks` messages later, so with kPipeline chunks it is folded before that message is posted.
void build_ring(const Shape& shape, Schedule& schedule) {
  const int n = shape.size;
  if (n == 1) {
    const Ref own[] = {source()};
    schedule.fold(own, target(), shape.count);
    return schedule.end_round();
  }
  const uint64_t longest = slice_of(shape, 0, n).count;
  const uint64_t chunk = pipeline_elements(shape, longest);
  const uint64_t chunks = chunks_of(longest, chunk);
  const bool pipelined = chunks >= kPipeline;
  const auto adding = static_cast<uint64_t>(n - 1) * chunks;  // messages with partial results
  // Chunk of a message that this rank sends. Slice s begins at rank s + 1 and is complete at rank s.
  const auto sent = [&](uint64_t message) {
    const auto round = static_cast<int>(message / chunks % static_cast<uint64_t>(n - 1));
    const int slice = message < adding ? shape.rank - 1 - round : shape.rank - round;
    return chunk_of(slice_of(shape, (slice + 2 * n) % n, n), message % chunks, chunk);
  };
  const auto received = [&](uint64_t message) {
    const auto round = static_cast<int>(message / chunks % static_cast<uint64_t>(n - 1));
    const int slice = message < adding ? shape.rank - 2 - round : shape.rank - 1 - round;
    return chunk_of(slice_of(shape, (slice + 2 * n) % n, n), message % chunks, chunk);
  };
  std::array<Ref, 3> rooms;
  for (Ref& room : rooms) room = schedule.scratch(std::min(longest, chunk) * shape.element);
  const auto fold = [&](uint64_t message) {
    const Slice part = received(message);
    const uint64_t offset = part.begin * shape.element;
    const Ref inputs[] = {rooms[message % rooms.size()], source(offset)};
    if (message + chunks >= adding) {
      schedule.fold(inputs, target(offset), part.count);
    } else {
      schedule.add(inputs, target(offset), part.count);
    }
  };
  const When when = pipelined ? When::kAhead : When::kInRound;
  for (uint64_t message = 0; message < 2 * adding; message++) {
    const Slice out = sent(message), in = received(message);
    const auto step = static_cast<uint32_t>(message);
    const uint64_t from = out.begin * shape.element;
    schedule.send((shape.rank + 1) % n, step, message < chunks ? source(from) : target(from),
                  out.count * shape.element, when);
    schedule.receive((shape.rank + n - 1) % n, step,
                     message < adding ? rooms[message % rooms.size()] : target(in.begin * shape.element),
                     in.count * shape.element, when);
    if (pipelined && message > 0 && message <= adding) {
      fold(message - 1);
      schedule.meanwhile();
    }
    if (!pipelined && message < adding) fold(message);
    schedule.end_round();
  }
}

}  // namespace

const Algorithm& ring() {
  static constexpr Algorithm kRow{Coll::kAllReduce, "ring", never, build_ring, true, true};
  return kRow;
}

}  // namespace weft::coll::all_reduce
