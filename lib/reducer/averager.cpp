#include "reducer/averager.h"

#include <algorithm>
#include <utility>

#include "base/arguments.h"
#include "base/text.h"
#include "comm/context.h"
#include "reducer/agreement.h"

namespace weft {
namespace {

constexpr uint64_t kDefaultChunkBytes = 25u << 20;
constexpr uint64_t kInPlaceBytes = 256u << 10;  // from this size on a copy costs more than a separate message

Status check(const weft_averager_options& options, const Manifest& manifest,
             const std::vector<Averager::Level>& levels, Comm& comm) {
  for (size_t i = 0; i < manifest.params.size(); i++) {
    const Param& param = manifest.params[i];
    if (!param.reduced() || param.count == 0 || manifest.parameter(i) != nullptr) continue;
    return Status::error(Code::kArg, cat(manifest.named(i), ": its value (weft_param.parameter) is NULL"));
  }
  WEFT_TRY(check_timeout("weft_averager_options.timeout_ms", options.timeout_ms));
  if (levels.empty())
    return Status::error(Code::kArg,
                         "weft_averager_options.level_count is 0: an averager needs at least one level");
  for (size_t i = 0; i < levels.size(); i++) {
    if (levels[i].period == 0)
      return Status::error(Code::kArg, cat("the period of level ", i,
                                           " is 0: allowed are 1 or more steps (weft_average_level.period)"));
    if (i > 0 && levels[i].period <= levels[i - 1].period) {
      return Status::error(
          Code::kArg, cat("the periods of levels ", i - 1, " and ", i, " are ", levels[i - 1].period, " and ",
                          levels[i].period,
                          ", which do not ascend: list levels from the shortest period to the longest"));
    }
    if (&levels[i].comm->context() != &comm.context()) {
      return Status::error(Code::kArg, cat("the communicator of level ", i,
                                           " (weft_average_level.comm) belongs to another context than the "
                                           "communicator of the averager: create both in one context"));
    }
  }
  return {};
}

std::string difference(int rank, ByteView mine, int other_rank, ByteView theirs) {
  ByteReader a(mine), b(theirs);
  const auto differs = [&](const std::string& what, uint64_t here, uint64_t there) {
    return cat(what, " is ", here, " on rank ", rank, " and ", there, " on rank ", other_rank,
               ": pass the same on all ranks");
  };
  for (const char* const field : {"warmup", "first_step", "chunk_bytes"}) {
    const auto here = a.get<uint64_t>(), there = b.get<uint64_t>();
    if (here != there) return differs(cat("weft_averager_options.", field), here, there);
  }
  const auto levels = a.get<uint32_t>(), other_levels = b.get<uint32_t>();
  if (levels != other_levels) return differs("weft_averager_options.level_count", levels, other_levels);
  for (uint32_t i = 0; i < levels && a.ok() && b.ok(); i++) {
    const auto here = a.get<uint64_t>(), there = b.get<uint64_t>();
    if (here != there) return differs(cat("the period of level ", i), here, there);
  }
  Manifest m, n;
  const Status read = Manifest::read(a.get_bytes(UINT32_MAX), &m);
  const Status read_too = Manifest::read(b.get_bytes(UINT32_MAX), &n);
  if (!read.ok()) return cat("rank ", rank, ": ", read.text());
  if (!read_too.ok()) return cat("rank ", other_rank, ": ", read_too.text());
  return manifest_difference(rank, m, other_rank, n);
}

}  // namespace

Status Averager::create(const std::shared_ptr<Comm>& comm, const Status& given,
                        const weft_averager_options& options, std::vector<Level> levels,
                        std::unique_ptr<Averager>* averager) {
  Manifest manifest;
  Status mine = given;
  if (mine.ok()) mine = make_manifest(options.params, options.param_count, options.param_size, &manifest);
  if (mine.ok()) mine = check(options, manifest, levels, *comm);
  ByteWriter content;
  if (mine.ok()) {
    content.put(options.warmup).put(options.first_step).put(options.chunk_bytes);
    content.put(static_cast<uint32_t>(levels.size()));
    for (const Level& level : levels) content.put(level.period);
    ByteWriter params;
    manifest.write(&params);
    content.put_bytes(params.bytes());
  }
  const Deadline deadline =
      Deadline::after(comm->context().clock(), comm->options().init_timeout_ms, WEFT_DEFAULT_INIT_TIMEOUT_MS);
  WEFT_TRY(agree_on({*comm, "create the averager", deadline}, mine, content.bytes(), difference));
  averager->reset(new Averager(comm, std::move(manifest), std::move(levels), options));
  return {};
}

Averager::Averager(std::shared_ptr<Comm> comm, Manifest manifest, std::vector<Level> levels,
                   const weft_averager_options& options)
    : comm_(std::move(comm)),
      manifest_(std::move(manifest)),
      levels_(std::move(levels)),
      warmup_(options.warmup),
      timeout_ms_(options.timeout_ms),
      steps_(options.first_step) {
  for (const Param& param : manifest_.params) layouts_.emplace_back(param);
  for (uint32_t i = 0; i < manifest_.params.size(); i++) {
    if (manifest_.params[i].reduced()) order_.push_back(i);
  }
  std::stable_sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) {
    return manifest_.params[a].dtype < manifest_.params[b].dtype;
  });
  divide(options.chunk_bytes != 0 ? options.chunk_bytes : kDefaultChunkBytes);
}

