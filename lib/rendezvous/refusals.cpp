#include "rendezvous/refusals.h"

#include <algorithm>

#include "base/text.h"

namespace weft {

Refusals::~Refusals() {
  write_count();
}

void Refusals::report(LogLevel level, const std::string& why) {
  if (!log_.enabled(level)) return;
  if (period_end_.expired(clock_)) {
    write_count();
    period_end_ = Deadline::after(clock_, kPeriodMs, 0);
    lines_ = 0;
  }
  if (lines_ < kLines) {
    lines_++;
    log_.write(level, cat(who_, ": refused a connection: ", why));
    return;
  }
  left_out_++;
  left_out_level_ = std::min(left_out_level_, level);
}

void Refusals::write_count() {
  if (left_out_ == 0) return;
  log_.write(left_out_level_, cat(who_, ": refused ", left_out_, " more connections"));
  left_out_ = 0;
  left_out_level_ = LogLevel::kDebug;
}

}  // namespace weft
