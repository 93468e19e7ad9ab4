#include "merge.h"

#include <utility>

#include "base/text.h"
#include "trace/timeline.h"

namespace report {
namespace {

using Json = nlohmann::json;
using weft::Status;

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Moves an event to its place in the merged trace.
void move_event(const Process& process, Json* event) {
  (*event)["pid"] = process.rank;
  const auto time = event->find("ts");
  if (time != event->end() && time->is_number())
    *time = time->get<double>() + static_cast<double>(process.offset_ns) / 1000.0;
  // Identifiers of asynchronous slices are unique in a file.
  const auto id = event->find("id");
  if (id != event->end() && id->is_number_unsigned())
    *id = (static_cast<uint64_t>(process.rank) << 36) + id->get<uint64_t>();
}

Json process_json(const Process& process) {
  Json json{{"rank", process.rank}, {"host", process.file.host}, {"pid", process.file.pid}};
  json["events_overwritten"] = process.file.lost;
  if (process.clock_error_ns) {
    json["clock_offset_ns"] = process.offset_ns;
    json["clock_error_ns"] = *process.clock_error_ns;
  }
  return json;
}

}  // namespace

Status merged_text(const RunFiles& run, std::string* text) {
  Json other{{"source", "weft"}, {"format", weft::kTraceFormat}, {"merged", Json::array()}};
  for (const Process& process : run.processes) other["merged"].push_back(process_json(process));
  *text = weft::cat("{\"displayTimeUnit\":\"ms\",\"otherData\":", dump(other), ",\"traceEvents\":[\n");
  bool first = true;
  for (const Process& process : run.processes) {
    std::string source;
    int64_t written = 0;
    TraceFile file;
    WEFT_TRY(read_text(process.file.path, kMostTraceBytes, &source, &written));
    WEFT_TRY(read_events(source, &file, [&](Json& event) {
      move_event(process, &event);
      *text += std::exchange(first, false) ? "" : ",\n";
      *text += dump(event);
      return true;
    }));
  }
  *text += "\n]}\n";
  return {};
}

}  // namespace report
