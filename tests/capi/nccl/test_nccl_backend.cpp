// Calls of the nccl backend through the C ABI, compared with results that are computed one rank after the
// other. Runs on the fake NCCL, and in tests/gpu on a real one. Values are small whole numbers, so results
// are exact in every type and order.
#include <string>

#include "capi/nccl_memory.h"

namespace capi_nccl_backend {

using namespace weft_test;

namespace {

constexpr double kFactor = 0.5;
constexpr char kUntouched = 0x7b;
constexpr size_t kLarge = 300'007;

bool is_float(int32_t dtype) {
  return dtype >= WEFT_DTYPE_F16;
}
// NCCL has no arithmetic for these types.
bool moves_only(int32_t dtype) {
  return dtype == WEFT_DTYPE_U16 || dtype == WEFT_DTYPE_I16;
}

constexpr const char* kNames[] = {"",          "all_reduce", "reduce",
                                  "broadcast", "all_gather", "reduce_scatter",
                                  "gather",    "scatter",    "all_to_all"};  // from WEFT_COLL_ALL_REDUCE on
struct Call {
  int32_t coll;
  int32_t dtype = WEFT_DTYPE_F32;
  size_t count = 0;
  bool in_place = false;
  int32_t op = WEFT_OP_SUM;
  int root = 0;
};

bool reduces(int32_t coll) {
  return coll == WEFT_COLL_ALL_REDUCE || coll == WEFT_COLL_REDUCE || coll == WEFT_COLL_REDUCE_SCATTER;
}
bool rooted(const Call& c) {
  return c.coll == WEFT_COLL_REDUCE || c.coll == WEFT_COLL_GATHER || c.coll == WEFT_COLL_SCATTER;
}
bool in_place_at(const Call& c, int rank) {
  const bool at_root = c.coll == WEFT_COLL_GATHER || c.coll == WEFT_COLL_SCATTER;
  return c.in_place && (!at_root || rank == c.root);
}
bool joins(const Call& c) {
  return c.coll == WEFT_COLL_ALL_GATHER || c.coll == WEFT_COLL_GATHER;
}
// Returns the element offset of a rank's block in its memory.
size_t place(const Call& c, int rank) {
  return joins(c) && in_place_at(c, rank) ? static_cast<size_t>(rank) * c.count : 0;
}

double reduced(const Call& c, int size, size_t i) {
  double result = value(0, i);
  for (int r = 1; r < size; r++) {
    const double next = value(r, i);
    result = c.op == WEFT_OP_PROD  ? result * next
             : c.op == WEFT_OP_MIN ? std::min(result, next)
             : c.op == WEFT_OP_MAX ? std::max(result, next)
                                   : result + next;
  }
  return c.op == WEFT_OP_AVG ? result / size : c.op == WEFT_OP_PREMUL_SUM ? result * kFactor : result;
}

// Returns element i of a rank's expected result.
double expected(const Call& c, const Rank& r, size_t i) {
  const size_t own = static_cast<size_t>(r.rank) * c.count;
  const int from = static_cast<int>(i / c.count);
  switch (c.coll) {
    case WEFT_COLL_ALL_GATHER:
    case WEFT_COLL_GATHER:
      return value(from, place(c, from) + i % c.count);
    case WEFT_COLL_ALL_TO_ALL:
      return value(from, own + i % c.count);
    case WEFT_COLL_BROADCAST:
      return value(c.root, i);
    case WEFT_COLL_SCATTER:
      return value(c.root, own + i);
    case WEFT_COLL_REDUCE_SCATTER:
      return reduced(c, r.size, own + i);
    default:
      return reduced(c, r.size, i);
  }
}

weft_status execute(const Call& c, const Rank& r, const void* src, void* dst, const weft_stream* stream) {
  weft_coll_options options = on(stream);
  options.factor = c.op == WEFT_OP_PREMUL_SUM ? kFactor : 0;
  switch (c.coll) {
    case WEFT_COLL_ALL_REDUCE:
      return weft_all_reduce(r.comm, src, dst, c.count, c.dtype, c.op, &options, nullptr);
    case WEFT_COLL_REDUCE:
      return weft_reduce(r.comm, src, dst, c.count, c.dtype, c.op, c.root, &options, nullptr);
    case WEFT_COLL_BROADCAST:
      return weft_broadcast(r.comm, dst, c.count, c.dtype, c.root, &options, nullptr);
    case WEFT_COLL_ALL_GATHER:
      return weft_all_gather(r.comm, src, dst, c.count, c.dtype, &options, nullptr);
    case WEFT_COLL_REDUCE_SCATTER:
      return weft_reduce_scatter(r.comm, src, dst, c.count, c.dtype, c.op, &options, nullptr);
    case WEFT_COLL_GATHER:
      return weft_gather(r.comm, src, dst, c.count, c.dtype, c.root, &options, nullptr);
    case WEFT_COLL_SCATTER:
      return weft_scatter(r.comm, src, dst, c.count, c.dtype, c.root, &options, nullptr);
    default:
      return weft_all_to_all(r.comm, src, dst, c.count, c.dtype, &options, nullptr);
  }
}

// Inputs lie in the first half of the memory, with the results of in-place calls; other results lie in the
// second half. All other bytes must stay unchanged. Returns the failure.
std::string try_call(const Rank& r, const Memory& memory, const Call& c) {
  const size_t element = kSizes[c.dtype], blocks = static_cast<size_t>(r.size);
  const size_t half = blocks * c.count * element;
  std::vector<char> image(2 * half, kUntouched);
  for (size_t i = 0; i < blocks * c.count; i++) put(&image[i * element], c.dtype, value(r.rank, i));
  memory.write(image, memory.get());
  const bool takes_own = c.coll == WEFT_COLL_REDUCE_SCATTER || c.coll == WEFT_COLL_SCATTER;
  const bool here = in_place_at(c, r.rank);
  const size_t own = static_cast<size_t>(r.rank) * c.count * element;
  const size_t result = !here ? half : takes_own ? own : 0;
  const std::string what = std::string(kNames[c.coll]) + ", type " + std::to_string(c.dtype) + " x " +
                           std::to_string(c.count) + ", operation " + std::to_string(c.op) + ", root " +
                           std::to_string(c.root) + (c.in_place ? ", in place: " : ": ");
  if (execute(c, r, memory.get() + place(c, r.rank) * element, memory.get() + result,
              memory.stream().view()) != WEFT_OK)
    return what + error_of(r.comm);
  const bool receives = !rooted(c) || c.coll == WEFT_COLL_SCATTER || r.rank == c.root;
  const size_t count = joins(c) || c.coll == WEFT_COLL_ALL_TO_ALL ? blocks * c.count : c.count;
  for (size_t i = 0; receives && i < count; i++)
    put(&image[result + i * element], c.dtype, expected(c, r, i));
  return memory.read(2 * half, memory.get()) == image ? ""
                                                      : what + "it differs on rank " + std::to_string(r.rank);
}

// Tries every collective with this type and count, with all of NCCL's operations or only with sums. Returns
// the first failure.
std::string try_calls(const Rank& r, int32_t dtype, size_t count, bool all) {
  const Memory memory(r, 2 * static_cast<size_t>(r.size) * count * kSizes[dtype]);
  int root = 0;
  for (int32_t coll = WEFT_COLL_ALL_REDUCE; coll <= WEFT_COLL_ALL_TO_ALL; coll++) {
    for (int32_t op :
         {WEFT_OP_SUM, WEFT_OP_AVG, WEFT_OP_PREMUL_SUM, WEFT_OP_PROD, WEFT_OP_MIN, WEFT_OP_MAX}) {
      const bool scales = op == WEFT_OP_AVG || op == WEFT_OP_PREMUL_SUM;
      if (op != WEFT_OP_SUM && (!all || !reduces(coll))) continue;
      if (reduces(coll) && (moves_only(dtype) || (scales && !is_float(dtype)))) continue;
      for (const bool in_place : {false, true}) {
        if (coll == (in_place ? WEFT_COLL_ALL_TO_ALL : WEFT_COLL_BROADCAST)) continue;
        const std::string wrong = try_call(r, memory, {coll, dtype, count, in_place, op, root++ % r.size});
        if (!wrong.empty()) return wrong;
      }
    }
  }
  return "";
}

}  // namespace

TEST_CASE("nccl: every collective of every type and operation, in place and not") {
  struct Round {
    int ranks;
    size_t count;
  };
  for (const Round& round : {Round{2, 0}, Round{2, 1}, Round{1, 257}, Round{4, 257}}) {
    const size_t count = round.count;
    INFO(round.ranks << " ranks x " << count);
    const NcclRun nccl(count + 1, 40);
    RankFailures failures;
    failures.expect(nccl.run(nccl.ranks_sharing(round.ranks), [&](Rank& r) {
      for (int32_t dtype = WEFT_DTYPE_U8; dtype <= WEFT_DTYPE_F64; dtype++)
        failures.expect(try_calls(r, dtype, count, true));
    }));
    failures.check();
  }
}

TEST_CASE("nccl: collectives of large blocks") {
  const NcclRun nccl(5);
  RankFailures failures;
  failures.expect(nccl.run(nccl.ranks_sharing(2), [&](Rank& r) {
    for (const int32_t dtype :
         {WEFT_DTYPE_I8, WEFT_DTYPE_F16, WEFT_DTYPE_BF16, WEFT_DTYPE_F32, WEFT_DTYPE_F64})
      failures.expect(try_calls(r, dtype, kLarge, false));
  }));
  failures.check();
}

TEST_CASE("nccl: messages go both ways at once, of any size") {
  const NcclRun nccl(13, 60);
  const int size = nccl.ranks_sharing(2);
  if (size < 2)
    WEFT_SKIP("a rank alone has nobody to send to: it needs two devices, or an NCCL that shares one");
  RankFailures failures;
  failures.expect(nccl.run(size, [&](Rank& r) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{257}, kLarge}) {
      const Memory mine(r, count * 4), theirs(r, count * 4);
      const weft_coll_options options = on(mine.stream());
      for (uint64_t round = 0; round < 3; round++) {
        std::vector<char> sent(count * 4), wanted(count * 4);
        for (size_t i = 0; i < count; i++) {
          put(&sent[i * 4], WEFT_DTYPE_F32, value(r.rank, i, round));
          put(&wanted[i * 4], WEFT_DTYPE_F32, value(1 - r.rank, i, round));
        }
        mine.write(sent, mine.get());
        failures.expect(weft_group_begin(r.comm) == WEFT_OK, "group");
        weft_send(r.comm, mine.get(), count, WEFT_DTYPE_F32, 1 - r.rank, &options, nullptr);
        weft_recv(r.comm, theirs.get(), count, WEFT_DTYPE_F32, 1 - r.rank, &options, nullptr);
        failures.expect(weft_group_end(r.comm, nullptr) == WEFT_OK, error_of(r.comm));
        failures.expect(theirs.read(count * 4, theirs.get()) == wanted, std::to_string(count) + " differ");
      }
    }
  }));
  failures.check();
}

