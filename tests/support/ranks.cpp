#include "support/ranks.h"

#include <stdexcept>
#include <thread>
#include <utility>

#include "base/text.h"
#include "environment/config.h"
#include "kernels/host_ops.h"
#include "loopback/loopback.h"
#include "rendezvous/auth.h"
#include "rendezvous/mesh.h"
#include "rendezvous/store_exchange.h"
#include "support/catch.h"
#include "support/links.h"

namespace weft::test {
namespace {

// Creates the context and, with `connect`, the communicator; runs the body; destroys both.
template <class Connect>
std::vector<std::string> run_rank(Rank self, const RankBody& body, const RanksOptions& options,
                                  Connect&& connect) {
  ContextOptions context_options;
  context_options.mode = options.mode;
  context_options.host = &host_ops();
  context_options.clock = options.clock;
  context_options.accelerator = options.accelerator;
  if (options.use_device != nullptr) options.use_device(self.rank);
  std::shared_ptr<Context> context;
  self.expect(Context::create(context_options, &context), "context");
  if (!context) return self.failures;
  if (SystemClock* clock = context->system_clock(); clock != nullptr) clock->set_crowded(true);
  const Backend& backend = options.backend != nullptr ? *options.backend : loopback::backend();
  const Status formed = connect(context, backend, &self.comm);
  self.expect(formed, "forming");
  if (formed.ok()) body(self);
  if (self.comm) (void)self.comm->close().ok();
  self.comm.reset();
  (void)context->close().ok();
  return self.failures;
}

// Calls run_rank for a process that reaches the other ranks over an exchange.
std::vector<std::string> run_over(Exchange& links, const RankBody& body, const RanksOptions& options) {
  Rank self;
  self.rank = links.rank();
  self.size = links.size();
  return run_rank(self, body, options,
                  [&](const std::shared_ptr<Context>& context, const Backend& backend,
                      std::shared_ptr<Comm>* comm) -> Status {
                    Clock& clock = context->clock();
                    MeshOptions mesh_options;
                    mesh_options.deadline = Deadline::after(clock, options.comm.init_timeout_ms, 0);
                    std::unique_ptr<SocketMesh> mesh;
                    WEFT_TRY(SocketMesh::make(links, mesh_options, clock, context->log(), &mesh));
                    BackendArgs args{links, clock, context->log(), context->host()};
                    args.arena_limit_bytes = options.comm.arena_limit_bytes;
                    args.deadline = mesh_options.deadline;
                    std::vector<int> labels = options.hosts;
                    labels.resize(static_cast<size_t>(links.size()));
                    LabelledHosts hosts(*mesh, labels, links.rank());
                    args.fds = &hosts;
                    args.crowded = true;
                    args.failpoints = options.comm.failpoints;
                    Measurements measurements("off,pull=1M");
                    args.measurements = &measurements;
                    std::unique_ptr<Collectives> collectives;
                    MakeCollectives make = collectives_of(backend, options.comm.algorithms);
                    if (options.accelerator != nullptr) make = staged_over(std::move(make));
                    WEFT_TRY(make(args, &collectives));
                    links.finish();
                    *comm = Comm::create(context, links.rank(), links.size(), options.comm, std::move(mesh),
                                         std::move(collectives));
                    return {};
                  });
}

}  // namespace

RanksOptions::RanksOptions() {
  comm.op_timeout_ms = comm.init_timeout_ms = 60'000;
  if (const Status parsed = FailPoints::parse(process_settings().failpoints, &comm.failpoints); !parsed.ok())
    throw std::runtime_error(parsed.text());
}

std::vector<std::string> run_threads(int size, const RankBody& body, const RanksOptions& options) {
  SystemClock clock;
  clock.set_crowded(true);
  ThreadGroup group(size, clock);
  std::vector<std::vector<std::string>> found(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; r++) {
    threads.emplace_back([&, r] {
      Rank self;
      self.rank = r;
      self.size = size;
      self.group = &group;
      found[static_cast<size_t>(r)] = run_rank(
          self, body, options,
          [&](const std::shared_ptr<Context>& context, const Backend& backend, std::shared_ptr<Comm>* comm) {
            const Backend& host =
                options.host_backend != nullptr ? *options.host_backend : loopback::backend();
            MakeCollectives make = collectives_of(backend, options.comm.algorithms, &host);
            if (options.accelerator != nullptr && !backend.on_device) make = staged_over(std::move(make));
            return form(group, r, context, make, options.comm, comm, options.hosts);
          });
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::string> failures;
  for (const auto& rank : found) failures.insert(failures.end(), rank.begin(), rank.end());
  return failures;
}

std::vector<std::string> run_processes(int size, const RankBody& body, const RanksOptions& options) {
  const auto linked = [&](SocketLinks& links) {
    const std::vector<std::string> failures = run_over(links, body, options);
    if (!failures.empty()) throw std::runtime_error(list_text(failures));
  };
  std::vector<std::string> failures;
  for (const std::string& text : run_linked_processes(size, linked, 120)) {
    if (!text.empty()) failures.push_back(text);
  }
  return failures;
}

std::vector<std::string> run_launched(int size, const RankBody& body, const RanksOptions& options) {
  constexpr int64_t kMeetMs = 300'000;  // the other processes may still be in another test case
  static int runs = 0;
  Environment environment;
  if (const Status status = process_environment(&environment); !status.ok()) return {status.text()};
  if (runs == 0 && size != environment.launch.size) {
    runs++;
    auto begun = run_launched(environment.launch.size, [](Rank&) {}, options);
    if (!begun.empty()) return begun;
  }
  const int run = runs++;
  if (environment.launch.rank >= size) return {};
  SystemClock clock;
  clock.set_crowded(true);
  Log silent;
  StoreOptions store;
  store.rank = environment.launch.rank;
  store.size = size;
  store.store = cat(environment.store, "-", run);
  store.key = AuthKey::open();
  std::unique_ptr<StoreExchange> exchange;
  const Status met = StoreExchange::make(store, clock, silent, Deadline::after(clock, kMeetMs, 0), &exchange);
  if (!met.ok()) return {cat("rank ", environment.launch.rank, ": the ranks do not meet: ", met.text())};
  return run_over(*exchange, body, options);
}

void check(const std::vector<std::string>& failures) {
  size_t shown = 0;
  for (const std::string& failure : failures) {
    if (shown++ == 20) break;
    UNSCOPED_INFO(failure);
  }
  CHECK(failures.empty());
}

}  // namespace weft::test
