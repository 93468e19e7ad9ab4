// Pairs of ranks whose transfers are slower than those of most pairs of their kind.
#include <algorithm>
#include <map>

#include "base/text.h"
#include "finding.h"
#include "slow_pairs.h"

namespace doctor {
namespace {

using weft::cat;

constexpr double kTimesLatency = 3, kMoreLatencyUs = 50;
constexpr size_t kLeastPairs = 3;  // fewer show no majority

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string rate_text(double bytes_per_s) {
  return cat(weft::bytes_text(static_cast<uint64_t>(bytes_per_s)), "/s");
}

std::string time_text(double us) {
  return cat(static_cast<double>(static_cast<int64_t>(us * 10)) / 10, " us");
}

}  // namespace

std::vector<SlowPair> slow_pairs(const Inspection& inspection) {
  std::map<bool, std::vector<const Transfer*>> kinds;  // true: inside a host
  for (const Transfer& transfer : inspection.transfers)
    kinds[inspection.same_machine(transfer.low, transfer.high)].push_back(&transfer);
  std::vector<SlowPair> slow;
  for (const auto& [inside, all] : kinds) {
    if (all.size() < kLeastPairs) continue;
    std::vector<double> rates, latencies;
    for (const Transfer* transfer : all) {
      rates.push_back(transfer->bytes_per_s);
      latencies.push_back(transfer->latency_us);
    }
    const double rate = median(rates), latency = median(latencies);
    for (const Transfer* transfer : all) {
      const bool narrow = transfer->bytes_per_s < rate / 2;
      const bool late = transfer->latency_us > kTimesLatency * latency + kMoreLatencyUs;
      if (narrow || late) slow.push_back({transfer, inside, narrow, late, rate, latency});
    }
  }
  return slow;
}

void transfers(const Inspection& inspection, std::vector<Finding>* found) {
  for (const SlowPair& pair : slow_pairs(inspection)) {
    const Transfer& transfer = *pair.transfer;
    const char* const others = pair.inside ? " inside hosts" : " between hosts";
    std::string text =
        cat(rank_on_host(inspection.of(transfer.low)), " and ", rank_on_host(inspection.of(transfer.high)));
    if (pair.narrow)
      text += cat(" reach ", rate_text(transfer.bytes_per_s), ", the median pair", others, " ",
                  rate_text(pair.rate));
    if (pair.late) {
      text += cat(pair.narrow ? "; their" : " have a", " latency ", pair.narrow ? "is " : "of ",
                  time_text(transfer.latency_us), ", the median pair", others, " ", time_text(pair.latency));
    }
    found->push_back({Severity::kWarning, {transfer.low, transfer.high}, text});
  }
}

}  // namespace doctor
