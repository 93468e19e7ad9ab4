// Reads the flight records that the ranks of failed communicators left in a folder (lib/trace/flight_file.h).
// Nothing in a file is trusted: whoever can write into the folder can write anything. Called by
// `weft trace explain` and by a fuzz target.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "core/flight.h"

// A record as it was written. Its now_ns is that of no clock: differences to it count.
struct FlightFile {
  std::string name;
  std::string host;
  int64_t pid = 0;
  int64_t written = 0;  // when the file was, in seconds
  weft::FlightRecord record;
};

// kArg says why the text is no flight record, or none that this version understands. What it accepts is
// consistent: ranks are below the size, slots ascend and are below next_slot, texts hold no control
// characters. A pure function.
weft::Status parse_flight(const std::string& text, FlightFile* file);

struct FlightFolder {
  std::vector<FlightFile> files;
  std::vector<std::pair<std::string, std::string>> unread;  // names, and why
};
// Every weft-*.json of the folder. kSystem if the folder cannot be read.
weft::Status read_flights(const std::string& folder, FlightFolder* read);
