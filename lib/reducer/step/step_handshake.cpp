#include "reducer/step/step_handshake.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"

namespace weft {
namespace {

Status differs(int rank, const std::string& mine, int other_rank, const std::string& theirs) {
  return Status::error(Code::kMismatch, cat("rank ", rank, " ", mine, ", rank ", other_rank, " ", theirs))
      .with_ranks({other_rank});
}

Status check_record(const HandshakeRecord& record, int rank) {
  const bool possible = record.flags < 2 * HandshakeRecord::kZeros && std::isfinite(record.weight) &&
                        record.weight > 0 && record.micro_batches > 0;
  if (possible) return {};
  return Status::error(Code::kMismatch,
                       cat("rank ", rank, " published an invalid record at begin: flags ", record.flags,
                           ", weight ", record.weight, " (it must be finite and above 0), micro_batches ",
                           record.micro_batches, " (at least 1)"))
      .with_ranks({rank});
}

// Returns the purpose of the handshake; 0 for a step.
uint32_t kind(const HandshakeRecord& record) {
  return record.flags & (HandshakeRecord::kReplan | HandshakeRecord::kGather);
}

std::string does(uint32_t kind, const char* ending) {
  if (kind == 0) return cat("begin", ending, " a step");
  return kind == HandshakeRecord::kReplan ? cat("re-plan", ending) : cat("gather", ending, " parameters");
}

// Checks that all ranks have begun the same step, and that those with data use the same divisor.
Status check_agreement(const std::vector<HandshakeRecord>& records, int first_active) {
  const auto first = std::find_if(records.begin(), records.end(), [](const HandshakeRecord& record) {
    return !record.has(HandshakeRecord::kJoined);
  });
  const uint32_t wanted = first != records.end() ? kind(*first) : 0;
  int promises = -1;  // the lowest rank that has gradients of this step
  for (size_t r = 0; r < records.size(); r++) {
    const int rank = static_cast<int>(r);
    WEFT_TRY(check_record(records[r], rank));
    if (records[r].step != records[0].step) {
      return differs(0, cat("begins step ", records[0].step), rank, cat("step ", records[r].step));
    }
    if (kind(records[r]) != wanted && !records[r].has(HandshakeRecord::kJoined)) {
      return Status::error(Code::kMismatch, cat("rank ", rank, " ", does(kind(records[r]), "s"),
                                                " while others ", does(wanted, "")))
          .with_ranks({rank});
    }
    if (wanted == 0 && !records[r].has(HandshakeRecord::kZeros)) {
      if (promises < 0) promises = rank;
      const auto fixed = [&](int of) {
        return records[static_cast<size_t>(of)].has(HandshakeRecord::kFixed);
      };
      if (fixed(rank) != fixed(promises)) {
        const auto how = [&](int of) {
          return fixed(of) ? "with WEFT_BEGIN_FIXED" : "without WEFT_BEGIN_FIXED";
        };
        return differs(promises, cat("begins step ", records[r].step, " ", how(promises)), rank, how(rank));
      }
    }
    if (first_active < 0 || !records[r].has(HandshakeRecord::kData)) continue;
    const uint32_t micro_batches = records[static_cast<size_t>(first_active)].micro_batches;
    if (records[r].micro_batches != micro_batches) {
      return differs(first_active, cat("divides by ", micro_batches, " micro-batches"), rank,
                     cat("by ", records[r].micro_batches));
    }
  }
  return {};
}

// Checks that the sum of the weights is finite. Each contribution is scaled by its share of it.
Status check_sum(const std::vector<HandshakeRecord>& records, double scaled_sum) {
  if (std::isfinite(scaled_sum)) return {};
  int largest = -1;
  for (size_t r = 0; r < records.size(); r++) {
    if (!records[r].has(HandshakeRecord::kData)) continue;
    if (largest < 0 || records[r].weight > records[static_cast<size_t>(largest)].weight)
      largest = static_cast<int>(r);
  }
  return Status::error(
             Code::kMismatch,
             cat("rank ", largest, " begins the step with weight ",
                 records[static_cast<size_t>(largest)].weight,
                 ": the sum of the weights overflows. Use smaller weights, such as numbers of samples"))
      .with_ranks({largest});
}

}  // namespace

StepHandshake even_handshake(int size, uint32_t micro_batches) {
  StepHandshake handshake;
  handshake.divisor = static_cast<double>(size) * micro_batches;
  handshake.active = static_cast<uint32_t>(size);
  handshake.first_active = 0;
  handshake.last_active = size - 1;
  return handshake;
}

Status decide_handshake(const std::vector<HandshakeRecord>& records, int rank, const HandshakeRules& rules,
                        StepHandshake* handshake) {
  *handshake = {};
  double weights = 0;
  for (size_t r = 0; r < records.size(); r++) {
    if (records[r].has(HandshakeRecord::kJoined)) handshake->joined.push_back(static_cast<int>(r));
    if (!records[r].has(HandshakeRecord::kData)) continue;
    handshake->last_active = static_cast<int>(r);
    if (handshake->active++ == 0) handshake->first_active = static_cast<int>(r);
    weights += records[r].weight;
  }
  WEFT_TRY(check_agreement(records, handshake->first_active));
  if (handshake->joined.size() == records.size()) {
    handshake->outcome = StepOutcome::kOver;
  } else if (std::any_of(records.begin(), records.end(), [](const HandshakeRecord& record) {
               return record.has(HandshakeRecord::kReplan);
             })) {
    handshake->outcome = StepOutcome::kReplan;
  } else if (std::any_of(records.begin(), records.end(), [](const HandshakeRecord& record) {
               return record.has(HandshakeRecord::kGather);
             })) {
    handshake->outcome = StepOutcome::kGather;
  } else if (!handshake->joined.empty() && rules.stop_when_exhausted) {
    handshake->outcome = StepOutcome::kExhausted;
  }
  handshake->fixed = std::all_of(records.begin(), records.end(), [](const HandshakeRecord& record) {
    return record.has(HandshakeRecord::kFixed);
  });
  const bool any = handshake->active > 0;
  const auto ranks = static_cast<double>(records.size());
  const double share = rules.divide_by == WEFT_DIVIDE_ACTIVE && any ? handshake->active : ranks;
  handshake->divisor =
      share * (any ? records[static_cast<size_t>(handshake->first_active)].micro_batches : 1);
  if (rules.divide_by == WEFT_DIVIDE_WEIGHTS && any) {
    WEFT_TRY(check_sum(records, weights * ranks));
    // Scaled so that factors are about 1: a 16-bit gradient times a number of samples would overflow.
    handshake->factor = records[static_cast<size_t>(rank)].weight * ranks / weights;
  }
  return {};
}

}  // namespace weft
