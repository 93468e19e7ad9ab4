#include "reducer/proposal.h"

#include "base/text.h"
#include "reducer/options.h"
#include "reducer/plan/plan.h"

namespace weft {
namespace {

template <class Int>
void put_list(const std::vector<Int>& values, ByteWriter* writer) {
  writer->put(static_cast<uint32_t>(values.size()));
  for (const Int value : values) writer->put(value);
}

// Returns false for a list that is longer than `most`.
template <class Int>
bool get_list(ByteReader* reader, uint32_t most, std::vector<Int>* values) {
  const auto count = reader->get<uint32_t>();
  if (count > most) return false;
  for (uint32_t i = 0; i < count && reader->ok(); i++) values->push_back(reader->get<Int>());
  return true;
}

}  // namespace

// The manifest comes last and without a length, because it is large and would be copied once more.
Bytes Proposal::write() const {
  ByteWriter head;
  head.put_string(hook);
  put_list(options, &head);
  put_list(limits, &head);
  head.put(plan).put(uses);
  ByteWriter writer;
  writer.put_bytes(head.bytes());
  manifest.write(&writer);
  return writer.take();
}

Status Proposal::read(ByteView bytes, Proposal* out) {
  const ByteView head = ByteReader(bytes).get_bytes(UINT32_MAX);
  ByteReader reader(head);
  out->hook = reader.get_string(kMaxHookName);
  const auto expected = static_cast<uint32_t>(compared_options({}).size());
  const bool listed = get_list(&reader, expected, &out->options) && out->options.size() == expected &&
                      get_list(&reader, kMaxLimits, &out->limits);
  out->plan = reader.get<uint64_t>();
  out->uses = reader.get<uint64_t>();
  if (!listed || !reader.done())
    return Status::error(Code::kMismatch,
                         cat("the reducer options that it sent (", bytes.size(),
                             " bytes) are malformed: run the same version of Weft on all ranks"));
  return Manifest::read(bytes.subspan(sizeof(uint32_t) + head.size()), &out->manifest);
}

// Compares the parameters first: they are the most likely mistake, and explain most other differences.
std::string proposal_difference(int rank, ByteView mine, int other_rank, ByteView theirs) {
  Proposal a, b;
  if (const Status s = Proposal::read(mine, &a); !s.ok()) return cat("rank ", rank, ": ", s.text());
  if (const Status s = Proposal::read(theirs, &b); !s.ok()) return cat("rank ", other_rank, ": ", s.text());
  std::string text = manifest_difference(rank, a.manifest, other_rank, b.manifest);
  if (text.empty()) text = option_difference(rank, a.options, other_rank, b.options);
  if (!text.empty()) return text;
  if (a.limits != b.limits) {
    return cat("bucket limits are [", list_text(a.limits), "] on rank ", rank, " and [", list_text(b.limits),
               "] on rank ", other_rank, ": pass the same on all ranks (weft_reducer_options.bucket_limits)");
  }
  if (a.plan != b.plan) {
    return cat("weft_reducer_options.plan differs between ranks ", rank, " and ", other_rank,
               ": all ranks must pass the same plan, or all none");
  }
  if (a.uses != b.uses) {
    return cat("weft_param.uses differs between ranks ", rank, " and ", other_rank,
               ": all ranks must declare the same number of uses for each parameter");
  }
  if (a.hook != b.hook) {
    return cat("the hook is '", a.hook, "' on rank ", rank, " and '", b.hook, "' on rank ", other_rank,
               ": create the reducer with the same hook and options on all ranks");
  }
  return "";
}

}  // namespace weft
