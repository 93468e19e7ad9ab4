// The environment variables of Weft, with their values in effect.
#pragma once

#include <nlohmann/json.hpp>

// Returns {"variables": [...], "launch": {...}, "store": ..., "unknown": [...], "error": ...}. Secrets are
// not contained. "error" is null unless weft_context_create or weft_comm_create would refuse the variables.
nlohmann::json describe_environment();

void print_environment(const nlohmann::json& environment);
