#include "flight_groups.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "base/text.h"

using weft::cat;

std::vector<FlightGroup> grouped(FlightFolder* folder) {
  std::map<std::pair<uint64_t, int>, FlightGroup> groups;
  std::stable_sort(folder->files.begin(), folder->files.end(), [](const FlightFile& a, const FlightFile& b) {
    return a.record.rank != b.record.rank ? a.record.rank < b.record.rank : a.written > b.written;
  });
  for (FlightFile& file : folder->files) {
    FlightGroup& group = groups[{file.record.comm, file.record.size}];
    if (!group.files.empty() && group.files.back().record.rank == file.record.rank) {
      folder->unread.emplace_back(file.name, cat("is not the newest record of rank ", file.record.rank));
      continue;
    }
    group.written = std::max(group.written, file.written);
    group.files.push_back(std::move(file));
  }
  std::vector<FlightGroup> ordered;
  for (auto& [key, group] : groups) ordered.push_back(std::move(group));
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const FlightGroup& a, const FlightGroup& b) { return a.written < b.written; });
  for (FlightGroup& group : ordered) group.diagnosis = diagnose(group.files);
  return ordered;
}

std::string comm_text(const weft::FlightRecord& record) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(record.comm));
  return digits;
}

FlightRow row_of(const FlightFile& file) {
  FlightRow row;
  row.rank = file.record.rank;
  for (const weft::FlightLane& lane : file.record.lanes) {
    const weft::FlightOperation* operation = running(lane);
    if (operation == nullptr) continue;
    row.doing = cat("in ", place_text(lane.key, operation->slot, operation->call.text()));
    if (!lane.waits_for.empty()) row.waits = weft::list_text(lane.waits_for, 4);
    if (operation->waiting_since_ns != 0) {
      const uint64_t ms = (file.record.now_ns - operation->waiting_since_ns) / 1'000'000;
      row.waits += cat(row.waits.empty() ? "" : ", ", "for ", ms, " ms");
    }
    break;
  }
  if (const weft::FlightMessage* const message = running(file.record);
      row.doing.empty() && message != nullptr) {
    row.doing = cat("in ", message->text());
    row.waits = message->peer == weft::FlightMessage::kAnyPeer ? "any" : std::to_string(message->peer);
    if (message->waiting_since_ns != 0)
      row.waits += cat(", for ", (file.record.now_ns - message->waiting_since_ns) / 1'000'000, " ms");
  }
  if (row.doing.empty()) {
    row.doing = cat("in no operation; ", file.record.operations, " completed");
  }
  row.says = file.record.failure.ok() ? "no failure" : file.record.failure.text();
  return row;
}

bool at_fault(const FlightGroup& group, int rank) {
  const std::vector<int>& ranks = group.diagnosis.ranks;
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

std::vector<int> without_record(const FlightGroup& group) {
  std::vector<int> missing;
  size_t next = 0;
  for (int rank = 0; rank < group.record().size; rank++) {
    const bool there = next < group.files.size() && group.files[next].record.rank == rank;
    there ? static_cast<void>(next++) : missing.push_back(rank);
  }
  return missing;
}
