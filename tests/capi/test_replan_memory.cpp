// Measures the memory that a re-plan uses to move gradients to other buckets: scratch as large as the largest
// bucket. The program's allocator sees all gradient memory; operator new, which this program replaces, sees
// the rest.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "capi/ranks.h"
#include "support/catch.h"

namespace {

std::atomic<bool> watching{false};
std::atomic<uint64_t> largest_new{0};  // set while it counts

// The program's allocator for gradients, which counts.
struct Memory {
  std::atomic<uint64_t> held{0}, most{0};
};

void* take(void* data, uint64_t size, uint64_t alignment, int32_t) {
  auto* const memory = static_cast<Memory*>(data);
  const uint64_t held = memory->held += size;
  if (held > memory->most) memory->most = held;
  return std::aligned_alloc(alignment, size);
}

void give(void* data, void* block, uint64_t size, int32_t) {
  static_cast<Memory*>(data)->held -= size;
  std::free(block);
}

}  // namespace

void* operator new(size_t size) {
  if (watching && size > largest_new) largest_new = size;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
// noinline: if it were inlined, gcc would warn that free does not match new.
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace {

constexpr uint64_t kParams = 41;
constexpr uint64_t kLimit = 1 << 20;

// A context and a communicator of one rank, whose memory is counted.
class Alone {
 public:
  Alone() {
    weft_context_options options = WEFT_CONTEXT_OPTIONS_INIT;
    options.host_alloc = take;
    options.host_free = give;
    options.host_alloc_user_data = &memory;
    REQUIRE(weft_context_create(&options, &context, nullptr) == WEFT_OK);
    weft_comm_options comm_options = WEFT_COMM_OPTIONS_INIT;
    comm_options.bootstrap = WEFT_BOOTSTRAP_CALLBACK;
    comm_options.size = 1;
    comm_options.all_gather = weft_test::gather;
    comm_options.all_gather_user_data = &member_;
    comm_options.backend = "loopback";  // its arena is allocated from the context
    REQUIRE(weft_comm_create(context, &comm_options, &comm, nullptr) == WEFT_OK);
  }
  ~Alone() {
    CHECK(weft_comm_destroy(&comm) == WEFT_OK);
    CHECK(weft_context_destroy(&context) == WEFT_OK);
  }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;

  Memory memory;
  weft_context* context = nullptr;
  weft_comm* comm = nullptr;

 private:
  weft_test::Gathering gathering_{1};
  weft_test::Member member_{&gathering_, 0};
};

uint64_t largest_bucket(weft_reducer* reducer) {
  uint32_t count = 0;
  uint64_t largest = 0;
  REQUIRE(weft_reducer_bucket_count(reducer, &count) == WEFT_OK);
  for (uint32_t b = 0; b < count; b++) {
    weft_bucket_info info{};
    info.struct_size = sizeof info;
    REQUIRE(weft_reducer_bucket(reducer, b, &info, nullptr, 0) == WEFT_OK);
    largest = std::max(largest, info.bytes);
  }
  return largest;
}

}  // namespace

TEST_CASE(
    "a re-plan moves gradients by way of scratch as large as the largest bucket, and keeps none of it") {
  for (const int32_t mode : {WEFT_GRADIENT_VIEW, WEFT_GRADIENT_COPY}) {
    INFO("mode " << mode);
    Alone alone;
    const int64_t small = 64 * 1024, large = 5 * small;
    std::vector<weft_param> params(kParams, weft_param WEFT_PARAM_INIT);
    std::vector<std::string> names;
    for (uint64_t i = 0; i < kParams; i++) names.push_back("p" + std::to_string(i));
    std::vector<std::vector<float>> gradients(kParams, std::vector<float>(large));
    for (uint64_t i = 0; i < kParams; i++) {
      params[i].name = names[i].c_str();
      params[i].dtype = WEFT_DTYPE_F32;
      params[i].ndim = 1;
      params[i].shape = i == 17 ? &large : &small;
    }
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = params.data();
    options.param_count = kParams;
    options.mode = mode;
    if (mode == WEFT_GRADIENT_COPY) options.accumulation = WEFT_ACCUMULATION_REDUCER;
    options.bucket_limits = &kLimit;
    options.bucket_limit_count = 1;
    weft_reducer* reducer = nullptr;
    REQUIRE(weft_reducer_create(alone.comm, &options, &reducer, nullptr) == WEFT_OK);
    const auto count = [&](uint64_t i) { return static_cast<size_t>(*params[i].shape); };
    const auto place = [&](uint64_t i) {
      void* at = gradients[i].data();
      if (mode == WEFT_GRADIENT_VIEW) CHECK(weft_reducer_grad_view(reducer, i, &at) == WEFT_OK);
      return static_cast<float*>(at);
    };
    // A synchronised step records an order. A local step leaves gradients in the buckets, which the re-plan
    // must move.
    for (const uint64_t flags : {uint64_t{0}, uint64_t{WEFT_BEGIN_LOCAL}}) {
      weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
      begin.flags = flags;
      REQUIRE(weft_reducer_begin(reducer, &begin) == WEFT_OK);
      for (uint64_t n = 0; n < kParams; n++) {
        const uint64_t i = n * 7 % kParams;
        std::fill_n(place(i), count(i), static_cast<float>(i) + 0.5f);
        REQUIRE(weft_reducer_ready(reducer, i, place(i), nullptr) == WEFT_OK);
      }
      REQUIRE(weft_reducer_finish(reducer, nullptr) == WEFT_OK);
    }
    const uint64_t before = alone.memory.held, old_largest = largest_bucket(reducer);
    alone.memory.most = before;
    largest_new = 0;
    watching = true;
    const weft_status moved = weft_reducer_replan(reducer, nullptr, nullptr);
    watching = false;
    REQUIRE(moved == WEFT_OK);
    weft_reducer_stats stats{};
    stats.struct_size = sizeof stats;
    REQUIRE(weft_reducer_query(reducer, &stats) == WEFT_OK);
    CHECK(stats.plan_generation == 1);
    const uint64_t largest = std::max(old_largest, largest_bucket(reducer));
    CHECK(largest < stats.param_bytes / 4);
    CHECK(alone.memory.most > before);
    CHECK(alone.memory.most <= before + largest + 4096);
    CHECK(alone.memory.held == before);
    CHECK(largest_new > 0);
    CHECK(largest_new < 64 * 1024);  // lists of parameters, but nothing as large as a gradient
    weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
    REQUIRE(weft_reducer_begin(reducer, &begin) == WEFT_OK);
    for (uint64_t i = 0; i < kParams; i++) {
      if (mode == WEFT_GRADIENT_COPY) std::fill(gradients[i].begin(), gradients[i].end(), 1.0f);
      REQUIRE(weft_reducer_ready(reducer, i, place(i), nullptr) == WEFT_OK);
    }
    REQUIRE(weft_reducer_finish(reducer, nullptr) == WEFT_OK);
    const float added = mode == WEFT_GRADIENT_COPY ? 1.5f : 0.5f;
    for (uint64_t i = 0; i < kParams; i++) {
      const float* const at = place(i);
      CHECK(std::all_of(at, at + count(i), [&](float x) { return x == static_cast<float>(i) + added; }));
    }
    CHECK(weft_reducer_destroy(&reducer) == WEFT_OK);
  }
}
