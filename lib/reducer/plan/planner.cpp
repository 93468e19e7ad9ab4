#include "reducer/plan/planner.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

namespace weft {
namespace {

// Boundaries are searched between at most so many pieces; the work grows with their square.
constexpr size_t kMostPieces = 2048;

// Parameters that are neighbours in the order of readiness and stay together.
struct ReadyPiece {
  std::vector<uint32_t> params;
  uint64_t bytes = 0;
  uint64_t ready_ns = 0;  // of the last one
};

uint64_t when(uint64_t ready_ns, uint64_t last_ns) {
  return ready_ns == kNeverReady ? last_ns : ready_ns;
}

uint64_t last_ready(const ReadyTimes& ready) {
  uint64_t last = 0;
  for (const uint64_t ns : ready) last = ns == kNeverReady ? last : std::max(last, ns);
  return last;
}

// Sorts parameters by ready time; those that never became ready come last.
std::vector<uint32_t> by_readiness(const ReadyTimes& ready) {
  std::vector<uint32_t> order(ready.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return ready[a] < ready[b]; });
  return order;
}

// Returns the dense parameters that may share buckets, one list for each dtype and device.
std::vector<std::vector<ReadyPiece>> pieces_of(const Manifest& manifest, const std::vector<uint32_t>& order,
                                               const ReadyTimes& ready) {
  const uint64_t last = last_ready(ready);
  std::map<std::tuple<Dtype, bool, int32_t, int32_t>, std::vector<ReadyPiece>> kinds;
  uint64_t total = 0;
  for (const uint32_t i : order) {
    const Param& param = manifest.params[i];
    if (!param.reduced() || param.sparse()) continue;
    const uint64_t bytes = param.count * dtype_size(manifest.comm_dtype_of(param.dtype));
    kinds[{param.dtype, param.pairs, param.device_kind, param.device}].push_back(
        {{i}, bytes, when(ready[i], last)});
    total += bytes;
  }
  std::vector<std::vector<ReadyPiece>> lists;
  for (auto& [kind, pieces] : kinds) {
    if (pieces.size() > kMostPieces) {
      std::vector<ReadyPiece> fewer;
      const uint64_t least = total / kMostPieces + 1;
      for (ReadyPiece& piece : pieces) {
        if (fewer.empty() || fewer.back().bytes >= least) {
          fewer.push_back(std::move(piece));
          continue;
        }
        fewer.back().params.push_back(piece.params.front());
        fewer.back().bytes += piece.bytes;
        fewer.back().ready_ns = std::max(fewer.back().ready_ns, piece.ready_ns);
      }
      pieces = std::move(fewer);
    }
    lists.push_back(std::move(pieces));
  }
  return lists;
}

struct Bucket {
  std::vector<uint32_t> params;
  uint64_t ready_ns;
};

// Finds the boundaries with which the last bucket is done earliest, if these pieces have the network alone.
// through[j] is that time for the first j pieces. If piece i is the first one of the last bucket, the time is
// max(through[i], ready time of piece j - 1) + cost of pieces i to j - 1. The best i gives the minimum.
void cut(const std::vector<ReadyPiece>& pieces, const TransferCost& cost, std::vector<Bucket>* buckets) {
  struct Best {
    uint64_t through_ns = UINT64_MAX;
    uint32_t buckets = 0;
    size_t first = 0;  // first piece of the last bucket
  };
  std::vector<Best> best(pieces.size() + 1);
  best[0].through_ns = 0;
  for (size_t j = 1; j <= pieces.size(); j++) {
    uint64_t bytes = 0;
    for (size_t i = j; i-- > 0;) {
      bytes += pieces[i].bytes;
      const uint64_t through = std::max(best[i].through_ns, pieces[j - 1].ready_ns) + cost.ns(bytes);
      const uint32_t count = best[i].buckets + 1;
      if (std::pair(through, count) < std::pair(best[j].through_ns, best[j].buckets)) {
        best[j] = {through, count, i};
      }
    }
  }
  std::vector<Bucket> reversed;
  for (size_t j = pieces.size(); j > 0; j = best[j].first) {
    Bucket& bucket = reversed.emplace_back(Bucket{{}, pieces[j - 1].ready_ns});
    for (size_t i = best[j].first; i < j; i++) {
      bucket.params.insert(bucket.params.end(), pieces[i].params.begin(), pieces[i].params.end());
    }
  }
  std::move(reversed.rbegin(), reversed.rend(), std::back_inserter(*buckets));
}

}  // namespace

TransferCost::TransferCost(std::vector<Point> points) : points_(std::move(points)) {
  std::sort(points_.begin(), points_.end(), [](const Point& a, const Point& b) {
    return std::pair(a.bytes, a.ns) < std::pair(b.bytes, b.ns);
  });
  for (size_t i = 1; i < points_.size(); i++) points_[i].ns = std::max(points_[i].ns, points_[i - 1].ns);
}

uint64_t TransferCost::ns(uint64_t bytes) const {
  if (points_.size() == 1 || bytes <= points_.front().bytes) return points_.front().ns;
  const auto above = std::upper_bound(points_.begin(), points_.end(), bytes,
                                      [](uint64_t b, const Point& point) { return b < point.bytes; });
  const Point& to = above == points_.end() ? points_.back() : *above;
  const Point& from = above == points_.end() ? points_[points_.size() - 2] : *(above - 1);
  if (to.bytes == from.bytes) return to.ns;
  const double slope = static_cast<double>(to.ns - from.ns) / static_cast<double>(to.bytes - from.bytes);
  constexpr double kMost = 1125899906842624;  // 2^50 ns, 13 days: the cast is valid, and sums do not overflow
  return from.ns + static_cast<uint64_t>(std::min(slope * static_cast<double>(bytes - from.bytes), kMost));
}

uint64_t exposed_ns(const Plan& plan, const ReadyTimes& ready, const TransferCost& cost) {
  const uint64_t last = last_ready(ready);
  uint64_t through = 0;
  for (const PlannedBucket& bucket : plan.buckets) {
    for (const uint32_t param : bucket.params) through = std::max(through, when(ready[param], last));
    through += cost.ns(bucket.bytes());
  }
  return through - std::min(through, last);
}

Plan plan_by_model(const Manifest& manifest, const std::vector<uint64_t>& limits, const ReadyTimes& ready,
                   const TransferCost& cost) {
  const std::vector<uint32_t> order = by_readiness(ready);
  const uint64_t last = last_ready(ready);
  std::vector<Bucket> buckets;
  for (const std::vector<ReadyPiece>& pieces : pieces_of(manifest, order, ready)) cut(pieces, cost, &buckets);
  for (const uint32_t i : order) {
    if (manifest.params[i].reduced() && manifest.params[i].sparse()) {
      buckets.push_back({{i}, when(ready[i], last)});
    }
  }
  std::stable_sort(buckets.begin(), buckets.end(),
                   [](const Bucket& a, const Bucket& b) { return a.ready_ns < b.ready_ns; });
  std::vector<std::vector<uint32_t>> members;
  members.reserve(buckets.size());
  for (Bucket& bucket : buckets) members.push_back(std::move(bucket.params));
  Plan by_size = make_plan(manifest, {.limits = limits, .order = order});
  Plan by_model;
  if (members.empty() || !make_plan(manifest, members, &by_model).ok()) by_model = by_size;
  const auto rank = [&](const Plan& plan) {
    return std::pair(exposed_ns(plan, ready, cost), plan.buckets.size());
  };
  return rank(by_model) <= rank(by_size) ? by_model : by_size;
}

}  // namespace weft
