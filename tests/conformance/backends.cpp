#include "backends.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "base/text.h"
#include "loopback/loopback.h"
#include "shm/backend.h"
#include "support/catch.h"
#include "support/seed.h"
#include "support/simulation.h"

namespace weft::test {
namespace {

std::vector<std::string> run_simulated(int size, const RankBody& body, const RanksOptions& options) {
  SimulationOptions simulated;
  simulated.comm = options.comm;
  if (!coll::parse_forced(options.comm.algorithms, &simulated.forced).ok()) return {"no such algorithm"};
  return Simulation(base_seed(), size, simulated).run(body).failures;
}

std::vector<std::string> run_callers(int size, const RankBody& body, const RanksOptions& options) {
  RanksOptions callers = options;
  callers.mode = Engine::Mode::kCaller;
  return run_threads(size, body, callers);
}

// Of a module in the build folder. One that is not built has a probe that says so.
const Backend& module_backend(const char* name, Backend* missing) {
  const BackendEntry* const entry = registry().find(name);
  if (entry != nullptr && entry->backend != nullptr) return *entry->backend;
  missing->name = name;
  missing->probe = [](std::string*) {
    return Status::error(Code::kUnavailable, "its module is not part of this build");
  };
  return *missing;
}

const Backend& ucx_backend() {
  static Backend missing{};
  return module_backend("ucx", &missing);
}

constexpr BackendRow kRows[] = {
    {"loopback, threads", loopback::backend, run_threads},
    {"loopback, threads that drive", loopback::backend, run_callers},
    {"loopback, simulated", loopback::backend, run_simulated, false, true},
    {"shm, threads", shm::backend, run_threads},
    {"shm, processes", shm::backend, run_processes, true},
    {"ucx, threads", ucx_backend, run_threads},
    {"ucx, processes", ucx_backend, run_processes, true},
};

}  // namespace

const Registry& registry() {
  const char* const folder = std::getenv("WEFT_TEST_MODULES");
  static const Registry registry(folder != nullptr ? folder : WEFT_BUILD_MODULES);
  return registry;
}

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
  for (const BackendEntry& entry : registry().backends()) {
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
