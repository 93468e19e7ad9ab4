#include "trace/timeline.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "base/process.h"
#include "base/text.h"
#include "trace/file.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

// Kinds of tracks. Each bucket has its own track of stages, because stages of different buckets may overlap
// and slices of one track may not. Messages overlap as well: they are asynchronous slices, which a viewer
// places itself.
enum class Track : uint32_t { kReducer, kLane, kHook, kMessages };

Track track_of(TraceKind kind) {
  if (kind == TraceKind::kCollective) return Track::kLane;
  if (kind == TraceKind::kMessage) return Track::kMessages;
  return kind == TraceKind::kStage ? Track::kHook : Track::kReducer;
}

bool is_slice(TraceKind kind) {
  return kind == TraceKind::kStep || kind == TraceKind::kFinish || kind == TraceKind::kStage ||
         kind == TraceKind::kCollective;
}

const char* category(TraceKind kind) {
  static constexpr const char* kNames[] = {"step",  "finish",     "ready", "launch",
                                           "stage", "collective", "done",  "message"};
  const auto index = static_cast<size_t>(kind);
  return index < std::size(kNames) ? kNames[index] : "event";
}

// Buckets are named after their first parameter.
std::string title(const RecordedEvent& recorded) {
  const TraceEvent& e = recorded.event;
  const char* const name = recorded.name.data();
  switch (e.kind) {
    case TraceKind::kStep:
      return cat("step ", e.step);
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

// The place of an event: the index of its communicator, its lane, the kind of its track, and a number. It is
// the bucket of a hook's track, and 0 or 1 for collectives of a pipelined lane, of which two run at once.
using Place = std::tuple<size_t, uint32_t, Track, uint64_t>;

// The communicators of a file, and its tracks. Threads: one thread.
class Places {
 public:
  Places(const std::vector<RecordedEvent>& events, const std::vector<TraceComm>& known) : comms_(known) {
    for (const RecordedEvent& recorded : events) {
      const TraceEvent& e = recorded.event;
      const auto same = [&](const TraceComm& comm) { return comm.id == e.comm; };
      if (std::none_of(comms_.begin(), comms_.end(), same))
        comms_.push_back({e.comm, e.rank, 0, "", "", std::nullopt});
    }
    std::stable_sort(comms_.begin(), comms_.end(),
                     [](const TraceComm& a, const TraceComm& b) { return a.size > b.size; });
    find_pipelined(events);
    for (const RecordedEvent& recorded : events) tracks_.emplace(place(recorded.event), 0);
    uint64_t next = 0;
    for (auto& [place, tid] : tracks_) tid = ++next;
  }
  const std::vector<TraceComm>& comms() const { return comms_; }
  const std::map<Place, uint64_t>& tracks() const { return tracks_; }
  int32_t rank() const { return comms_.empty() ? 0 : comms_.front().rank; }
  Place place(const TraceEvent& e) const {
    size_t comm = 0;
    while (comms_[comm].id != e.comm) comm++;
    const Track track = track_of(e.kind);
    const bool pipelined = track == Track::kLane && pipelined_.contains({e.comm, e.lane});
    return {comm, e.lane, track, track == Track::kHook ? e.bucket : pipelined ? e.index % 2 : 0};
  }
  uint64_t tid(const TraceEvent& e) const { return tracks_.at(place(e)); }

 private:
  // Finds the lanes on which a collective began before the one before it had ended. Collectives of a lane
  // end, and are recorded, in order.
  void find_pipelined(const std::vector<RecordedEvent>& events) {
    std::map<std::pair<uint64_t, uint32_t>, uint64_t> ends;
    for (const RecordedEvent& recorded : events) {
      const TraceEvent& e = recorded.event;
      if (e.kind != TraceKind::kCollective) continue;
      uint64_t& end_ns = ends[{e.comm, e.lane}];
      if (e.begin_ns < end_ns) pipelined_.emplace(e.comm, e.lane);
      end_ns = e.end_ns;
    }
  }

  std::vector<TraceComm> comms_;  // the largest one first
  std::set<std::pair<uint64_t, uint32_t>> pipelined_;
  std::map<Place, uint64_t> tracks_;
};

std::string track_name(const Place& place) {
  const auto [comm, lane_number, track, number] = place;
  const std::string lane = lane_number == 0 ? "" : cat(" ", lane_number);
  const std::string of = comm == 0 ? "" : cat(", communicator ", comm);
  switch (track) {
    case Track::kReducer:
      return cat("reducer", lane, of);
    case Track::kLane:
      return cat(lane_number == 0 ? "collectives" : "lane", lane, number == 1 ? ", second" : "", of);
    case Track::kMessages:
      return cat("tagged messages", of);
    default:
      return cat("hook", lane, ", bucket ", number, of);
  }
}

Json event_json(const RecordedEvent& recorded, const Places& places) {
  const TraceEvent& e = recorded.event;
  const size_t comm = std::get<0>(places.place(e));
  Json json;
  json["name"] = title(recorded);
  json["cat"] = category(e.kind);
  json["ph"] = is_slice(e.kind) ? "X" : "i";
  json["pid"] = places.rank();
  json["tid"] = places.tid(e);
  json["ts"] = microseconds(e.begin_ns);
  if (is_slice(e.kind)) {
    json["dur"] = microseconds(e.end_ns > e.begin_ns ? e.end_ns - e.begin_ns : 0);
  } else {
    json["s"] = "t";
  }
  Json& args = json["args"] = Json::object();
  if (comm != 0) args["comm"] = comm;
  if (e.lane != 0) args["lane"] = e.lane;
  if (e.step != UINT64_MAX) args["step"] = e.step;
  if (e.bucket != UINT32_MAX) args["bucket"] = e.bucket;
  if (e.stage != UINT32_MAX) args["stage"] = e.stage;
  if (e.index != UINT64_MAX) {
    args[e.kind == TraceKind::kReady        ? "parameter"
         : e.kind == TraceKind::kCollective ? "slot"
                                            : "tag"] = e.index;
  }
  if (e.bytes != 0) args["bytes"] = e.bytes;
  if (e.sent_bytes != UINT64_MAX) args["sent_bytes"] = e.sent_bytes;
  if (e.algorithm != nullptr && *e.algorithm != 0) args["algorithm"] = e.algorithm;
  return json;
}

// An asynchronous slice: its begin and its end, which `id` connects.
std::pair<Json, Json> message_slices(const RecordedEvent& recorded, const Places& places, uint64_t id) {
  Json begin = event_json(recorded, places);
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

std::string comm_digits(uint64_t number) {
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(number));
  return digits.data();
}

Json process_json(const TraceProcess& process, const std::vector<TraceComm>& comms) {
  Json json{{"source", "weft"},   {"format", kTraceFormat}, {"host", process.host},
            {"pid", process.pid}, {"clock", process.clock}, {"events_overwritten", process.lost}};
  Json& list = json["communicators"] = Json::array();
  for (const TraceComm& comm : comms) {
    Json one{{"id", comm_digits(comm.id)}, {"rank", comm.rank}, {"size", comm.size}};
    if (!comm.backend.empty()) one["backend"] = comm.backend;
    if (!comm.job.empty()) one["job"] = comm.job;
    if (comm.clock) {
      one["clock_offset_ns"] = comm.clock->offset_ns;
      one["clock_error_ns"] = comm.clock->error_ns;
    }
    list.push_back(std::move(one));
  }
  return json;
}

// Returns the first line of a file of the kernel; empty if it cannot be read.
std::string line_of(const char* path) {
  std::array<char, 128> text{};
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path, "re"), &std::fclose);
  if (!file || std::fgets(text.data(), static_cast<int>(text.size()), file.get()) == nullptr) return {};
  text[std::strcspn(text.data(), "\n")] = 0;
  return text.data();
}

}  // namespace

