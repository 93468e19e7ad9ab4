#include "trace_file.h"

#include <cmath>
#include <iterator>
#include <utility>

#include "base/text.h"
#include "environment/launch.h"
#include "trace/timeline.h"
#include "weft/foreign_file.h"

namespace report {
namespace {

using nlohmann::json;
using weft::cat;
using weft::Code;
using weft::Status;

constexpr int kMostDepth = 8;
constexpr size_t kMostText = 256;
constexpr double kMostMicroseconds = 1e15;  // differences of such times fit in an int64_t of nanoseconds
constexpr int64_t kMostOffsetNs = int64_t{1} << 60;

Status bad(const std::string& why) {
  return Status::error(Code::kArg, why);
}

// Thrown by the parser's callback to end the parsing.
struct Stop {
  std::string why;
  bool useless = false;  // nothing of the file can be used
};

uint64_t number_or(const json& object, const char* key, uint64_t most, uint64_t otherwise) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned() || found->get<uint64_t>() > most)
    return otherwise;
  return found->get<uint64_t>();
}

std::string text_or_empty(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) return {};
  return printable(found->get_ref<const std::string&>().substr(0, kMostText));
}

weft::TraceComm comm_of(const json& given) {
  weft::TraceComm comm;
  const std::string id = given.is_object() ? text_or_empty(given, "id") : "";
  const uint64_t size = id.empty() ? weft::kMaxRanks + 1 : number_or(given, "size", weft::kMaxRanks, 0);
  const uint64_t rank = id.empty() ? 0 : number_or(given, "rank", weft::kMaxRanks - 1, weft::kMaxRanks);
  if (id.size() != 16 || id.find_first_not_of("0123456789abcdef") != std::string::npos ||
      rank >= weft::kMaxRanks || (size > 0 && rank >= size))
    throw Stop{"describes an impossible communicator", true};
  comm.id = std::stoull(id, nullptr, 16);
  comm.rank = static_cast<int32_t>(rank);
  comm.size = static_cast<int32_t>(size);
  comm.backend = text_or_empty(given, "backend");
  comm.job = text_or_empty(given, "job");
  const auto offset = given.find("clock_offset_ns");
  if (offset != given.end() && offset->is_number_integer()) {
    const auto offset_ns = offset->get<int64_t>();
    if (offset_ns > -kMostOffsetNs && offset_ns < kMostOffsetNs)
      comm.clock = weft::ClockOffset{offset_ns, number_or(given, "clock_error_ns", INT64_MAX, INT64_MAX)};
  }
  return comm;
}

// Reads otherData.
void describe(const json& given, TraceFile* file) {
  if (text_or_empty(given, "source") != "weft") throw Stop{"is a trace of another program", true};
  if (given.contains("merged")) throw Stop{"is a merged trace: name the files of the ranks instead", true};
  if (const uint64_t format = number_or(given, "format", kNone64, 0); format != weft::kTraceFormat)
    throw Stop{cat("is a trace of format ", format, "; this command reads format ", weft::kTraceFormat),
               true};
  file->host = text_or_empty(given, "host");
  file->pid = static_cast<int64_t>(number_or(given, "pid", INT32_MAX, 0));
  file->clock = text_or_empty(given, "clock");
  file->lost = number_or(given, "events_overwritten", INT64_MAX, 0);
  const auto comms = given.find("communicators");
  if (comms == given.end() || !comms->is_array() || comms->size() > 2 * weft::TraceComms::kMost)
    throw Stop{"has no list of communicators", true};
  for (const json& comm : *comms) file->comms.push_back(comm_of(comm));
}

bool kind_of(const std::string& category, Kind* kind) {
  static constexpr const char* kNames[] = {"step",  "finish",     "ready", "launch",
                                           "stage", "collective", "done"};
  for (size_t i = 0; i < std::size(kNames); i++) {
    if (category != kNames[i]) continue;
    *kind = static_cast<Kind>(i);
    return true;
  }
  return false;
}

bool nanoseconds(const json& object, const char* key, int64_t* ns) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return false;
  const auto us = found->get<double>();
  if (!(us >= 0 && us <= kMostMicroseconds)) return false;
  *ns = std::llround(us * 1000.0);
  return true;
}

// Returns false if the event is malformed.
bool event_of(const json& given, size_t comms, Event* event) {
  int64_t duration_ns = 0;
  const bool timed = nanoseconds(given, "ts", &event->begin_ns);
  if (!timed || (given.contains("dur") && !nanoseconds(given, "dur", &duration_ns))) return false;
  event->end_ns = event->begin_ns + duration_ns;
  const auto found = given.find("args");
  if (found == given.end() || !found->is_object()) return false;
  const json& args = *found;
  event->comm = static_cast<uint32_t>(number_or(args, "comm", UINT32_MAX - 1, 0));
  event->lane = static_cast<uint32_t>(number_or(args, "lane", UINT32_MAX, 0));
  event->bucket = static_cast<uint32_t>(number_or(args, "bucket", UINT32_MAX, kNone32));
  event->step = number_or(args, "step", kNone64, kNone64);
  event->slot = number_or(args, "slot", kNone64, kNone64);
  event->bytes = number_or(args, "bytes", uint64_t{1} << 60, 0);
  event->sent_bytes = number_or(args, "sent_bytes", uint64_t{1} << 60, kNone64);
  if (event->kind == Kind::kCollective) {
    event->name = text_or_empty(given, "name");
    event->algorithm = text_or_empty(args, "algorithm");
  }
  return event->comm < comms;
}

}  // namespace

Status read_events(const std::string& text, TraceFile* file, const std::function<bool(json&)>& on_event) {
  std::string key;
  bool described = false;
  uint64_t events = 0;
  const auto callback = [&](int depth, json::parse_event_t parsing, json& parsed) {
    using Parsing = json::parse_event_t;
    if (depth > kMostDepth) throw Stop{"is nested too deeply for a trace", !described};
    if (parsing == Parsing::key && depth == 1) key = parsed.get<std::string>();
    if (parsing == Parsing::object_end && depth == 1 && key == "otherData") {
      describe(parsed, file);
      described = true;
    }
    if (depth != 2 || key != "traceEvents" || parsing != Parsing::object_end) return true;
    if (!described) throw Stop{"is a trace of another program", true};
    if (events++ == kMostEvents) throw Stop{cat("has more than ", kMostEvents, " events")};
    if (!on_event(parsed)) throw Stop{"was not read to its end"};
    return false;
  };
  try {
    const json whole = json::parse(text, callback, false);
    if (described && whole.is_discarded()) file->damage = cat("was cut off after ", events, " events");
    if (!described)
      return bad(whole.is_discarded() ? "is not JSON, or was cut off" : "is not a trace of Weft");
  } catch (const Stop& stop) {
    if (stop.useless) return bad(stop.why);
    file->damage = stop.why;
  }
  return {};
}

Status parse_trace(const std::string& text, TraceFile* file) {
  return read_events(text, file, [&](json& given) {
    Event event;
    const std::string category = text_or_empty(given, "cat");
    if (!kind_of(category, &event.kind)) return true;
    if (event_of(given, file->comms.size(), &event)) {
      file->events.push_back(std::move(event));
    } else {
      file->left_out++;
    }
    return true;
  });
}

}  // namespace report
