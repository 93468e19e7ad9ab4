#include "environment.h"

#include <weft/weft.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "base/text.h"
#include "doctor/settings_check.h"
#include "environment/config.h"
#include "machine.h"

namespace {

using nlohmann::json;
using weft::Environment;
using weft::Variable;
using weft::VariableInfo;

// Returns what a variable that is not set amounts to, or null if the table says it.
json derived(Variable variable, const Environment& environment, bool valid) {
  const weft::Launch& launch = environment.launch;
  if (!valid) return nullptr;
  switch (variable) {
    case Variable::kRank:
      return launch.rank;
    case Variable::kSize:
      return launch.size;
    case Variable::kLocalRank:
      return launch.local_rank < 0 ? json(nullptr) : json(launch.local_rank);
    case Variable::kLocalSize:
      return launch.local_size == 0 ? json(nullptr) : json(launch.local_size);
    case Variable::kStore:
      return launch.size > 1 ? json(environment.store) : json(nullptr);
    case Variable::kJob:
      return environment.settings.job.empty() ? json(nullptr) : json(environment.settings.job);
    default:
      return nullptr;
  }
}

json shown(const VariableInfo& info, const std::string& value) {
  return info.secret ? json(weft::cat("(", value.size(), " bytes, not shown)")) : json(value);
}

// Returns why a context cannot be created, or why it lacks the backend of WEFT_BACKEND; empty: neither.
std::string library_error(const std::string& backend) {
  weft_context* context = nullptr;
  weft_error error = WEFT_ERROR_INIT;
  if (weft_context_create(nullptr, &context, &error) != WEFT_OK) return error.text;
  const std::vector<weft_backend_info> backends = known_backends(context);
  weft_context_destroy(&context);
  if (backend.empty()) return {};
  std::string names;
  for (const weft_backend_info& info : backends) {
    if (backend == info.name)
      return info.available != 0 ? "" : weft::cat("WEFT_BACKEND is ", backend, ": ", info.reason);
    names += weft::cat(names.empty() ? "" : ", ", info.name);
  }
  return weft::cat("WEFT_BACKEND is \"", backend.substr(0, weft::kShownBytes), "\", but must be ", names);
}

// Returns all reasons why no communicator could be created, separated by semicolons.
std::string errors_text() {
  std::vector<std::string> errors = environment_errors();
  std::string more = library_error(weft::process_settings().backend);
  if (!more.empty() && std::find(errors.begin(), errors.end(), more) == errors.end())
    errors.push_back(std::move(more));
  std::string text;
  for (const std::string& error : errors) text += weft::cat(text.empty() ? "" : "; ", error);
  return text;
}

}  // namespace

json describe_environment() {
  Environment environment;
  const bool valid = weft::process_environment(&environment).ok();
  const std::string errors = errors_text();
  json variables = json::array();
  const auto add = [&](const weft::Variables& process) -> weft::Status {
    for (const VariableInfo& info : weft::variable_table()) {
      const char* const set = process.text(info.variable);
      const json value = set != nullptr ? shown(info, set) : derived(info.variable, environment, valid);
      const bool launched = set == nullptr && !value.is_null();
      variables.push_back({{"name", info.name},
                           {"value", value},
                           {"source", set != nullptr ? json("environment")
                                      : launched     ? json(name(environment.launch.launcher))
                                                     : json(nullptr)},
                           {"values", info.values},
                           {"unset", info.unset},
                           {"meaning", info.meaning},
                           {"equal_on_all_ranks", info.equal}});
    }
    return {};
  };
  (void)weft::with_process_variables(add).ok();
  json unknown = json::array();
  for (const std::string& each : weft::unknown_variables()) {
    const std::string similar = weft::similar_variable(each);
    unknown.push_back({{"name", each}, {"similar", similar.empty() ? json(nullptr) : json(similar)}});
  }
  return {{"variables", variables},
          {"unknown", unknown},
          {"error", errors.empty() ? json(nullptr) : json(errors)}};
}

void print_environment(const json& environment) {
  for (const json& each : environment["variables"]) {
    const json& value = each["value"];
    std::string line = value.is_string() ? value.get<std::string>() : value.dump();
    if (value.is_null()) {
      line = "not set: " + each["unset"].get<std::string>();
    } else if (each["source"] != "environment") {
      line += " (" + each["source"].get<std::string>() + ")";
    }
    std::printf("%-22s %s\n", each["name"].get<std::string>().c_str(), line.c_str());
  }
  for (const json& each : environment["unknown"]) {
    const json& similar = each["similar"];
    std::printf("%-22s unknown: Weft does not read it%s\n", each["name"].get<std::string>().c_str(),
                similar.is_null() ? "" : ("; did you mean " + similar.get<std::string>() + "?").c_str());
  }
  if (!environment["error"].is_null())
    std::printf("\nerror: %s\n", environment["error"].get<std::string>().c_str());
}
