#include "reducer/program_report.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/text.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

std::string slot_text(const ReducerState& s, const Slot& slot) {
  if (slot.kind == Slot::Kind::kStep) return cat(slot.exchange->name(), ": ", name(slot.args.coll));
  const std::string what = slot.kind == Slot::Kind::kCounts   ? " (counts)"
                           : slot.kind == Slot::Kind::kStaged ? cat(" (", s.stages[slot.bucket]->name(), ")")
                                                              : "";
  return cat("bucket ", slot.bucket, what, ": ", name(slot.args.coll));
}

// Returns the copies of a bucket's gradients, each once.
Json copies_json(const ReducerState& s, const PlannedBucket& bucket, StepKind kind) {
  Json names = Json::array();
  for (const uint32_t param : bucket.params) {
    const char* const copy = s.copy_ins.of(param).copy(kind).name();
    if (std::find(names.begin(), names.end(), copy) == names.end()) names.push_back(copy);
  }
  return names;
}

Json works_json(const std::vector<BucketWork*>& works) {
  Json names = Json::array();
  for (const BucketWork* const work : works) names.push_back(work->name());
  return names;
}

}  // namespace

Json program_json(const ReducerState& s) {
  Json collectives = Json::array(), buckets = Json::array();
  for (const Slot& slot : s.schedule.slots) collectives.push_back(slot_text(s, slot));
  for (uint32_t b = 0; b < bucket_count(s); b++) {
    const PlannedBucket& bucket = s.plan.buckets[b];
    buckets.push_back({{"copy_local", copies_json(s, bucket, StepKind::kLocal)},
                       {"copy", copies_json(s, bucket, StepKind::kSynchronised)},
                       {"copy_fresh", copies_json(s, bucket, StepKind::kFresh)},
                       {"prepare", works_json(s.works.prepare[b])},
                       {"stages", s.stages[b]->name()},
                       {"review", works_json(s.works.review[b])},
                       {"return", works_json(s.works.give_back[b])}});
  }
  return {{"collectives", collectives}, {"buckets", buckets}};
}

}  // namespace weft
