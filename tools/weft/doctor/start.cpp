// The steps of a job's start: the hosts, the variables, the rendezvous, the communicator.
#include "base/text.h"
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

void hosts(const Inspection& inspection, std::vector<Finding>* found) {
  for (const auto& [host, reason] : inspection.unreached) {
    Finding finding{Severity::kError, {}, weft::cat("host ", host, " gave no whole answer: ", reason)};
    finding.hosts = {host};
    found->push_back(std::move(finding));
  }
}

void environment(const Inspection& inspection, std::vector<Finding>* found) {
  for (const std::string& failure : inspection.environment) add_failure(inspection, failure, found);
}

void rendezvous(const Inspection& inspection, std::vector<Finding>* found) {
  add_failure(inspection, inspection.rendezvous, found);
}

void communicator(const Inspection& inspection, std::vector<Finding>* found) {
  add_failure(inspection, inspection.communicator, found);
}

}  // namespace doctor
