#include "coll/hierarchical/local_exchange.h"

#include <algorithm>

#include "base/text.h"

namespace weft::coll {
namespace {

// The first byte of a rank's contribution.
constexpr auto kGoesOn = std::byte{0};
constexpr auto kIsDone = std::byte{1};

}  // namespace

LocalExchange::LocalExchange(Exchange& all, const std::vector<int>& members) : all_(all), members_(members) {
  rank_ = static_cast<int>(std::find(members.begin(), members.end(), all.rank()) - members.begin());
}

Status LocalExchange::all_gather(ByteView mine, std::vector<Bytes>* all, Deadline deadline) {
  Bytes given(1, kGoesOn);
  given.insert(given.end(), mine.begin(), mine.end());
  std::vector<Bytes> everybody;
  WEFT_TRY(all_.all_gather(given, &everybody, deadline));
  all->clear();
  for (const int member : members_) {
    const Bytes& theirs = everybody[static_cast<size_t>(member)];
    if (theirs.empty() || theirs[0] != kGoesOn) {
      const int name = all_.name(member);
      return Status::error(
                 Code::kUnavailable,
                 cat("rank ", name,
                     " reported an error in the setup of its host's backend; see that rank's error"),
                 Evidence::kReport)
          .with_ranks({name});
    }
    all->emplace_back(theirs.begin() + 1, theirs.end());
  }
  return {};
}

Status LocalExchange::finish_together(Deadline deadline) {
  std::vector<Bytes> everybody;
  const auto is_done = [](const Bytes& theirs) { return theirs.size() == 1 && theirs[0] == kIsDone; };
  do {
    WEFT_TRY(all_.all_gather(Bytes(1, kIsDone), &everybody, deadline));
  } while (!std::all_of(everybody.begin(), everybody.end(), is_done));
  return {};
}

}  // namespace weft::coll
