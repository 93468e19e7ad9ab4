#include "reducer/feature/norms/step_norms.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/text.h"

namespace weft {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Status differs(size_t rank, const std::string& mine, size_t other_rank, const std::string& theirs) {
  return Status::error(Code::kMismatch, cat("rank ", rank, " ", mine, ", rank ", other_rank, " ", theirs))
      .with_ranks({static_cast<int>(other_rank)});
}

std::string skip_text(const FinishRecord& record) {
  return record.has(FinishRecord::kSkipNonfinite) ? "with WEFT_FINISH_SKIP_NONFINITE"
                                                  : "without WEFT_FINISH_SKIP_NONFINITE";
}

bool possible(const FinishRecord& record) {
  return record.flags < 2 * FinishRecord::kJoined && record.reserved == 0 &&
         std::isfinite(record.clip_norm) && record.clip_norm >= 0;
}

}  // namespace

Status decide_finish(const std::vector<FinishRecord>& records, double total, uint64_t nonfinite,
                     FinishDecision* decision) {
  *decision = {total, 1, nonfinite, false};
  size_t first = records.size();  // the first rank that has not joined
  for (size_t r = 0; r < records.size(); r++) {
    const FinishRecord& record = records[r];
    if (!possible(record)) {
      return Status::error(Code::kMismatch,
                           cat("rank ", r, " published an invalid record at finish: flags ", record.flags,
                               ", clip_norm ", record.clip_norm, " (it must be finite and at least 0)"))
          .with_ranks({static_cast<int>(r)});
    }
    if (record.has(FinishRecord::kJoined)) continue;
    if (first == records.size()) first = r;
    if (record.clip_norm != records[first].clip_norm) {
      return differs(first, cat("clips the norm at ", records[first].clip_norm), r,
                     cat("at ", record.clip_norm));
    }
    if (record.has(FinishRecord::kSkipNonfinite) != records[first].has(FinishRecord::kSkipNonfinite)) {
      return differs(first, cat("finishes the step ", skip_text(records[first])), r, skip_text(record));
    }
    decision->skipped = decision->skipped || record.has(FinishRecord::kSkip);
  }
  if (first == records.size()) return {};
  const bool finite = nonfinite == 0 && std::isfinite(total);
  if (!finite && records[first].has(FinishRecord::kSkipNonfinite)) decision->skipped = true;
  const double limit = records[first].clip_norm;
  // The results cannot be scaled by a norm that is not finite.
  if (!decision->skipped && finite && limit > 0 && total > limit) decision->factor = limit / total;
  return {};
}

double Norms::norm(uint64_t param) const {
  if (sums_[params_ + param] != 0) return std::isfinite(sums_[param]) ? kNan : std::sqrt(sums_[param]);
  // The sum of squares of large numbers may overflow although the numbers are finite.
  return std::min(std::sqrt(sums_[param]), std::numeric_limits<double>::max());
}

double Norms::total() const {
  double sum = 0;
  for (size_t i = 0; i < params_; i++) sum += sums_[i];
  return std::sqrt(sum);
}

uint64_t Norms::nonfinite() const {
  return static_cast<uint64_t>(std::count_if(sums_.begin() + static_cast<ptrdiff_t>(params_), sums_.end(),
                                             [](double pieces) { return pieces != 0; }));
}

}  // namespace weft
