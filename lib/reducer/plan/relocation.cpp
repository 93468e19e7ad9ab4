#include "reducer/plan/relocation.h"

#include <cstring>

#include "comm/context.h"

namespace weft {

Relocation::Relocation(const ReducerState& old, ReducerState* next)
    : old_(old), next_(*next), arena_(old.comm->context().options().host_allocator) {
  next_.buckets = Buckets::make_over(*old_.buckets, old_.manifest, next_.plan, old_.hold);
  if (!next_.buckets) return;
  list_moves();
  if (moves_.empty() || arena_.allocate(next_.buckets->longest_bytes(), &scratch_).ok()) return;
  next_.buckets = nullptr;
}

void Relocation::list_moves() {
  const auto at = [](const Buckets& buckets, const Buckets::Place& place) {
    return static_cast<uint64_t>(place.memory - buckets.memory());
  };
  moves_.clear();
  for (uint64_t i = 0; i < old_.manifest.params.size(); i++) {
    const Buckets::Place& from = old_.buckets->place(i);
    if (from.memory == nullptr || from.count == 0) continue;
    // Views on devices stay where they are.
    if ((old_.copy || from.on_device) && !old_.holds_sum(i)) continue;
    moves_.push_back({at(*old_.buckets, from), at(*next_.buckets, next_.buckets->place(i)),
                      from.count * from.element_bytes});
  }
}

void Relocation::run() {
  std::byte* const from = old_.buckets->memory();
  std::byte* const to = next_.buckets->memory();
  if (from == to) return relayout(to, std::move(moves_), scratch_, next_.buckets->longest_bytes());
  list_moves();
  for (const Move& m : moves_) std::memcpy(to + m.to, from + m.from, m.bytes);
}

}  // namespace weft
