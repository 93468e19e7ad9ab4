#include "backends.h"

#include <algorithm>
#include <iterator>

#include "base/text.h"
#include "loopback/loopback.h"
#include "registry.h"
#include "shm/backend.h"
#include "support/catch.h"
#include "support/seed.h"
#include "support/simulation.h"

namespace weft::test {
namespace {

std::vector<std::string> run_simulated(int size, const RankBody& body, const RanksOptions& options) {
  SimulationOptions simulated;
  simulated.comm = options.comm;
  return Simulation(base_seed(), size, simulated).run(body).failures;
}

std::vector<std::string> run_callers(int size, const RankBody& body, const RanksOptions& options) {
  RanksOptions callers = options;
  callers.mode = Engine::Mode::kCaller;
  return run_threads(size, body, callers);
}

constexpr BackendRow kRows[] = {
    {"loopback, threads", loopback::backend, run_threads},
    {"loopback, threads that drive", loopback::backend, run_callers},
    {"loopback, simulated", loopback::backend, run_simulated, false, true},
    {"shm, threads", shm::backend, run_threads},
    {"shm, processes", shm::backend, run_processes, true},
};

}  // namespace

std::vector<BackendRow> backend_rows() {
  std::vector<BackendRow> rows;
  for (const BackendRow& row : kRows) {
    std::string detail;
    const Status status = row.backend().probe(&detail);
    if (!status.ok()) {
      WARN(row.name << " is left out: " << status.text());
    } else if (row.processes && kThreadSanitizer) {
      WARN(row.name << " is left out: the thread sanitizer does not follow forks");
    } else {
      rows.push_back(row);
    }
  }
  return rows;
}

std::vector<std::string> backends_without_row() {
  std::vector<std::string> names;
  const Registry registry("");
  for (const BackendEntry& entry : registry.backends()) {
    if (entry.backend == nullptr) continue;
    const bool known = std::any_of(std::begin(kRows), std::end(kRows),
                                   [&](const BackendRow& row) { return row.backend().name == entry.name; });
    if (!known) names.push_back(entry.name);
  }
  return names;
}

void run_on(const BackendRow& row, int size, const RankBody& body, RanksOptions options) {
  INFO(row.name << ", " << size << " ranks, --rng-seed " << base_seed());
  options.backend = &row.backend();
  options.comm.backend = options.backend->name;
  check(row.run(size, body, options));
}

}  // namespace weft::test
