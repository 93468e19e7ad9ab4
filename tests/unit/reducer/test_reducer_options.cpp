// lib/reducer/options: invalid options of a reducer, and their errors.
#include <cstdint>
#include <string>

#include "reducer/options.h"
#include "reducer/plan/plan.h"
#include "support/catch.h"

namespace unit_reducer_options {

using namespace weft;

namespace {

constexpr int kSize = 4;

weft_reducer_options with_flags(uint64_t flags) {
  weft_reducer_options options = {};
  options.flags = flags;
  return options;
}

std::string refusal(const weft_reducer_options& options) {
  const Status status = check_options(options, kSize);
  CHECK((status.ok() || status.code() == Code::kArg));
  return status.ok() ? "" : std::string(status.text());
}

weft_reducer_options with_replan(weft_planner replan, uint64_t flags) {
  weft_reducer_options options = with_flags(flags);
  options.replan = replan;
  return options;
}

bool says(const std::string& text, const char* what) {
  INFO(text);
  return text.find(what) != std::string::npos;
}

}  // namespace

TEST_CASE("default options and valid combinations are accepted") {
  CHECK(refusal({}).empty());
  CHECK(refusal(with_flags(WEFT_REDUCER_UNEVEN | WEFT_REDUCER_STOP_WHEN_EXHAUSTED)).empty());
  CHECK(refusal(with_replan(WEFT_PLANNER_MODEL, 0)).empty());
  CHECK(refusal(with_replan(WEFT_PLANNER_LIMITS, WEFT_REDUCER_SHARDED | WEFT_REDUCER_OWN_WHOLE)).empty());
  CHECK(refusal(with_replan(WEFT_PLANNER_NONE, WEFT_REDUCER_SHARDED)).empty());
}

TEST_CASE("a flag without a required other flag is refused with that flag's name") {
  CHECK(says(refusal(with_flags(uint64_t{1} << 63)), "unknown flags"));
  CHECK(says(refusal(with_flags(WEFT_REDUCER_STOP_WHEN_EXHAUSTED)), "needs WEFT_REDUCER_UNEVEN"));
  CHECK(says(refusal(with_flags(WEFT_REDUCER_OWN_WHOLE)), "needs WEFT_REDUCER_SHARDED"));
  CHECK(
      says(refusal(with_replan(WEFT_PLANNER_LIMITS, WEFT_REDUCER_SHARDED)), "needs WEFT_REDUCER_OWN_WHOLE"));
  CHECK(
      says(refusal(with_replan(4, 0)), "weft_reducer_options.replan is 4: allowed are WEFT_PLANNER_DEFAULT"));
}

TEST_CASE("a flag in the wrong mode is refused with the required mode") {
  CHECK(says(refusal(with_flags(WEFT_REDUCER_COPY_STRAYS)), "is for view mode"));
  weft_reducer_options options = with_flags(WEFT_REDUCER_ACCUMULATE_F32);
  CHECK(says(refusal(options), "needs weft_reducer_options.accumulation WEFT_ACCUMULATION_REDUCER"));
  options.accumulation = WEFT_ACCUMULATION_REDUCER;
  CHECK(refusal(options).empty());
  for (const int32_t mode : {WEFT_GRADIENT_VIEW, WEFT_GRADIENT_IN_PLACE}) {
    options.mode = mode;
    CHECK(says(refusal(options), "accumulation is WEFT_ACCUMULATION_REDUCER, which is for copy mode"));
  }
  options.accumulation = WEFT_ACCUMULATION_PROGRAM;
  CHECK(says(refusal(options), "but it is WEFT_ACCUMULATION_PROGRAM"));
  options.accumulation = 3;
  CHECK(says(refusal(options), "accumulation is 3: allowed are WEFT_ACCUMULATION_UNSET (0)"));
  options.mode = 77;
  CHECK(says(refusal(options), "mode is 77"));
}

TEST_CASE("a number out of range is refused with its range") {
  weft_reducer_options options = {};
  options.divide_by = 99;
  CHECK(says(refusal(options), "divide_by is 99"));
  options.divide_by = WEFT_DIVIDE_ACTIVE;
  CHECK(says(refusal(options), "needs WEFT_REDUCER_UNEVEN"));
  options = {};
  options.buffers_root = 1;
  CHECK(says(refusal(options), "WEFT_REDUCER_BUFFERS"));
  options.flags = WEFT_REDUCER_BUFFERS;
  CHECK(refusal(options).empty());
  options.buffers_root = kSize;
  CHECK(says(refusal(options), "buffers_root is 4: allowed are 0 to 3"));
  options = {};
  options.bucket_limit_count = 1;
  CHECK(says(refusal(options), "bucket_limits is NULL"));
  const uint64_t limit = 1;
  options.bucket_limits = &limit;
  options.bucket_limit_count = kMaxLimits + 1;
  CHECK(says(refusal(options), "bucket limits; at most"));
  options = {};
  options.reduce_dtype = WEFT_DTYPE_I32;
  CHECK(says(refusal(options), "reduce_dtype is 6: allowed are"));
  options = {};
  options.timeout_ms = -2;
  CHECK(says(refusal(options), "timeout_ms is -2"));
}

}  // namespace unit_reducer_options
