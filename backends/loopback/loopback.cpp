#include "loopback.h"

#include <bit>
#include <utility>

#include "base/process.h"
#include "base/text.h"
#include "fabric.h"
#include "transport.h"

namespace weft::loopback {
namespace {

Bytes encode(const ProcessIdentity& me, const void* fabric) {
  ByteWriter writer;
  me.put(writer);
  writer.put(reinterpret_cast<uintptr_t>(fabric));
  return writer.take();
}

bool decode(ByteView bytes, ProcessIdentity* identity, uintptr_t* fabric) {
  ByteReader reader(bytes);
  *identity = ProcessIdentity::get(reader);
  *fabric = reader.get<uintptr_t>();
  return reader.done();
}

using Handle = std::shared_ptr<Fabric>;

// Rank 0 publishes the address of a handle, and keeps the handle until all ranks have reported that they
// copied it. All ranks compare the same identities, so they reach the same result.
Status exchange_handles(const BackendArgs& args, const Handle* lent, Handle* fabric) {
  Exchange& exchange = args.exchange;
  const ProcessIdentity me = this_process();
  std::vector<Bytes> all;
  WEFT_TRY(exchange.all_gather(encode(me, lent), &all, args.deadline));
  uintptr_t address = 0;
  Status verdict;
  for (size_t r = 0; r < all.size(); r++) {
    ProcessIdentity theirs;
    uintptr_t given = 0;
    if (!decode(all[r], &theirs, &given) || theirs != me) {
      verdict = Status::error(Code::kUnavailable,
                              cat("loopback is for ranks of one process; rank ",
                                  exchange.name(static_cast<int>(r)), " is in another process than rank ",
                                  exchange.name(exchange.rank()), ": choose another backend"));
      break;
    }
    if (r == 0) address = given;
  }
  if (verdict.ok()) *fabric = *std::bit_cast<const Handle*>(address);
  WEFT_TRY(exchange.all_gather({}, &all, args.deadline));
  return verdict;
}

Status share_fabric(const BackendArgs& args, Handle* fabric) {
  if (args.exchange.rank() != 0) return exchange_handles(args, nullptr, fabric);
  auto* const lent = new Handle(std::make_shared<Fabric>(args.exchange.size()));
  const Status status = exchange_handles(args, lent, fabric);
  // After a failed exchange some rank may have the address and be about to copy the handle. A leak is better
  // than a use after free.
  if (status.ok() || status.code() == Code::kUnavailable) delete lent;
  return status;
}

Status probe(const Libraries&, std::string* detail) {
  *detail = "mailboxes between threads of this process";
  return {};
}

Status make_transport(const BackendArgs& args, std::unique_ptr<Transport>* transport) {
  Handle fabric;
  WEFT_TRY(share_fabric(args, &fabric));
  *transport = std::make_unique<LoopbackTransport>(std::move(fabric), args.exchange.rank());
  return {};
}

constexpr Backend kBackend = {
    .name = "loopback",
    .summary = "ranks as threads of one process, for tests",
    .preference = -1,
    .find = probe,
    .make_transport = make_transport,
    .make_collectives = nullptr,
    .reachable = nullptr,
};

}  // namespace

const Backend& backend() {
  return kBackend;
}

}  // namespace weft::loopback
