#include "trace/timeline.h"

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text.h"
#include "trace/file.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

// A rank's tracks: four ids per lane. Each bucket has its own track of stages, because stages of different
// buckets may overlap and slices of one track may not. Messages overlap as well: they are asynchronous
// slices, which a viewer places itself.
enum class Track : uint32_t { kReducer, kLane, kHook, kMessages };

uint64_t track_id(Track track, const TraceEvent& event) {
  const uint64_t bucket = track == Track::kHook ? uint64_t{event.bucket} + 1 : 0;
  return (uint64_t{event.lane} * 4 + static_cast<uint32_t>(track) + 1) + (bucket << 20);
}

std::string track_name(Track track, const TraceEvent& event) {
  const std::string lane = event.lane == 0 ? "" : cat(" ", event.lane);
  switch (track) {
    case Track::kReducer:
      return cat("reducer", lane);
    case Track::kLane:
      return event.lane == 0 ? "collectives" : cat("lane", lane);
    case Track::kMessages:
      return "tagged messages";
    default:
      return cat("hook", lane, ", bucket ", event.bucket);
  }
}

Track track_of(TraceKind kind) {
  if (kind == TraceKind::kCollective) return Track::kLane;
  if (kind == TraceKind::kMessage) return Track::kMessages;
  return kind == TraceKind::kStage ? Track::kHook : Track::kReducer;
}

bool is_slice(TraceKind kind) {
  return kind == TraceKind::kStep || kind == TraceKind::kStage || kind == TraceKind::kCollective;
}

const char* category(TraceKind kind) {
  static constexpr const char* kNames[] = {"step",       "ready", "launch", "stage",
                                           "collective", "done",  "message"};
  const auto index = static_cast<size_t>(kind);
  return index < std::size(kNames) ? kNames[index] : "event";
}

// Buckets are named after their first parameter.
std::string title(const RecordedEvent& recorded) {
  const TraceEvent& e = recorded.event;
  const char* const name = recorded.name.data();
  switch (e.kind) {
    case TraceKind::kStep:
      return cat("step ", e.index);
    case TraceKind::kReady:
      return cat("ready ", name);
    case TraceKind::kLaunch:
      return cat("launch bucket ", e.bucket, " [", name, "]");
    case TraceKind::kStage:
      return cat("stage ", e.stage, " of bucket ", e.bucket, " [", name, "]");
    case TraceKind::kDone:
      return cat("done bucket ", e.bucket, " [", name, "]");
    default:
      return name;
  }
}

double microseconds(uint64_t ns) {
  return static_cast<double>(ns) / 1000.0;
}

Json event_json(const RecordedEvent& recorded) {
  const TraceEvent& e = recorded.event;
  Json json;
  json["name"] = title(recorded);
  json["cat"] = category(e.kind);
  json["ph"] = is_slice(e.kind) ? "X" : "i";
  json["pid"] = e.rank;
  json["tid"] = track_id(track_of(e.kind), e);
  json["ts"] = microseconds(e.begin_ns);
  if (is_slice(e.kind)) {
    json["dur"] = microseconds(e.end_ns > e.begin_ns ? e.end_ns - e.begin_ns : 0);
  } else {
    json["s"] = "t";
  }
  Json& args = json["args"] = Json::object();
  if (e.bucket != UINT32_MAX) args["bucket"] = e.bucket;
  if (e.stage != UINT32_MAX) args["stage"] = e.stage;
  if (e.index != UINT64_MAX) {
    args[e.kind == TraceKind::kReady        ? "parameter"
         : e.kind == TraceKind::kCollective ? "slot"
         : e.kind == TraceKind::kMessage    ? "tag"
                                            : "step"] = e.index;
  }
  if (e.bytes != 0) args["bytes"] = e.bytes;
  return json;
}

// An asynchronous slice: its begin and its end, which `id` connects.
std::pair<Json, Json> message_slices(const RecordedEvent& recorded, uint64_t id) {
  Json begin = event_json(recorded);
  begin["ph"] = "b";
  begin.erase("s");
  begin["id"] = id;
  Json end = begin;
  end["ph"] = "e";
  end["ts"] = microseconds(recorded.event.end_ns);
  end.erase("args");
  return {std::move(begin), std::move(end)};
}

Json metadata(const char* what, int32_t pid, uint64_t tid, const char* key, const Json& value) {
  return {{"name", what}, {"ph", "M"}, {"pid", pid}, {"tid", tid}, {"args", {{key, value}}}};
}

// Replaces invalid UTF-8, because names may contain any bytes.
std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string timeline_text(const std::vector<RecordedEvent>& events, uint64_t lost) {
  std::string text = "{\"displayTimeUnit\":\"ms\",\"otherData\":" +
                     dump({{"source", "weft"}, {"events_overwritten", lost}}) + ",\"traceEvents\":[\n";
  std::map<std::pair<int32_t, uint64_t>, std::string> tracks;
  std::map<int32_t, bool> ranks;
  bool first = true;
  uint64_t messages = 0;
  const auto add = [&](const Json& json) {
    text += std::exchange(first, false) ? "" : ",\n";
    text += dump(json);
  };
  for (const RecordedEvent& recorded : events) {
    const TraceEvent& e = recorded.event;
    const Track track = track_of(e.kind);
    const uint64_t tid = track_id(track, e);
    if (ranks.emplace(e.rank, true).second) {
      add(metadata("process_name", e.rank, 0, "name", cat("rank ", e.rank)));
      add(metadata("process_sort_index", e.rank, 0, "sort_index", e.rank));
    }
    if (tracks.emplace(std::pair{e.rank, tid}, "").second) {
      add(metadata("thread_name", e.rank, tid, "name", track_name(track, e)));
      add(metadata("thread_sort_index", e.rank, tid, "sort_index", tid));
    }
    if (e.kind != TraceKind::kMessage) {
      add(event_json(recorded));
      continue;
    }
    const auto [begin, end] = message_slices(recorded, ++messages);
    add(begin);
    add(end);
  }
  return text + "\n]}\n";
}

Status write_timeline(const std::vector<RecordedEvent>& events, uint64_t lost, const std::string& path) {
  return write_whole(timeline_text(events, lost), path, "the trace");
}

}  // namespace weft