TraceProcess describe_process() {
  TraceProcess process;
  process.host = host_name();
  process.pid = ::getpid();
  // The clock counts from the boot of the host, or from another time in a time namespace.
  process.clock = line_of("/proc/sys/kernel/random/boot_id");
  std::array<char, 256> text{};
  if (!process.clock.empty() && ::readlink("/proc/self/ns/time", text.data(), text.size() - 1) > 0)
    process.clock += cat(" ", text.data());
  return process;
}

std::string timeline_text(const std::vector<RecordedEvent>& events, const TraceProcess& process) {
  const Places places(events, process.comms);
  const int32_t rank = places.rank();
  std::string text =
      "{\"displayTimeUnit\":\"ms\",\"otherData\":" + dump(process_json(process, places.comms())) +
      ",\"traceEvents\":[\n";
  bool first = true;
  uint64_t messages = 0;
  const auto add = [&](const Json& json) {
    text += std::exchange(first, false) ? "" : ",\n";
    text += dump(json);
  };
  if (!events.empty()) {
    add(metadata("process_name", rank, 0, "name", cat("rank ", rank)));
    add(metadata("process_labels", rank, 0, "labels", cat(process.host, ", process ", process.pid)));
    add(metadata("process_sort_index", rank, 0, "sort_index", rank));
  }
  for (const auto& [place, tid] : places.tracks()) {
    add(metadata("thread_name", rank, tid, "name", track_name(place)));
    add(metadata("thread_sort_index", rank, tid, "sort_index", tid));
  }
  for (const RecordedEvent& recorded : events) {
    if (recorded.event.kind != TraceKind::kMessage) {
      add(event_json(recorded, places));
      continue;
    }
    const auto [begin, end] = message_slices(recorded, places, ++messages);
    add(begin);
    add(end);
  }
  return text + "\n]}\n";
}

Status write_timeline(const std::vector<RecordedEvent>& events, const TraceProcess& process,
                      const std::string& path) {
  return write_whole(timeline_text(events, process), path, "the trace");
}

}  // namespace weft
