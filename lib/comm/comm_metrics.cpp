#include "comm/comm_metrics.h"

#include <cstdio>

#include "comm/comm.h"
#include "device/arena.h"

namespace weft {
namespace {

constexpr Metric kRanks = {"weft_comm_ranks", "gauge", "Ranks of the communicator."};
constexpr Metric kFailed = {"weft_comm_failed", "gauge", "1 once the communicator has failed."};
constexpr Metric kOperations = {"weft_comm_operations_total", "counter",
                                "Collectives and messages that are complete."};
constexpr Metric kBytes = {
    "weft_comm_bytes_total", "counter",
    "Payload bytes by way: through shared memory, directly in the private memory of other "
    "processes, sent and received as messages."};
constexpr Metric kArena = {"weft_comm_arena_bytes", "gauge",
                           "Memory of this rank's arena that is populated."};

}  // namespace

std::vector<MetricLabel> comm_labels(const Comm& comm) {
  char id[20];
  std::snprintf(id, sizeof id, "%016llx", static_cast<unsigned long long>(comm.options().id));
  std::vector<MetricLabel> labels = {{"comm", id}, {"rank", std::to_string(comm.rank())}};
  if (!comm.options().job.empty()) labels.push_back({"job", comm.options().job});
  return labels;
}

void describe_comm(Comm& comm, MetricsText* text) {
  text->set_labels(comm_labels(comm));
  const CollectiveCounters moved = comm.collectives().counters();
  text->add(kRanks, static_cast<uint64_t>(comm.size()), {{"backend", comm.collectives().name()}});
  text->add(kFailed, comm.failed() ? 1 : 0);
  text->add(kOperations, comm.operations());
  text->add(kBytes, moved.bytes_shared, {{"way", "shared"}});
  text->add(kBytes, moved.bytes_direct, {{"way", "direct"}});
  text->add(kBytes, moved.bytes_sent, {{"way", "sent"}});
  text->add(kBytes, moved.bytes_received, {{"way", "received"}});
  if (const auto arena = comm.collectives().arena(); arena != nullptr)
    text->add(kArena, arena->populated_bytes());
}

}  // namespace weft
