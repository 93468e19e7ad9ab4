#include "reducer/options.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

#include "base/arguments.h"
#include "base/text.h"
#include "reducer/bucket/in_place.h"
#include "reducer/features.h"
#include "reducer/plan/plan.h"

namespace weft {
namespace {

// Flags that no feature declares.
constexpr ReducerFlag kOtherFlags[] = {
    {WEFT_NAMED(WEFT_REDUCER_STOP_WHEN_EXHAUSTED), WEFT_REDUCER_UNEVEN},
    {WEFT_NAMED(WEFT_REDUCER_STATIC)},
    {WEFT_NAMED(WEFT_REDUCER_BUFFERS)},
    {WEFT_NAMED(WEFT_REDUCER_OWN_WHOLE), WEFT_REDUCER_SHARDED},
    {WEFT_NAMED(WEFT_REDUCER_ACCUMULATE_F32)},
    {WEFT_NAMED(WEFT_REDUCER_DETERMINISTIC)},
    {WEFT_NAMED(WEFT_REDUCER_COPY_STRAYS)},
    {WEFT_NAMED(WEFT_REDUCER_GRAPH)},
    {WEFT_NAMED(WEFT_REDUCER_KEEP_VALUES)},
    {WEFT_NAMED(WEFT_REDUCER_STRICT_STRIDES)},
    {WEFT_NAMED(WEFT_REDUCER_DDP_BUCKETS)},
};

// Returns all flags in ascending order.
std::vector<ReducerFlag> reducer_flags() {
  std::vector<ReducerFlag> flags = feature_flags();
  flags.insert(flags.end(), std::begin(kOtherFlags), std::end(kOtherFlags));
  std::sort(flags.begin(), flags.end(),
            [](const ReducerFlag& a, const ReducerFlag& b) { return a.flag.value < b.flag.value; });
  return flags;
}

// A captured step does what the graph contains, so every other flag is excluded.
constexpr uint64_t kGraphAllows =
    WEFT_REDUCER_GRAPH | WEFT_REDUCER_KEEP_VALUES | WEFT_REDUCER_STRICT_STRIDES | WEFT_REDUCER_DDP_BUCKETS;

constexpr NamedValue kGradientModes[] = {{0, "the default"},
                                         WEFT_NAMED(WEFT_GRADIENT_COPY),
                                         WEFT_NAMED(WEFT_GRADIENT_VIEW),
                                         WEFT_NAMED(WEFT_GRADIENT_IN_PLACE)};
constexpr NamedValue kDivisors[] = {WEFT_NAMED(WEFT_DIVIDE_WORLD), WEFT_NAMED(WEFT_DIVIDE_ACTIVE),
                                    WEFT_NAMED(WEFT_DIVIDE_WEIGHTS)};
constexpr NamedValue kAccumulations[] = {WEFT_NAMED(WEFT_ACCUMULATION_UNSET),
                                         WEFT_NAMED(WEFT_ACCUMULATION_PROGRAM),
                                         WEFT_NAMED(WEFT_ACCUMULATION_REDUCER)};
constexpr NamedValue kDtypes[] = {{0, "the gradients' own"},
                                  WEFT_NAMED(WEFT_DTYPE_F16),
                                  WEFT_NAMED(WEFT_DTYPE_BF16),
                                  WEFT_NAMED(WEFT_DTYPE_F32)};
constexpr NamedValue kRoots[] = {WEFT_NAMED(WEFT_ROOT_LAST_ACTIVE)};
constexpr NamedValue kPlanners[] = {WEFT_NAMED(WEFT_PLANNER_DEFAULT), WEFT_NAMED(WEFT_PLANNER_LIMITS),
                                    WEFT_NAMED(WEFT_PLANNER_MODEL), WEFT_NAMED(WEFT_PLANNER_NONE)};

Status check_flag_rules(const weft_reducer_options& options, int size);
Status check_mode(const weft_reducer_options& options, int size);
Status check_accumulation_rules(const weft_reducer_options& options, int size);
Status check_root(const weft_reducer_options& options, int size);
Status check_interval_rules(const weft_reducer_options& options, int size);
Status check_replan(const weft_reducer_options& options, int size);
Status check_step_timeout(const weft_reducer_options& options, int size);

enum class OptionKind : uint8_t {
  kFlags,
  kChoice,  // one of `names`
  kNumber,  // some of its values may have names
};
enum class OptionEqual : uint8_t {
  kYes,      // on all ranks
  kNo,       // ranks may differ, and the report does not show it
  kInPlace,  // only whether it is WEFT_GRADIENT_IN_PLACE
};

// A field of weft_reducer_options that holds a number.
struct ReducerOption {
  const char* name;  // of the field
  int64_t (*value)(const weft_reducer_options& options);
  OptionKind kind = OptionKind::kNumber;
  std::span<const NamedValue> names = {};
  uint64_t needs = 0;  // flags without which it must be 0
  // Checks what the fields above do not say, and rules about several options; null: nothing.
  Status (*check)(const weft_reducer_options& options, int size) = nullptr;
  OptionEqual equal = OptionEqual::kYes;
};
#define WEFT_OPTION(field)                                                                       \
  .name = #field, .value = [](const weft_reducer_options& options) {                             \
    static_assert(std::is_integral_v<decltype(options.field)>, "compared and shown as int64_t"); \
    return static_cast<int64_t>(options.field);                                                  \
  }

// They are checked and compared in this order.
constexpr ReducerOption kOptions[] = {
    {WEFT_OPTION(flags), .kind = OptionKind::kFlags, .check = check_flag_rules},
    {WEFT_OPTION(mode), .kind = OptionKind::kChoice, .names = kGradientModes, .check = check_mode,
     .equal = OptionEqual::kInPlace},
    {WEFT_OPTION(accumulation), .kind = OptionKind::kChoice, .names = kAccumulations,
     .check = check_accumulation_rules},
    {WEFT_OPTION(replan), .kind = OptionKind::kChoice, .names = kPlanners, .check = check_replan},
    {WEFT_OPTION(divide_by), .kind = OptionKind::kChoice, .names = kDivisors, .needs = WEFT_REDUCER_UNEVEN},
    {WEFT_OPTION(buffers_root), .names = kRoots, .needs = WEFT_REDUCER_BUFFERS, .check = check_root},
    {WEFT_OPTION(check_interval), .check = check_interval_rules},
    {WEFT_OPTION(reduce_dtype), .kind = OptionKind::kChoice, .names = kDtypes},
    {WEFT_OPTION(timeout_ms), .check = check_step_timeout, .equal = OptionEqual::kNo},
};

std::string field_text(const ReducerOption& option) {
  return cat("weft_reducer_options.", option.name);
}

// Returns null for a value without a name.
const char* constant_of(int64_t value, std::span<const NamedValue> names) {
  for (const NamedValue& each : names) {
    if (static_cast<int64_t>(each.value) == value) return each.name;
  }
  return nullptr;
}

// Returns the names of flags: "WEFT_REDUCER_RETAIN | WEFT_REDUCER_ABSENT", "0" for none. Unknown flags are
// numbers.
std::string flags_text(uint64_t flags) {
  std::string text;
  for (const ReducerFlag& each : reducer_flags()) {
    if ((flags & each.flag.value) != 0) text += cat(text.empty() ? "" : " | ", each.flag.name);
    flags &= ~each.flag.value;
  }
  if (flags != 0 || text.empty()) text += cat(text.empty() ? "" : " | ", flags);
  return text;
}

// Returns a value for an error's text.
std::string value_text(const ReducerOption& option, int64_t value) {
  if (option.kind == OptionKind::kFlags) return flags_text(static_cast<uint64_t>(value));
  const char* const name = constant_of(value, option.names);
  return name != nullptr ? name : cat(value);
}

// Returns the end of a constant's name, "in_place" of "WEFT_GRADIENT_IN_PLACE"; empty for other names.
std::string short_name(std::string_view constant) {
  if (!constant.starts_with("WEFT_")) return {};
  const std::string_view end = constant.substr(constant.find('_', 5) + 1);
  std::string text;
  for (const char c : end) text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

ShownOption shown(const ReducerOption& option, const weft_reducer_options& options) {
  const int64_t value = option.value(options);
  if (option.kind == OptionKind::kFlags) {
    std::vector<std::string> names;
    for (const ReducerFlag& each : reducer_flags()) {
      if ((options.flags & each.flag.value) != 0) names.push_back(short_name(each.flag.name));
    }
    return names;
  }
  if (const char* const name = constant_of(value, option.names); name != nullptr) {
    const std::string text = short_name(name);
    return text.empty() || text == "unset" ? ShownOption() : ShownOption(text);
  }
  if ((options.flags & option.needs) != option.needs) return {};
  return value;
}

Status check_flag_rules(const weft_reducer_options& options, int /*size*/) {
  for (const ReducerFlag& each : reducer_flags()) {
    if ((options.flags & each.flag.value) == 0 || (options.flags & each.needs) == each.needs) continue;
    return Status::error(Code::kArg, cat(each.flag.name, " needs ", flags_text(each.needs)));
  }
  if ((options.flags & WEFT_REDUCER_GRAPH) == 0) return {};
  for (const ReducerFlag& each : reducer_flags()) {
    if ((options.flags & each.flag.value & ~kGraphAllows) == 0) continue;
    return Status::error(Code::kUnsupported, cat("WEFT_REDUCER_GRAPH: it excludes ", each.flag.name,
                                                 "; remove one of the two flags"));
  }
  return {};
}

Status check_interval_rules(const weft_reducer_options& options, int /*size*/) {
  if ((options.flags & WEFT_REDUCER_GRAPH) == 0 || options.check_interval == 0) return {};
  return Status::error(Code::kUnsupported, cat("WEFT_REDUCER_GRAPH: weft_reducer_options.check_interval is ",
                                               options.check_interval, ", but must be 0"));
}

bool has_views(const weft_reducer_options& options) {
  return options.mode == WEFT_GRADIENT_VIEW || options.mode == WEFT_GRADIENT_IN_PLACE;
}

// Checks flags that apply to one mode only.
Status check_mode(const weft_reducer_options& options, int /*size*/) {
  if (options.mode == WEFT_GRADIENT_IN_PLACE) WEFT_TRY(check_in_place_flags(options.flags));
  if ((options.flags & WEFT_REDUCER_COPY_STRAYS) != 0 && !has_views(options)) {
    return Status::error(Code::kArg,
                         "WEFT_REDUCER_COPY_STRAYS is for view mode: copy mode copies all gradients anyway. "
                         "Set weft_reducer_options.mode to WEFT_GRADIENT_VIEW or remove the flag");
  }
  return {};
}

Status check_accumulation_rules(const weft_reducer_options& options, int /*size*/) {
  const bool reducer_adds = options.accumulation == WEFT_ACCUMULATION_REDUCER;
  if (reducer_adds && has_views(options)) {
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
  return {};
}

// Checks the planner of the automatic re-plan.
Status check_replan(const weft_reducer_options& options, int /*size*/) {
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
        "the first step would assign slices to other ranks");
  }
  return {};
}

Status check_root(const weft_reducer_options& options, int size) {
  const bool exists = options.buffers_root == WEFT_ROOT_LAST_ACTIVE ||
                      (options.buffers_root >= 0 && options.buffers_root < size);
  if (exists) return {};
  return Status::error(Code::kArg, cat("weft_reducer_options.buffers_root is ", options.buffers_root,
                                       ": allowed are 0 to ", size - 1, " and WEFT_ROOT_LAST_ACTIVE (-1)"));
}

Status check_step_timeout(const weft_reducer_options& options, int /*size*/) {
  return check_timeout("weft_reducer_options.timeout_ms", options.timeout_ms);
}

Status check_option(const ReducerOption& option, const weft_reducer_options& options, int size) {
  const int64_t value = option.value(options);
  if (option.kind == OptionKind::kFlags) {
    std::vector<NamedValue> allowed;
    for (const ReducerFlag& each : reducer_flags()) allowed.push_back(each.flag);
    WEFT_TRY(check_flags(field_text(option), options.flags, allowed));
  }
  if (option.kind == OptionKind::kChoice) WEFT_TRY(check_choice(field_text(option), value, option.names));
  if (option.check != nullptr) WEFT_TRY(option.check(options, size));
  if (value == 0 || (options.flags & option.needs) == option.needs) return {};
  return Status::error(Code::kArg,
                       cat(field_text(option), " is ", value_text(option, value), ", which needs ",
                           flags_text(option.needs), " in weft_reducer_options.flags"));
}

}  // namespace

