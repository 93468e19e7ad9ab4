// lib/reducer/options: invalid options of a reducer, options that differ between ranks, and how options are
// shown.
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/text.h"
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

// Returns the difference between default options and those that `change` makes.
template <class Change>
std::string difference(Change&& change) {
  weft_reducer_options options = {};
  change(options);
  return option_difference(1, compared_options(options), 0, compared_options({}));
}

// Returns the report's names of options that are not null or 0, with their values: "divide_by=weights".
std::string shown_text(const weft_reducer_options& options) {
  std::string text;
  for (const auto& [name, value] : shown_options(options)) {
    if (const auto* const number = std::get_if<int64_t>(&value); number != nullptr && *number != 0)
      text += cat(name, "=", *number, " ");
    if (const auto* const word = std::get_if<std::string>(&value); word != nullptr)
      text += cat(name, "=", *word, " ");
    if (const auto* const words = std::get_if<std::vector<std::string>>(&value); words != nullptr)
      for (const std::string& word : *words) text += cat("+", word, " ");
  }
  return text;
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

TEST_CASE("an option that differs between ranks is named with the values of both ranks") {
  using Options = weft_reducer_options;
  CHECK(difference([](Options&) {}).empty());
  CHECK(
      difference([](Options& o) { o.divide_by = WEFT_DIVIDE_WEIGHTS; }) ==
      "weft_reducer_options.divide_by is WEFT_DIVIDE_WEIGHTS on rank 1 and WEFT_DIVIDE_WORLD on rank 0: pass "
      "the same on all ranks");
  CHECK(says(difference([](Options& o) { o.flags = WEFT_REDUCER_NORMS | uint64_t{1} << 63; }),
             "flags is WEFT_REDUCER_NORMS | 9223372036854775808 on rank 1 and 0 on rank 0"));
  CHECK(says(difference([](Options& o) { o.accumulation = WEFT_ACCUMULATION_PROGRAM; }),
             "accumulation is WEFT_ACCUMULATION_PROGRAM on rank 1 and WEFT_ACCUMULATION_UNSET on rank 0"));
  CHECK(says(difference([](Options& o) { o.reduce_dtype = WEFT_DTYPE_BF16; }),
             "reduce_dtype is WEFT_DTYPE_BF16 on rank 1 and the gradients' own on rank 0"));
  CHECK(says(difference([](Options& o) { o.replan = WEFT_PLANNER_MODEL; }),
             "replan is WEFT_PLANNER_MODEL on rank 1 and WEFT_PLANNER_DEFAULT on rank 0"));
  CHECK(says(difference([](Options& o) { o.buffers_root = WEFT_ROOT_LAST_ACTIVE; }),
             "buffers_root is WEFT_ROOT_LAST_ACTIVE on rank 1 and 0 on rank 0"));
  CHECK(says(difference([](Options& o) { o.check_interval = 7; }), "check_interval is 7 on rank 1 and 0"));
  CHECK(says(difference([](Options& o) { o.mode = WEFT_GRADIENT_IN_PLACE; }),
             "mode is WEFT_GRADIENT_IN_PLACE on rank 1 and not on rank 0"));
}

TEST_CASE("ranks may differ in options that do not change what is communicated") {
  CHECK(difference([](weft_reducer_options& o) { o.mode = WEFT_GRADIENT_VIEW; }).empty());
  CHECK(difference([](weft_reducer_options& o) { o.timeout_ms = 5; }).empty());
}

TEST_CASE("the report shows options by the ends of their constants' names") {
  CHECK(shown_text(kept_options({})) == "mode=copy replan=default divide_by=world ");
  weft_reducer_options options = with_flags(WEFT_REDUCER_UNEVEN | WEFT_REDUCER_STRICT_STRIDES);
  options.mode = WEFT_GRADIENT_IN_PLACE;
  options.accumulation = WEFT_ACCUMULATION_PROGRAM;
  options.replan = WEFT_PLANNER_NONE;
  options.divide_by = WEFT_DIVIDE_WEIGHTS;
  options.check_interval = 3;
  options.reduce_dtype = WEFT_DTYPE_BF16;
  CHECK(shown_text(options) ==
        "+uneven +strict_strides mode=in_place accumulation=program replan=none divide_by=weights "
        "check_interval=3 reduce_dtype=bf16 ");
  options = with_flags(WEFT_REDUCER_BUFFERS);
  options.buffers_root = 2;
  CHECK(says(shown_text(options), "buffers_root=2"));
  options.buffers_root = WEFT_ROOT_LAST_ACTIVE;
  CHECK(says(shown_text(options), "buffers_root=last_active"));
}

TEST_CASE("captured steps exclude all flags but those that change no step") {
  for (uint64_t flag = 1; flag <= WEFT_REDUCER_DDP_BUCKETS; flag *= 2) {
    constexpr uint64_t kAllowed = WEFT_REDUCER_GRAPH | WEFT_REDUCER_KEEP_VALUES |
                                  WEFT_REDUCER_STRICT_STRIDES | WEFT_REDUCER_DDP_BUCKETS;
    uint64_t flags = WEFT_REDUCER_GRAPH | flag;
    if (flag == WEFT_REDUCER_STOP_WHEN_EXHAUSTED) flags |= WEFT_REDUCER_UNEVEN;
    if (flag == WEFT_REDUCER_OWN_WHOLE) flags |= WEFT_REDUCER_SHARDED;
    CHECK(check_options(with_flags(flags), kSize).ok() == ((flag & kAllowed) != 0));
  }
}

}  // namespace unit_reducer_options
