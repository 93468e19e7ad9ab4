#include "diagnosis.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "base/text.h"

namespace {

using weft::cat;
using weft::ErrorInfo;
using weft::Evidence;
using weft::FlightLane;
using weft::FlightMessage;
using weft::FlightOperation;
using weft::list_text;
using Kind = weft::LaneKey::Kind;
using Cause = Diagnosis::Cause;

// The records by rank.
class Ranks {
 public:
  Ranks(const std::vector<FlightFile>& files, RecordSource source) : files_(files), source_(source) {
    for (const FlightFile& file : files) by_rank_[file.record.rank] = &file;
  }
  const std::vector<FlightFile>& files() const { return files_; }
  const FlightFile* of(int rank) const {
    const auto found = by_rank_.find(rank);
    return found == by_rank_.end() ? nullptr : found->second;
  }
  bool all_have(const std::vector<int>& ranks) const {
    return std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return of(rank) != nullptr; });
  }
  // Returns what is known about ranks without a record.
  const char* silence() const {
    return source_ == RecordSource::kFiles ? " left no flight record: killed, crashed, or stopped."
                                           : " gave no answer.";
  }
  bool are_files() const { return source_ == RecordSource::kFiles; }

 private:
  const std::vector<FlightFile>& files_;
  RecordSource source_;
  std::map<int, const FlightFile*> by_rank_;
};

std::string named(const std::vector<int>& ranks) {
  return cat(ranks.size() == 1 ? "rank " : "ranks ", list_text(ranks));
}

