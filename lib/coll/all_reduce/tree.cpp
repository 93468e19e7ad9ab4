// Adds up a binary tree to rank 0 and sends the results down, chunk by chunk. A rank has up to two children,
// so it sends and receives three vectors at most, for any number of ranks.
#include <bit>
#include <span>

#include "coll/algorithm.h"

namespace weft::coll::all_reduce {
namespace {

constexpr uint64_t kMostBytes = 128 * 1024;  // of a chunk

// Chunk c is received from the children in round c, folded in the next one, and sent to the parent in round
// c + kUp, or to the children if this rank is the root. A result that the parent sends is passed on kOn
// rounds later.
constexpr uint64_t kUp = 3;
constexpr uint64_t kOn = 2;
// Each rank awaits a result so many rounds after its parent sends it. With less a parent could wait for a
// chunk that its child sends later. With more a child could wait until its parent takes a chunk, and the
// parent until the child takes a result.
constexpr uint64_t kLag = 2;

void build_tree(const Shape& shape, Schedule& schedule) {
  const int n = shape.size;
  if (n == 1) {
    const Ref own[] = {source()};
    schedule.fold(own, target(), shape.count);
    return schedule.end_round();
  }
  const int parent = (shape.rank - 1) / 2;
  const int first_child = 2 * shape.rank + 1;
  const int children = std::clamp(n - first_child, 0, 2);
  const bool root = shape.rank == 0, leaf = children == 0;
  const Slice all{0, shape.count};
  const uint64_t chunk = std::min(pipeline_elements(shape, shape.count), kMostBytes / shape.element);
  const uint64_t chunks = chunks_of(shape.count, chunk);
  const auto level = static_cast<uint64_t>(std::bit_width(static_cast<unsigned>(shape.rank) + 1) - 1);
  const uint64_t result = kUp + level * (kLag + kOn) - kOn;  // round of the first result
  const uint64_t up = leaf ? 0 : kUp;                        // and of the first send to the parent
  const uint64_t down = root ? kUp : result + kOn;           // and to the children

  Ref rooms[2][3];
  for (int child = 0; child < children; child++) {
    for (Ref& room : rooms[child]) room = schedule.scratch(std::min(shape.count, chunk) * shape.element);
  }
  const auto fold = [&](uint64_t c) {
    const Slice part = chunk_of(all, c, chunk);
    const uint64_t offset = part.begin * shape.element;
    const Ref inputs[] = {source(offset), rooms[0][c % 3], rooms[1][c % 3]};
    const auto folded = std::span(inputs).first(1 + static_cast<size_t>(children));
    root ? schedule.fold(folded, target(offset), part.count)
         : schedule.add(folded, target(offset), part.count);
  };
  // Calls what(step, memory, bytes) if chunk `round - first` exists.
  const auto with_chunk = [&](uint64_t round, uint64_t first, auto&& what) {
    if (round < first || round - first >= chunks) return;
    const Slice part = chunk_of(all, round - first, chunk);
    const uint64_t offset = part.begin * shape.element;
    what(static_cast<uint32_t>(round - first), leaf && first == 0 ? source(offset) : target(offset),
         part.count * shape.element);
  };
  const uint64_t end = chunks + (leaf ? result : down);
  for (uint64_t round = 0; round < end; round++) {
    for (int child = 0; child < children; child++) {
      const int peer = first_child + child;
      with_chunk(round, 0, [&](uint32_t step, Ref, uint64_t bytes) {
        schedule.receive(peer, step, rooms[child][step % 3], bytes, When::kAhead);
      });
      with_chunk(round, down, [&](uint32_t step, Ref memory, uint64_t bytes) {
        schedule.send(peer, step, memory, bytes, When::kAhead);
      });
    }
    if (!root) {
      with_chunk(round, result, [&](uint32_t step, Ref memory, uint64_t bytes) {
        schedule.receive(parent, step, memory, bytes, When::kAhead);
      });
      with_chunk(round, up, [&](uint32_t step, Ref memory, uint64_t bytes) {
        schedule.send(parent, step, memory, bytes, When::kAhead);
      });
    }
    if (!leaf && round >= 1 && round <= chunks) {
      fold(round - 1);
      schedule.meanwhile();
    }
    schedule.end_round();
  }
}

}  // namespace

const Algorithm& tree() {
  static constexpr Algorithm kRow{Coll::kAllReduce, "tree", never, build_tree, true, true};
  return kRow;
}

}  // namespace weft::coll::all_reduce
