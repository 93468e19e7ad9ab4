#include "transport/failpoints.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"

namespace weft {
namespace {

bool parse_number(std::string_view text, uint64_t* number) {
  const char* const end = std::to_address(text.end());
  const auto [at, error] = std::from_chars(std::to_address(text.begin()), end, *number);
  return error == std::errc() && at == end && *number != UINT64_MAX;
}

// Returns the text before `sign` and leaves the text behind it in *text. Without the sign, *text becomes
// empty.
std::string_view take_until(char sign, std::string_view* text) {
  const size_t at = text->find(sign);
  const std::string_view before = text->substr(0, at);
  *text = at == std::string_view::npos ? std::string_view() : text->substr(at + 1);
  return before;
}

struct NamedPlace {
  std::string_view name;
  FailPlace place;
};
constexpr NamedPlace kNamedPlaces[] = {
    {"forming", FailPlace::kGroupSetup}, {"operation", FailPlace::kOperation}, {"stage", FailPlace::kStage},
    {"leaving", FailPlace::kLeaving},    {"memory", FailPlace::kMemory},       {"system", FailPlace::kSystem},
    {"writing", FailPlace::kWriting},    {"measuring", FailPlace::kMeasuring}};

struct NamedCounter {
  std::string_view name;
  FailCounter counter;
  uint64_t most = UINT64_MAX - 1;
};
constexpr std::array<NamedCounter, kCounters> kNamedCounters = {
    {{"operations", FailCounter::kSlots},
     {"packets", FailCounter::kPackets},
     {"messages", FailCounter::kMessages},
     {"steps", FailCounter::kSteps},
     {"stamps", FailCounter::kStamps, UINT32_MAX},
     {"stages", FailCounter::kStages},
     {"reducers", FailCounter::kLanes, UINT32_MAX},
     {"splits", FailCounter::kSplits, UINT32_MAX},
     {"notes", FailCounter::kNotes, UINT32_MAX},
     {"groups", FailCounter::kGroups},
     {"turns", FailCounter::kTurns}}};

// Returns the grammar of one item, with the names of places and counters.
std::string accepted_items() {
  std::vector<std::string_view> places, short_counters, counters;
  for (const NamedPlace& one : kNamedPlaces) places.push_back(one.name);
  for (const NamedCounter& one : kNamedCounters)
    (one.most == UINT32_MAX ? short_counters : counters).push_back(one.name);
  return cat("PLACE[@NUMBER[.STAGE]]=ACTION (places: ", list_text(places),
             "; actions: kill, stop, fail, delay:MILLISECONDS) or COUNTER=begin:NUMBER (counters: ",
             list_text(counters), ", up to ", UINT64_MAX - 1, "; ", list_text(short_counters), ", up to ",
             UINT32_MAX, ")");
}

}  // namespace

bool FailPoints::parse_point(const std::string& text, Point* point) {
  point->text = text;
  std::string_view action = text;
  std::string_view stage = take_until('=', &action);
  std::string_view number = stage;
  const std::string_view place = take_until('@', &number);
  stage = number;
  number = take_until('.', &stage);
  bool known = false;
  for (const auto& [name, value] : kNamedPlaces) {
    if (name != place) continue;
    point->place = value;
    known = true;
  }
  if (!number.empty()) known &= parse_number(number, &point->number);
  if (!stage.empty()) known &= parse_number(stage, &point->stage);
  if (action == "kill") {
    point->action = Action::kKill;
  } else if (action == "stop") {
    point->action = Action::kStop;
  } else if (action == "fail") {
    point->action = Action::kFail;
  } else if (take_until(':', &action) == "delay") {
    point->action = Action::kDelay;
    known &= parse_number(action, &point->delay_ms);
  } else {
    return false;
  }
  return known;
}

// Returns false unless the text is "COUNTER=begin:NUMBER".
bool FailPoints::parse_counter(std::string_view text) {
  const std::string_view name = take_until('=', &text);
  uint64_t number = 0;
  if (take_until(':', &text) != "begin" || !parse_number(text, &number)) return false;
  for (const NamedCounter& known : kNamedCounters) {
    if (known.name != name || number > known.most) continue;
    first_[static_cast<size_t>(known.counter)] = number;
    return true;
  }
  return false;
}

Status FailPoints::parse(const std::string& text, std::shared_ptr<const FailPoints>* points) {
  points->reset();
  auto made = std::make_shared<FailPoints>();
  bool any = false;
  for (std::string_view rest = text; !rest.empty();) {
    std::string_view one = take_until(',', &rest);
    while (!one.empty() && one.front() == ' ') one.remove_prefix(1);
    if (one.empty()) continue;
    any = true;
    if (made->parse_counter(one)) continue;
    if (!parse_point(std::string(one), &made->points_.emplace_back())) {
      return Status::error(Code::kArg, cat("WEFT_FAILPOINTS: \"", one, "\" is not ", accepted_items()));
    }
  }
  if (any) *points = std::move(made);
  return {};
}

Status FailPoints::reach(FailPlace place, uint64_t number, uint64_t stage, Clock& clock) const {
  for (const Point& point : points_) {
    if (point.place != place || (point.number != kAny && point.number != number) ||
        (point.stage != kAny && point.stage != stage)) {
      continue;
    }
    switch (point.action) {
      case Action::kKill:
        ::kill(::getpid(), SIGKILL);
        break;
      case Action::kStop:
        ::kill(::getpid(), SIGSTOP);
        break;
      case Action::kDelay: {
        const uint64_t until = clock.now_ns() + point.delay_ms * 1'000'000;
        for (uint32_t round = 0; clock.now_ns() < until; round++) clock.relax(round);
        break;
      }
      case Action::kFail:
        return Status::error(place == FailPlace::kMemory ? Code::kNoMemory : Code::kSystem,
                             cat("failpoint ", point.text, ": WEFT_FAILPOINTS requests this failure"),
                             Evidence::kLocal);
    }
  }
  return {};
}

}  // namespace weft
