// Input: frames of members that are authenticated but misbehave, each with its sender, length and bytes. They
// reach the same decoders and the same group as in the store; then the client decodes them too.
#include <array>
#include <memory>

#include "fuzz.h"
#include "rendezvous/store_group.h"

using namespace weft;
using namespace weft::store;
using fuzz::demand;

namespace {

constexpr int kRanks = 3;

struct Member final : GroupMember {
  void on_joined() override { joined = true; }
  void on_round(std::shared_ptr<const Round> round) override {
    demand(joined && !failed && round->parts.size() == kRanks && round->number == rounds++);
    size_t next = 0;
    std::vector<Bytes> parts;
    while (next < round->parts.size()) {  // encodes what it decodes
      Result result;
      demand(decode(encode_result(round->number, round->parts, next, &next), &result));
      parts.insert(parts.end(), result.parts.begin(), result.parts.end());
    }
    demand(parts == round->parts);
  }
  void on_missing(const Missing& missing) override {
    demand(joined && !failed);
    Missing again;
    demand(decode(encode(missing), &again) && again.ranks == missing.ranks);
  }
  void on_failed(const Status& status) override {
    demand(!status.ok());
    Status again;
    demand(decode_failed(encode_failed(status), &again) && again.code() == status.code());
    failed = true;
  }
  bool joined = false, failed = false, gone = false;
  int rank = -1;
  uint64_t rounds = 0;
};

void take(Group& group, Member& member, ByteView frame) {
  Join join;
  Give give;
  Status why;
  if (!member.joined) {
    if (!decode(frame, &join)) return;
    member.rank = join.rank;
    const bool late = group.failed();
    demand(group.join(join, &member).ok() == member.joined && !(late && member.joined));
  } else if (decode(frame, &give)) {
    if (Status status = group.give(member.rank, std::move(give)); !status.ok()) {
      member.gone = true;
      group.lost(member.rank, status);
    }
  } else if (type_of(frame) == Type::kWhoIsMissing) {
    group.who_is_missing(member.rank, "");
  } else if (type_of(frame) == Type::kLeave) {
    member.gone = true;
    group.leave(member.rank);
  } else if (decode_failed(frame, &why)) {
    member.gone = true;
    group.lost(member.rank, why);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  Group group(kRanks);
  std::array<Member, kRanks> members;
  while (!input.empty()) {
    Member& member = members[input.byte() % members.size()];
    const ByteView frame = input.take(input.byte());
    if (!member.failed && !member.gone) take(group, member, frame);
    Result result;
    Missing missing;
    (void)decode(frame, &result);
    (void)decode(frame, &missing);
  }
  return 0;
}
