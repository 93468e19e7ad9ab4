// Input: lines NAME=VALUE, which are an environment. Reading any of them returns an error with a text, or a
// rank of a job with a store.
#include <map>
#include <string>

#include "environment/config.h"
#include "fuzz.h"
#include "rendezvous/address.h"

using namespace weft;
using fuzz::demand;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::map<std::string, std::string> variables;
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    const size_t equals = line.find('=');
    if (equals != std::string::npos) variables[line.substr(0, equals)] = line.substr(equals + 1).c_str();
    at = end + 1;
  }
  Environment environment;
  const Getter get = [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  const Status status = read_environment(Variables(get), ProcessFacts{1000, 7, 6}, &environment);
  if (!status.ok()) {
    demand(!status.text().empty());
    return 0;
  }
  const Launch& launch = environment.launch;
  demand(launch.size >= 1 && launch.size <= kMaxRanks);
  demand(launch.rank >= 0 && launch.rank < launch.size);
  demand(!environment.store.empty());
  Address address, again;
  if (parse_address(environment.store, &address).ok()) {
    demand(parse_address(address.text(), &again).ok());
    demand(again.text() == address.text());
  }
  return 0;
}
