// weft trace convert: writes flight records in the format of PyTorch's flight recorder, which its analyser
// reads (torch.distributed.flight_recorder.fr_trace).
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <system_error>

#include "base/text.h"
#include "commands.h"
#include "flight_groups.h"
#include "pickle.h"

namespace {

using nlohmann::json;
using weft::cat;

constexpr const char* kFormatVersion = "2.10";  // of PyTorch's dumps
// The analyser knows no names of others.
constexpr const char* kBackendName = "gloo";

struct ConvertOptions {
  std::string folder;
  std::string into;
  std::string to = "pytorch";
  std::string comm;  // first digits; empty: the newest
};

// The members of a lane, which is a process group to the analyser.
struct LaneGroup {
  std::string name;
  std::string about;
  std::vector<int> ranks;
  uint64_t first_slot = 0;  // that all ranks have recorded
};

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

LaneGroup lane_group(const weft::FlightRecord& record, const weft::LaneKey& key) {
  using Kind = weft::LaneKey::Kind;
  if (key.kind == Kind::kCollective)
    return {cat("lane ", key.id), cat("collectives of lane ", key.id), all_ranks(record.size)};
  const int from = key.kind == Kind::kSend ? record.rank : key.peer;
  const int to = key.kind == Kind::kSend ? key.peer : record.rank;
  std::vector<int> pair = {std::min(from, to), std::max(from, to)};
  return {cat("lane ", key.id, " from ", from, " to ", to), cat("messages from rank ", from, " to rank ", to),
          std::move(pair)};
}

// Returns the lanes of all ranks by name. A rank whose ring has overflowed lacks the operations before its
// first one, so these are left out on all ranks: the analyser would take them for missing.
std::map<std::string, LaneGroup> lane_groups(const FlightGroup& group) {
  std::map<std::string, LaneGroup> groups;
  for (const FlightFile& file : group.files) {
    for (const weft::FlightLane& lane : file.record.lanes) {
      const LaneGroup one = lane_group(file.record, lane.key);
      LaneGroup& known = groups.try_emplace(one.name, one).first->second;
      if (!lane.operations.empty())
        known.first_slot = std::max(known.first_slot, lane.operations.front().slot);
    }
  }
  return groups;
}

// A collective by PyTorch's name. Each buffer has `count` elements, or that for each rank. The counts of
// other ranks are in no flight record, so collectives whose counts differ are shown as if they did not.
struct TorchCall {
  const char* name = "barrier";
  bool blocks_in = false, blocks_out = false;
};

TorchCall torch_call(weft::Coll coll) {
  using weft::Coll;
  static const std::map<Coll, TorchCall> kCalls = {{Coll::kAllReduce, {"all_reduce"}},
                                                   {Coll::kSparseAllReduce, {"all_reduce"}},
                                                   {Coll::kReduce, {"reduce"}},
                                                   {Coll::kBroadcast, {"broadcast"}},
                                                   {Coll::kAllGather, {"all_gather", false, true}},
                                                   {Coll::kAllGatherV, {"all_gather", false, true}},
                                                   {Coll::kReduceScatter, {"reduce_scatter", true, false}},
                                                   {Coll::kReduceScatterV, {"reduce_scatter", true, false}},
                                                   {Coll::kGather, {"gather", false, true}},
                                                   {Coll::kGatherV, {"gather", false, true}},
                                                   {Coll::kScatter, {"scatter", true, false}},
                                                   {Coll::kScatterV, {"scatter", true, false}},
                                                   {Coll::kAllToAll, {"all_to_all", true, true}},
                                                   {Coll::kAllToAllV, {"all_to_all", true, true}},
                                                   {Coll::kSend, {"send"}},
                                                   {Coll::kRecv, {"recv"}}};
  const auto found = kCalls.find(coll);
  return found == kCalls.end() ? TorchCall() : found->second;
}

// Returns the name of PyTorch's ScalarType.
const char* torch_dtype(uint8_t dtype) {
  constexpr const char* kNames[] = {"Byte",          "Byte",        "Char",   "UInt16",       "Short",
                                    "UInt32",        "Int",         "UInt64", "Long",         "Half",
                                    "BFloat16",      "Float",       "Double", "ComplexFloat", "ComplexDouble",
                                    "Float8_e4m3fn", "Float8_e5m2", "Bool"};
  return kNames[dtype < std::size(kNames) ? dtype : 0];
}

json entry_of(const FlightFile& file, const LaneGroup& lane, const weft::LaneKey& key,
              const weft::FlightOperation& operation, size_t record_id) {
  using State = weft::FlightOperation::State;
  const TorchCall call = torch_call(static_cast<weft::Coll>(operation.call.coll));
  const uint64_t count = operation.call.count, all = count * lane.ranks.size();
  std::string name = cat(kBackendName, ":", call.name);
  const bool pair = key.kind != weft::LaneKey::Kind::kCollective;
  if (pair) {  // members are numbered in the group
    const int mine = file.record.rank == lane.ranks[0] ? 0 : 1;
    name += cat(" ", mine, key.kind == weft::LaneKey::Kind::kSend ? "->" : "<-", 1 - mine);
  }
  const bool done = operation.state == State::kFinished;
  const json created = file.written * 1'000'000'000;  // flight records have no times of operations
  return {{"record_id", record_id},
          {"pg_id", 0},
          {"process_group", {lane.name, lane.about}},
          {"collective_seq_id", operation.slot},
          {"p2p_seq_id", pair ? operation.slot : 0},
          {"op_id", operation.slot},
          {"profiling_name", name},
          {"time_created_ns", created},
          {"time_discovered_started_ns", nullptr},
          {"time_discovered_completed_ns", nullptr},
          {"duration_ms", nullptr},
          {"input_sizes", {{call.blocks_in ? all : count}}},
          {"input_dtypes", json::array({torch_dtype(operation.call.dtype)})},
          {"output_sizes", {{call.blocks_out ? all : count}}},
          {"output_dtypes", json::array({torch_dtype(operation.call.dtype)})},
          {"state", done ? "completed" : "started"},
          {"timeout_ms", 0},
          {"is_p2p", pair},
          {"retired", done},
          {"frames", json::array()}};
}

json dump_of(const FlightFile& file, const std::map<std::string, LaneGroup>& lanes) {
  json configs = json::object(), statuses = json::object(), entries = json::array();
  for (const auto& [name, lane] : lanes) {
    if (std::find(lane.ranks.begin(), lane.ranks.end(), file.record.rank) == lane.ranks.end()) continue;
    configs[name] = {{"name", name}, {"desc", lane.about}, {"ranks", json(lane.ranks).dump()}};
  }
  for (const weft::FlightLane& lane : file.record.lanes) {
    const LaneGroup& group = lanes.at(lane_group(file.record, lane.key).name);
    int64_t started = -1, completed = -1;
    for (const weft::FlightOperation& operation : lane.operations) {
      if (operation.slot < group.first_slot) continue;
      entries.push_back(entry_of(file, group, lane.key, operation, entries.size()));
      started = static_cast<int64_t>(operation.slot);
      if (operation.state == weft::FlightOperation::State::kFinished) completed = started;
    }
    statuses[group.name] = {{"last_enqueued_collective", started},
                            {"last_started_collective", started},
                            {"last_completed_collective", completed}};
  }
  return {{"version", kFormatVersion}, {"pg_config", configs}, {"pg_status", statuses}, {"entries", entries}};
}

void write_dump(const std::string& path, const json& dump) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << pickle_of(dump);
  if (!file.flush()) throw std::system_error(errno, std::generic_category(), "cannot write " + path);
}

