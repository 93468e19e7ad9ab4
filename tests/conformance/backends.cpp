#include "backends.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include "base/text.h"
#include "device.h"
#include "loopback/loopback.h"
#include "shm/backend.h"
#include "support/catch.h"
#include "support/random_transport.h"
#include "support/sanitized.h"
#include "support/seed.h"
#include "support/simulation.h"
#include "unix_transport.h"

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

// Returns the backend of a module in the build folder. If it is not built, returns a backend whose probe
// reports that.
const Backend& module_backend(const char* name, Backend* missing) {
  const BackendEntry* const entry = registry().find(name);
  if (entry != nullptr && entry->backend != nullptr) return *entry->backend;
  missing->name = name;
  missing->find = [](const Libraries&, std::string*) {
    return Status::error(Code::kUnavailable, "its module is not part of this build");
  };
  return *missing;
}

const Backend& ucx_backend() {
  static Backend missing{};
  return module_backend("ucx", &missing);
}

// The example of a program's own transport.
const Backend& own_backend() {
  return *registry().find("unix")->backend;
}

const Backend& composed_own_backend() {
  return *registry().find("shm+unix")->backend;
}

const Backend& random_backend() {
  return *registry().find("random")->backend;
}

const Backend& composed_random_backend() {
  return *registry().find("shm+random")->backend;
}

const Backend& plain_random_backend() {
  return *registry().find("random-plain")->backend;
}

const Backend& composed_plain_random_backend() {
  return *registry().find("shm+random-plain")->backend;
}

// Returns the mpi backend in a process that mpirun has started; elsewhere one whose probe reports the reason.
const Backend& mpi_backend() {
  static Backend missing{};
  return module_backend("mpi", &missing);
}

const Backend& native_mpi_backend() {
  static Backend missing{};
  return module_backend("mpi.native", &missing);
}

const Backend& composed_mpi_backend() {
  static Backend missing{};
  return module_backend("shm+mpi", &missing);
}

const Backend& composed_backend() {
  static Backend missing{};
  return module_backend("shm+ucx", &missing);
}

const Backend& nccl_backend() {
  static Backend missing{};
  return module_backend("nccl", &missing);
}

const Backend& composed_nccl_backend() {
  static Backend missing{};
  return module_backend("nccl+ucx", &missing);
}

std::vector<int> hosts_of_two(int size) {
  std::vector<int> hosts;
  for (int r = 0; r < size; r++) hosts.push_back(r / 2);
  return hosts;
}
std::vector<int> two_hosts_in_turn(int size) {
  std::vector<int> hosts;
  for (int r = 0; r < size; r++) hosts.push_back(r % 2);
  return hosts;
}
std::vector<int> last_alone(int size) {
  std::vector<int> hosts(static_cast<size_t>(size));
  hosts.back() = 1;
  return hosts;
}
std::vector<int> one_host(int size) {
  return std::vector<int>(static_cast<size_t>(size));
}