std::string upper(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

// An operation in flight of some rank that waits for others: on a lane, or a tagged message for which a
// thread of the program is blocked.
struct Wait {
  const FlightFile* file = nullptr;
  const FlightLane* lane = nullptr;
  const FlightOperation* operation = nullptr;
  const FlightMessage* message = nullptr;

  bool found() const { return operation != nullptr || message != nullptr; }
  // Returns the ranks that it waits for; of any rank's message, all others.
  std::vector<int> ranks() const {
    if (operation != nullptr) return lane->waits_for;
    if (message->peer != FlightMessage::kAnyPeer) return {message->peer};
    std::vector<int> others;
    for (int rank = 0; rank < file->record.size; rank++) {
      if (rank != file->record.rank) others.push_back(rank);
    }
    return others;
  }
};

bool waits_for(const FlightLane& lane, int rank) {
  return std::find(lane.waits_for.begin(), lane.waits_for.end(), rank) != lane.waits_for.end();
}

Wait wait_of(const FlightFile& file, int rank = -1) {
  for (const FlightLane& lane : file.record.lanes) {
    const FlightOperation* operation = running(lane);
    if (operation != nullptr && !lane.waits_for.empty() && (rank < 0 || waits_for(lane, rank)))
      return {&file, &lane, operation, nullptr};
  }
  for (const FlightMessage& message : file.record.messages) {
    const bool any = message.peer == FlightMessage::kAnyPeer;
    if (!message.running() || message.waiters == 0) continue;
    if (message.peer == file.record.rank || (any && file.record.size == 1)) continue;
    if (rank < 0 || any || message.peer == rank) return {&file, nullptr, nullptr, &message};
  }
  return {};
}

Wait wait_for(const Ranks& ranks, int rank) {
  for (const FlightFile& file : ranks.files()) {
    if (file.record.rank == rank) continue;
    if (const Wait wait = wait_of(file, rank); wait.found()) return wait;
  }
  return {};
}

void set_operation(const Wait& wait, Diagnosis* diagnosis) {
  if (!wait.found()) return;
  diagnosis->has_operation = true;
  diagnosis->tagged = wait.message != nullptr;
  if (diagnosis->tagged) {
    diagnosis->operation = wait.message->text();
    diagnosis->slot = weft::kNoSlot;
    return;
  }
  diagnosis->lane = wait.lane->key;
  diagnosis->slot = wait.operation->slot;
  diagnosis->operation = wait.operation->call.text();
}

std::string place_of(const Diagnosis& diagnosis) {
  return diagnosis.tagged ? diagnosis.operation
                          : place_text(diagnosis.lane, diagnosis.slot, diagnosis.operation);
}

// Returns true if `theirs`, a message of rank `owner`, is the other end of a message of rank `rank`, or would
// be with another tag.
bool opposite(const FlightMessage& message, int rank, const FlightMessage& theirs, int owner) {
  return message.sends != theirs.sends &&
         (message.peer == owner || message.peer == FlightMessage::kAnyPeer) &&
         (theirs.peer == rank || theirs.peer == FlightMessage::kAnyPeer);
}

bool same_tag(const FlightMessage& one, const FlightMessage& other) {
  return one.tag == other.tag || one.tag == FlightMessage::kAnyTag || other.tag == FlightMessage::kAnyTag;
}

// Returns true if two ranks wait for each other in one operation.
bool one_operation(const Wait& one, const Wait& other) {
  if (one.message != nullptr && other.message != nullptr) {
    return one.message == other.message ||
           (opposite(*one.message, one.file->record.rank, *other.message, other.file->record.rank) &&
            same_tag(*one.message, *other.message));
  }
  if (one.operation == nullptr || other.operation == nullptr) return false;
  return one.operation->slot == other.operation->slot &&
         (one.lane->key.kind == Kind::kCollective) == (other.lane->key.kind == Kind::kCollective) &&
         one.lane->key.id == other.lane->key.id;
}

// Returns the counterpart of a lane on another rank.
const FlightLane* lane_on(const FlightFile& file, const FlightFile& other, const FlightLane& lane) {
  for (const FlightLane& its : file.record.lanes) {
    if (lane.key.kind == Kind::kCollective) {
      if (its.key.kind == Kind::kCollective && its.key.id == lane.key.id) return &its;
    } else if (its.key.kind != Kind::kCollective && its.key.kind != lane.key.kind &&
               its.key.peer == other.record.rank && lane.key.peer == file.record.rank) {
      return &its;
    }
  }
  return nullptr;
}

// ---- what each cause looks like

// Finds a slot in which ranks made different calls: the first one of any lane.
bool find_mismatch(const Ranks& ranks, Diagnosis* diagnosis) {
  struct Side {
    std::string call;
    std::vector<int> callers;
  };
  std::map<std::pair<uint64_t, uint32_t>, std::map<uint64_t, Side>> places;
  for (const FlightFile& file : ranks.files()) {
    for (const FlightLane& lane : file.record.lanes) {
      if (lane.key.kind != Kind::kCollective) continue;
      for (const FlightOperation& operation : lane.operations) {
        Side& side = places[{operation.slot, lane.key.id}][operation.call.hash()];
        if (side.callers.empty()) side.call = operation.call.text();
        side.callers.push_back(file.record.rank);
      }
    }
  }
  const auto differs = [](const auto& place) { return place.second.size() > 1; };
  const auto found = std::find_if(places.begin(), places.end(), differs);
  if (found == places.end()) return false;
  std::vector<Side> sides;
  for (const auto& [hash, side] : found->second) sides.push_back(side);
  std::sort(sides.begin(), sides.end(), [](const Side& a, const Side& b) {
    return a.callers.size() != b.callers.size() ? a.callers.size() > b.callers.size() : a.callers < b.callers;
  });
  // Without a majority it is unknown which side is wrong.
  const bool tie = sides[0].callers.size() == sides[1].callers.size();
  std::string text;
  for (const Side& side : sides) {
    const std::vector<int>& callers = side.callers;
    text +=
        cat(text.empty() ? "" : ", ", named(callers), callers.size() == 1 ? " calls " : " call ", side.call);
    if (tie || &side != &sides[0])
      diagnosis->ranks.insert(diagnosis->ranks.end(), callers.begin(), callers.end());
  }
  std::sort(diagnosis->ranks.begin(), diagnosis->ranks.end());
  diagnosis->cause = Cause::kMismatch;
  diagnosis->has_operation = true;
  diagnosis->operation = sides[0].call;
  diagnosis->slot = found->first.first;
  diagnosis->lane.id = found->first.second;
  diagnosis->text = cat(upper(named(diagnosis->ranks)),
                        tie ? " made different calls" : " made another call than the other ranks", " in ",
                        place_text(diagnosis->lane, diagnosis->slot, ""), ": ", text,
                        ". Every rank must make the same calls in the same order.");
  return true;
}

// Describes what an awaited rank was doing instead of the other end of a tagged message.
std::string instead_of_message(const FlightFile& file, const Wait& wait) {
  const int rank = file.record.rank;
  const FlightMessage* last = nullptr;
  for (const FlightMessage& message : file.record.messages) {
    if (opposite(*wait.message, wait.file->record.rank, message, rank)) last = &message;
  }
  std::string text = cat("Rank ", rank, " has no matching call in flight");
  text += last == nullptr
              ? cat(": it has made none of this kind lately.")
              : cat(": its last one of this kind was ", last->text(),
                    last->state == FlightMessage::State::kFailed ? ", which failed." : ", which is done.");
  return text + " It waited for no other rank.";
}

// Describes what an awaited rank was doing instead.
std::string instead(const FlightFile& file, const Wait& wait) {
  if (wait.message != nullptr) return instead_of_message(file, wait);
  const int rank = file.record.rank;
  const FlightLane* const lane = lane_on(file, *wait.file, *wait.lane);
  if (lane != nullptr && lane->next_slot > wait.operation->slot)
    return cat("Rank ", rank, " had made this call too, and waited for no other rank.");
  std::string text = cat("Rank ", rank, " never called it");
  if (lane == nullptr || lane->next_slot == 0) {
    text += cat(": it had called nothing in this order.");
  } else {
    text += cat(": its last call in this order was slot ", lane->next_slot - 1);
    if (!lane->operations.empty()) text += cat(" (", lane->operations.back().call.text(), ")");
    text += lane->queued > 0 ? cat(", ", lane->queued, " more were queued.") : ".";
  }
  if (lane != nullptr && lane->has_step) {
    const weft::FlightStep& step = lane->step;
    text += step.step == weft::kNoStep ? " Its reducer had begun no step."
                                       : cat(" Its reducer was in step ", step.step, ", ", step.done, " of ",
                                             step.buckets, " buckets done: ", step.where, ".");
  } else {
    text += " It waited for no other rank.";
  }
  return text;
}

// Returns those of the awaited ranks that have a record, wait for no rank and have not begun the operation.
std::vector<int> missing_too(const Ranks& ranks, const std::vector<int>& awaited, const Wait& wait) {
  std::vector<int> missing;
  for (const int rank : awaited) {
    const FlightFile* const file = ranks.of(rank);
    if (file == nullptr || wait.lane == nullptr || wait_of(*file).found()) continue;
    const FlightLane* const lane = lane_on(*file, *wait.file, *wait.lane);
    if (lane == nullptr || lane->next_slot <= wait.operation->slot) missing.push_back(rank);
  }
  return missing;
}

// Follows the chain of waiting ranks until it reaches a rank that waits for no other, or closes a cycle.
void follow(const Ranks& ranks, Wait wait, std::vector<int> accused, Diagnosis* diagnosis) {
  constexpr size_t kTold = 6;
  std::vector<Wait> seen;
  std::string chain;
  for (;;) {
    set_operation(wait, diagnosis);
    const std::string place = place_of(*diagnosis);
    if (seen.size() < kTold) {
      const bool any = wait.message != nullptr && wait.message->peer == FlightMessage::kAnyPeer;
      chain += cat(chain.empty() ? "" : " ", "Rank ", wait.file->record.rank, " waited for ",
                   any ? "any rank" : named(accused), " in ", place, ".");
    }
    diagnosis->cause = Cause::kAbsent;
    diagnosis->ranks = accused;
    seen.push_back(wait);
    if (!ranks.all_have(accused)) {
      std::vector<int> without;
      std::copy_if(accused.begin(), accused.end(), std::back_inserter(without),
                   [&](int rank) { return ranks.of(rank) == nullptr; });
      const std::vector<int> missing = missing_too(ranks, accused, wait);
      diagnosis->ranks = without;
      diagnosis->ranks.insert(diagnosis->ranks.end(), missing.begin(), missing.end());
      std::sort(diagnosis->ranks.begin(), diagnosis->ranks.end());
      diagnosis->text = cat(upper(named(without)), ranks.silence());
      if (!missing.empty()) diagnosis->text += cat(" ", upper(named(missing)), " did not take part.");
      diagnosis->text += cat(" ", chain);
      for (size_t i = 0; i < std::min(missing.size(), kTold); ++i)
        diagnosis->text += cat(" ", instead(*ranks.of(missing[i]), wait));
      return;
    }
    // Ranks that wait for no rank come first: the others may only wait for them.
    std::vector<int> idle;
    std::copy_if(accused.begin(), accused.end(), std::back_inserter(idle),
                 [&](int rank) { return !wait_of(*ranks.of(rank)).found(); });
    if (!idle.empty()) diagnosis->ranks = accused = idle;
    const FlightFile& next = *ranks.of(accused.front());
    const Wait onward = wait_of(next);
    if (!onward.found()) {
      diagnosis->text = cat(upper(named(accused)), " did not take part. ", chain, " ", instead(next, wait));
      return;
    }
    const std::vector<int> further = onward.ranks();
    const auto first = std::find_if(seen.begin(), seen.end(), [&](const Wait& w) { return w.file == &next; });
    if (first != seen.end()) {
      diagnosis->ranks.clear();
      bool one_place = true;
      for (auto it = first; it != seen.end(); ++it) {
        diagnosis->ranks.push_back(it->file->record.rank);
        one_place &= one_operation(*it, *first);
      }
      std::sort(diagnosis->ranks.begin(), diagnosis->ranks.end());
      diagnosis->cause = one_place ? Cause::kSilent : Cause::kDeadlock;
      diagnosis->text = cat(upper(named(diagnosis->ranks)), " wait for each other",
                            one_place ? " in one operation: what one sent did not reach the other. "
                                      : ": they make their calls in different orders. ",
                            chain);
      return;
    }
    wait = onward;
    accused = further;
  }
}

// Returns the ranks that most of these failures name.
std::vector<int> most_accused(const std::vector<const FlightFile*>& files) {
  std::map<int, size_t> votes;
  size_t most = 0;
  for (const FlightFile* file : files) {
    for (const int rank : file->record.failure.info().ranks) most = std::max(most, ++votes[rank]);
  }
  std::vector<int> ranks;
  for (const auto& [rank, count] : votes) {
    if (count == most) ranks.push_back(rank);
  }
  return ranks;
}

std::string quoted(const FlightFile& file) {
  return cat("Rank ", file.record.rank, ": \"", file.record.failure.text(), "\".");
}

// Reports first-hand failures of one kind, and what they state about the ranks that they name.
void accuse(const Ranks& ranks, const std::vector<const FlightFile*>& witnesses, Cause cause,
            const char* what, Diagnosis* diagnosis) {
  diagnosis->cause = cause;
  diagnosis->ranks = most_accused(witnesses);
  if (diagnosis->ranks.empty()) return;
  const int rank = diagnosis->ranks.front();
  set_operation(wait_for(ranks, rank), diagnosis);
  diagnosis->text = cat(upper(named(diagnosis->ranks)), what, " ", quoted(*witnesses.front()));
  if (diagnosis->has_operation) {
    diagnosis->text += cat(" Others waited for it in ", place_of(*diagnosis), ".");
  }
  if (ranks.of(rank) == nullptr && ranks.are_files()) diagnosis->text += " It left no flight record.";
}

// The flight records that contain a failure, by the evidence for it.
// own: the rank's own failure.
// departures: a connection ended. The record names no rank, or only ranks that have left a record themselves.
// reports: failures that the rank heard of from another rank.
struct Testimony {
  std::vector<const FlightFile*> deaths, mismatches, own, silences, deadlines, departures, reports;
};

Testimony hear(const Ranks& ranks) {
  Testimony heard;
  for (const FlightFile& file : ranks.files()) {
    if (file.record.failure.ok()) continue;
    const ErrorInfo& info = file.record.failure.info();
    switch (info.evidence) {
      case Evidence::kReport:
        heard.reports.push_back(&file);
        break;
      case Evidence::kConnection:
      case Evidence::kProcess:
        (info.ranks.empty() || ranks.all_have(info.ranks) ? heard.departures : heard.deaths).push_back(&file);
        break;
      case Evidence::kDescriptor:
        heard.mismatches.push_back(&file);
        break;
      case Evidence::kHeartbeat:
        heard.silences.push_back(&file);
        break;
      case Evidence::kDeadline:
        heard.deadlines.push_back(&file);
        break;
      default:
        heard.own.push_back(&file);
    }
  }
  return heard;
}

void judge_own(const Ranks& ranks, const std::vector<const FlightFile*>& own, Diagnosis* diagnosis) {
  diagnosis->cause = Cause::kFailed;
  for (const FlightFile* file : own) diagnosis->ranks.push_back(file->record.rank);
  set_operation(wait_for(ranks, diagnosis->ranks.front()), diagnosis);
  diagnosis->text = cat(upper(named(diagnosis->ranks)), " failed by itself. ", quoted(*own.front()));
}

void judge_deadline(const Ranks& ranks, const std::vector<const FlightFile*>& witnesses,
                    Diagnosis* diagnosis) {
  for (const FlightFile* file : witnesses) {
    const ErrorInfo& info = file->record.failure.info();
    if (info.ranks == std::vector<int>{file->record.rank}) return judge_own(ranks, {file}, diagnosis);
    const Wait wait = info.ranks.empty() ? wait_of(*file) : wait_of(*file, info.ranks.front());
    if (wait.found()) return follow(ranks, wait, info.ranks.empty() ? wait.ranks() : info.ranks, diagnosis);
  }
  accuse(ranks, witnesses, Cause::kAbsent, " did not take part.", diagnosis);
}

}  // namespace

