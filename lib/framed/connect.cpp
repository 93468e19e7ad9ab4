#include "framed/connect.h"

#include <sys/random.h>

#include <utility>
#include <vector>

#include "base/text.h"
#include "framed/handshake_info.h"
#include "framed/transport.h"

namespace weft::framed {
namespace {

// Sets *token to a random number that an unauthenticated client cannot guess; never 0.
Status make_token(uint64_t* token) {
  do {
    if (getrandom(token, sizeof *token, 0) != static_cast<ssize_t>(sizeof *token)) {
      return Status::system("getrandom", errno);
    }
  } while (*token == 0);
  return {};
}

// Issues a token for each rank, opens the link and fills this rank's handshake info.
Status make_handshake_info(FramedTransport& transport, int ranks, HandshakeInfo* info) {
  for (int r = 0; r < ranks; r++) {
    WEFT_TRY(make_token(&transport.peer(r).token_in));
    info->tokens.push_back(transport.peer(r).token_in);
  }
  WEFT_TRY(transport.open(&info->address));
  if (info->address.empty() || info->address.size() > kMostAddressBytes) {
    return Status::error(Code::kUnavailable,
                         cat(transport.name(), " returned an address of ", info->address.size(),
                             " bytes, allowed: 1 to ", kMostAddressBytes));
  }
  return {};
}

// Connects to all higher ranks and sends kHello. The lower rank of each pair connects first; the higher rank
// connects after it has received kHello (answer). If both connected at once, UCX would decide later which
// connection remains, by endpoints that may be closed by then. UCX 1.13 then ends the process
// (docs/dev/design.md).
Status call(FramedTransport& transport, int rank, const std::vector<HandshakeInfo>& infos) {
  for (size_t r = static_cast<size_t>(rank) + 1; r < infos.size(); r++) {
    WEFT_TRY(transport.connect(static_cast<int>(r), infos[r].address));
    transport.send_note(transport.peer(static_cast<int>(r)), NoteKind::kHello);
  }
  return {};
}

// Connects to the lower ranks whose kHello has arrived, and replies with kHello.
Status answer(FramedTransport& transport, int rank, const std::vector<HandshakeInfo>& infos) {
  for (int r = 0; r < rank; r++) {
    Peer& peer = transport.peer(r);
    if (!peer.hello || peer.connected || peer.broken) continue;
    WEFT_TRY(transport.connect(r, infos[static_cast<size_t>(r)].address));
    transport.send_note(peer, NoteKind::kHello);
  }
  return {};
}

// Makes progress until `flag` is true for every other rank, or until the deadline. Calls `step` in
// each round. Fails if a rank whose flag is not set is lost.
template <class Step>
Status await(FramedTransport& transport, const BackendArgs& args, bool Peer::* flag, Step&& step) {
  const int rank = args.exchange.rank();
  const int size = args.exchange.size();
  std::vector<int> silent;
  for (uint32_t round = 0;; round++) {
    const bool advanced = transport.progress();
    WEFT_TRY(step());
    silent.clear();
    for (int r = 0; r < size; r++) {
      const Peer& peer = transport.peer(r);
      if (r == rank || peer.*flag) continue;
      if (peer.broken) return peer.why;
      silent.push_back(args.exchange.name(r));
    }
    if (silent.empty()) return {};
    if (advanced) round = 0;
    if (round % 64 == 63) {
      WEFT_TRY(args.exchange.check());
      if (args.deadline.expired(args.clock)) break;
    }
    args.clock.relax(round);
  }
  return Status::error(Code::kTimeout,
                       cat("rank ", list_text(silent), " did not answer over ", transport.name(),
                           " before the deadline: check that the hosts reach each other over that network"),
                       Evidence::kDeadline)
      .with_ranks(silent);
}

// Runs the collective Link::join, for links that need it, before any link connects.
Status join(FramedTransport& transport, const BackendArgs& args, const std::vector<HandshakeInfo>& infos) {
  if (!transport.joins()) return {};
  WEFT_TRY(agree_on(args.exchange, {}, args.deadline));
  std::vector<ByteView> addresses;
  addresses.reserve(infos.size());
  for (const HandshakeInfo& info : infos) addresses.emplace_back(info.address);
  return agree_on(args.exchange, transport.join(addresses), args.deadline);
}

// Connects all ranks: first every rank receives every rank's kHello, then every rank's kReady. It returns
// after this rank's last kReady has left the process, so no other rank waits for this rank's progress.
Status connect_ranks(FramedTransport& transport, const BackendArgs& args,
                     const std::vector<HandshakeInfo>& infos) {
  WEFT_TRY(join(transport, args, infos));
  const int rank = args.exchange.rank();
  const Status called = call(transport, rank, infos);
  const Status agreed = agree_on(args.exchange, called, args.deadline);
  // A connection may have failed because the peer died. The exchange knows that cause, which is reported
  // instead.
  Status lost = called.ok() ? Status() : args.exchange.check();
  if (lost.code() == Code::kPeerFailed) return lost;
  WEFT_TRY(agreed);
  WEFT_TRY(await(transport, args, &Peer::hello, [&] { return answer(transport, rank, infos); }));
  for (int r = 0; r < args.exchange.size(); r++) {
    if (r != rank) transport.send_note(transport.peer(r), NoteKind::kReady);
  }
  WEFT_TRY(await(transport, args, &Peer::ready, [] { return Status(); }));
  for (uint32_t round = 0; !transport.settled(); round++) {
    if (transport.progress()) round = 0;
    if (args.deadline.expired(args.clock)) {
      return Status::error(
          Code::kTimeout,
          cat(transport.name(), " did not send this rank's last setup frames before the deadline"),
          Evidence::kDeadline);
    }
    WEFT_TRY(args.exchange.check());
    args.clock.relax(round);
  }
  return {};
}

}  // namespace

Status connect_over(std::unique_ptr<Link> link, const BackendArgs& args,
                    std::unique_ptr<Transport>* transport) {
  const int rank = args.exchange.rank();
  const int size = args.exchange.size();
  auto made = std::make_unique<FramedTransport>(rank, size, std::move(link), args.clock, args.log,
                                                first_of(args.failpoints, FailCounter::kMessages));
  HandshakeInfo mine;
  Status opened = reach(args, FailPlace::kSystem, 1);
  if (opened.ok()) opened = make_handshake_info(*made, size, &mine);
  if (!opened.ok())
    mine = {opened.text().substr(0, kMostProblemBytes), {}, std::vector<uint64_t>(static_cast<size_t>(size))};
  std::vector<Bytes> all;
  WEFT_TRY(args.exchange.all_gather(encode(mine), &all, args.deadline));
  WEFT_TRY(opened);
  std::vector<HandshakeInfo> infos(all.size());
  for (size_t r = 0; r < all.size(); r++) {
    const int name = args.exchange.name(static_cast<int>(r));
    if (!decode(all[r], size, &infos[r])) {
      return Status::error(Code::kInternal,
                           cat("rank ", name, " sent malformed handshake info (", all[r].size(),
                               " bytes): run the same version of Weft on all ranks"))
          .with_ranks({name});
    }
    if (!infos[r].problem.empty()) {
      return Status::error(Code::kUnavailable, cat("rank ", name, ": ", infos[r].problem), Evidence::kReport)
          .with_ranks({name});
    }
  }
  for (int r = 0; r < size; r++) {
    made->peer(r).token_out = infos[static_cast<size_t>(r)].tokens[static_cast<size_t>(rank)];
  }
  WEFT_TRY(connect_ranks(*made, args, infos));
  int local = 0;
  for (int r = 0; r < size; r++) local += r == rank || (args.fds != nullptr && args.fds->same_host(r));
  made->set_local_size(local);
  made->note_transports();
  *transport = std::move(made);
  return {};
}

}  // namespace weft::framed
