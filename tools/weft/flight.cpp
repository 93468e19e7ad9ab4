#include "flight.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/text.h"
#include "environment/launch.h"
#include "foreign_file.h"
#include "trace/flight_file.h"

namespace {

using nlohmann::json;
using weft::cat;
using weft::Code;
using weft::Status;

constexpr size_t kMostFiles = 2 * weft::kMaxRanks;
constexpr size_t kMostLanes = 1024;
constexpr size_t kMostMessages = 4096;
constexpr uint64_t kNowNs = uint64_t{1} << 62;
constexpr uint64_t kAny = UINT64_MAX - 1;

Status bad(const std::string& why) {
  return Status::error(Code::kArg, why);
}

}  // namespace

bool too_deep(const std::string& text) {
  int depth = 0;
  bool inside = false;
  for (size_t i = 0; i < text.size(); i++) {
    const char c = text[i];
    if (inside) {
      if (c == '\\') i++;
      if (c == '"') inside = false;
    } else if (c == '"') {
      inside = true;
    } else if ((c == '[' || c == '{') && ++depth > 8) {
      return true;
    } else if (c == ']' || c == '}') {
      depth--;
    }
  }
  return false;
}

namespace {

// Reads the fields of an object. The first error is kept; values returned after it are meaningless.
class Fields {
 public:
  Fields(const json& object, Status* status) : object_(object), status_(*status) {
    if (!object.is_object()) fail("has another value where a JSON object belongs");
  }
  bool has(const char* key) const { return object_.is_object() && object_.contains(key); }
  uint64_t number(const char* key, uint64_t most) const {
    const json* value = find(key);
    if (value != nullptr && value->is_number_unsigned() && value->get<uint64_t>() <= most)
      return value->get<uint64_t>();
    fail(cat("has no number from 0 to ", most, " in the field ", key));
    return 0;
  }
  uint64_t number(const char* key, uint64_t most, uint64_t otherwise) const {
    return has(key) ? number(key, most) : otherwise;
  }
  std::string text(const char* key, size_t most) const {
    const json* value = find(key);
    if (value != nullptr && value->is_string() && value->get_ref<const std::string&>().size() <= most)
      return printable(value->get<std::string>());
    fail(cat("has no text of at most ", most, " bytes in the field ", key));
    return {};
  }
  std::string text_or_empty(const char* key, size_t most) const {
    return has(key) ? text(key, most) : std::string();
  }
  // Reads 16 hexadecimal digits.
  uint64_t hex(const char* key) const {
    const std::string digits = text(key, 16);
    const bool fits =
        digits.size() == 16 && digits.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (!fits) fail(cat("has no 16 hexadecimal digits in the field ", key));
    return fits ? std::stoull(digits, nullptr, 16) : 0;
  }
  std::vector<int> ranks(const char* key, int size) const {
    std::vector<int> ranks;
    for (const json& rank : list(key, 64)) {
      if (rank.is_number_unsigned() && rank.get<uint64_t>() < static_cast<uint64_t>(size)) {
        ranks.push_back(rank.get<int>());
      } else {
        fail(cat("has an entry in the field ", key, " that is not a rank from 0 to ", size - 1));
      }
    }
    return ranks;
  }
  const json& list(const char* key, size_t most) const {
    static const json kNone = json::array();
    const json* value = find(key);
    if (value != nullptr && value->is_array() && value->size() <= most) return *value;
    fail(cat("has no list of at most ", most, " entries in the field ", key));
    return kNone;
  }
  const json& at(const char* key) const {
    static const json kNothing;
    const json* value = find(key);
    return value != nullptr ? *value : kNothing;
  }
  void fail(const std::string& why) const {
    if (status_.ok()) status_ = bad(why);
  }