const FlightGroup& chosen_group(const std::vector<FlightGroup>& groups, const ConvertOptions& options) {
  if (groups.empty()) throw std::runtime_error("there are no flight records in " + options.folder);
  if (options.comm.empty()) return groups.back();
  std::string known;
  for (const FlightGroup& group : groups) {
    const std::string digits = comm_text(group.record());
    if (digits.starts_with(options.comm)) return group;
    known += (known.empty() ? "" : ", ") + digits;
  }
  throw std::runtime_error("no communicator in " + options.folder + " begins with " + options.comm + ": " +
                           known);
}

int convert(const ConvertOptions& options) {
  FlightFolder folder;
  if (const weft::Status status = read_flights(options.folder, &folder); !status.ok())
    throw std::runtime_error(status.text());
  const std::vector<FlightGroup> groups = grouped(&folder);
  const FlightGroup& group = chosen_group(groups, options);
  std::error_code error;
  std::filesystem::create_directories(options.into, error);
  if (error) throw std::system_error(error, "cannot create " + options.into);
  const std::map<std::string, LaneGroup> lanes = lane_groups(group);
  for (const FlightFile& file : group.files)
    write_dump(options.into + "/rank_" + std::to_string(file.record.rank), dump_of(file, lanes));
  for (const auto& [file, why] : folder.unread)
    std::fprintf(stderr, "weft: %s was left out: it %s\n", file.c_str(), why.c_str());
  const size_t missing = without_record(group).size();
  std::printf(
      "%s has the records of %zu ranks of communicator %s. To analyse them:\n"
      "  python3 -m torch.distributed.flight_recorder.fr_trace %s%s\n",
      options.into.c_str(), group.files.size(), comm_text(group.record()).c_str(), options.into.c_str(),
      missing > 0 ? " --allow-incomplete-ranks" : "");
  return 0;
}

}  // namespace

void add_trace_convert(CLI::App& trace, int* exit_code) {
  auto options = std::make_shared<ConvertOptions>();
  CLI::App* command =
      trace.add_subcommand("convert", "Write flight records in the format of PyTorch's flight recorder");
  command->footer(
      "Writes a file rank_N for each rank, for PyTorch's analyser "
      "(torch.distributed.flight_recorder). Each "
      "lane\n"
      "is a process group there. Tagged messages, reductions' "
      "operations and times are not in this format.");
  command->add_option("DIR", options->folder, "the folder of the flight records")->required();
  command->add_option("OUT", options->into, "the folder to write to; files of the same names are replaced")
      ->required();
  command->add_option("--to", options->to, "the format: pytorch (the default)")
      ->check(CLI::IsMember({"pytorch"}));
  command->add_option("--comm", options->comm,
                      "first digits of the communicator (default: that of the newest records)");
  command->callback([options, exit_code] { *exit_code = convert(*options); });
}
