#include "cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/text.h"
#include "blocks.h"
#include "coll/variable.h"
#include "comm/capability.h"
#include "comm/context.h"
#include "device.h"
#include "device/arena.h"
#include "made_together.h"
#include "support/kernels_reference.h"

namespace weft::test {
namespace {

constexpr size_t kGuard = 64;
constexpr auto kUntouched = std::byte{0xA5};

size_t index(int rank) {
  return static_cast<size_t>(rank);
}

// The real type of a complex number's two parts; other types are their own part.
Dtype part_type(Dtype dtype) {
  return dtype == Dtype::kC64 ? Dtype::kF32 : dtype == Dtype::kC128 ? Dtype::kF64 : dtype;
}

// Mostly ordinary numbers, rarely NaN, infinities and zeros of both signs.
Bytes random_data(Dtype dtype, uint64_t count, Random& random) {
  if (is_complex(dtype)) return random_data(part_type(dtype), 2 * count, random);
  const uint32_t element = dtype_size(dtype);
  Bytes data(count * element);
  for (uint64_t i = 0; i < count; i++) {
    std::byte* const to = data.data() + i * element;
    const uint64_t bits = random.next();
    if (dtype == Dtype::kBool) {
      *to = static_cast<std::byte>(bits % 2);
      continue;
    }
    if (!is_float(dtype)) {
      std::memcpy(to, &bits, element);
      continue;
    }
    double value = (static_cast<double>(bits >> 40) / (1 << 24) - 0.5) * 8;
    constexpr double kRare[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0, 1e-40, 6e4};
    if (random.chance(200)) value = kRare[random.below(std::size(kRare))];
    reference::store(dtype, value, to);
  }
  return data;
}

// Returns -2, 2, 4 and the like: sums, halves and products over a few ranks are exact.
Bytes whole_data(Dtype dtype, ReduceOp op, uint64_t count, Random& random) {
  if (is_complex(dtype)) return whole_data(part_type(dtype), op, 2 * count, random);
  if (dtype == Dtype::kBool) return random_data(dtype, count, random);
  const uint32_t element = dtype_size(dtype);
  Bytes data(count * element);
  for (uint64_t i = 0; i < count; i++) {
    const auto dice = static_cast<int64_t>(random.below(5));
    const int64_t whole = op == ReduceOp::kProd ? (dice % 2 == 0 ? 1 : -2) : 2 * dice - 4;
    std::byte* const to = data.data() + i * element;
    if (is_float(dtype)) {
      reference::store(dtype, static_cast<double>(whole), to);
    } else {
      std::memcpy(to, &whole, element);
    }
  }
  return data;
}

// Returns the number of elements in one rank's source.
uint64_t source_count(const Case& c, int rank, int size) {
  if (has_blocks(c.coll)) return source_of(c, rank, size).elements();
  const uint64_t all = c.count * static_cast<uint64_t>(size);
  switch (c.coll) {
    case Coll::kReduceScatter:
    case Coll::kAllToAll:
      return all;
    case Coll::kScatter:
      return rank == c.root ? all : 0;
    case Coll::kBroadcast:
      return rank == c.root ? c.count : 0;
    case Coll::kBarrier:
      return 0;
    default:
      return c.count;
  }
}

// The reduction of truth values.
Bytes logical(ReduceOp op, const std::vector<const std::byte*>& inputs, uint64_t count) {
  Bytes out(count);
  for (uint64_t i = 0; i < count; i++) {
    const auto trues = std::count_if(inputs.begin(), inputs.end(),
                                     [&](const std::byte* in) { return in[i] != std::byte{0}; });
    const bool any = op == ReduceOp::kSum || op == ReduceOp::kMax || op == ReduceOp::kBor;
    const bool value = op == ReduceOp::kBxor ? trues % 2 == 1
                       : any                 ? trues > 0
                                             : trues == static_cast<std::ptrdiff_t>(inputs.size());
    out[i] = static_cast<std::byte>(value);
  }
  return out;
}

Bytes folded(const Case& c, uint64_t first, uint64_t count) {
  std::vector<const std::byte*> inputs;
  for (const Bytes& source : c.sources) inputs.push_back(source.data() + first * dtype_size(c.dtype));
  FoldArgs fold;
  if (c.dtype == Dtype::kBool) return logical(c.op, inputs, count);
  fold.dtype = part_type(c.dtype);
  fold.op = c.op;
  fold.inputs = inputs.data();
  fold.input_count = static_cast<int>(inputs.size());
  fold.count = is_complex(c.dtype) ? 2 * count : count;
  fold.prescale = c.prescale;
  fold.postscale = c.postscale;
  return reference::fold(fold);
}

Bytes block(const Bytes& from, int rank, uint64_t bytes) {
  const auto* start = from.data() + index(rank) * bytes;
  return Bytes(start, start + bytes);
}

Bytes moved(const Case& c, int rank) {
  const uint64_t bytes = c.count * dtype_size(c.dtype);
  if (c.coll == Coll::kBroadcast) return c.sources[index(c.root)];
  if (c.coll == Coll::kScatter) return block(c.sources[index(c.root)], rank, bytes);
  Bytes all;
  for (const Bytes& source : c.sources) {
    const Bytes part = c.coll == Coll::kAllToAll ? block(source, rank, bytes) : source;
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

Bytes expected_of(const Case& c, int rank) {
  if (has_blocks(c.coll)) return expected_blocks(c, rank, folded);
  const bool receives = (c.coll != Coll::kReduce && c.coll != Coll::kGather) || rank == c.root;
  if (!receives || c.coll == Coll::kBarrier) return {};
  if (c.coll == Coll::kReduceScatter) return folded(c, index(rank) * c.count, c.count);
  if (is_reduction(c.coll)) return rank == 0 || c.expected[0].empty() ? folded(c, 0, c.count) : c.expected[0];
  return moved(c, rank);
}

// A buffer with a guard behind it, in private memory or in the arena.
class Buffer {
 public:
  Buffer(Rank& self, size_t size, bool arena) : self_(self), size_(size) {
    in_arena_ = arena && self.comm->collectives().arena()->allocate(size + kGuard, &memory_).ok();
    if (!in_arena_) memory_ = new std::byte[size + kGuard];
    std::memset(memory_, static_cast<int>(kUntouched), size + kGuard);
  }
  ~Buffer() {
    if (in_arena_) {
      self_.expect(self_.comm->collectives().arena()->free(memory_), "free");
    } else {
      delete[] memory_;
    }
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() { return memory_; }
  HostBuffer whole() { return {memory_, size_ + kGuard}; }
  bool guard_intact() const {
    return std::all_of(memory_ + size_, memory_ + size_ + kGuard,
                       [](std::byte b) { return b == kUntouched; });
  }

 private:
  Rank& self_;
  const size_t size_;
  std::byte* memory_ = nullptr;
  bool in_arena_ = false;
};

// Sets src and dst of an in-place operation, which share one buffer.
void place(const Case& c, int rank, std::byte* buffer, CollectiveArgs* args) {
  const uint64_t offset = index(rank) * c.count * dtype_size(c.dtype);
  args->src = args->dst = buffer;
  if (c.coll == Coll::kAllGather || (c.coll == Coll::kGather && rank == c.root)) args->src = buffer + offset;
  if (c.coll == Coll::kReduceScatter || (c.coll == Coll::kScatter && rank == c.root)) {
    args->dst = buffer + offset;
  }
}

void compare(const Case& c, Rank& self, const std::byte* got, const Bytes& expected) {
  if (expected.empty() || std::memcmp(got, expected.data(), expected.size()) == 0) return;
  const auto different = std::mismatch(expected.begin(), expected.end(), got);
  const auto at = static_cast<size_t>(different.first - expected.begin());
  self.expect(false,
              cat(c.text(), ": byte ", at, " of ", expected.size(), " is ",
                  static_cast<int>(*different.second), " and not ", static_cast<int>(*different.first)));
}

}  // namespace

std::string Case::text() const {
  return cat(name(coll), " ", op == ReduceOp::kNone ? "" : name(op), " ", name(dtype), " x ", count, " root ",
             root, in_place ? " in place" : "", arena ? " arena" : "");
}

std::vector<ReduceOp> ops_of(Coll coll, Dtype dtype) {
  if (!is_reduction(coll)) return {ReduceOp::kNone};
  std::vector<ReduceOp> ops;
  for (int i = 1; i <= kReduceOpCount; i++) {
    if (check_reduction(static_cast<ReduceOp>(i), dtype).ok()) ops.push_back(static_cast<ReduceOp>(i));
  }
  return ops;
}

namespace {

// Draws all parameters of a case except the data.
void draw(Case& c, int size, Random& random, Values values) {
  const bool exact = values == Values::kExact;
  draw_counts(c, size, random);
  c.root = has_root(c.coll) ? static_cast<int>(random.below(static_cast<uint64_t>(size))) : 0;
  if (c.op == ReduceOp::kAvg) c.postscale = exact ? 0.5 : 1.0 / size;
  if (c.op == ReduceOp::kPremulSum) c.prescale = exact ? 0.5 : 0.37;
}

void make_data(Case& c, int size, Random& random, Values values) {
  for (int r = 0; r < size; r++) {
    const uint64_t count = source_count(c, r, size);
    c.sources.push_back(values == Values::kExact ? whole_data(c.dtype, c.op, count, random)
                                                 : random_data(c.dtype, count, random));
  }
  for (int r = 0; r < size; r++) c.expected.push_back(expected_of(c, r));
}

}  // namespace

void prepare(Case& c, int size, Random& random, Values values) {
  draw(c, size, random, values);
  make_data(c, size, random, values);
}

void prepare_all(std::vector<Case>* cases, int size, uint64_t seed, Values values) {
  const auto prepared = [&](size_t i, bool data) {
    Random random(seed * 1'000'003 + i);
    Case c = (*cases)[i];
    draw(c, size, random, values);
    if (data) make_data(c, size, random, values);
    return c;
  };
  MadeTogether* const together = made_together();
  if (together == nullptr) {
    for (size_t i = 0; i < cases->size(); i++) (*cases)[i] = prepared(i, true);
    return;
  }
  // Each rank's inputs come first, then its expected results.
  const auto make = [&](size_t i) {
    Case c = prepared(i, true);
    std::vector<Bytes> parts = std::move(c.sources);
    for (Bytes& expected : c.expected) parts.push_back(std::move(expected));
    return parts;
  };
  const auto n = index(size);
  const size_t mine = index(together->rank());
  std::vector<std::vector<Bytes>> taken = together->run(
      cases->size(), make, mine < n ? std::vector<size_t>{mine, n + mine} : std::vector<size_t>{});
  for (size_t i = 0; i < cases->size(); i++) {
    Case& c = (*cases)[i] = prepared(i, false);
    c.sources.resize(n);
    c.expected.resize(n);
    if (mine >= n) continue;
    c.sources[mine] = std::move(taken[i][0]);
    c.expected[mine] = std::move(taken[i][1]);
  }
}

namespace {

// Returns true if the row's buffers lie on devices.
bool on_device(const Case& c, Rank& self) {
  return self.comm->context().accelerator() != nullptr &&
         check_capability({c.coll, c.dtype, c.op, kCudaDevices}).ok();
}

// Does what attempt does, for blocks of different sizes.
Status attempt_blocks(const Case& c, Rank& self) {
  const Bytes& source = c.sources[index(self.rank)];
  const Bytes& expected = c.expected[index(self.rank)];
  const uint64_t element = dtype_size(c.dtype);
  const BlockPlace give = source_of(c, self.rank, self.size), take = target_of(c, self.rank, self.size);
  const bool shared = c.in_place && c.coll != Coll::kAllToAllV && (!has_root(c.coll) || self.rank == c.root);
  Buffer from(self, std::max(give.end(), shared ? take.end() : 0) * element, c.arena);
  Buffer to(self, take.end() * element, c.arena);
  CollectiveArgs args;
  args.coll = c.coll;
  args.dtype = c.dtype;
  args.op = c.op;
  args.peer = c.root;
  args.prescale = c.prescale;
  args.postscale = c.postscale;
  std::byte* src = from.data();
  std::byte* dst = shared ? from.data() : to.data();
  if (shared && !give.all) src += take.offsets[index(self.rank)] * element;
  if (shared && !take.all) dst += give.offsets[index(self.rank)] * element;
  args.src = give.none ? nullptr : src;
  args.dst = take.none ? nullptr : dst;
  give.put(source, src, element);
  // The call stores buffer addresses, so it is created once the buffers have their final addresses.
  std::optional<coll::VariableCall> call;
  const auto complete = [&](CollectiveArgs* known) {
    call.emplace(self.comm->collectives(), self.rank, self.size, give.list(), take.list(), known,
                 known->device != nullptr);
  };
  Status status;
  if (on_device(c, self)) {
    status = run_on_device(self, args, {from.whole(), to.whole()}, complete);
  } else {
    complete(&args);
    status = self.run(args);
  }
  if (status.ok() && !take.none) compare(c, self, take.get(dst, element).data(), expected);
  self.expect(from.guard_intact() && to.guard_intact(), c.text() + ": wrote beyond a buffer");
  self.expect(shared || give.get(src, element) == source, c.text() + ": the source has changed");
  return status;
}

}  // namespace

Status attempt(const Case& c, Rank& self) {
  if (has_blocks(c.coll)) return attempt_blocks(c, self);
  const Bytes& source = c.sources[index(self.rank)];
  const Bytes& expected = c.expected[index(self.rank)];
  CollectiveArgs args;
  args.coll = c.coll;
  args.dtype = c.dtype;
  args.op = c.op;
  args.peer = c.root;
  args.count = c.coll == Coll::kBarrier ? 0 : c.count;
  args.prescale = c.prescale;
  args.postscale = c.postscale;
  const bool shared = c.in_place || c.coll == Coll::kBroadcast;
  Buffer from(self, shared ? std::max(source.size(), expected.size()) : source.size(), c.arena);
  Buffer to(self, expected.size(), c.arena);
  if (shared) {
    place(c, self.rank, from.data(), &args);
  } else {
    args.src = source.empty() ? nullptr : from.data();
    args.dst = expected.empty() ? nullptr : to.data();
  }
  // In place, src may lie inside the buffer.
  const size_t at = args.src == nullptr ? 0 : static_cast<size_t>(args.src - from.data());
  if (!source.empty()) std::memcpy(from.data() + at, source.data(), source.size());
  Status status = on_device(c, self) ? run_on_device(self, args, {from.whole(), to.whole()}) : self.run(args);
  if (status.ok() && args.dst != nullptr) compare(c, self, args.dst, expected);
  self.expect(from.guard_intact() && to.guard_intact(), c.text() + ": wrote beyond a buffer");
  const bool kept = shared || source.empty() || std::memcmp(from.data(), source.data(), source.size()) == 0;
  self.expect(kept, c.text() + ": the source has changed");
  return status;
}

void execute(const Case& c, Rank& self) {
  self.expect(attempt(c, self), c.text());
}

}  // namespace weft::test
