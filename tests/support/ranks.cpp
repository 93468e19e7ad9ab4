#include "support/ranks.h"

#include <mutex>
#include <thread>

#include "kernels/host_ops.h"
#include "loopback/loopback.h"
#include "support/catch.h"

namespace weft::test {
namespace {

void run_rank(ThreadGroup& group, int rank, const RankBody& body, const RanksOptions& options,
              std::vector<std::string>* failures) {
  Rank self;
  self.rank = rank;
  self.size = group.size();
  self.group = &group;
  ContextOptions context_options;
  context_options.mode = options.mode;
  context_options.host = &host_ops();
  std::shared_ptr<Context> context;
  self.expect(Context::create(context_options, &context), "context");
  if (!context) return;
  context->system_clock()->set_crowded(true);
  const Backend& backend = options.backend != nullptr ? *options.backend : loopback::backend();
  const Status formed = form(group, rank, context, collectives_of(backend), options.comm, &self.comm);
  self.expect(formed, "forming");
  if (formed.ok()) body(self);
  if (self.comm) self.comm->close();
  self.comm.reset();
  context->close();
  *failures = std::move(self.failures);
}

}  // namespace

std::vector<std::string> run_threads(int size, const RankBody& body, const RanksOptions& options) {
  SystemClock clock;
  clock.set_crowded(true);
  ThreadGroup group(size, clock);
  std::vector<std::vector<std::string>> found(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; r++) {
    threads.emplace_back([&, r] { run_rank(group, r, body, options, &found[static_cast<size_t>(r)]); });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::string> failures;
  for (const auto& rank : found) failures.insert(failures.end(), rank.begin(), rank.end());
  return failures;
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
