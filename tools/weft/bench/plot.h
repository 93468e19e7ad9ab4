// Draws results of `weft bench` as a picture: times over sizes. A pure function.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

constexpr size_t kMostLines = 5;  // more cannot be told apart

// run: the results of json_of, or of merge. Works with one size are left out. Returns a page of SVG with a
// title and a description of all values. Throws std::invalid_argument if no work has several sizes, or more
// than kMostLines have.
std::string plot_svg(const nlohmann::json& run);