// Groups small values into chunks; each large value is a chunk by itself.
void Averager::divide(uint64_t chunk_bytes) {
  uint64_t longest = 0, bytes = 0;
  for (uint64_t i = 0; i < order_.size(); i++) {
    const Param& param = manifest_.params[order_[i]];
    const bool in_place = param.dense && param.bytes() >= kInPlaceBytes;
    const bool joins = !in_place && !chunks_.empty() && !chunks_.back().in_place &&
                       manifest_.params[order_[i - 1]].dtype == param.dtype &&
                       bytes + param.bytes() <= chunk_bytes;
    if (!joins) {
      chunks_.push_back({i, i, 0, in_place});
      bytes = 0;
    }
    chunks_.back().end = i + 1;
    chunks_.back().count += param.count;
    bytes += param.bytes();
    if (!in_place) longest = std::max(longest, bytes);
  }
  buffer_.resize(longest);
}

Status Averager::step(uint64_t* period) {
  *period = 0;
  const uint64_t step = steps_;
  if (step >= warmup_) {
    // The largest period that divides the step wins.
    for (auto level = levels_.rbegin(); level != levels_.rend(); ++level) {
      if ((step - warmup_) % level->period != 0) continue;
      WEFT_TRY(average(*level->comm));
      *period = level->period;
      break;
    }
  }
  steps_++;
  return {};
}

Status Averager::average(Comm& comm) {
  const Deadline deadline = comm.op_deadline(timeout_ms_);
  for (const Chunk& chunk : chunks_) {
    if (chunk.count == 0) continue;
    if (!chunk.in_place) gather(chunk);
    CollectiveArgs args;
    args.coll = Coll::kAllReduce;
    args.op = ReduceOp::kSum;
    args.dtype = manifest_.params[order_[chunk.first]].dtype;
    args.count = chunk.count;
    args.postscale = 1.0 / comm.size();
    args.dst =
        chunk.in_place ? static_cast<std::byte*>(manifest_.parameter(order_[chunk.first])) : buffer_.data();
    args.src = args.dst;
    WEFT_TRY(comm.run(args, deadline).with_prefix(cat("averaging the parameters in step ", steps_, ": ")));
    if (!chunk.in_place) scatter(chunk);
  }
  return {};
}

void Averager::gather(const Chunk& chunk) {
  std::byte* to = buffer_.data();
  for (uint64_t i = chunk.first; i < chunk.end; i++) {
    const uint32_t param = order_[i];
    if (layouts_[param].count() == 0) continue;
    layouts_[param].pack(static_cast<const std::byte*>(manifest_.parameter(param)), to, 0,
                         layouts_[param].count());
    to += manifest_.params[param].bytes();
  }
}

void Averager::scatter(const Chunk& chunk) {
  const std::byte* from = buffer_.data();
  for (uint64_t i = chunk.first; i < chunk.end; i++) {
    const uint32_t param = order_[i];
    if (layouts_[param].count() == 0) continue;
    layouts_[param].unpack(from, static_cast<std::byte*>(manifest_.parameter(param)), 0,
                           layouts_[param].count());
    from += manifest_.params[param].bytes();
  }
}

}  // namespace weft