 private:
  const json* find(const char* key) const { return has(key) ? &*object_.find(key) : nullptr; }
  const json& object_;
  Status& status_;
};

template <class Enum>
uint8_t enumerator(const Fields& fields, const char* key) {
  Enum value{};
  if (!weft::parse(fields.text(key, 32).c_str(), &value))
    fields.fail(cat("has an unknown name in the field ", key));
  return static_cast<uint8_t>(value);
}

weft::FlightOperation operation_of(const json& given, Status* status) {
  const Fields fields(given, status);
  weft::FlightOperation operation;
  weft::Descriptor& call = operation.call;
  operation.slot = fields.number("slot", kAny);
  call.coll = enumerator<weft::Coll>(fields, "coll");
  call.dtype = enumerator<weft::Dtype>(fields, "dtype");
  if (fields.has("op")) call.op = enumerator<weft::ReduceOp>(fields, "op");
  call.root = static_cast<int32_t>(fields.number("root", weft::kMaxRanks, 0));
  call.count = fields.number("count", UINT64_MAX);
  if (fields.has("scale")) {
    const json& scale = fields.at("scale");
    call.scale = scale.is_number() ? scale.get<double>() : std::numeric_limits<double>::quiet_NaN();
  }
  if (fields.has("tag")) call.tag = fields.hex("tag");
  const std::string state = fields.text("state", 16);
  operation.state = state == "finished"  ? weft::FlightOperation::State::kFinished
                    : state == "running" ? weft::FlightOperation::State::kRunning
                                         : weft::FlightOperation::State::kFailed;
  if (fields.has("waiting_ms"))
    operation.waiting_since_ns = kNowNs - fields.number("waiting_ms", 1u << 31) * 1'000'000;
  return operation;
}

weft::FlightLane lane_of(const json& given, int size, Status* status) {
  const Fields fields(given, status);
  weft::FlightLane lane;
  const std::string kind = fields.text("kind", 16);
  using Kind = weft::LaneKey::Kind;
  lane.key.kind = kind == "send" ? Kind::kSend : kind == "receive" ? Kind::kReceive : Kind::kCollective;
  lane.key.id = static_cast<uint32_t>(fields.number("id", UINT32_MAX));
  if (lane.key.kind != Kind::kCollective) {
    lane.key.peer = static_cast<int>(fields.number("peer", static_cast<uint64_t>(size) - 1));
  } else if (kind != "collective") {
    fields.fail(cat("has the unknown lane kind \"", kind, "\", expected collective, send or receive"));
  }
  lane.next_slot = fields.number("next_slot", kAny);
  lane.queued = fields.number("queued", UINT64_MAX);
  lane.waits_for = fields.ranks("waits_for", size);
  uint64_t least = 0;
  for (const json& one : fields.list("operations", weft::FlightRing::kCapacity)) {
    lane.operations.push_back(operation_of(one, status));
    const uint64_t slot = lane.operations.back().slot;
    if (slot < least || slot >= lane.next_slot) fields.fail("has operations whose slots do not ascend");
    least = slot + 1;
  }
  if (!fields.has("step")) return lane;
  lane.has_step = true;
  const Fields step(fields.at("step"), status);
  lane.step.buckets = static_cast<uint32_t>(step.number("buckets", UINT32_MAX));
  if (!step.has("number")) return lane;
  lane.step.step = step.number("number", kAny);
  lane.step.launched = static_cast<uint32_t>(step.number("launched", lane.step.buckets));
  lane.step.done = static_cast<uint32_t>(step.number("done", lane.step.buckets));
  lane.step.where = step.text("where", 4096);
  return lane;
}

weft::FlightMessage message_of(const json& given, int size, Status* status) {
  const Fields fields(given, status);
  weft::FlightMessage message;
  using State = weft::FlightMessage::State;
  const std::string kind = fields.text("kind", 16);
  message.sends = kind == "send";
  if (!message.sends && kind != "receive")
    fields.fail(cat("has the unknown message kind \"", kind, "\", expected send or receive"));
  if (message.sends && !(fields.has("peer") && fields.has("tag")))
    fields.fail("has a tagged send without peer or tag");
  message.peer = fields.has("peer") ? static_cast<int>(fields.number("peer", static_cast<uint64_t>(size) - 1))
                                    : weft::FlightMessage::kAnyPeer;
  message.tag = fields.has("tag") ? fields.hex("tag") : weft::FlightMessage::kAnyTag;
  message.dtype = static_cast<weft::Dtype>(enumerator<weft::Dtype>(fields, "dtype"));
  message.count = fields.number("count", UINT64_MAX);
  const std::string state = fields.text("state", 16);
  message.state = state == "unmatched"  ? State::kUnmatched
                  : state == "moving"   ? State::kMoving
                  : state == "finished" ? State::kFinished
                                        : State::kFailed;
  message.waiters = static_cast<uint32_t>(fields.number("waiters", UINT32_MAX, 0));
  if (fields.has("waiting_ms"))
    message.waiting_since_ns = kNowNs - fields.number("waiting_ms", 1u << 31) * 1'000'000;
  return message;
}

Status failure_of(const json& given, int size, Status* status) {
  const Fields fields(given, status);
  weft::ErrorInfo info;
  info.code = static_cast<Code>(fields.number("code", static_cast<uint64_t>(Code::kInternal)));
  info.evidence =
      static_cast<weft::Evidence>(fields.number("evidence", static_cast<uint64_t>(weft::Evidence::kReport)));
  if (info.code == Code::kOk) fields.fail("has a failure whose code is 0");
  info.slot = fields.number("slot", kAny, weft::kNoSlot);
  info.step = fields.number("step", kAny, weft::kNoStep);
  info.ranks = fields.ranks("ranks", size);
  info.text = fields.text("text", 8192);
  return Status(std::move(info));
}

}  // namespace

