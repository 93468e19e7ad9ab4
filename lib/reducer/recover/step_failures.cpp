#include "reducer/recover/step_failures.h"

#include <utility>

#include "base/text.h"
#include "reducer/state.h"

namespace weft {

std::string_view StepFailures::cut(std::string_view text) {
  if (text.size() <= kMaxText) return text;
  const auto continues = [&](size_t at) { return (static_cast<uint8_t>(text[at]) & 0xc0) == 0x80; };
  size_t most = kMaxText;
  while (most > 0 && continues(most)) most--;
  return text.substr(0, most);
}

Bytes StepFailures::encode(const StepAttempt& at, std::string_view text) {
  ByteWriter note;
  note.put(at.step).put(at.attempt).put_string(cut(text));
  return Bytes(note.bytes().begin(), note.bytes().end());
}

void StepFailures::on_lane_message(int rank, ByteView note) {
  ByteReader reader(note);
  Report report;
  report.any = true;
  report.at.step = reader.get<uint64_t>();
  report.at.attempt = reader.get<uint64_t>();
  report.text = reader.get_string(kMaxText);
  if (!reader.done()) return;
  const std::lock_guard lock(mutex_);
  LastTwo& last = reports_[static_cast<size_t>(rank)];
  last.reports[last.older] = std::move(report);
  last.older = 1 - last.older;
}

Status StepFailures::of(const StepAttempt& at) const {
  const std::lock_guard lock(mutex_);
  std::vector<int> ranks;
  std::string text;
  for (size_t r = 0; r < reports_.size(); r++) {
    for (const Report& report : reports_[r].reports) {
      if (!report.any || report.at != at) continue;
      ranks.push_back(static_cast<int>(r));
      text += cat(text.empty() ? "" : "; ", "rank ", r, ": ",
                  report.text.empty() ? "failed the step" : report.text);
    }
  }
  if (ranks.empty()) return {};
  return Status::error(Code::kStepFailed, std::move(text), Evidence::kReport)
      .with_ranks(std::move(ranks))
      .with_step(at.step);
}

void listen_for_failures(ReducerState* state) {
  state->failures = std::make_shared<StepFailures>(state->comm->size());
  state->comm->lane_messages().listen(state->lane->key().id, state->failures);
}

}  // namespace weft