constexpr BackendRow kRows[] = {
    {"loopback, threads", loopback::backend, run_threads},
    {"loopback, threads that drive", loopback::backend, run_callers},
    {"loopback, simulated", loopback::backend, run_simulated, false, true},
    {"shm, threads", shm::backend, run_threads},
    {"shm, processes", shm::backend, run_processes, true},
    {"ucx, threads", ucx_backend, run_threads},
    {"ucx, processes", ucx_backend, run_processes, true},
    {"shm+ucx, hosts of two, threads", composed_backend, run_threads, false, false, hosts_of_two, true},
    {"shm+ucx, hosts of two", composed_backend, run_processes, true, false, hosts_of_two, true},
    {"shm+ucx, two hosts in turn", composed_backend, run_processes, true, false, two_hosts_in_turn, true},
    {"shm+ucx, the last rank alone", composed_backend, run_processes, true, false, last_alone, true},
    {"shm+ucx, one host", composed_backend, run_processes, true, false, one_host, true},
    {"mpi, launched", mpi_backend, run_launched, true},
    {"mpi.native, launched", native_mpi_backend, run_launched, true, false, nullptr, true},
    {"shm+mpi, launched, hosts of two", composed_mpi_backend, run_launched, true, false, hosts_of_two, true},
    {.name = "loopback, CUDA", .backend = loopback::backend, .run = run_threads, .devices = true},
    {.name = "ucx, CUDA", .backend = ucx_backend, .run = run_threads, .devices = true},
    {.name = "unix, CUDA", .backend = own_backend, .run = run_threads, .devices = true},
    {.name = "shm+ucx, hosts of two, CUDA",
     .backend = composed_backend,
     .run = run_threads,
     .hosts = hosts_of_two,
     .adds_partial_sums = true,
     .devices = true},
    {.name = "mpi, launched, CUDA",
     .backend = mpi_backend,
     .run = run_launched,
     .processes = true,
     .devices = true},
    {.name = "shm, CUDA", .backend = shm::backend, .run = run_threads, .devices = true},
    {.name = "nccl over loopback, CUDA",
     .backend = nccl_backend,
     .run = run_threads,
     .adds_partial_sums = true,
     .over = loopback::backend,
     .devices = true},
    {.name = "nccl over shm, CUDA",
     .backend = nccl_backend,
     .run = run_threads,
     .adds_partial_sums = true,
     .over = shm::backend,
     .devices = true},
    {.name = "nccl+ucx, hosts of two, CUDA",
     .backend = composed_nccl_backend,
     .run = run_threads,
     .hosts = hosts_of_two,
     .adds_partial_sums = true,
     .over = shm::backend,
     .devices = true},
    {.name = "nccl+ucx, the last rank alone, CUDA",
     .backend = composed_nccl_backend,
     .run = run_threads,
     .hosts = last_alone,
     .adds_partial_sums = true,
     .over = shm::backend,
     .devices = true},
    {"unix, threads", own_backend, run_threads},
    {"unix, processes", own_backend, run_processes, true},
    {"shm+unix, hosts of two", composed_own_backend, run_processes, true, false, hosts_of_two, true},
    {"random, threads", random_backend, run_threads},
    {"shm+random, hosts of two, threads", composed_random_backend, run_threads, false, false, hosts_of_two,
     true},
    {"random-plain, threads", plain_random_backend, run_threads},
    {"shm+random-plain, hosts of two, threads", composed_plain_random_backend, run_threads, false, false,
     hosts_of_two, true},
};

}  // namespace

const Registry& registry() {
  const char* const folder = std::getenv("WEFT_TEST_MODULES");
  static const auto made = [&] {
    auto registry = std::make_unique<Registry>(folder != nullptr ? folder : WEFT_BUILD_MODULES);
    for (const weft_transport* const own : {unix_transport(), random_transport(), plain_random_transport()})
      check(registry->add(*own).ok() ? std::vector<std::string>{} : std::vector<std::string>{own->name});
    return registry;
  }();
  return *made;
}

std::vector<BackendRow> backend_rows() {
  std::vector<BackendRow> rows;
  const char* const only = std::getenv("WEFT_TEST_ROWS");
  for (const BackendRow& row : kRows) {
    if (only != nullptr && std::string_view(row.name).find(only) == std::string_view::npos) continue;
    std::string detail;
    if (row.devices && fake_devices(&detail) == nullptr) {
      WARN(row.name << " is left out: " << detail);
      continue;
    }
    if (row.over != nullptr) use_fake_nccl();
    const Backend& backend = row.backend();
    const BackendEntry* const entry = registry().find(backend.name);
    const Status status = entry != nullptr ? registry().probe(*entry, &detail) : backend.probe(&detail);
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
  if (row.hosts != nullptr) options.hosts = row.hosts(size);
  if (row.over != nullptr) options.host_backend = &row.over();
  std::string why;
  if (row.devices) {
    options.accelerator = fake_devices(&why);
    options.use_device = use_device;
  }
  check(row.run(size, body, options));
  if (row.devices) CHECK(device_problems() == "");
}

}  // namespace weft::test
