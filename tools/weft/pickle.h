// Writes values in the format of Python's pickle. A pure function.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

// Returns the value as a pickle of protocol 2: objects become dicts, arrays lists, and null None. Integers
// must fit into 64 bits with a sign.
std::string pickle_of(const nlohmann::json& value);
