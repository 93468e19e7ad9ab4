// Renders the report of a run as one page of HTML, from page.html. The page loads nothing. Tables say in text
// what its pictures show. Called by `weft report` and unit tests.
#pragma once

#include <string>

#include "analysis.h"
#include "run_files.h"
#include "weft/flight_groups.h"

namespace report {

std::string page_text(const RunFiles& run, const Analysis& analysis, const std::vector<FlightGroup>& flights);

}  // namespace report
