// What the conformance suite runs on: a row for each backend and each way of having ranks. A new backend is a
// new row in backends.cpp; every test of the suite then follows.
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
  bool processes = false;  // ranks share no memory but the backend's
  bool simulated = false;  // one rank at a time: bodies start no threads
  // The number of each rank's simulated host; null: all are where they are.
  std::vector<int> (*hosts)(int size) = nullptr;
  bool adds_partial_sums = false;      // sums have the reference's bits where they are exact alone
  const Backend& (*over)() = nullptr;  // what a backend on devices lies over
  bool devices = false;                // cases' buffers lie on devices, where that is supported
};

// All backends, with the modules of the build folder, or of the one that WEFT_TEST_MODULES names.
const Registry& registry();

// The rows that can run here (of those whose name contains WEFT_TEST_ROWS, if it is set); unavailable ones
// are left out, with a warning that says why.
std::vector<BackendRow> backend_rows();

// Backends of the library that the suite would miss.
std::vector<std::string> backends_without_row();

// Run body on `size` ranks of the row and report what they found.
void run_on(const BackendRow& row, int size, const RankBody& body, RanksOptions options = {});

}  // namespace weft::test
