// Determines from the flight records of one communicator's ranks which rank is at fault, in which operation,
// and why. Called by `weft trace explain` and `weft status`. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "flight.h"

struct Diagnosis {
  // The conduct of the ranks at fault, in order of credibility.
  enum class Cause { kNone, kDied, kMismatch, kFailed, kSilent, kAbsent, kDeadlock, kLeft };
  Cause cause = Cause::kNone;
  std::vector<int> ranks;  // at fault, ascending; empty: unknown
  bool has_operation = false;
  bool tagged = false;  // the operation is a tagged message, which has neither lane nor slot
  weft::LaneKey lane;   // of the operation
  uint64_t slot = weft::kNoSlot;
  std::string operation;  // "all_reduce sum f32 x 4096"
  std::string text;       // one paragraph
};
const char* name(Diagnosis::Cause cause);  // "died"

// Where the records are from: files that the ranks have left, or answers of live processes.
enum class RecordSource { kFiles, kAnswers };

// files: records of one communicator, one for each rank, ascending by rank; at least one.
Diagnosis diagnose(const std::vector<FlightFile>& files, RecordSource source = RecordSource::kFiles);

// Returns "lane 2, slot 7 (all_reduce sum f32 x 4096)".
std::string place_text(const weft::LaneKey& lane, uint64_t slot, const std::string& operation);
// Returns the operation in flight on a lane; null if there is none.
const weft::FlightOperation* running(const weft::FlightLane& lane);
// Returns the tagged message that has been in flight for longest; null if there is none.
const weft::FlightMessage* running(const weft::FlightRecord& record);
