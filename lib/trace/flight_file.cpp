#include "trace/flight_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/process.h"
#include "base/text.h"
#include "trace/file.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

// These limits keep a file below kMaxFlightBytes: an operation takes at most 300 bytes, a message 200, a
// lane without its operations 2 KiB.
constexpr size_t kMaxOperations = 8192;
constexpr size_t kMaxLanes = 512;
constexpr size_t kMaxMessages = 2048;
constexpr size_t kMaxRanks = 64;
constexpr size_t kMaxText = 2048;

const char* state_name(FlightOperation::State state) {
  static constexpr const char* kNames[] = {"running", "finished", "failed"};
  return kNames[static_cast<size_t>(state)];
}

const char* kind_name(LaneKey::Kind kind) {
  static constexpr const char* kNames[] = {"collective", "send", "receive"};
  return kNames[static_cast<size_t>(kind)];
}

std::string hex(uint64_t number) {
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(number));
  return digits.data();
}

std::string shortened(const std::string& text, size_t most = kMaxText) {
  return text.substr(0, most);
}

Json ranks_json(const std::vector<int>& ranks) {
  Json list = Json::array();
  for (size_t i = 0; i < std::min(ranks.size(), kMaxRanks); i++) list.push_back(ranks[i]);
  return list;
}

uint64_t waiting_ms(uint64_t since_ns, uint64_t now_ns) {
  return now_ns > since_ns ? (now_ns - since_ns) / 1'000'000 : 0;
}

// 64-bit values that are not counts are written as hexadecimal strings, because some JSON readers lose bits
// of large numbers.
Json operation_json(const FlightOperation& operation, uint64_t now_ns) {
  const Descriptor& call = operation.call;
  Json json{{"slot", operation.slot}, {"coll", name(static_cast<Coll>(call.coll))}};
  json["dtype"] = name(static_cast<Dtype>(call.dtype));
  if (call.op != 0) json["op"] = name(static_cast<ReduceOp>(call.op));
  if (call.root != 0) json["root"] = call.root;
  json["count"] = call.count;
  if (call.scale != 1.0) json["scale"] = call.scale;
  if (call.tag != 0) json["tag"] = hex(call.tag);
  json["state"] = state_name(operation.state);
  if (operation.algorithm[0] != 0) json["algorithm"] = shortened(operation.algorithm, 64);
  if (operation.state == FlightOperation::State::kRunning && operation.waiting_since_ns != 0)
    json["waiting_ms"] = waiting_ms(operation.waiting_since_ns, now_ns);
  return json;
}

Json lane_json(const FlightLane& lane, uint64_t now_ns, size_t* room) {
  Json json{{"kind", kind_name(lane.key.kind)}, {"id", lane.key.id}};
  if (lane.key.kind != LaneKey::Kind::kCollective) json["peer"] = lane.key.peer;
  json["next_slot"] = lane.next_slot;
  json["queued"] = lane.queued;
  json["waits_for"] = ranks_json(lane.waits_for);
  if (lane.has_step) {
    Json& step = json["step"] = Json::object();
    step["buckets"] = lane.step.buckets;
    if (lane.step.step != kNoStep) {
      step["number"] = lane.step.step;
      step["launched"] = lane.step.launched;
      step["done"] = lane.step.done;
      step["where"] = shortened(lane.step.where, 1024);
    }
  }
  Json& operations = json["operations"] = Json::array();
  const size_t kept = std::min(lane.operations.size(), *room);
  *room -= kept;
  for (size_t i = lane.operations.size() - kept; i < lane.operations.size(); i++) {
    operations.push_back(operation_json(lane.operations[i], now_ns));
  }
  return json;
}

// A receive from any rank has no peer, one with any tag no tag.
Json message_json(const FlightMessage& message, uint64_t now_ns) {
  static constexpr const char* kStates[] = {"unmatched", "moving", "finished", "failed"};
  Json json{{"kind", message.sends ? "send" : "receive"}};
  if (message.peer != FlightMessage::kAnyPeer) json["peer"] = message.peer;
  if (message.tag != FlightMessage::kAnyTag) json["tag"] = hex(message.tag);
  json["dtype"] = name(message.dtype);
  json["count"] = message.count;
  json["state"] = kStates[static_cast<size_t>(message.state)];
  if (message.running() && message.waiting_since_ns != 0)
    json["waiting_ms"] = waiting_ms(message.waiting_since_ns, now_ns);
  if (message.running()) json["waiters"] = message.waiters;
  return json;
}

Json failure_json(const ErrorInfo& info) {
  Json json{{"code", static_cast<int>(info.code)}, {"evidence", static_cast<int>(info.evidence)}};
  if (info.slot != kNoSlot) json["slot"] = info.slot;
  if (info.step != kNoStep) json["step"] = info.step;
  json["ranks"] = ranks_json(info.ranks);
  json["text"] = shortened(info.text);
  return json;
}

}  // namespace

std::string flight_text(const FlightRecord& record) {
  Json json{{"weft_flight", kFlightFormat}, {"comm", hex(record.comm)}};
  if (!record.job.empty()) json["job"] = shortened(record.job, 256);
  json["rank"] = record.rank;
  json["size"] = record.size;
  json["generation"] = record.generation;
  if (record.generation > 0) json["first_rank"] = record.first_rank;
  if (const std::string host = host_name(); !host.empty()) json["host"] = host;
  json["pid"] = ::getpid();
  json["backend"] = record.backend;
  json["completed"] = record.operations;
  if (!record.failure.ok()) json["failure"] = failure_json(record.failure.info());
  // Lanes with running operations or steps come first.
  std::vector<const FlightLane*> lanes;
  lanes.reserve(record.lanes.size());
  for (const FlightLane& lane : record.lanes) lanes.push_back(&lane);
  std::stable_partition(lanes.begin(), lanes.end(), [](const FlightLane* lane) {
    return !lane->waits_for.empty() || lane->step.step != kNoStep;
  });
  size_t room = kMaxOperations;
  Json& list = json["lanes"] = Json::array();
  for (size_t i = 0; i < std::min(lanes.size(), kMaxLanes); i++) {
    list.push_back(lane_json(*lanes[i], record.now_ns, &room));
  }
  // If there are too many messages, keeps the oldest in flight: others may only wait behind them.
  if (!record.messages.empty()) {
    Json& messages = json["messages"] = Json::array();
    const auto running = std::find_if(record.messages.begin(), record.messages.end(),
                                      [](const FlightMessage& message) { return message.running(); });
    const auto ended = static_cast<size_t>(running - record.messages.begin());
    const size_t first = record.messages.size() > kMaxMessages ? ended : 0;
    for (size_t i = first; i < std::min(record.messages.size(), first + kMaxMessages); i++)
      messages.push_back(message_json(record.messages[i], record.now_ns));
  }
  // Replaces invalid UTF-8, because texts may contain any bytes.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string flight_name(const FlightRecord& record) {
  return cat("weft-", hex(record.comm), "-rank", record.rank, ".json");
}

Status write_flight(const FlightRecord& record, const std::string& folder) {
  // Errors of the folder appear when the file is written.
  if (::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) {
    return Status::system(cat("cannot create the folder ", folder, " for flight records"), errno);
  }
  return write_whole(flight_text(record), cat(folder, "/", flight_name(record)), "the flight record");
}

}  // namespace weft
