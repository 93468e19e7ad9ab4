#include "capi/status.h"

#include <unistd.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "base/guard.h"
#include "comm/members.h"
#include "trace/flight_file.h"

namespace weft::capi {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostComms = 64;
constexpr size_t kMostRanksShown = 4096;
constexpr size_t kMostSampleBytes = size_t{1} << 20;

// Returns where the ranks of a communicator run: some may be unable to answer.
Json places_json(const Members& members) {
  Json list = Json::array();
  for (const Members::Place& place : members.places()) {
    if (list.size() == kMostRanksShown) break;
    list.push_back({place.host, place.pid});
  }
  return list;
}

// Returns the samples of the context's metrics, without comments and without those that are 0: a reducer has
// some for each rank.
std::string samples(Context& context) {
  std::istringstream lines(context.metrics().text());
  std::string kept;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#') || line.ends_with(" 0") || line.ends_with(" 0.000000000")) continue;
    if (kept.size() + line.size() >= kMostSampleBytes) break;
    kept += line + "\n";
  }
  return kept;
}

// Returns lines of JSON: the process, samples of its metrics, and for each communicator the places of its
// ranks and its flight record.
std::string answer(Context& context) {
  const auto line = [](const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  };
  std::string text = line({{"weft_status", 1}, {"pid", ::getpid()}});
  text += line({{"metrics", samples(context)}});
  size_t comms = 0;
  for (const std::shared_ptr<Comm>& comm : context.comms()) {
    if (++comms > kMostComms) break;
    const Members* const members = comm->options().members.get();
    text += line({{"places", members != nullptr ? places_json(*members) : Json::array()},
                  {"flight", Json::parse(flight_text(comm->flight()))}});
  }
  return text;
}

}  // namespace

void start_status(weft_context& context) {
  if (!context.rep->options().status) return;
  // The server ends before the context: weft_context_destroy.
  Context& rep = *context.rep;
  const Status started = guarded([&] {
    return StatusServer::start([&rep] { return answer(rep); }, rep.options().thread_start, &context.status);
  });
  if (!started.ok()) rep.log().info(cat("this process does not answer weft status: ", started.text()));
}

}  // namespace weft::capi
