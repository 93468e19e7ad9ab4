// The metrics of a communicator. Threads: any thread.
#pragma once

#include <string>
#include <vector>

#include "metrics/text.h"

namespace weft {

class Comm;

// Returns the labels that name a communicator and this rank in it.
std::vector<MetricLabel> comm_labels(const Comm& comm);
void describe_comm(Comm& comm, MetricsText* text);

}  // namespace weft
