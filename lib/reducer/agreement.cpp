#include "reducer/agreement.h"

#include <sodium.h>

#include <cstring>

#include "base/text.h"
#include "reducer/vote.h"

namespace weft {
namespace {

// Returns a digest that finds ranks whose contents differ. It is no protection against an adversary.
Digest digest(ByteView content) {
  Digest out;
  crypto_generichash(reinterpret_cast<unsigned char*>(out.data()), out.size(),
                     reinterpret_cast<const unsigned char*>(content.data()), content.size(), nullptr, 0);
  return out;
}

Vote read(ByteView bytes) {
  Vote vote;
  if (decode(bytes, &vote)) return vote;
  return {Code::kMismatch,
          cat("its message of ", bytes.size(),
              " bytes cannot be decoded: run the same version of Weft on all ranks"),
          {}};
}

Status refusal(int rank, const char* doing, const Vote& vote) {
  // A bad argument of one rank is a difference between ranks for the others.
  const Code code = vote.code == Code::kArg ? Code::kMismatch : vote.code;
  return Status::error(code, cat("rank ", rank, " cannot ", doing, ": ", vote.reason), Evidence::kReport)
      .with_ranks({rank});
}

Status gather(const Agreement& agreement, ByteView mine, std::vector<Bytes>* all) {
  Comm& comm = agreement.comm;
  if (agreement.opens) return comm.agree_to_open(agreement.beside, mine, all, agreement.deadline);
  return comm.agree(mine, all, agreement.deadline, agreement.lane);
}

}  // namespace

uint64_t digest64(ByteView content) {
  const Digest full = digest(content);
  uint64_t out;
  std::memcpy(&out, full.data(), sizeof out);
  return out;
}

Status agree_on(const Agreement& agreement, const Status& local, ByteView content,
                const Difference& difference) {
  Comm& comm = agreement.comm;
  Vote mine{local.code(), local.text(), digest(content)};
  std::vector<Bytes> all;
  WEFT_TRY(gather(agreement, encode(mine), &all));
  std::vector<Vote> votes;
  votes.reserve(all.size());
  for (const Bytes& bytes : all) votes.push_back(read(bytes));
  for (int r = 0; r < comm.size(); r++) {
    const Vote& vote = votes[static_cast<size_t>(r)];
    if (vote.code == Code::kOk) continue;
    const Status refused = refusal(r, agreement.doing, vote);
    comm.agreed_error(refused);
    return local.ok() ? refused : local;
  }
  int differs = 0;
  for (int r = comm.size() - 1; r > 0; r--) {
    if (votes[static_cast<size_t>(r)].content != votes[0].content) differs = r;
  }
  if (differs == 0) return {};
  const bool shows = comm.rank() == 0 || comm.rank() == differs;
  WEFT_TRY(gather(agreement, shows ? content : ByteView{}, &all));
  const std::string text = difference(differs, all[static_cast<size_t>(differs)], 0, all[0]);
  const Status mismatch =
      Status::error(
          Code::kMismatch,
          text.empty()
              ? cat("cannot ", agreement.doing, ": the arguments of rank ", differs,
                    " differ from those of rank 0 (", all[static_cast<size_t>(differs)].size(), " and ",
                    all[0].size(), " bytes): pass the same on all ranks, and run the same version of Weft")
              : text,
          Evidence::kDescriptor)
          .with_ranks({differs});
  comm.agreed_error(mismatch);
  return mismatch;
}

}  // namespace weft
