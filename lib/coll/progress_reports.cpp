#include "coll/progress_reports.h"

#include <numeric>
#include <utility>

namespace weft::coll {
namespace {

constexpr uint64_t kPatienceNs = 50'000'000;
// Idle polls between two clock reads; also operations between two checks for reports while this rank never
// waits.
constexpr uint32_t kCheckRounds = 64;
// A lane number of the transport: collective lanes count from 0, and messages use the last number.
constexpr uint32_t kWireLane = UINT32_MAX - 1;
// Limits the lanes of one rank; reports about more lanes are dropped.
constexpr size_t kMostLanes = 1024;

}  // namespace

ProgressReports::ProgressReports(Transport& transport, Clock& clock, int rank, int size)
    : transport_(transport), clock_(clock), rank_(rank), lines_(static_cast<size_t>(size)) {}

ProgressReports::~ProgressReports() {
  for (int r = 0; r < static_cast<int>(lines_.size()); r++) {
    Line& line = lines_[static_cast<size_t>(r)];
    if (r == rank_) continue;
    if (listens_ && !line.receive.done) transport_.cancel(&line.receive);
    if (line.sent > 0 && !line.send.done) transport_.cancel(&line.send);
  }
}

void ProgressReports::listen(int peer) {
  if (peer == rank_) return;
  Line& line = lines_[static_cast<size_t>(peer)];
  line.receive = Message();
  transport_.receive(peer, {line.received, kWireLane, 0}, reinterpret_cast<std::byte*>(&line.incoming),
                     sizeof line.incoming, &line.receive);
}

void ProgressReports::begins() {
  if (!listens_) {
    listens_ = true;
    for (int r = 0; r < static_cast<int>(lines_.size()); r++) listen(r);
  }
  // Receives the reports of other ranks even if this rank never waits.
  if (begun_++ % kCheckRounds == 0) receive_reports();
}

bool ProgressReports::waits(Wait* wait) {
  if (wait->idle_polls++ == 0) wait->since_ns = 0;
  if (wait->idle_polls % kCheckRounds != 0) return false;
  const uint64_t now = clock_.now_ns();
  if (wait->since_ns == 0) wait->since_ns = now;
  if (now - wait->since_ns < kPatienceNs) return false;
  transport_.progress();
  receive_reports();
  send_reports(wait);
  return true;
}

void ProgressReports::receive_reports() {
  for (int r = 0; r < static_cast<int>(lines_.size()); r++) {
    Line& line = lines_[static_cast<size_t>(r)];
    // A lost rank reports nothing more; the control channel reports the loss.
    while (r != rank_ && line.receive.done && line.receive.status.ok()) {
      const bool known = line.arrived.contains(line.incoming.lane) || line.arrived.size() < kMostLanes;
      if (line.receive.received_bytes == sizeof line.incoming && known) {
        line.arrived[line.incoming.lane] = {line.incoming.arrived, line.receive.peer_descriptor};
      }
      line.received++;
      listen(r);
    }
  }
}

void ProgressReports::send_reports(Wait* wait) {
  if (!std::exchange(wait->reporting, true)) {
    for (int r = 0; r < static_cast<int>(lines_.size()); r++) {
      if (r != rank_) wait->unreported.push_back(r);
    }
  }
  // A rank that has not received the last report yet (it may be stopped) delays the report to no other rank.
  std::erase_if(wait->unreported, [&](int r) {
    Line& line = lines_[static_cast<size_t>(r)];
    if (line.sent > 0 && !line.send.done) return false;
    line.outgoing = {wait->lane, wait->slot + 1};
    line.send = Message();
    transport_.send(r, {line.sent++, kWireLane, 0}, wait->descriptor,
                    reinterpret_cast<const std::byte*>(&line.outgoing), sizeof line.outgoing, &line.send);
    return true;
  });
}

std::vector<int> ProgressReports::silent(const Wait& wait, const std::vector<int>& ranks) const {
  std::vector<int> found;
  for (const int r : ranks) {
    if (r == rank_) continue;
    const auto& arrived = lines_[static_cast<size_t>(r)].arrived;
    const auto outgoing = arrived.find(wait.lane);
    if (outgoing == arrived.end() || outgoing->second.end <= wait.slot) found.push_back(r);
  }
  return found;
}

std::vector<int> ProgressReports::silent(const Wait& wait) const {
  std::vector<int> all(lines_.size());
  std::iota(all.begin(), all.end(), 0);
  return silent(wait, all);
}

std::optional<std::pair<int, Descriptor>> ProgressReports::different(const Wait& wait) const {
  for (size_t r = 0; r < lines_.size(); r++) {
    const auto found = lines_[r].arrived.find(wait.lane);
    if (found == lines_[r].arrived.end() || found->second.end != wait.slot + 1) continue;
    if (found->second.descriptor != wait.descriptor) {
      return std::pair(static_cast<int>(r), found->second.descriptor);
    }
  }
  return {};
}

}  // namespace weft::coll
