// Precompiled for the weft command: mostly CLI11 and the JSON library, which take seconds.
#ifndef WEFT_PCH_TOOL_H
#define WEFT_PCH_TOOL_H

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#endif