Status parse_flight(const std::string& text, FlightFile* file) {
  if (text.size() > weft::kMaxFlightBytes)
    return bad(cat("is too long: ", text.size(), " bytes, at most ", weft::kMaxFlightBytes));
  if (too_deep(text)) return bad("is nested too deeply for a flight record");
  const json whole = json::parse(text, nullptr, false);
  if (whole.is_discarded()) return bad("is not JSON, or was cut off");
  Status status;
  const Fields fields(whole, &status);
  if (!status.ok() || !fields.has("weft_flight"))
    return bad("is not a flight record: it has no field weft_flight");
  if (const uint64_t format = fields.number("weft_flight", kAny); format != weft::kFlightFormat)
    return bad(
        cat("is a flight record of format ", format, "; this command reads format ", weft::kFlightFormat));
  weft::FlightRecord& record = file->record;
  record = {};
  record.now_ns = kNowNs;
  record.comm = fields.hex("comm");
  record.job = fields.text_or_empty("job", 1024);
  record.size = static_cast<int>(fields.number("size", weft::kMaxRanks));
  if (record.size < 1) return bad(cat("has no number from 1 to ", weft::kMaxRanks, " in the field size"));
  record.rank = static_cast<int>(fields.number("rank", static_cast<uint64_t>(record.size) - 1));
  record.generation = static_cast<uint32_t>(fields.number("generation", UINT32_MAX, 0));
  record.first_rank =
      static_cast<int>(fields.number("first_rank", weft::kMaxRanks, static_cast<uint64_t>(record.rank)));
  record.backend = fields.text("backend", 256);
  record.operations = fields.number("completed", UINT64_MAX, 0);
  file->host = fields.text_or_empty("host", 256);
  file->pid = static_cast<int64_t>(fields.number("pid", INT32_MAX, 0));
  if (fields.has("failure")) record.failure = failure_of(fields.at("failure"), record.size, &status);
  for (const json& lane : fields.list("lanes", kMostLanes)) {
    if (!status.ok()) break;
    record.lanes.push_back(lane_of(lane, record.size, &status));
  }
  if (!fields.has("messages")) return status;
  for (const json& message : fields.list("messages", kMostMessages)) {
    if (!status.ok()) break;
    record.messages.push_back(message_of(message, record.size, &status));
  }
  return status;
}

Status read_flights(const std::string& folder, FlightFolder* read) {
  std::error_code error;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.rfind("weft-", 0) != 0 || name.size() < 10 || name.compare(name.size() - 5, 5, ".json") != 0)
      continue;
    if (names.size() == kMostFiles) {
      read->unread.emplace_back("the rest", cat("is beyond the limit of ", kMostFiles, " files"));
      break;
    }
    names.push_back(name);
  }
  if (error) return Status::system(cat("cannot read the folder of flight records ", folder), error.value());
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    FlightFile file;
    std::string text;
    Status status = read_text(folder + "/" + name, weft::kMaxFlightBytes, &text, &file.written);
    if (status.ok()) status = parse_flight(text, &file);
    file.name = printable(name);
    if (status.ok()) {
      read->files.push_back(std::move(file));
    } else {
      read->unread.emplace_back(file.name, status.text());
    }
  }
  return {};
}
