#include "coll/hierarchical/grouping.h"

#include <algorithm>

#include "base/text.h"

namespace weft::coll {

std::vector<int> Grouping::column() const {
  std::vector<int> ranks;
  if (!even && !is_leader()) return ranks;
  ranks.reserve(hosts.size());
  for (const auto& members : hosts) ranks.push_back(members[static_cast<size_t>(index())]);
  return ranks;
}

Status group_ranks(int rank, const std::vector<std::vector<uint8_t>>& near, Grouping* grouping) {
  const size_t size = near.size();
  for (size_t a = 0; a < size; a++) {
    for (size_t b = 0; b < size; b++) {
      if (!near[a][b] || near[a] == near[b]) continue;
      return Status::error(Code::kUnavailable,
                           cat("rank ", a, " detects rank ", b,
                               " on its host, but the two ranks detect different sets of "
                               "ranks there: set WEFT_HOSTS to one host number for each rank"))
          .with_ranks({static_cast<int>(a), static_cast<int>(b)});
    }
  }
  Grouping found;
  found.rank = rank;
  found.host_of.resize(size);
  found.index_of.resize(size);
  for (size_t r = 0; r < size; r++) {
    const auto first = static_cast<size_t>(std::find(near[r].begin(), near[r].end(), 1) - near[r].begin());
    if (first == r) found.hosts.emplace_back();
    const int host = first == r ? found.host_count() - 1 : found.host_of[first];
    auto& members = found.hosts[static_cast<size_t>(host)];
    found.host_of[r] = host;
    found.index_of[r] = static_cast<int>(members.size());
    members.push_back(static_cast<int>(r));
  }
  for (const auto& members : found.hosts) {
    found.widest = std::max(found.widest, static_cast<int>(members.size()));
    found.even = found.even && members.size() == found.hosts[0].size();
  }
  *grouping = std::move(found);
  return {};
}

Status find_grouping(const BackendArgs& args, Grouping* grouping) {
  const auto size = static_cast<size_t>(args.exchange.size());
  ByteWriter writer;
  for (int r = 0; r < args.exchange.size(); r++) {
    const bool here = r == args.exchange.rank() || (args.fds != nullptr && args.fds->same_host(r));
    writer.put(static_cast<uint8_t>(here ? 1 : 0));
  }
  std::vector<Bytes> all;
  WEFT_TRY(args.exchange.all_gather(writer.bytes(), &all, args.deadline));
  std::vector<std::vector<uint8_t>> near(size);
  for (size_t r = 0; r < size; r++) {
    ByteReader reader(all[r]);
    for (size_t other = 0; other < size; other++) near[r].push_back(reader.get<uint8_t>() == 1 ? 1 : 0);
    if (reader.done() && near[r][r] == 1) continue;
    const int name = args.exchange.name(static_cast<int>(r));
    return Status::error(Code::kInternal,
                         cat("internal: rank ", name, " sent ", all[r].size(),
                             " bytes as the list of its host's ranks, expected ", size,
                             " bytes with its own entry set to 1; report this as a bug of Weft"))
        .with_ranks({name});
  }
  return group_ranks(args.exchange.rank(), near, grouping);
}

}  // namespace weft::coll
