// Reads the flight records that the ranks of failed communicators left in a folder (lib/trace/flight_file.h).
// No content of a file is trusted, because other users may be able to write into the folder. Called by `weft
// trace explain` and by a fuzz target.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "engine/flight.h"
#include "foreign_file.h"

// A record as it was written. Only differences to its now_ns are meaningful, because the clock is unknown.
struct FlightFile {
  std::string name;
  std::string host;
  int64_t pid = 0;
  int64_t written = 0;  // modification time of the file, in seconds
  weft::FlightRecord record;
};

// Parses a flight record. Returns kArg with the reason if the text is not a flight record, or not one that
// this version understands. Accepted records are consistent: ranks are below the size, slots ascend and are
// below next_slot, texts contain no control characters. A pure function.
weft::Status parse_flight(const std::string& text, FlightFile* file);

// Returns true if the text nests deeper than any record, which would exhaust the parser's stack.
bool too_deep(const std::string& text);

struct FlightFolder {
  std::vector<FlightFile> files;
  UnreadFiles unread;
};
// Reads every weft-*.json of the folder. Returns kSystem if the folder cannot be read.
weft::Status read_flights(const std::string& folder, FlightFolder* read);
