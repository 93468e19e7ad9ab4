// Reads the trace of one process (lib/trace/timeline.h). No content of a file is trusted: every value has a
// limit, and an event beyond it is left out and counted. Events before a damaged place are kept. Called by
// `weft trace merge`, `weft report` and unit tests.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/trace_comms.h"

namespace report {

inline constexpr uint32_t kNone32 = UINT32_MAX;
inline constexpr uint64_t kNone64 = UINT64_MAX;
inline constexpr size_t kMostTraceBytes = size_t{1} << 30;
inline constexpr size_t kMostEvents = size_t{1} << 22;  // of a file

enum class Kind : uint8_t { kStep, kFinish, kReady, kLaunch, kStage, kCollective, kDone };

struct Event {
  Kind kind = Kind::kStep;
  uint32_t comm = 0;  // index in TraceFile::comms
  uint32_t lane = 0;
  uint32_t bucket = kNone32;
  uint64_t step = kNone64;
  uint64_t slot = kNone64;
  uint64_t bytes = 0;
  uint64_t sent_bytes = kNone64;
  int64_t begin_ns = 0;  // on the process's clock, until read_run aligns it
  int64_t end_ns = 0;
  std::string name;       // of kCollective
  std::string algorithm;  // of kCollective
};

struct TraceFile {
  std::string name;
  std::string path;
  std::string host;
  int64_t pid = 0;
  std::string clock;
  int64_t written = 0;  // modification time in seconds
  uint64_t lost = 0;    // number of events that the process overwrote
  std::vector<weft::TraceComm> comms;
  std::vector<Event> events;
  uint64_t left_out = 0;  // number of events with impossible values
  std::string damage;     // the reason why events are missing at the end; empty: the file is whole
};

// Calls a function with each event of a trace, in order, as JSON. Returns kArg with the reason if the text is
// not a trace of Weft, or not one that this version understands; *file then has nothing. Sets everything but
// events and left_out. on_event may move from its argument; false stops the reading.
weft::Status read_events(const std::string& text, TraceFile* file,
                         const std::function<bool(nlohmann::json&)>& on_event);

// Does so, and fills in the events.
weft::Status parse_trace(const std::string& text, TraceFile* file);

}  // namespace report
