// The flight records of a folder, by communicator, and each rank's line of a table. Called by `weft trace
// explain` and `weft report`.
#pragma once

#include <string>
#include <vector>

#include "diagnosis.h"
#include "flight.h"

// The records of one communicator, ascending by rank.
struct FlightGroup {
  std::vector<FlightFile> files;
  int64_t written = 0;
  Diagnosis diagnosis;
  const weft::FlightRecord& record() const { return files.front().record; }
};

// Groups the records; the newest group comes last. Of several records of one rank the newest one counts.
std::vector<FlightGroup> grouped(FlightFolder* folder);

// Returns the communicator's id, as in the names of files.
std::string comm_text(const weft::FlightRecord& record);
// True if the diagnosis names the rank.
bool at_fault(const FlightGroup& group, int rank);
std::vector<int> without_record(const FlightGroup& group);

// One rank's line of the table: its activity, its waits, and its error.
struct FlightRow {
  int rank = 0;
  std::string doing, waits, says;
};
FlightRow row_of(const FlightFile& file);