TEST_CASE("nccl: a call that is refused leaves the communicator as it was") {
  const NcclRun nccl(17);
  RankFailures failures;
  failures.expect(nccl.run(nccl.ranks_sharing(2), [&](Rank& r) {
    const Memory memory(r, 2 * static_cast<size_t>(r.size) * 100 * 4);
    std::vector<float> host(100);
    for (int round = 0; round < 3; round++) {
      const weft_status status = execute({WEFT_COLL_ALL_REDUCE, WEFT_DTYPE_F32, 100}, r, host.data(),
                                         host.data(), memory.stream().view());
      failures.expect(status == WEFT_ERR_ARG && error_of(r.comm).find("host memory") != std::string::npos,
                      std::to_string(status) + ": " + error_of(r.comm));
      failures.expect(try_call(r, memory, {WEFT_COLL_ALL_REDUCE, WEFT_DTYPE_F32, 100}));
    }
  }));
  failures.check();
}

TEST_CASE("nccl: splits of a communicator work beside it, their ranks in another order") {
  const NcclRun nccl(19, 60);
  RankFailures failures;
  failures.expect(nccl.run(nccl.ranks_sharing(4), [&](Rank& r) {
    Rank part{r.context};
    weft_error error = WEFT_ERROR_INIT;
    failures.expect(weft_comm_split(r.comm, r.rank / 2, -r.rank, &part.comm, &error) == WEFT_OK, error.text);
    if (part.comm == nullptr) return;
    weft_comm_info info{};
    info.struct_size = sizeof info;
    failures.expect(weft_comm_query(part.comm, &info) == WEFT_OK, "query");
    part.rank = info.rank;
    part.size = info.size;
    failures.expect(part.size == std::min(r.size, 2) && part.rank == (r.rank % 2 == 0 ? part.size - 1 : 0),
                    "order");
    const Memory memory(r, 2 * static_cast<size_t>(r.size) * 257 * 4);
    for (int round = 0; round < 3; round++) {
      for (const int32_t coll : {WEFT_COLL_ALL_REDUCE, WEFT_COLL_ALL_GATHER, WEFT_COLL_REDUCE_SCATTER}) {
        failures.expect(try_call(part, memory, {coll, WEFT_DTYPE_F32, 257}));
        failures.expect(try_call(r, memory, {coll, WEFT_DTYPE_F32, 257}));
      }
    }
    weft_barrier(r.comm, nullptr, nullptr);
    weft_comm_destroy(&part.comm);
    failures.expect(try_call(r, memory, {WEFT_COLL_ALL_REDUCE, WEFT_DTYPE_F32, 257}));
  }));
  failures.check();
}

}  // namespace capi_nccl_backend