const char* planner_name(weft_planner planner) {
  const char* const name = constant_of(planner, kPlanners);
  return name != nullptr ? name : "unknown";
}

const char* accumulation_name(weft_accumulation accumulation) {
  const char* const name = constant_of(accumulation, kAccumulations);
  return name != nullptr ? name : "unknown";
}

Status check_limits(const uint64_t* limits, uint64_t count) {
  if (count > 0 && limits == nullptr)
    return Status::error(Code::kArg, cat("bucket_limits is NULL, but bucket_limit_count is ", count));
  if (count <= kMaxLimits) return {};
  return Status::error(
      Code::kArg, cat(count, " bucket limits; at most ", kMaxLimits, " are allowed (bucket_limit_count)"));
}

Status check_options(const weft_reducer_options& options, int size) {
  for (const ReducerOption& option : kOptions) WEFT_TRY(check_option(option, options, size));
  return check_limits(options.bucket_limits, options.bucket_limit_count);
}

weft_reducer_options kept_options(const weft_reducer_options& options) {
  weft_reducer_options kept = options;
  kept.params = nullptr;
  kept.bucket_limits = nullptr;
  kept.hook = nullptr;
  kept.plan = nullptr;
  if (kept.mode == 0) kept.mode = WEFT_GRADIENT_COPY;
  return kept;
}

