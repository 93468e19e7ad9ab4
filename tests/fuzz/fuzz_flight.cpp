// Input: a flight record, as `weft trace explain` finds it in a folder. Reading any input returns an error
// with a text, or a record within its limits that can be explained and written again.
#include <string>

#include "fuzz.h"
#include "trace/flight_file.h"
#include "weft/diagnosis.h"
#include "weft/flight.h"

using weft::fuzz::demand;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FlightFile file, again;
  const weft::Status status = parse_flight(std::string(reinterpret_cast<const char*>(data), size), &file);
  if (!status.ok()) {
    demand(!status.text().empty());
    return 0;
  }
  const weft::FlightRecord& record = file.record;
  demand(record.rank >= 0 && record.rank < record.size);
  for (const weft::FlightLane& lane : record.lanes) {
    demand(lane.operations.size() <= weft::FlightRing::kCapacity);
    for (const weft::FlightOperation& operation : lane.operations) demand(operation.slot < lane.next_slot);
  }
  // A second rank's record, equal except for the rank number.
  FlightFile other = file;
  other.record.rank = (record.rank + 1) % record.size;
  std::vector<FlightFile> files{file};
  if (other.record.rank > record.rank) files.push_back(other);
  const Diagnosis diagnosis = diagnose(files);
  demand(!diagnosis.text.empty());
  for (const int rank : diagnosis.ranks) demand(rank >= 0 && rank < record.size);
  demand(parse_flight(flight_text(record), &again).ok());
  return 0;
}
