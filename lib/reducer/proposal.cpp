#include "reducer/proposal.h"

#include "base/text.h"
#include "reducer/options.h"

namespace weft {

Bytes Proposal::write() const {
  ByteWriter writer;
  writer.put_string(hook)
      .put(flags)
      .put(divide_by)
      .put(buffers_root)
      .put(check_interval)
      .put(reduce_dtype)
      .put(replan)
      .put(accumulation)
      .put(uint32_t{in_place})
      .put(static_cast<uint32_t>(limits.size()));
  for (const uint64_t limit : limits) writer.put(limit);
  writer.put(plan).put(uses);
  manifest.write(&writer);
  return writer.take();
}

Status Proposal::read(ByteView bytes, Proposal* out) {
  ByteReader reader(bytes);
  out->hook = reader.get_string(kMaxHookName);
  out->flags = reader.get<uint64_t>();
  out->divide_by = reader.get<int32_t>();
  out->buffers_root = reader.get<int32_t>();
  out->check_interval = reader.get<uint32_t>();
  out->reduce_dtype = reader.get<int32_t>();
  out->replan = reader.get<weft_planner>();
  out->accumulation = reader.get<weft_accumulation>();
  out->in_place = reader.get<uint32_t>() != 0;
  const auto limits = reader.get<uint32_t>();
  for (uint32_t i = 0; i < limits && reader.ok(); i++) out->limits.push_back(reader.get<uint64_t>());
  out->plan = reader.get<uint64_t>();
  out->uses = reader.get<uint64_t>();
  if (!reader.ok())
    return Status::error(Code::kMismatch,
                         cat("the reducer options that it sent (", bytes.size(),
                             " bytes) are malformed: run the same version of Weft on all ranks"));
  const size_t read =
      sizeof(uint32_t) * 9 + sizeof(uint64_t) * 3 + out->hook.size() + limits * sizeof(uint64_t);
  return Manifest::read(bytes.subspan(read), &out->manifest);
}

// Compares the parameters first: they are the most likely mistake, and explain most other differences.
std::string proposal_difference(int rank, ByteView mine, int other_rank, ByteView theirs) {
  Proposal a, b;
  if (const Status s = Proposal::read(mine, &a); !s.ok()) return cat("rank ", rank, ": ", s.text());
  if (const Status s = Proposal::read(theirs, &b); !s.ok()) return cat("rank ", other_rank, ": ", s.text());
  std::string text = manifest_difference(rank, a.manifest, other_rank, b.manifest);
  if (!text.empty()) return text;
  if (a.in_place != b.in_place) {
    return cat("weft_reducer_options.mode is WEFT_GRADIENT_IN_PLACE on rank ", a.in_place ? rank : other_rank,
               " and not on rank ", a.in_place ? other_rank : rank, ": use it on all ranks or on none");
  }
  const auto differs = [&](const char* what, const auto& here, const auto& there) {
    return cat(what, " is ", here, " on rank ", rank, " and ", there, " on rank ", other_rank,
               ": pass the same on all ranks");
  };
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
  if (a.flags != b.flags) {
    return differs("weft_reducer_options.flags", reducer_flags_text(a.flags), reducer_flags_text(b.flags));
  }
  if (a.divide_by != b.divide_by) {
    return differs("weft_reducer_options.divide_by", a.divide_by, b.divide_by);
  }
  if (a.reduce_dtype != b.reduce_dtype) {
    const auto type = [](int32_t dtype) {
      return dtype == 0 ? "the gradients' own" : name(static_cast<Dtype>(dtype));
    };
    return differs("weft_reducer_options.reduce_dtype", type(a.reduce_dtype), type(b.reduce_dtype));
  }
  if (a.replan != b.replan) {
    return differs("weft_reducer_options.replan", planner_name(a.replan), planner_name(b.replan));
  }
  if (a.accumulation != b.accumulation) {
    return cat("weft_reducer_options.accumulation is ", accumulation_name(a.accumulation), " on rank ", rank,
               " and ", accumulation_name(b.accumulation), " on rank ", other_rank);
  }
  if (a.buffers_root != b.buffers_root) {
    return differs("weft_reducer_options.buffers_root", a.buffers_root, b.buffers_root);
  }
  if (a.check_interval != b.check_interval) {
    return differs("weft_reducer_options.check_interval", a.check_interval, b.check_interval);
  }
  if (a.hook != b.hook) {
    return cat("the hook is '", a.hook, "' on rank ", rank, " and '", b.hook, "' on rank ", other_rank,
               ": create the reducer with the same hook and options on all ranks");
  }
  return "";
}

}  // namespace weft
