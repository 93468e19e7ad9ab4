#include "reducer/options.h"

#include <span>

#include "base/arguments.h"
#include "base/text.h"
#include "reducer/feature/graph/captures.h"
#include "reducer/feature/in_place/in_place.h"
#include "reducer/plan/plan.h"

namespace weft {
namespace {

constexpr NamedValue kReducerFlags[] = {
    WEFT_NAMED(WEFT_REDUCER_RETAIN),        WEFT_NAMED(WEFT_REDUCER_ABSENT),
    WEFT_NAMED(WEFT_REDUCER_UNEVEN),        WEFT_NAMED(WEFT_REDUCER_STOP_WHEN_EXHAUSTED),
    WEFT_NAMED(WEFT_REDUCER_STATIC),        WEFT_NAMED(WEFT_REDUCER_BUFFERS),
    WEFT_NAMED(WEFT_REDUCER_SHARDED),       WEFT_NAMED(WEFT_REDUCER_OWN_WHOLE),
    WEFT_NAMED(WEFT_REDUCER_NORMS),         WEFT_NAMED(WEFT_REDUCER_ACCUMULATE_F32),
    WEFT_NAMED(WEFT_REDUCER_DETERMINISTIC), WEFT_NAMED(WEFT_REDUCER_COPY_STRAYS),
    WEFT_NAMED(WEFT_REDUCER_GRAPH),         WEFT_NAMED(WEFT_REDUCER_KEEP_VALUES),
    WEFT_NAMED(WEFT_REDUCER_STRICT_STRIDES)};

constexpr NamedValue kPlanners[] = {WEFT_NAMED(WEFT_PLANNER_DEFAULT), WEFT_NAMED(WEFT_PLANNER_LIMITS),
                                    WEFT_NAMED(WEFT_PLANNER_MODEL), WEFT_NAMED(WEFT_PLANNER_NONE)};

constexpr NamedValue kAccumulations[] = {WEFT_NAMED(WEFT_ACCUMULATION_UNSET),
                                         WEFT_NAMED(WEFT_ACCUMULATION_PROGRAM),
                                         WEFT_NAMED(WEFT_ACCUMULATION_REDUCER)};

const char* name_of(int32_t value, std::span<const NamedValue> values) {
  for (const NamedValue& each : values) {
    if (each.value == static_cast<uint64_t>(value)) return each.name;
  }
  return "unknown";
}

// A rule about flags that require or exclude others.
struct Rule {
  uint64_t flags;  // the rule applies if all of these are set
  uint64_t needs;
  uint64_t excludes;
  const char* otherwise;
};
constexpr Rule kRules[] = {
    {WEFT_REDUCER_STOP_WHEN_EXHAUSTED, WEFT_REDUCER_UNEVEN, 0,
     "WEFT_REDUCER_STOP_WHEN_EXHAUSTED needs WEFT_REDUCER_UNEVEN"},
    {WEFT_REDUCER_OWN_WHOLE, WEFT_REDUCER_SHARDED, 0, "WEFT_REDUCER_OWN_WHOLE needs WEFT_REDUCER_SHARDED"},
};

Status check_rules(uint64_t flags) {
  WEFT_TRY(check_flags("weft_reducer_options.flags", flags, kReducerFlags));
  for (const Rule& rule : kRules) {
    if ((flags & rule.flags) != rule.flags) continue;
    if ((flags & rule.needs) != rule.needs || (flags & rule.excludes) != 0) {
      return Status::error(Code::kArg, rule.otherwise);
    }
  }
  return {};
}

// Checks the mode, and flags that apply to one mode only.
Status check_mode(const weft_reducer_options& options) {
  const bool in_place = options.mode == WEFT_GRADIENT_IN_PLACE;
  const bool view = options.mode == WEFT_GRADIENT_VIEW || in_place;
  constexpr NamedValue kModes[] = {{0, "the default"},
                                   WEFT_NAMED(WEFT_GRADIENT_COPY),
                                   WEFT_NAMED(WEFT_GRADIENT_VIEW),
                                   WEFT_NAMED(WEFT_GRADIENT_IN_PLACE)};
  WEFT_TRY(check_choice("weft_reducer_options.mode", options.mode, kModes));
  if (in_place) WEFT_TRY(check_in_place_flags(options.flags));
  WEFT_TRY(check_choice("weft_reducer_options.accumulation", options.accumulation, kAccumulations));
  const bool reducer_adds = options.accumulation == WEFT_ACCUMULATION_REDUCER;
  if (reducer_adds && view) {
    return Status::error(
        Code::kArg,
        "weft_reducer_options.accumulation is WEFT_ACCUMULATION_REDUCER, which is for copy mode: in the view "
        "modes the program itself adds to the gradients. Set accumulation to WEFT_ACCUMULATION_PROGRAM, or "
        "weft_reducer_options.mode to WEFT_GRADIENT_COPY");
  }
  if ((options.flags & WEFT_REDUCER_ACCUMULATE_F32) != 0 && !reducer_adds) {
    return Status::error(
        Code::kArg,
        cat("WEFT_REDUCER_ACCUMULATE_F32 needs weft_reducer_options.accumulation "
            "WEFT_ACCUMULATION_REDUCER, which is for copy mode, but it is ",
            accumulation_name(options.accumulation),
            ": the program itself adds to the gradients then. Change accumulation or remove the flag"));
  }
  if ((options.flags & WEFT_REDUCER_COPY_STRAYS) != 0 && !view) {
    return Status::error(Code::kArg,
                         "WEFT_REDUCER_COPY_STRAYS is for view mode: copy mode copies all gradients anyway. "
                         "Set weft_reducer_options.mode to WEFT_GRADIENT_VIEW or remove the flag");
  }
  return {};
}

// Checks the planner of the automatic re-plan.
Status check_replan(const weft_reducer_options& options) {
  WEFT_TRY(check_choice("weft_reducer_options.replan", options.replan, kPlanners));
  const auto refuse = [&](const char* why) {
    return Status::error(Code::kArg,
                         cat("weft_reducer_options.replan is ", planner_name(options.replan), why));
  };
  if (!replans(options.replan)) return {};
  if (options.mode == WEFT_GRADIENT_IN_PLACE) {
    return refuse(
        ", which mode WEFT_GRADIENT_IN_PLACE excludes: use WEFT_GRADIENT_VIEW or WEFT_GRADIENT_COPY with it");
  }
  if ((options.flags & WEFT_REDUCER_GRAPH) != 0) {
    return refuse(", which WEFT_REDUCER_GRAPH excludes: captured graphs contain the plan");
  }
  if ((options.flags & WEFT_REDUCER_SHARDED) != 0 && (options.flags & WEFT_REDUCER_OWN_WHOLE) == 0) {
    return refuse(
        ", which with WEFT_REDUCER_SHARDED also needs WEFT_REDUCER_OWN_WHOLE: otherwise the re-plan after "
        "the "
        "first step would assign slices to other ranks");
  }
  return {};
}

Status check_divisor(const weft_reducer_options& options) {
  constexpr NamedValue kDivisors[] = {WEFT_NAMED(WEFT_DIVIDE_WORLD), WEFT_NAMED(WEFT_DIVIDE_ACTIVE),
                                      WEFT_NAMED(WEFT_DIVIDE_WEIGHTS)};
  WEFT_TRY(check_choice("weft_reducer_options.divide_by", options.divide_by, kDivisors));
  if (options.divide_by != WEFT_DIVIDE_WORLD && (options.flags & WEFT_REDUCER_UNEVEN) == 0) {
    return Status::error(Code::kArg, cat("weft_reducer_options.divide_by is ",
                                         options.divide_by == WEFT_DIVIDE_ACTIVE ? "WEFT_DIVIDE_ACTIVE"
                                                                                 : "WEFT_DIVIDE_WEIGHTS",
                                         ", which needs WEFT_REDUCER_UNEVEN in weft_reducer_options.flags"));
  }
  return {};
}

Status check_root(const weft_reducer_options& options, int size) {
  const bool exists = options.buffers_root == WEFT_ROOT_LAST_ACTIVE ||
                      (options.buffers_root >= 0 && options.buffers_root < size);
  if (!exists) {
    return Status::error(Code::kArg, cat("weft_reducer_options.buffers_root is ", options.buffers_root,
                                         ": allowed are 0 to ", size - 1, " and WEFT_ROOT_LAST_ACTIVE (-1)"));
  }
  if (options.buffers_root != 0 && (options.flags & WEFT_REDUCER_BUFFERS) == 0) {
    return Status::error(Code::kArg, cat("weft_reducer_options.buffers_root is ", options.buffers_root,
                                         ", which needs WEFT_REDUCER_BUFFERS in weft_reducer_options.flags"));
  }
  return {};
}

}  // namespace

const char* planner_name(weft_planner planner) {
  return name_of(planner, kPlanners);
}

const char* accumulation_name(weft_accumulation accumulation) {
  return name_of(accumulation, kAccumulations);
}

std::string reducer_flags_text(uint64_t flags) {
  std::string text;
  for (const NamedValue& flag : kReducerFlags) {
    if ((flags & flag.value) != 0) text += cat(text.empty() ? "" : " | ", flag.name);
    flags &= ~flag.value;
  }
  if (flags != 0 || text.empty()) text += cat(text.empty() ? "" : " | ", flags);
  return text;
}

Status check_limits(const uint64_t* limits, uint64_t count) {
  if (count > 0 && limits == nullptr)
    return Status::error(Code::kArg, cat("bucket_limits is NULL, but bucket_limit_count is ", count));
  if (count <= kMaxLimits) return {};
  return Status::error(
      Code::kArg, cat(count, " bucket limits; at most ", kMaxLimits, " are allowed (bucket_limit_count)"));
}

Status check_options(const weft_reducer_options& options, int size) {
  WEFT_TRY(check_rules(options.flags));
  WEFT_TRY(Captures::check(options.flags, options.check_interval));
  WEFT_TRY(check_mode(options));
  WEFT_TRY(check_replan(options));
  WEFT_TRY(check_divisor(options));
  WEFT_TRY(check_root(options, size));
  WEFT_TRY(check_limits(options.bucket_limits, options.bucket_limit_count));
  constexpr NamedValue kDtypes[] = {{0, "the gradients' own"},
                                    WEFT_NAMED(WEFT_DTYPE_F16),
                                    WEFT_NAMED(WEFT_DTYPE_BF16),
                                    WEFT_NAMED(WEFT_DTYPE_F32)};
  WEFT_TRY(check_choice("weft_reducer_options.reduce_dtype", options.reduce_dtype, kDtypes));
  return check_timeout("weft_reducer_options.timeout_ms", options.timeout_ms);
}

}  // namespace weft
