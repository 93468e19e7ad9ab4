// The rows of the conformance suite: one for each backend and each way of running ranks. To test a new
// backend, add a row in backends.cpp; all tests of the suite then run on it.
#pragma once

#include <string>
#include <vector>

#include "registry.h"
#include "support/ranks.h"

namespace weft::test {

struct BackendRow {
  const char* name;
  const Backend& (*backend)();
  std::vector<std::string> (*run)(int size, const RankBody& body, const RanksOptions& options);
  bool processes = false;  // ranks share no memory except the backend's
  bool simulated = false;  // one rank runs at a time: bodies start no threads
  // Returns the number of each rank's simulated host; null: ranks are on their real host.
  std::vector<int> (*hosts)(int size) = nullptr;
  bool adds_partial_sums = false;      // sums have the reference's bits only if they are exact
  const Backend& (*over)() = nullptr;  // the backend under a device backend
  bool devices = false;                // buffers of cases lie on devices, where supported
};

// Returns all backends, with the modules of the build folder, or of the folder that WEFT_TEST_MODULES names.
const Registry& registry();

// Returns the rows that can run here; if WEFT_TEST_ROWS is set, only those whose names contain it.
// Unavailable rows are left out, with a warning that gives the reason.
std::vector<BackendRow> backend_rows();

// Returns the library's backends that have no row.
std::vector<std::string> backends_without_row();

// Runs the body on `size` ranks of the row and reports the failures.
void run_on(const BackendRow& row, int size, const RankBody& body, RanksOptions options = {});

}  // namespace weft::test