std::vector<int64_t> compared_options(const weft_reducer_options& options) {
  std::vector<int64_t> values;
  for (const ReducerOption& option : kOptions) {
    if (option.equal == OptionEqual::kNo) continue;
    const int64_t value = option.value(options);
    values.push_back(option.equal == OptionEqual::kInPlace && value != WEFT_GRADIENT_IN_PLACE ? 0 : value);
  }
  return values;
}

std::string option_difference(int rank, const std::vector<int64_t>& mine, int other_rank,
                              const std::vector<int64_t>& theirs) {
  size_t i = 0;
  for (const ReducerOption& option : kOptions) {
    if (option.equal == OptionEqual::kNo) continue;
    if (mine[i] != theirs[i] && option.equal == OptionEqual::kInPlace) {
      const bool here = mine[i] != 0;
      return cat(field_text(option), " is WEFT_GRADIENT_IN_PLACE on rank ", here ? rank : other_rank,
                 " and not on rank ", here ? other_rank : rank, ": use it on all ranks or on none");
    }
    if (mine[i] != theirs[i]) {
      return cat(field_text(option), " is ", value_text(option, mine[i]), " on rank ", rank, " and ",
                 value_text(option, theirs[i]), " on rank ", other_rank, ": pass the same on all ranks");
    }
    i++;
  }
  return {};
}

std::vector<std::pair<const char*, ShownOption>> shown_options(const weft_reducer_options& options) {
  std::vector<std::pair<const char*, ShownOption>> all;
  for (const ReducerOption& option : kOptions) {
    if (option.equal != OptionEqual::kNo) all.emplace_back(option.name, shown(option, options));
  }
  return all;
}

}  // namespace weft