const char* name(Diagnosis::Cause cause) {
  static constexpr const char* kNames[] = {"unknown", "died",   "mismatch", "failed",
                                           "silent",  "absent", "deadlock", "left"};
  return kNames[static_cast<size_t>(cause)];
}

std::string place_text(const weft::LaneKey& lane, uint64_t slot, const std::string& operation) {
  const char* const kinds[] = {"lane ", "sends to rank ", "receives from rank "};
  const std::string number =
      lane.kind == Kind::kCollective ? std::to_string(lane.id) : std::to_string(lane.peer);
  return cat(kinds[static_cast<size_t>(lane.kind)], number, ", slot ", slot,
             operation.empty() ? "" : cat(" (", operation, ")"));
}

const FlightOperation* running(const FlightLane& lane) {
  if (lane.operations.empty() || lane.operations.back().state != FlightOperation::State::kRunning)
    return nullptr;
  return &lane.operations.back();
}

const FlightMessage* running(const weft::FlightRecord& record) {
  const auto it = std::find_if(record.messages.begin(), record.messages.end(),
                               [](const FlightMessage& message) { return message.running(); });
  return it == record.messages.end() ? nullptr : &*it;
}

Diagnosis diagnose(const std::vector<FlightFile>& files, RecordSource source) {
  const Ranks ranks(files, source);
  Diagnosis diagnosis;
  const Testimony heard = hear(ranks);
  if (!heard.deaths.empty()) {
    accuse(ranks, heard.deaths, Cause::kDied, " died or was killed.", &diagnosis);
  } else if (find_mismatch(ranks, &diagnosis)) {
    // the text already says everything
  } else if (!heard.mismatches.empty()) {
    accuse(ranks, heard.mismatches, Cause::kMismatch, " made a different call, or gave different arguments.",
           &diagnosis);
    diagnosis.slot = heard.mismatches.front()->record.failure.info().slot;
  } else if (!heard.own.empty()) {
    judge_own(ranks, heard.own, &diagnosis);
  } else if (!heard.silences.empty()) {
    accuse(ranks, heard.silences, Cause::kSilent, " sent no heartbeats: stopped, or not reachable.",
           &diagnosis);
  } else if (!heard.deadlines.empty()) {
    judge_deadline(ranks, heard.deadlines, &diagnosis);
  } else if (!heard.departures.empty()) {
    accuse(ranks, heard.departures, Cause::kLeft, " left the communicator.", &diagnosis);
  } else if (!heard.reports.empty()) {
    accuse(ranks, heard.reports, Cause::kFailed, " failed, as other ranks reported.", &diagnosis);
  } else {
    // Nothing has failed: the program requested the records, perhaps because it hangs.
    for (const FlightFile& file : files) {
      const Wait wait = wait_of(file);
      if (!wait.found()) continue;
      follow(ranks, wait, wait.ranks(), &diagnosis);
      break;
    }
  }
  if (diagnosis.ranks.empty()) {
    diagnosis.cause = Cause::kNone;
    diagnosis.text =
        "These records name no rank at fault: no rank waited for another one, and no failure names a rank.";
  }
  return diagnosis;
}
