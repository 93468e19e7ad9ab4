// The steps of a job's start: the variables, the rendezvous, the communicator.
#include "finding.h"

namespace doctor {
namespace {

std::vector<int> all_ranks(const Inspection& inspection) {
  std::vector<int> ranks;
  for (const Facts& rank : inspection.ranks) ranks.push_back(rank.rank);
  return ranks;
}

void add_failure(const Inspection& inspection, const std::string& failure, std::vector<Finding>* found) {
  if (!failure.empty()) found->push_back({Severity::kError, all_ranks(inspection), failure});
}

}  // namespace

void environment(const Inspection& inspection, std::vector<Finding>* found) {
  add_failure(inspection, inspection.environment, found);
}

void rendezvous(const Inspection& inspection, std::vector<Finding>* found) {
  add_failure(inspection, inspection.rendezvous, found);
}

void communicator(const Inspection& inspection, std::vector<Finding>* found) {
  add_failure(inspection, inspection.communicator, found);
}

}  // namespace doctor
